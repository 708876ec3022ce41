package child

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shell runs a script as if it were a daemon.
func shell(t *testing.T, script string) *Child {
	t.Helper()
	c, err := Start(Spec{Name: "daemon", Path: "sh", Args: []string{"-c", script}})
	require.NoError(t, err)
	t.Cleanup(c.Kill)
	return c
}

func TestTerm(t *testing.T) {
	c := shell(t, `trap 'exit 7' TERM; echo ready; while :; do read x; done`)
	_, err := c.Log().Await(t.Context(), "ready")
	require.NoError(t, err)
	assert.Equal(t, -1, c.ExitCode())
	code, err := c.Term(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 7, code)
	require.NoError(t, c.Signal(syscall.SIGTERM), "a signal to an ended process is no error")
}

func TestTermIsKilledInTheEnd(t *testing.T) {
	c := shell(t, `trap '' TERM; echo ready; exec sleep 600`)
	_, err := c.Log().Await(t.Context(), "ready")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Term(ctx)
	require.ErrorIs(t, err, context.Canceled)
	<-c.Done()
}

func TestAwaitEndsWithTheProcess(t *testing.T) {
	c := shell(t, `echo one; echo two >&2; printf three`)
	_, err := c.Log().Await(t.Context(), "four")
	require.ErrorIs(t, err, errLogEnded)
	assert.True(t, c.Log().Contains("two"))
	_, err = c.Log().Await(t.Context(), "three")
	require.ErrorIs(t, err, errLogEnded, "a line that is not whole is none")
	_, err = c.Admin(t.Context())
	require.ErrorContains(t, err, "one\ntwo\nthree")
}

func TestLogIsBounded(t *testing.T) {
	l := newLog()
	line := strings.Repeat("x", 1023) + "\n"
	for range 3 * maxLog / len(line) {
		_, err := l.Write([]byte(line))
		require.NoError(t, err)
	}
	_, err := l.Write([]byte("last\n"))
	require.NoError(t, err)
	assert.LessOrEqual(t, len(l.String()), maxLog)
	assert.Equal(t, "last\n", l.Tail(10))
}

func TestReadyAndMetric(t *testing.T) {
	var asked atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) < 3 {
			http.Error(w, "redis: down", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "# HELP a_total x\na_total{poll=\"p\",x=\"1\"} 3\na_total{poll=\"q\"} 4e+00\na_total_more 9\nb 0.5\n")
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	c := shell(t, fmt.Sprintf(`echo '{"msg":"api takes votes","addr":"h:1"}'; echo '{"msg":"admin listens","addr":%q}'; exec sleep 600`,
		strings.TrimPrefix(server.URL, "http://")))
	require.NoError(t, c.Ready(t.Context()))
	assert.Equal(t, int32(3), asked.Load())
	addr, err := c.Public(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "h:1", addr)
	for _, m := range []struct {
		name   string
		labels []string
		want   float64
		n      int
	}{
		{"a_total", nil, 7, 2}, {"a_total", []string{`poll="p"`, `x="1"`}, 3, 1}, {"a_total", []string{`poll="r"`}, 0, 0}, {"b", nil, 0.5, 1}, {"c", nil, 0, 0},
	} {
		sum, n, err := c.Samples(t.Context(), m.name, m.labels...)
		require.NoError(t, err)
		assert.InDelta(t, m.want, sum, 1e-9, m.name)
		assert.Equal(t, m.n, n, m.name)
		got, err := c.Metric(t.Context(), m.name, m.labels...)
		require.NoError(t, err)
		assert.InDelta(t, m.want, got, 1e-9, m.name)
	}
}

func TestReadyEndsWithTheProcess(t *testing.T) {
	c := shell(t, `echo '{"msg":"admin listens","addr":"127.0.0.1:1"}'; exit 3`)
	require.ErrorContains(t, c.Ready(t.Context()), "ended with 3")
}

func TestStartWithoutABinary(t *testing.T) {
	_, err := Start(Spec{Name: "daemon", Path: "/nowhere/daemon"})
	require.ErrorContains(t, err, "start daemon")
}
