package ledger

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// scripted is an api whose answers a test decides: by key, it counts attempts.
type scripted struct {
	mu       sync.Mutex
	attempts map[string]int
	bodies   map[string]map[string]bool // by key
	wrong    []string                   // user agents that should be others
	keyless  bool                       // requests without a key are fine
	answer   func(w http.ResponseWriter, r *http.Request, attempt int)
}

func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	key := r.Header.Get("Idempotency-Key")
	if key == "" && s.keyless {
		key = uuid.NewString()
	}
	if err != nil || key == "" || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
		http.Error(w, "not what the client should send", http.StatusTeapot)
		return
	}
	s.mu.Lock()
	want := keyedAgent
	if r.Header.Get("Idempotency-Key") == "" {
		want = keylessAgent
	}
	if r.UserAgent() != want {
		s.wrong = append(s.wrong, r.UserAgent())
	}
	s.attempts[key]++
	attempt := s.attempts[key]
	if s.bodies[key] == nil {
		s.bodies[key] = map[string]bool{}
	}
	s.bodies[key][r.URL.Path+" "+string(body)] = true
	s.mu.Unlock()
	s.answer(w, r, attempt)
}

func ack(w http.ResponseWriter, poll, option string) {
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprintf(w, `{"id":%q,"poll":%q,"option":%q,"accepted_at":"2026-01-20T22:00:01.234Z"}`, uuid.NewString(), poll, option)
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"status":%d,"code":%q}`, status, code)
}

// post posts total votes for p/a to a server that answers so.
func post(t *testing.T, total int64, change func(*Params), answer func(w http.ResponseWriter, r *http.Request, attempt int)) (*Client, *scripted) {
	t.Helper()
	s := &scripted{attempts: map[string]int{}, bodies: map[string]map[string]bool{}, answer: answer}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	source, err := Draw([]int{1}, total, 1)
	require.NoError(t, err)
	p := Params{
		URLs: []string{server.URL}, Choices: []Choice{{"p", "a"}}, Source: source, Connections: 8,
		Timeout: 10 * time.Second, Patience: time.Minute,
	}
	if change != nil {
		change(&p)
	}
	s.keyless = p.Keyless > 0
	c, err := NewClient(p)
	require.NoError(t, err)
	c.Run(t.Context())
	// A handler may still be at work on what was cut off.
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Empty(t, s.wrong)
	for key, bodies := range s.bodies {
		_, err := uuid.Parse(key)
		require.NoError(t, err)
		require.Equal(t, map[string]bool{`/polls/p/votes {"option":"a"}`: true}, bodies)
	}
	return c, s
}

func TestClientKeepsWhatItWasAnswered(t *testing.T) {
	c, s := post(t, 100, nil, func(w http.ResponseWriter, _ *http.Request, _ int) { ack(w, "p", "a") })
	assert.Equal(t, Sums{Sent: 100, Acked: 100}, c.Record().Sums(0))
	assert.Len(t, s.attempts, 100, "a key for each vote")
	assert.Empty(t, c.Record().Answers())
	receipts := c.Record().sorted(0)
	require.Len(t, receipts, 100)
	for _, r := range receipts {
		assert.LessOrEqual(t, int64(r.at), time.Since(c.record.began).Milliseconds())
	}
	assert.IsIncreasing(t, ids(receipts))
}

func ids(receipts []receipt) (ids []string) {
	for _, r := range receipts {
		ids = append(ids, r.id.String())
	}
	return ids
}

// The time of an acknowledgement is that of its receipt, not of the sending.
func TestClientNotesWhenItWasAnswered(t *testing.T) {
	const wait = 60 * time.Millisecond
	c, _ := post(t, 3, nil, func(w http.ResponseWriter, _ *http.Request, _ int) {
		<-time.After(wait)
		ack(w, "p", "a")
	})
	for _, r := range c.Record().sorted(0) {
		assert.GreaterOrEqual(t, int64(r.at), wait.Milliseconds())
	}
}

func TestClientRepeatsUntilItKnows(t *testing.T) {
	for name, fail := range map[string]func(w http.ResponseWriter, r *http.Request){
		"503": func(w http.ResponseWriter, _ *http.Request) {
			refuse(w, http.StatusServiceUnavailable, "queue-unavailable")
		},
		"500":      func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusInternalServerError, "internal") },
		"429":      func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusTooManyRequests, "slow-down") },
		"408":      func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusRequestTimeout, "request-timeout") },
		"redirect": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusFound) },
		"hangs up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		// What was cut off says nothing about who sent it.
		"202 cut off": func(w http.ResponseWriter, _ *http.Request) {
			cutOff(w, "Content-Length: 100\r\n\r\n{\"id\":")
		},
		"202 cut off in a chunk": func(w http.ResponseWriter, _ *http.Request) {
			cutOff(w, "Transfer-Encoding: chunked\r\n\r\n9\r\n{\"id")
		},
		"202 cut off between chunks": func(w http.ResponseWriter, _ *http.Request) {
			cutOff(w, "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n")
		},
		"202 that ends as it may":      func(w http.ResponseWriter, _ *http.Request) { cutOff(w, "\r\n{\"id\":") },
		"202 cut off in its header":    func(w http.ResponseWriter, _ *http.Request) { cutOff(w, "Content-Le") },
		"202 cut off after its header": func(w http.ResponseWriter, _ *http.Request) { cutOff(w, "Content-Length: 2\r\n\r\n") },
		"closes after 503": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			refuse(w, http.StatusServiceUnavailable, "overloaded")
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := post(t, 20, nil, func(w http.ResponseWriter, r *http.Request, attempt int) {
				if attempt < 3 {
					fail(w, r)
					return
				}
				w.Header().Set("Idempotency-Replayed", "true")
				ack(w, "p", "a")
			})
			assert.Equal(t, Sums{Sent: 20, Acked: 20, Replayed: 20}, c.Record().Sums(0))
			for _, n := range s.attempts {
				assert.Equal(t, 3, n)
			}
			var unknown int64
			for _, n := range c.Record().Answers() {
				unknown += n
			}
			assert.Equal(t, int64(40), unknown)
			wrong, examples := c.Record().Wrong()
			assert.Zero(t, wrong, examples)
		})
	}
}

// cutOff answers 202 with the rest of an answer, and closes the connection.
func cutOff(w http.ResponseWriter, rest string) {
	c, out, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = out.WriteString("HTTP/1.1 202 Accepted\r\n" + rest)
	_ = out.Flush()
	_ = c.Close()
}

func TestClientSeesAnAcknowledgementWithoutReceipt(t *testing.T) {
	for name, body := range map[string]string{
		"nothing": "", "no JSON": "taken", "half": `{"id":`, "no id": `{"poll":"p","option":"a"}`, "another id": `{"id":"7","poll":"p","option":"a"}`,
	} {
		for _, chunked := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", chunked ", chunked), func(t *testing.T) {
				c, _ := post(t, 20, func(p *Params) { p.Keyless = 0.5 }, func(w http.ResponseWriter, _ *http.Request, attempt int) {
					if attempt > 1 {
						ack(w, "p", "a")
						return
					}
					w.WriteHeader(http.StatusAccepted)
					if chunked {
						assert.NoError(t, http.NewResponseController(w).Flush())
					}
					_, _ = io.WriteString(w, body)
				})
				wrong, examples := c.Record().Wrong()
				assert.Equal(t, int64(20), wrong)
				assert.Contains(t, examples[0], "a vote for p/a was acknowledged without a receipt")
				s := c.Record().Sums(0)
				assert.Equal(t, s.Sent, s.Acked+s.Unknown, "those with a key are sent again")
			})
		}
	}
}

func TestClientSendsOnceWithoutAKey(t *testing.T) {
	c, s := post(t, 20, func(p *Params) { p.Keyless = 1 }, func(w http.ResponseWriter, _ *http.Request, _ int) {
		refuse(w, http.StatusServiceUnavailable, "queue-unavailable")
	})
	assert.Equal(t, Sums{Sent: 20, Unknown: 20}, c.Record().Sums(0))
	assert.Len(t, s.attempts, 20)
}

// A vote that found no api is none that may have been taken.
func TestClientKnowsWhatItDidNotSend(t *testing.T) {
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	c, _ := post(t, 40, func(p *Params) { p.Keyless = 1; p.URLs = append([]string{down.URL}, p.URLs...) },
		func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) })
	s := c.Record().Sums(0)
	assert.Equal(t, Sums{Sent: 40, Unknown: 40 - s.Unsent, Unsent: s.Unsent}, s)
	assert.Positive(t, s.Unsent)
	assert.Positive(t, s.Unknown)
	assert.Equal(t, s.Unsent, c.Record().Answers()["connection refused"])
}

func TestClientTimesOut(t *testing.T) {
	late := make(chan struct{})
	t.Cleanup(func() { close(late) })
	c, _ := post(t, 8, func(p *Params) { p.Timeout = 50 * time.Millisecond },
		func(w http.ResponseWriter, r *http.Request, attempt int) {
			if attempt == 1 {
				select {
				case <-late:
				case <-r.Context().Done():
				}
				return
			}
			ack(w, "p", "a")
		})
	assert.Equal(t, int64(8), c.Record().Sums(0).Acked)
	assert.GreaterOrEqual(t, c.Record().Answers()["timeout"], int64(8))
}

func TestClientTakesRefusals(t *testing.T) {
	c, s := post(t, 20, nil, func(w http.ResponseWriter, _ *http.Request, _ int) {
		refuse(w, http.StatusUnprocessableEntity, "unknown-option")
	})
	assert.Equal(t, Sums{Sent: 20, Refused: 20}, c.Record().Sums(0))
	assert.Equal(t, map[string]int64{"422 unknown-option": 20}, c.Record().Answers())
	for _, n := range s.attempts {
		assert.Equal(t, 1, n, "a refused vote is not sent again")
	}
}

func TestClientSeesAWrongAcknowledgement(t *testing.T) {
	c, _ := post(t, 3, nil, func(w http.ResponseWriter, _ *http.Request, _ int) { ack(w, "p", "b") })
	n, examples := c.Record().Wrong()
	assert.Equal(t, int64(3), n)
	assert.Contains(t, examples[0], "a vote for p/a was acknowledged as p/b")
}

func TestClientGivesUpAfterItsPatience(t *testing.T) {
	c, _ := post(t, 8, func(p *Params) { p.Patience = 0 }, func(w http.ResponseWriter, _ *http.Request, _ int) {
		refuse(w, http.StatusServiceUnavailable, "overloaded")
	})
	s := c.Record().Sums(0)
	assert.Equal(t, s.Sent, s.Unsettled)
	assert.Positive(t, s.Unsettled)
}

func TestClientGoesToAnotherApi(t *testing.T) {
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	c, _ := post(t, 20, func(p *Params) { p.URLs = append([]string{down.URL}, p.URLs...) },
		func(w http.ResponseWriter, _ *http.Request, _ int) { ack(w, "p", "a") })
	assert.Equal(t, int64(20), c.Record().Sums(0).Acked)
	assert.Positive(t, c.Record().Answers()["connection refused"])
}

func TestClientKeepsARate(t *testing.T) {
	c, _ := post(t, 20, func(p *Params) { p.Rate = 200 }, func(w http.ResponseWriter, _ *http.Request, _ int) { ack(w, "p", "a") })
	// The twentieth may not go before its time, however fast the machine is.
	assert.GreaterOrEqual(t, c.Took(), 95*time.Millisecond)
}

func TestClientHangsUp(t *testing.T) {
	const votes = 200
	s := &scripted{attempts: map[string]int{}, bodies: map[string]map[string]bool{}, keyless: true}
	s.answer = func(w http.ResponseWriter, _ *http.Request, attempt int) {
		if attempt > 1 {
			w.Header().Set("Idempotency-Replayed", "true")
		}
		ack(w, "p", "a")
	}
	server := httptest.NewServer(s)
	defer server.Close()
	var client *Client
	draw, err := Draw([]int{1}, 2*votes, 1)
	require.NoError(t, err)
	var drawn atomic.Int64
	client, err = NewClient(Params{
		URLs: []string{server.URL}, Choices: []Choice{{"p", "a"}}, Connections: 8, Keyless: 0.5,
		Timeout: 10 * time.Second, Patience: time.Minute,
		Source: func() (int, bool) {
			if drawn.Add(1) == votes {
				client.SetHangUps(0) // while it runs
			}
			return draw()
		},
	})
	require.NoError(t, err)
	client.SetHangUps(0.3)
	client.Run(t.Context())
	sums, hungUp := client.Record().Sums(0), client.Record().Answers()["hung up"]
	assert.Equal(t, int64(2*votes), sums.Sent)
	assert.Equal(t, sums.Sent, sums.Acked+sums.Unknown, "those with a key were sent again")
	assert.Positive(t, sums.Unknown)
	assert.Positive(t, sums.Replayed)
	assert.Greater(t, hungUp, sums.Unknown)
	assert.Less(t, hungUp, int64(votes))
	assert.Len(t, client.Record().Answers(), 1, "nothing else went wrong")
}

func TestClientStops(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var once sync.Once
	s := &scripted{attempts: map[string]int{}, bodies: map[string]map[string]bool{}, answer: func(w http.ResponseWriter, _ *http.Request, _ int) {
		once.Do(stop)
		ack(w, "p", "a")
	}}
	server := httptest.NewServer(s)
	defer server.Close()
	source, err := Draw([]int{1}, 0, 1)
	require.NoError(t, err)
	c, err := NewClient(Params{
		URLs: []string{server.URL}, Choices: []Choice{{"p", "a"}}, Source: source, Connections: 2,
		Timeout: 10 * time.Second, Patience: time.Minute,
	})
	require.NoError(t, err)
	c.Run(ctx)
	sums := c.Record().Sums(0)
	assert.Equal(t, sums.Sent, sums.Acked, "what was in the air is settled")
}

func TestNewClientRefuses(t *testing.T) {
	source := Shuffle([]int64{1}, 1)
	good := func() Params {
		return Params{
			URLs: []string{"http://h:1/base/"}, Choices: []Choice{{"p", "a"}}, Source: source, Connections: 1, Timeout: time.Second,
		}
	}
	c, err := NewClient(good())
	require.NoError(t, err)
	assert.Equal(t, mustTake, c.record.entries[0].expect)
	p := good()
	p.Choices, p.Refuse, p.Either = append(p.Choices, Choice{"p", "b"}, Choice{"q", "a"}), []Choice{{"q", "a"}}, []Choice{{"p", "b"}}
	c, err = NewClient(p)
	require.NoError(t, err)
	assert.Equal(t, mayRefuse, c.record.entries[1].expect)
	assert.Equal(t, mustRefuse, c.record.entries[2].expect)
	for name, change := range map[string]func(*Params){
		"no api":                 func(p *Params) { p.URLs = nil },
		"no URL":                 func(p *Params) { p.URLs = []string{"127.0.0.1:8080"} },
		"another scheme":         func(p *Params) { p.URLs = []string{"ftp://h"} },
		"a query":                func(p *Params) { p.URLs = []string{"http://h?x"} },
		"an id":                  func(p *Params) { p.Choices = []Choice{{"P", "a"}} },
		"a choice twice":         func(p *Params) { p.Choices = []Choice{{"p", "a"}, {"p", "a"}} },
		"refuse what is none":    func(p *Params) { p.Refuse = []Choice{{"p", "b"}} },
		"either of what is none": func(p *Params) { p.Either = []Choice{{"p", "b"}} },
		"refuse and either":      func(p *Params) { p.Refuse, p.Either = p.Choices, p.Choices },
		"no source":              func(p *Params) { p.Source = nil },
		"no connections":         func(p *Params) { p.Connections = 0 },
		"no time-out":            func(p *Params) { p.Timeout = 0 },
		"a share above 1":        func(p *Params) { p.Keyless = 1.1 },
		"a negative rate":        func(p *Params) { p.Rate = -1 },
	} {
		p := good()
		change(&p)
		_, err := NewClient(p)
		assert.Error(t, err, name)
	}
}

func TestRecordIsSmall(t *testing.T) {
	const votes = 1 << 20
	r := NewRecord([]Choice{{"p", "a"}})
	perVote := testing.AllocsPerRun(1, func() {
		for range votes / 2 {
			r.addAcked(0, uuid.UUID{}, false, r.began)
		}
	}) / (votes / 2)
	// One piece for every 8192 votes, and the list of pieces.
	assert.Less(t, perVote, 0.001)
	assert.Equal(t, 20, int(unsafe.Sizeof(receipt{})))
}
