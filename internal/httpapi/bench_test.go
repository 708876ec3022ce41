package httpapi

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/valyala/fasthttp"

	"paredao/internal/vote"
)

// BenchmarkVote is a vote's way through the api, without the sockets before it
// and the queue behind it.
func BenchmarkVote(b *testing.B) {
	const agent = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
	for _, c := range []struct{ name, contentType, body, key string }{
		{"json", "application/json", `{"option":"ana"}`, ""},
		{"keyed", "application/json", `{"option":"ana"}`, "550e8400-e29b-41d4-a716-446655440000"},
		{"form", "application/x-www-form-urlencoded", "option=ana", ""},
	} {
		b.Run(c.name, func(b *testing.B) {
			s, err := New("127.0.0.1:0", Params{
				Submit: taken{}, Polls: onePoll{}, BodyLimit: 4 << 10, Privacy: PrivacyHMAC, ClientKey: make([]byte, 32),
				Rejected: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rejected"}, []string{"reason"}),
				Log:      slog.New(slog.DiscardHandler),
			})
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = s.edge.Close() }() // it was only opened
			if _, err := s.catalog.look(context.Background(), time.Now()); err != nil {
				b.Fatal(err)
			}
			var rc fasthttp.RequestCtx
			rc.Init2(&net.TCPConn{}, nil, false)
			rc.SetRemoteAddr(&net.TCPAddr{IP: net.IPv4(203, 0, 113, 9), Port: 4711})
			r := &rc.Request
			r.Header.SetMethod("POST")
			r.SetRequestURI("/polls/p/votes")
			r.Header.SetHost("vote.example")
			r.Header.SetContentType(c.contentType)
			r.Header.SetUserAgent(agent)
			if c.key != "" {
				r.Header.Set("Idempotency-Key", c.key)
			}
			r.SetBodyString(c.body)
			handler := s.app.Server().Handler
			b.ReportAllocs()
			for b.Loop() {
				rc.Response.Reset()
				handler(&rc)
				if code := rc.Response.StatusCode(); code != 202 {
					b.Fatalf("%d %s", code, rc.Response.Body())
				}
			}
		})
	}
}

// taken takes each vote at once.
type taken struct{}

func (taken) Overloaded() error { return nil }

func (taken) Submit(v *vote.Vote, _ string, _ *vote.IdempotencyKey) (vote.Receipt, error) {
	if v.ID == uuid.Nil || v.Client == "" || v.UserAgent == "" {
		return vote.Receipt{}, vote.ErrUnavailable
	}
	return vote.Receipt{ID: v.ID, Option: v.Option, AcceptedAt: time.Unix(1796000000, 0)}, nil
}

// onePoll is a Redis with the poll "p".
type onePoll struct{ source }

func (onePoll) Now(context.Context) (time.Time, error)        { return time.Unix(1796000000, 0), nil }
func (onePoll) PollsRevision(context.Context) (string, error) { return "1", nil }
func (onePoll) Polls(context.Context) ([]vote.PollState, error) {
	p := vote.PollState{Poll: vote.Poll{ID: "p", Title: "P"}}
	for _, id := range []string{"ana", "bruno", "carla"} {
		p.Options = append(p.Options, vote.Option{ID: id, Name: id})
	}
	return []vote.PollState{p}, nil
}
