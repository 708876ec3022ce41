package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"paredao/internal/testkit"
)

// bin holds the binaries that the tests have built.
var bin struct {
	once sync.Once
	dir  string
	err  error
}

// TestMain removes the binaries, and looks for goroutines that were left behind.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := errors.Join(os.RemoveAll(bin.dir), testkit.RemoveBinaries()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))
}

// binary builds allinone and tally into one folder, as make does, and returns
// the path of one.
func binary(t *testing.T, name string) string {
	t.Helper()
	bin.once.Do(func() {
		if bin.dir, bin.err = os.MkdirTemp("", "allinone-test-"); bin.err != nil {
			return
		}
		args := []string{"build", "-o", bin.dir}
		if raceDetector {
			args = append(args, "-race")
		}
		cmd := exec.Command("go", append(args, "./cmd/allinone", "./cmd/tally")...)
		cmd.Dir = testkit.RepoRoot(t)
		if out, err := cmd.CombinedOutput(); err != nil {
			bin.err = fmt.Errorf("%w: %s", err, out)
		}
	})
	require.NoError(t, bin.err)
	return filepath.Join(bin.dir, name)
}

// patience bounds every wait for a process: only a hang is ended by it.
const patience = 2 * time.Minute

// place is a folder in which programs are started, and what they find in the
// environment.
type place struct {
	t   *testing.T
	dir string
	env []string
}

func newPlace(t *testing.T, env ...string) *place {
	t.Helper()
	return &place{t: t, dir: t.TempDir(), env: env}
}

func (p *place) command(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = p.dir
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PAREDAO_") && !strings.HasPrefix(kv, "AZURE_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, "GORACE=atexit_sleep_ms=0") // it would wait for a second
	cmd.Env = append(cmd.Env, p.env...)
	// A group of its own, as a shell makes one; and no process outlives the test.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	return cmd
}

// process is one that was started.
type process struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr *output
	done           chan struct{}
}

func (p *place) start(cmd *exec.Cmd) *process {
	p.t.Helper()
	r := &process{t: p.t, cmd: cmd, stdout: &output{}, stderr: &output{}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = r.stdout, r.stderr
	require.NoError(p.t, cmd.Start())
	go func() {
		defer close(r.done)
		_ = cmd.Wait() // the code is asked for
	}()
	p.t.Cleanup(func() {
		r.kill()
		if p.t.Failed() {
			p.t.Logf("%s:\n%s%s", cmd, r.stdout, r.stderr)
		}
		require.NotContains(p.t, r.stderr.String(), "DATA RACE")
	})
	return r
}

// allinone starts an allinone on free ports. Later arguments count.
func (p *place) allinone(args ...string) *process {
	p.t.Helper()
	args = append([]string{"--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0"}, args...)
	return p.start(p.command(binary(p.t, "allinone"), args...))
}

// tally runs tally to the end.
func (p *place) tally(args ...string) *process {
	p.t.Helper()
	r := p.start(p.command(binary(p.t, "tally"), args...))
	r.wait()
	return r
}

// ok wants success without a word on standard error.
func (r *process) ok() string {
	r.t.Helper()
	require.Equal(r.t, 0, r.wait(), "%s: %s", r.cmd, r.stderr)
	require.Empty(r.t, r.stderr.String(), "%s", r.cmd)
	return r.stdout.String()
}

// fails wants an exit code, and one line on standard error that has all of
// texts.
func (r *process) fails(code int, texts ...string) {
	r.t.Helper()
	require.Equal(r.t, code, r.wait(), "%s: %s", r.cmd, r.stderr)
	require.Empty(r.t, r.stdout.String())
	require.Regexp(r.t, `^allinone: [^\n]+\n$`, r.stderr.String())
	for _, text := range texts {
		require.Contains(r.t, r.stderr.String(), text)
	}
}

// wait waits for the end and returns the exit code, -1 after a signal.
func (r *process) wait() int {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case <-r.done:
	case <-ctx.Done():
		r.t.Fatalf("%s does not end; it said:\n%s%s", r.cmd, r.stdout, r.stderr)
	}
	return r.cmd.ProcessState.ExitCode()
}

func (r *process) kill() {
	_ = r.cmd.Process.Kill() // it may have ended
	<-r.done
}

// interrupt is Ctrl-C: the signal goes to the whole group.
func (r *process) interrupt() int {
	r.t.Helper()
	require.NoError(r.t, syscall.Kill(-r.cmd.Process.Pid, syscall.SIGINT))
	return r.wait()
}

// logged is a member of the first line of the log with that message, once there
// is one.
func (r *process) logged(message, member string) string {
	r.t.Helper()
	var found string
	testkit.Eventually(r.t, "the log says "+message, func() bool {
		for line := range strings.Lines(r.stderr.String()) {
			var fields map[string]any
			if json.Unmarshal([]byte(line), &fields) == nil && fields["msg"] == message {
				found = fmt.Sprint(fields[member])
				return true
			}
		}
		select {
		case <-r.done:
			r.t.Fatalf("it ended with %d before it said %q:\n%s", r.cmd.ProcessState.ExitCode(), message, r.stderr)
		default:
		}
		return false
	})
	return found
}

// ready waits until it is, and returns it.
func (r *process) ready() *process {
	r.t.Helper()
	admin := r.logged("admin listens", "addr")
	testkit.Eventually(r.t, "it is ready", func() bool { return r.get("http://"+admin+"/readyz") == http.StatusOK })
	r.greeting()
	r.logged("poll applied", "poll") // votes before that may have got 503
	return r
}

var greetingLine = regexp.MustCompile(`(?m)^  (vote|results|totals|stop) +(.+)$`)

// greeting is what it tells a new user, by the first word of the line.
func (r *process) greeting() map[string]string {
	r.t.Helper()
	testkit.Eventually(r.t, "it greets", func() bool { return strings.Contains(r.stdout.String(), "Ctrl-C\n") })
	out := map[string]string{}
	for _, m := range greetingLine.FindAllStringSubmatch(r.stdout.String(), -1) {
		out[m[1]] = m[2]
	}
	require.Len(r.t, out, 4)
	return out
}

// redisPid is the process id of its redis-server.
func (r *process) redisPid() int {
	r.t.Helper()
	var pid int
	_, err := fmt.Sscan(strings.TrimSuffix(r.logged("redis-server started", "pid"), ".0"), &pid)
	require.NoError(r.t, err)
	return pid
}

// url is where it takes votes.
func (r *process) url() string { return "http://" + r.logged("api takes votes", "addr") }

func (r *process) get(url string) int {
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, url, nil)
	require.NoError(r.t, err)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

const form, jsonType = "application/x-www-form-urlencoded", "application/json"

// vote posts a vote, and returns its receipt and whether it was a replay.
func (r *process) vote(poll, contentType, body, key string) (id string, replayed bool) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.url()+"/polls/"+poll+"/votes", strings.NewReader(body))
	require.NoError(r.t, err)
	req.Header.Set("Content-Type", contentType)
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	require.NoError(r.t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(r.t, errors.Join(err, resp.Body.Close()))
	require.Equal(r.t, http.StatusAccepted, resp.StatusCode, string(text))
	var receipt struct{ ID string }
	require.NoError(r.t, json.Unmarshal(text, &receipt))
	return receipt.ID, resp.Header.Get("Idempotency-Replayed") == "true"
}

// counted waits until tally, in this folder and without settings, shows so many
// votes for an option.
func (p *place) counted(poll, option string, votes int, args ...string) {
	p.t.Helper()
	testkit.Eventually(p.t, fmt.Sprintf("tally shows %d votes for %s", votes, option), func() bool {
		text := p.tally(append([]string{"totals", poll, "-o", "csv"}, args...)...).ok()
		return regexp.MustCompile(fmt.Sprintf(`,%s,[^,]*,%d,`, option, votes)).MatchString(text)
	})
}

// gone waits until a process has ended: a zombie that nobody waits for counts.
func gone(t *testing.T, pid int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("process %d has ended", pid), func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return errors.Is(err, os.ErrNotExist) || bytes.Contains(stat, []byte(") Z "))
	})
}

// free tells whether nobody uses a data folder: neither an allinone nor a
// redis-server that one has left behind.
func free(t *testing.T, data string) bool {
	t.Helper()
	f, err := os.Open(filepath.Join(data, "lock"))
	if errors.Is(err, os.ErrNotExist) {
		return true
	}
	require.NoError(t, err)
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		require.NoError(t, err)
	}
	return err == nil
}

// freeAddr is an address of loopback that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// output is what a process prints, readable while it prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
