package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"paredao/internal/ledger"
)

// generator posts votes by the clock: a vote is due when the rate says so,
// whether earlier ones have been answered or not, and its latency counts from
// that moment. So a server that stands still for a second shows up in every
// vote of that second (no coordinated omission), and so does a generator that
// can't keep up.
//
// Its votes have no Idempotency-Key, and are never sent again.
type generator struct {
	p       generatorParams
	start   time.Time
	tickets chan time.Time
	votes   [][]byte // whole requests, taken in turn
	next    atomic.Int64
	// renewed counts the calls of reconnect.
	renewed atomic.Int64
	pacing  chan struct{}
	working sync.WaitGroup
	end     context.CancelFunc

	mu      sync.Mutex
	seconds []*second
	// books are kept by choice, over all the time.
	books []book
}

// book is what became of the votes for one choice.
type book struct{ accepted, unsettled int64 }

type generatorParams struct {
	// addr is the api's host:port.
	addr    string
	choices []ledger.Choice
	// connections is how many votes may be in the air at one time.
	connections int
	// rate is how many votes a second are due at a time since the start.
	rate    func(since time.Duration) float64
	timeout time.Duration
}

// second is what became of the votes that were due in one second.
type second struct {
	// accepted (202) and refused (429, or 503 overloaded) are latencies in µs.
	accepted, refused *hdrhistogram.Histogram
	// unsettled votes may have been taken: no answer, or 503 queue-unavailable.
	unsettled int64
	// other answers, and refusals without Retry-After or of another type.
	wrong int64
	// unsent votes were due, and no connection was free for very long.
	unsent int64
	// what tells the unsettled and the wrong apart.
	what map[string]int64
}

const (
	longestLatency = time.Minute
	// digits are the significant ones of the histograms: 2 are one percent.
	digits = 2
)

func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, longestLatency.Microseconds(), digits)
}

func newSecond() *second {
	return &second{accepted: newHistogram(), refused: newHistogram(), what: map[string]int64{}}
}

// add adds another second's votes.
func (s *second) add(o *second) {
	s.accepted.Merge(o.accepted)
	s.refused.Merge(o.refused)
	s.unsettled += o.unsettled
	s.wrong += o.wrong
	s.unsent += o.unsent
	for what, n := range o.what {
		s.what[what] += n
	}
}

// due is how many votes were due in it and have their end.
func (s *second) due() int64 {
	return s.accepted.TotalCount() + s.refused.TotalCount() + s.unsettled + s.wrong + s.unsent
}

// quantile of a histogram of µs.
func quantile(h *hdrhistogram.Histogram, percent float64) time.Duration {
	return time.Duration(h.ValueAtQuantile(percent)) * time.Microsecond
}

// agents are sent in turn, so that votes are as different as those of people.
func agents() []string {
	return []string{
		"Mozilla/5.0 (Linux; Android 15; SM-A556E) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/137.0.0.0 Mobile Safari/537.36",
		"Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Mobile/15E148 Safari/604.1",
		"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/138.0.0.0 Safari/537.36",
		"Mozilla/5.0 (Linux; Android 14; moto g84 5G) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/136.0.0.0 Mobile Safari/537.36",
	}
}

// requests are the votes as they are sent.
func requests(choices []ledger.Choice) [][]byte {
	var all [][]byte
	for _, agent := range agents() {
		for _, c := range choices {
			body := fmt.Sprintf(`{"option":%q}`, c.Option)
			all = append(all, fmt.Appendf(nil, "POST /polls/%s/votes HTTP/1.1\r\nHost: vote.example\r\nUser-Agent: %s\r\n"+
				"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", c.Poll, agent, len(body), body))
		}
	}
	return all
}

// startGenerator starts to post. It goes on until stop, or the end of ctx.
func startGenerator(ctx context.Context, p generatorParams) *generator {
	ctx, cancel := context.WithCancel(ctx)
	g := &generator{
		p: p, start: time.Now(), votes: requests(p.choices), end: cancel, pacing: make(chan struct{}),
		books: make([]book, len(p.choices)),
		// So many may be due and wait for a connection: some seconds of them.
		tickets: make(chan time.Time, 1<<16),
	}
	for range p.connections {
		g.working.Go(g.work)
	}
	go func() {
		defer close(g.pacing)
		defer close(g.tickets)
		g.pace(ctx)
	}()
	return g
}

// stop ends the posting, and returns when all votes that were due have had
// their answer.
func (g *generator) stop() {
	g.end()
	<-g.pacing
	g.working.Wait()
}

// since is the time since the start.
func (g *generator) since() time.Duration { return time.Since(g.start) }

// pace makes votes due.
func (g *generator) pace(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	due := g.start
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for now := time.Now(); !due.After(now); {
			rate := g.p.rate(due.Sub(g.start))
			if rate <= 0 { // a pause: in steps, so that a stall does not make it longer
				due = due.Add(time.Millisecond)
				continue
			}
			select {
			case g.tickets <- due:
			default:
				g.note(due, func(s *second) { s.unsent++ })
			}
			due = due.Add(time.Duration(float64(time.Second) / rate))
		}
	}
}

// work posts what is due over one connection.
func (g *generator) work() {
	c := &generatorConn{addr: g.p.addr, timeout: g.p.timeout}
	defer c.close()
	for due := range g.tickets {
		if n := g.renewed.Load(); n != c.renewed {
			c.close()
			c.renewed = n
		}
		at := int(g.next.Add(1)) % len(g.votes)
		a, err := c.post(g.votes[at])
		took := time.Since(due)
		g.note(due, func(s *second) {
			accepted, unsettled := s.accepted.TotalCount(), s.unsettled
			s.settle(a, err, took)
			b := &g.books[at%len(g.books)] // requests has the choices in turn
			b.accepted += s.accepted.TotalCount() - accepted
			b.unsettled += s.unsettled - unsettled
		})
	}
}

// reconnect has each connection made anew before its next vote: after a restart
// of the api, which has closed them, a vote would have no answer.
func (g *generator) reconnect() { g.renewed.Add(1) }

// note changes the second in which a vote was due.
func (g *generator) note(due time.Time, change func(*second)) {
	at := int(due.Sub(g.start) / time.Second)
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.seconds) <= at {
		g.seconds = append(g.seconds, newSecond())
	}
	change(g.seconds[at])
}

// settle notes what became of a vote.
func (s *second) settle(a generatorAnswer, err error, took time.Duration) {
	us := min(max(took, time.Microsecond), longestLatency).Microseconds()
	switch {
	case err != nil:
		s.unsettled++
		s.what[kindOf(err)]++
	case a.status == 202:
		_ = s.accepted.RecordValue(us) // within the bounds
	case a.status == 429 || a.status == 503 && a.overloaded:
		_ = s.refused.RecordValue(us)
		if !a.retryAfter || !a.problem {
			s.wrong++
			s.what[fmt.Sprintf("%d without Retry-After or problem+json", a.status)]++
		}
	case a.status == 503:
		s.unsettled++
		s.what["503 queue-unavailable"]++
	default:
		s.wrong++
		s.what[strconv.Itoa(a.status)]++
	}
}

// kindOf is a short name of a failure.
func kindOf(err error) string {
	var op *net.OpError
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "time-out"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "closed"
	case errors.As(err, &op) && op.Op == "dial":
		return "dial"
	}
	return "failure"
}

// between sums up the votes that were due from one second to before another.
func (g *generator) between(from, to time.Duration) *second {
	g.mu.Lock()
	defer g.mu.Unlock()
	sum := newSecond()
	for at := int(from / time.Second); at < int(to/time.Second) && at < len(g.seconds); at++ {
		sum.add(g.seconds[at])
	}
	return sum
}

// all sums up all votes.
func (g *generator) all() *second { return g.between(0, longestRun) }

// byChoice returns the books.
func (g *generator) byChoice() []book {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.books)
}

const longestRun = 1000 * time.Hour

// generatorConn is one keep-alive connection, made anew when it ends.
type generatorConn struct {
	addr    string
	timeout time.Duration
	conn    net.Conn
	r       *bufio.Reader
	body    []byte
	renewed int64
}

// generatorAnswer is what is looked at of an answer.
type generatorAnswer struct {
	status     int
	retryAfter bool
	problem    bool // of that content type
	overloaded bool
	closed     bool // the server closes
}

func (c *generatorConn) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

func (c *generatorConn) post(request []byte) (generatorAnswer, error) {
	a, err := c.exchange(request)
	if err != nil || a.closed {
		c.close()
	}
	return a, err
}

func (c *generatorConn) exchange(request []byte) (a generatorAnswer, err error) {
	if c.conn == nil {
		if c.conn, err = net.DialTimeout("tcp", c.addr, c.timeout); err != nil {
			c.conn = nil
			return a, err
		}
		c.r = bufio.NewReaderSize(c.conn, 4<<10)
	}
	if err := c.conn.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return a, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return a, err
	}
	return c.read()
}

var errAnswerForm = errors.New("no HTTP answer")

// read reads one answer. It knows as much of HTTP as the api's answers need.
func (c *generatorConn) read() (a generatorAnswer, err error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return a, err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) || len(line) < 12 {
		return a, errAnswerForm
	}
	if a.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return a, errAnswerForm
	}
	length := -1
	for {
		if line, err = c.r.ReadSlice('\n'); err != nil {
			return a, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch strings.ToLower(string(name)) {
		case "content-length":
			if length, err = strconv.Atoi(string(value)); err != nil {
				return a, errAnswerForm
			}
		case "connection":
			a.closed = string(value) == "close"
		case "retry-after":
			a.retryAfter = len(value) > 0
		case "content-type":
			a.problem = string(value) == "application/problem+json"
		}
	}
	const longest = 64 << 10
	if length < 0 || length > longest {
		return a, errAnswerForm
	}
	if cap(c.body) < length {
		c.body = make([]byte, length)
	}
	c.body = c.body[:length]
	if _, err := io.ReadFull(c.r, c.body); err != nil {
		return a, err
	}
	a.overloaded = bytes.Contains(c.body, []byte(`"code":"overloaded"`))
	return a, nil
}
