package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of the admin server. Profiles move the deadline for their own answer.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 10 * time.Second
	writeTimeout  = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	headerLimit   = 16 << 10
	scrapeTimeout = 10 * time.Second
	scrapesAtOnce = 4
	stopTimeout   = 2 * time.Second
)

// AdminParams configure an Admin.
type AdminParams struct {
	// Listen is the address, host:port.
	Listen string
	// Gatherer has the metrics for /metrics.
	Gatherer prometheus.Gatherer
	// Checks are what /readyz asks. Without any the daemon is always ready.
	Checks []Check
	Log    *slog.Logger
}

// Admin serves health, metrics and profiles. It is not for the public.
type Admin struct {
	ready    *readiness
	draining atomic.Bool
	log      *slog.Logger
	ln       net.Listener
	server   *http.Server
	cancel   context.CancelFunc // ends the requests in flight
	grace    time.Duration      // for them to end
}

// NewAdmin listens at once, so that a taken address stops the start. The
// error names the setting, the address and the cause. Requests are answered
// once Run runs. Without Run, Close gives the address back.
func NewAdmin(p AdminParams) (*Admin, error) {
	ln, err := net.Listen("tcp", p.Listen)
	if err != nil {
		return nil, fmt.Errorf("admin-listen: can't listen on %q: %w", p.Listen, cause(err))
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &Admin{ready: newReadiness(ctx, p.Checks, p.Log), log: p.Log, ln: ln, cancel: cancel, grace: stopTimeout}
	a.server = &http.Server{
		Handler:           a.routes(p),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(p.Log.Handler(), slog.LevelWarn),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerLimit,
	}
	return a, nil
}

// cause is err without the address, which the caller has named already.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Addr is the address that it listens on.
func (a *Admin) Addr() net.Addr { return a.ln.Addr() }

// SetDraining makes /readyz say 503 from now on, whatever the checks say.
func (a *Admin) SetDraining() { a.draining.Store(true) }

// Part is the server as the last part for [Run].
func (a *Admin) Part() Part { return Part{Name: "admin", Run: a.Run} }

// Run serves until ctx is cancelled, then lets the requests in flight end,
// long ones like profiles early.
func (a *Admin) Run(ctx context.Context) error {
	a.log.Info("admin listens", "addr", a.Addr().String())
	served := make(chan error, 1)
	go func() { served <- a.server.Serve(a.ln) }()
	select {
	case err := <-served:
		a.cancel()
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	a.cancel()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.grace)
	defer cancel()
	err := a.server.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		// Whoever has not sent a request, or reads no answer, is cut off.
		a.log.Debug("admin connections cut off", "after", a.grace)
		err = a.server.Close()
	}
	if end := <-served; err == nil && !errors.Is(end, http.ErrServerClosed) {
		err = end
	}
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// Close gives the address back when Run was never called.
func (a *Admin) Close() error {
	a.cancel()
	return a.ln.Close()
}

const index = `/livez         the process runs
/readyz        it can do its work now, or what fails
/metrics       for Prometheus
/debug/pprof/  profiles
`

func (a *Admin) routes(p AdminParams) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(index))
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, health{Status: "alive"})
	})
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.Gatherer, promhttp.HandlerOpts{
		// One broken collector, say one that asks Redis, must not hide the rest.
		ErrorHandling:       promhttp.ContinueOnError,
		ErrorLog:            scrapeErrors{NewOutageLog(OutageParams{Log: p.Log, Message: "metrics are incomplete"})},
		MaxRequestsInFlight: scrapesAtOnce,
		CoalesceGather:      true,
		Timeout:             scrapeTimeout,
	}))
	// Without pprof.Cmdline: a flag may hold a password.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", http.NotFound)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// readyz lets the checks end even if who asked goes away: others share their
// answer.
func (a *Admin) readyz(w http.ResponseWriter, _ *http.Request) {
	failing := map[string]string{"shutdown": "draining"}
	if !a.draining.Load() {
		failing = a.ready.failing()
	}
	if len(failing) > 0 {
		answer(w, http.StatusServiceUnavailable, health{Status: "not ready", Failing: failing})
		return
	}
	answer(w, http.StatusOK, health{Status: "ready"})
}

// health is what /livez and /readyz say.
type health struct {
	Status  string            `json:"status"`
	Failing map[string]string `json:"failing,omitempty"` // check → why
}

func answer(w http.ResponseWriter, status int, h health) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(h) // the client may be gone; nothing to do
}

// scrapeErrors is promhttp's way to log. Its errors span many lines.
type scrapeErrors struct{ outage *OutageLog }

func (s scrapeErrors) Println(v ...any) {
	s.outage.Report(errors.New(strings.Join(strings.Fields(fmt.Sprint(v...)), " ")))
}
