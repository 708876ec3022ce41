package service

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"paredao/internal/config"
	"paredao/internal/daemon"
	"paredao/internal/redisstore"
	"paredao/internal/testkit"
)

func TestMain(m *testing.M) {
	redisstore.DiscardClientLog()
	goleak.VerifyTestMain(m,
		// The client's pool looks for a lost Redis once a second, and ends after
		// it.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"),
		// fasthttp ends neither of these at once: the one lives as long as the
		// process, the other sleeps for ten seconds before it looks.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// settings are what allinone reads from these flags, on free ports.
func settings(t *testing.T, args ...string) config.Allinone {
	t.Helper()
	args = append([]string{
		"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--data", t.TempDir(),
		"--queue-shards", "2", "--archive-max-age", "1s",
	}, args...)
	c, _, err := config.ParseAllinone(args, nil, "test", io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// open returns a store that the settings name, closed with the test.
func open(t *testing.T, c config.Redis) *redisstore.Store {
	t.Helper()
	s, err := OpenStore(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// newBase returns a base on the settings' Redis, and what it logs.
func newBase(t *testing.T, c config.Allinone) (Base, *logs) {
	t.Helper()
	l := &logs{}
	log := slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return NewBase(open(t, c.Redis), daemon.NewRegistry("test", "v1", "abc"), log), l
}

type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// after returns what follows a text in the log, up to the next blank, and waits
// for it.
func (l *logs) after(t *testing.T, text string) string {
	t.Helper()
	var rest string
	testkit.Eventually(t, "the log says "+text, func() bool {
		var ok bool
		_, rest, ok = strings.Cut(l.String(), text)
		return ok && strings.ContainsAny(rest, " \n")
	})
	return strings.FieldsFunc(rest, func(r rune) bool { return r == ' ' || r == '\n' })[0]
}

// background runs a part until stop is called, which returns its error.
func background(run func(context.Context) error) (stop func() error, ended <-chan error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	return func() error {
		cancel()
		return <-done
	}, done
}

// usage fails the test unless err is one of usage, with exit code 2 and the
// parts in its text.
func usage(t *testing.T, err error, parts ...string) {
	t.Helper()
	var u *config.UsageError
	if !errors.As(err, &u) || u.ExitCode() != 2 {
		t.Fatalf("%v is no usage error", err)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%v does not say %q", err, p)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q has more than one line", err)
	}
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// client keeps no connection, so that none outlives a test.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	return answer(t, func() (*http.Response, error) { return client.Get(url) })
}

func post(t *testing.T, addr net.Addr, poll, option string) (int, string) {
	t.Helper()
	return answer(t, func() (*http.Response, error) {
		return client.Post("http://"+addr.String()+"/polls/"+poll+"/votes", "application/x-www-form-urlencoded",
			strings.NewReader("option="+option))
	})
}

func answer(t *testing.T, ask func() (*http.Response, error)) (int, string) {
	t.Helper()
	r, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}
