package testkit

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/lab"
	"paredao/internal/ledger/child"
)

// failing is a test whose failure is a panic.
type failing struct{ testing.TB }

func (failing) Fatal(args ...any)            { panic(fmt.Sprint(args...)) }
func (failing) Fatalf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }

func TestMissingMetricFails(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "a_total{poll=\"p\"} 3\nb 0\n")
	}))
	defer server.Close()
	d, err := lab.StartDaemon(child.Spec{Name: "api", Path: "sh", Args: []string{"-c", fmt.Sprintf(
		`echo '{"msg":"admin listens","addr":%q}'; exec sleep 600`, strings.TrimPrefix(server.URL, "http://"))}})
	require.NoError(t, err)
	defer d.Kill()
	p := &Process{tb: failing{t}, d: d}
	assert.InDelta(t, 3, p.Metric("a_total"), 0)
	assert.InDelta(t, 0, p.Metric("b"), 0)
	assert.PanicsWithValue(t, d.Name()+" has no metric c []", func() { p.Metric("c") })
	assert.Panics(t, func() { p.Metric("a_total", `poll="q"`) })
	assert.InDelta(t, 0, p.MetricOrZero("a_total", `poll="q"`), 0)
	server.Close()
	assert.Panics(t, func() { p.MetricOrZero("a_total") }, "what can't be read is not 0")
}
