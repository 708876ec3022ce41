package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// serve starts an admin server, and stops it at the end of the test.
func serve(t *testing.T, p AdminParams) *Admin {
	t.Helper()
	if p.Listen == "" {
		p.Listen = "127.0.0.1:0"
	}
	if p.Gatherer == nil {
		p.Gatherer = NewRegistry("api", "1.2.0", "3f2a9c1")
	}
	if p.Log == nil {
		p.Log = logTo(new(output))
	}
	a, err := NewAdmin(p)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Part().Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	return a
}

func do(t *testing.T, method, url string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	return res, string(body)
}

func get(t *testing.T, a *Admin, path string) (int, string) {
	t.Helper()
	res, body := do(t, http.MethodGet, "http://"+a.Addr().String()+path)
	return res.StatusCode, body
}

func TestAdminRoutes(t *testing.T) {
	a := serve(t, AdminParams{})
	base := "http://" + a.Addr().String()
	for _, c := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/", 200, "/readyz"},
		{"GET", "/livez", 200, `{"status":"alive"}`},
		{"HEAD", "/livez", 200, ""},
		{"GET", "/readyz", 200, `{"status":"ready"}`},
		{"GET", "/metrics", 200, "go_goroutines"},
		{"GET", "/metrics", 200, "process_open_fds"},
		{"GET", "/debug/pprof/", 200, "goroutine"},
		{"GET", "/debug/pprof/goroutine?debug=1", 200, "goroutine profile"},
		{"GET", "/debug/pprof/symbol", 200, "num_symbols"},
		{"GET", "/debug/pprof/trace?seconds=0.01", 200, ""},
		{"GET", "/debug/pprof/cmdline", 404, ""},
		{"GET", "/debug/pprof/nonsense", 404, ""},
		{"GET", "/nothing", 404, ""},
		{"GET", "/livez/", 404, ""},
		{"POST", "/livez", 405, ""},
		{"DELETE", "/metrics", 405, ""},
	} {
		res, body := do(t, c.method, base+c.path)
		assert.Equal(t, c.status, res.StatusCode, "%s %s", c.method, c.path)
		assert.Contains(t, body, c.body, "%s %s", c.method, c.path)
	}
}

func TestBuildInfo(t *testing.T) {
	_, body := get(t, serve(t, AdminParams{}), "/metrics")
	assert.Contains(t, body, `paredao_build_info{binary="api",commit="3f2a9c1",goversion="`+runtime.Version()+`",version="1.2.0"} 1`)
}

func TestReadyz(t *testing.T) {
	var (
		out  output
		down atomic.Bool
	)
	a := serve(t, AdminParams{Log: logTo(&out), Checks: []Check{
		{"redis", func(context.Context) error {
			if down.Load() {
				return errors.New("dial tcp 127.0.0.1:6379: connection refused")
			}
			return nil
		}},
		{"polls", func(context.Context) error { return nil }},
		{"queue", func(context.Context) error {
			if down.Load() {
				panic("oh")
			}
			return nil
		}},
	}})
	clock := time.Now()
	a.ready.now = func() time.Time { return clock }

	status, body := get(t, a, "/readyz")
	assert.Equal(t, 200, status)
	assert.JSONEq(t, `{"status":"ready"}`, body)

	down.Store(true)
	clock = clock.Add(answerAge - 1)
	status, _ = get(t, a, "/readyz")
	assert.Equal(t, 200, status, "the answer is remembered for a moment")

	clock = clock.Add(1)
	res, body := do(t, http.MethodGet, "http://"+a.Addr().String()+"/readyz")
	assert.Equal(t, 503, res.StatusCode)
	assert.Equal(t, "application/json", res.Header.Get("Content-Type"))
	assert.Equal(t, "no-store", res.Header.Get("Cache-Control"))
	assert.JSONEq(t, `{"status":"not ready","failing":{"redis":"dial tcp 127.0.0.1:6379: connection refused","queue":"panic: oh"}}`, body)
	status, _ = get(t, a, "/livez")
	assert.Equal(t, 200, status, "a restart would mend nothing")

	down.Store(false)
	clock = clock.Add(answerAge)
	status, _ = get(t, a, "/readyz")
	assert.Equal(t, 200, status)
	assert.Len(t, out.lines(`msg="not ready"`), 1)
	assert.Len(t, out.lines(`msg="not ready: recovered"`), 1)

	a.SetDraining()
	status, body = get(t, a, "/readyz")
	assert.Equal(t, 503, status)
	assert.JSONEq(t, `{"status":"not ready","failing":{"shutdown":"draining"}}`, body)
	status, _ = get(t, a, "/livez")
	assert.Equal(t, 200, status)
}

// Many probes at one time ask Redis once.
func TestReadyzIsShared(t *testing.T) {
	var calls atomic.Int32
	a := serve(t, AdminParams{Checks: []Check{{"redis", func(context.Context) error { calls.Add(1); return nil }}}})
	clock := time.Now()
	a.ready.now = func() time.Time { return clock }
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			res, err := http.Get("http://" + a.Addr().String() + "/readyz") //nolint:noctx // a test
			if assert.NoError(t, err) {
				assert.Equal(t, 200, res.StatusCode)
				assert.NoError(t, res.Body.Close())
			}
		})
	}
	wg.Wait()
	http.DefaultClient.CloseIdleConnections()
	assert.EqualValues(t, 1, calls.Load())
}

// A check that hangs, even one that does not look at its context, fails alone
// and is not started again until it has returned.
func TestReadyzWithHangingCheck(t *testing.T) {
	var calls atomic.Int32
	release, returned := make(chan struct{}), make(chan struct{}, 10)
	checks := []Check{
		{"hangs", func(context.Context) error {
			calls.Add(1)
			<-release
			returned <- struct{}{}
			return nil
		}},
		{"waits", func(ctx context.Context) error {
			<-ctx.Done()
			return nil // only just in time
		}},
		{"works", func(context.Context) error { return nil }},
	}
	r := newReadiness(t.Context(), checks, logTo(new(output)))
	clock := time.Now()
	r.now, r.timeout = func() time.Time { return clock }, 10*time.Millisecond

	for range 3 {
		failing := r.failing()
		assert.Equal(t, "no answer: context deadline exceeded", failing["hangs"])
		assert.NotContains(t, failing, "works")
		clock = clock.Add(time.Minute)
	}
	assert.EqualValues(t, 1, calls.Load())

	close(release)
	<-returned
	r.timeout = time.Minute
	r.checks = r.checks[:1]
	for len(r.failing()) > 0 { // the late answer may not have been sent yet
		clock = clock.Add(time.Minute)
		runtime.Gosched()
	}
}

func TestListenError(t *testing.T) {
	a := serve(t, AdminParams{})
	_, err := NewAdmin(AdminParams{Listen: a.Addr().String(), Gatherer: prometheus.NewRegistry(), Log: logTo(new(output))})
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.EqualError(t, err, `admin-listen: can't listen on "`+a.Addr().String()+`": bind: address already in use`)

	_, err = NewAdmin(AdminParams{Listen: "nonsense", Gatherer: prometheus.NewRegistry(), Log: logTo(new(output))})
	require.ErrorContains(t, err, `admin-listen: can't listen on "nonsense"`)
}

func TestBothFamilies(t *testing.T) {
	if ln, err := net.Listen("tcp6", "[::1]:0"); err != nil { //nolint:noctx // a test
		t.Skip("no IPv6 here:", err)
	} else {
		require.NoError(t, ln.Close())
	}
	a := serve(t, AdminParams{Listen: ":0"})
	_, port, err := net.SplitHostPort(a.Addr().String())
	require.NoError(t, err)
	for _, host := range []string{"127.0.0.1", "::1"} {
		res, _ := do(t, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/livez")
		assert.Equal(t, 200, res.StatusCode, host)
	}
}

func TestCloseGivesTheAddressBack(t *testing.T) {
	p := AdminParams{Listen: "127.0.0.1:0", Gatherer: prometheus.NewRegistry(), Log: logTo(new(output))}
	a, err := NewAdmin(p)
	require.NoError(t, err)
	require.NoError(t, a.Close())
	p.Listen = a.Addr().String()
	b, err := NewAdmin(p)
	require.NoError(t, err)
	require.NoError(t, b.Close())
}

// The server ends requests that take long when it is stopped.
func TestStopEndsLongRequests(t *testing.T) {
	started := make(chan struct{})
	p := AdminParams{
		Listen: "127.0.0.1:0", Gatherer: prometheus.NewRegistry(), Log: logTo(new(output)),
		Checks: []Check{{"slow", func(ctx context.Context) error {
			close(started)
			<-ctx.Done()
			return ctx.Err()
		}}},
	}
	a, err := NewAdmin(p)
	require.NoError(t, err)
	a.ready.timeout, a.grace = time.Hour, time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	var (
		wg   sync.WaitGroup
		body string
	)
	wg.Go(func() { _, body = get(t, a, "/readyz") })
	<-started
	cancel()
	require.NoError(t, <-done)
	wg.Wait()
	assert.Contains(t, body, "context canceled", "it was answered")
	_, err = net.Dial("tcp", a.Addr().String()) //nolint:noctx // a test
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
}

// A client that sends nothing is cut off, and that is no failure of the daemon.
func TestStopCutsOffSilentClients(t *testing.T) {
	var out output
	a, err := NewAdmin(AdminParams{Listen: "127.0.0.1:0", Gatherer: prometheus.NewRegistry(), Log: logTo(&out)})
	require.NoError(t, err)
	a.grace = 10 * time.Millisecond
	accepted := make(chan struct{})
	a.server.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			close(accepted)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	conn, err := net.Dial("tcp", a.Addr().String()) //nolint:noctx // a test
	require.NoError(t, err)
	<-accepted
	cancel()
	require.NoError(t, <-done)
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NoError(t, conn.Close())
	assert.Len(t, out.lines("cut off"), 1)
}

// A scrape that hangs does not hold up the stop.
func TestStopEndsHangingScrape(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	a, err := NewAdmin(AdminParams{
		Listen: "127.0.0.1:0", Log: logTo(new(output)),
		Gatherer: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			close(started)
			<-release
			return nil, nil
		}),
	})
	require.NoError(t, err)
	a.grace = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	var (
		wg     sync.WaitGroup
		status int
	)
	wg.Go(func() { status, _ = get(t, a, "/metrics") })
	<-started
	cancel()
	require.NoError(t, <-done)
	close(release)
	wg.Wait()
	assert.Equal(t, 503, status)
}

func TestServeError(t *testing.T) {
	a, err := NewAdmin(AdminParams{Listen: "127.0.0.1:0", Gatherer: prometheus.NewRegistry(), Log: logTo(new(output))})
	require.NoError(t, err)
	require.NoError(t, a.ln.Close())
	require.ErrorContains(t, a.Run(t.Context()), "serve: ")
}

// A collector that fails hides no other metric, and floods no log.
func TestMetricsWithBrokenCollector(t *testing.T) {
	var out output
	reg := NewRegistry("consumer", "dev", "none")
	reg.MustRegister(brokenCollector{})
	a := serve(t, AdminParams{Gatherer: reg, Log: logTo(&out)})
	for range 3 {
		status, body := get(t, a, "/metrics")
		assert.Equal(t, 200, status)
		assert.Contains(t, body, "paredao_build_info{")
	}
	require.Len(t, out.lines("metrics are incomplete"), 1)
	assert.Contains(t, out.String(), "redis is down")
}

type brokenCollector struct{}

func (brokenCollector) Describe(ch chan<- *prometheus.Desc) { ch <- brokenDesc() }
func (brokenCollector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.NewInvalidMetric(brokenDesc(), errors.New("redis is down"))
}

func brokenDesc() *prometheus.Desc { return prometheus.NewDesc("paredao_broken", "x", nil, nil) }

func TestHealthJSON(t *testing.T) {
	b, err := json.Marshal(health{Status: "not ready", Failing: map[string]string{"redis": strings.Repeat("x", 3) + "\n\""}})
	require.NoError(t, err)
	assert.JSONEq(t, `{"status":"not ready","failing":{"redis":"xxx\n\""}}`, string(b))
}
