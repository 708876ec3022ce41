package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"paredao/internal/vote"
)

// Submitter puts a vote on the queue and waits for the acknowledgement.
type Submitter interface {
	// Overloaded is not nil if any vote would be refused at once.
	Overloaded() error
	// Submit copies v's strings before it returns, but for Poll and Option.
	Submit(v *vote.Vote, optionsKey string, key *vote.IdempotencyKey) (vote.Receipt, error)
}

// Params configure a Server.
type Params struct {
	Submit Submitter
	Polls  Polls
	// BodyLimit is in bytes.
	BodyLimit int
	// ResultsMaxAge is how old served results may be.
	ResultsMaxAge  time.Duration
	TrustedProxies []netip.Prefix
	Privacy        Privacy
	// ClientKey is the key for PrivacyHMAC; empty: the one in Redis.
	ClientKey []byte
	// Rejected counts refused votes by reason, the problem's code.
	Rejected *prometheus.CounterVec
	// Outage gets each failed look at Redis (an error) and each good one (nil).
	Outage func(error)
	Log    *slog.Logger
}

// Limits of a connection. A header of 8 KiB is what browsers and proxies agree
// on. The time to send a request bounds what a slow sender can hold.
const (
	headerLimit  = 8 << 10
	readTimeout  = 10 * time.Second
	writeTimeout = 10 * time.Second
	idleTimeout  = 75 * time.Second
)

// Server is the public HTTP API.
type Server struct {
	p        Params
	app      *fiber.App
	catalog  catalog
	key      atomic.Pointer[[]byte]
	scratch  sync.Pool // of *scratch
	overview kept[*overview]
	renewals sync.WaitGroup // of overview and the polls' results
	logs     limiter
	edge     *edgeListener
}

// New returns a server that listens on addr. It answers once Run runs.
func New(addr string, p Params) (*Server, error) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen %q: %w", addr, err)
	}
	s := &Server{p: p, catalog: catalog{polls: p.Polls}}
	s.edge = newEdgeListener(ln, connectionLimit(), s.tooMany)
	if len(p.ClientKey) > 0 || p.Privacy != PrivacyHMAC {
		s.key.Store(&p.ClientKey)
	}
	s.app = fiber.New(fiber.Config{
		AppName:               "paredao",
		DisableStartupMessage: true,
		CaseSensitive:         true,
		StrictRouting:         true,
		BodyLimit:             p.BodyLimit,
		ReadBufferSize:        headerLimit,
		ReadTimeout:           readTimeout,
		WriteTimeout:          writeTimeout,
		IdleTimeout:           idleTimeout,
		// Nothing here reads multipart forms.
		DisablePreParseMultipartForm: true,
		ErrorHandler:                 s.fail,
	})
	s.routes()
	// Fiber's own handler answers some requests in plain text; look at them
	// before it does.
	handler := s.app.Handler()
	server := s.app.Server()
	server.CloseOnShutdown = true
	server.Logger = discardLogger{}
	server.Handler = func(rc *fasthttp.RequestCtx) { s.guard(rc, handler) }
	return s, nil
}

// discardLogger drops fasthttp's own lines: they quote requests.
type discardLogger struct{}

func (discardLogger) Printf(string, ...any) {}

func (s *Server) routes() {
	s.app.Post("/polls/:poll/votes", s.vote)
	s.app.Get("/polls/:poll/results", s.results)
	s.app.Get("/polls/:poll", s.poll)
	s.app.Get("/polls", s.list)
	s.app.Get("/openapi.json", s.openAPI)
	// What is left of the known paths has the wrong method.
	s.app.All("/polls/:poll/votes", func(*fiber.Ctx) error { return methodNotAllowed("POST") })
	for _, path := range []string{"/polls/:poll/results", "/polls/:poll", "/polls", "/openapi.json"} {
		s.app.All(path, func(*fiber.Ctx) error { return methodNotAllowed("GET, HEAD") })
	}
	s.app.Use(func(*fiber.Ctx) error {
		return newProblem(http.StatusNotFound, "not-found", "There is nothing at this address.")
	})
}

// Addr is the address that the server listens on.
func (s *Server) Addr() net.Addr { return s.edge.Addr() }

// Run serves until ctx is done, then ends: no new connections, live requests
// get their answers, idle connections are closed. The rest of the shutdown's
// time is the caller's to bound, by stop.
func (s *Server) Run(ctx context.Context) error {
	refreshed := make(chan struct{})
	refreshing, endRefresh := context.WithCancel(ctx)
	defer endRefresh()
	go func() {
		defer close(refreshed)
		var tidied sync.WaitGroup
		tidied.Go(func() { s.tidy(refreshing) })
		s.catalog.run(refreshing, s.p.Outage)
		tidied.Wait()
	}()
	served := make(chan error, 1)
	go func() { served <- s.app.Listener(s.edge) }()
	select {
	case err := <-served:
		endRefresh()
		<-refreshed
		return fmt.Errorf("%s: serve: %w", s.edge.Addr(), cmp.Or(err, net.ErrClosed))
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	err := s.app.ShutdownWithContext(stop)
	// A shutdown that comes before the server has begun finds nothing to close.
	_ = s.edge.Close() // in the other cases it is closed already
	select {
	case ended := <-served:
		err = errors.Join(err, ended)
	case <-stop.Done():
	}
	s.edge.wg.Wait() // who was refused has a second
	s.renewals.Wait()
	<-refreshed // last: a Redis that does not answer may hold it up
	if err != nil {
		return fmt.Errorf("shutdown: %w", err)
	}
	return nil
}

// shutdownTimeout is longer than any request may take.
const shutdownTimeout = readTimeout + writeTimeout

// Ready tells whether the polls are known, and what is missing if not.
func (s *Server) Ready(ctx context.Context) error {
	if _, err := s.catalog.look(ctx, time.Now()); err != nil {
		return err
	}
	_, err := s.clientKey(ctx)
	return err
}

// clientKey returns the key for addresses; Redis has it unless a file does.
func (s *Server) clientKey(ctx context.Context) ([]byte, error) {
	if key := s.key.Load(); key != nil {
		return *key, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	key, err := s.p.Polls.ClientKey(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", vote.ErrUnavailable, err)
	}
	s.key.Store(&key)
	return key, nil
}

// guard stands before every request: it refuses what a proxy in front might
// read in another way, and turns a panic into an answer.
func (s *Server) guard(rc *fasthttp.RequestCtx, next fasthttp.RequestHandler) {
	defer func() {
		if r := recover(); r != nil {
			s.p.Log.Error("panic in a handler", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			rc.Response.Reset()
			s.answer(rc, newProblem(http.StatusInternalServerError, "internal", "Something went wrong on our side."))
		}
	}()
	h := &rc.Request.Header
	f := readFraming(h.RawHeaders(), h.IsHTTP11())
	if f.bad == "" && f.chunked && dropTrailers(h) != nil {
		f.bad = "The header can't be read."
	}
	if f.bad != "" {
		p := newProblem(http.StatusBadRequest, "malformed-request", f.bad)
		p.close = true
		s.answer(rc, p)
		return
	}
	if !knownMethod(h.Method()) {
		allow := "GET, HEAD"
		if bytes.HasSuffix(rc.Path(), []byte("/votes")) {
			allow = "POST"
		}
		s.answer(rc, methodNotAllowed(allow))
		return
	}
	next(rc)
}

// answer writes a problem outside of Fiber's own handling.
func (s *Server) answer(rc *fasthttp.RequestCtx, p *problem) {
	c := s.app.AcquireCtx(rc)
	defer s.app.ReleaseCtx(c)
	_ = s.fail(c, p) // it always writes its answer
}

// fail answers an error, counts it and logs it.
func (s *Server) fail(c *fiber.Ctx, err error) error {
	p := toProblem(err)
	if c.Method() == fiber.MethodPost {
		s.p.Rejected.WithLabelValues(p.Code).Inc()
	} else if p.Code == "queue-unavailable" {
		p.Detail = "This can't be read at the moment. Try again."
	}
	id := p.send(c)
	s.logRefusal(p, id, c.Method(), c.Request().URI().Path())
	return nil
}

// logRefusal logs a refusal, unless there are too many of its kind. A
// connection that was refused has no method and no path.
func (s *Server) logRefusal(p *problem, id, method string, path []byte) {
	level := slog.LevelInfo
	if p.Status >= http.StatusInternalServerError {
		level = slog.LevelWarn
	}
	if dropped, ok := s.logs.allow(p.Code, time.Now()); ok {
		s.p.Log.Log(context.Background(), level, "request refused", "code", p.Code, "status", p.Status,
			"method", method, "path", string(path), "request_id", id,
			"cause", errorText(p.cause), "not_logged", dropped)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
