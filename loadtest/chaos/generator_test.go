package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/vote"
)

// answering starts a server and a generator of 200 votes a second before it.
func answering(t *testing.T, h http.HandlerFunc) *generator {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	g := startGenerator(t.Context(), generatorParams{
		addr: server.Listener.Addr().String(), choices: overloadVotes(), connections: 50, timeout: 5 * time.Second,
		rate: func(time.Duration) float64 { return 200 },
	})
	t.Cleanup(g.stop)
	return g
}

// waitFor waits until the generator has had so many answers.
func waitFor(t *testing.T, g *generator, n int64) *second {
	t.Helper()
	for g.all().due() < n {
		require.True(t, wait(t.Context(), 5*time.Millisecond))
	}
	g.stop()
	return g.all()
}

func TestGeneratorTellsAnswersApart(t *testing.T) {
	var n atomic.Int64
	g := answering(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Contains(t, string(body), `{"option":"`)
		assert.NotEmpty(t, r.UserAgent())
		refuse := func(status int, code string) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"code":"`+code+`"}`)
		}
		switch n.Add(1) % 8 {
		case 0:
			refuse(503, "overloaded")
		case 1:
			refuse(429, "rate-limited")
		case 2:
			refuse(503, "queue-unavailable")
		case 3:
			http.Error(w, `"code":"overloaded"`, http.StatusServiceUnavailable) // neither header
		case 4:
			http.Error(w, "no", http.StatusTeapot)
		case 5:
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, "{}")
		}
	})
	all := waitFor(t, g, 160)
	eighth := float64(n.Load()) / 8
	assert.InDelta(t, 2*eighth, all.accepted.TotalCount(), 2)
	assert.InDelta(t, 3*eighth, all.refused.TotalCount(), 3)
	assert.InDelta(t, 2*eighth, all.unsettled, 2)
	assert.InDelta(t, 2*eighth, all.wrong, 2)
	assert.Zero(t, all.unsent)
	var books book
	for _, b := range g.byChoice() {
		assert.Positive(t, b.accepted)
		books.accepted, books.unsettled = books.accepted+b.accepted, books.unsettled+b.unsettled
	}
	assert.Equal(t, book{all.accepted.TotalCount(), all.unsettled}, books)
	assert.InDelta(t, eighth, all.what["418"], 1)
	assert.InDelta(t, eighth, all.what["503 queue-unavailable"], 1)
	assert.InDelta(t, eighth, all.what["503 without Retry-After or problem+json"], 1)
	assert.InDelta(t, eighth, all.what["closed"], 1)
}

// An api that was restarted meanwhile leaves no vote without an answer.
func TestGeneratorReconnects(t *testing.T) {
	var paused, asleep atomic.Bool
	var issued atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusAccepted) }))
	defer server.Close()
	g := startGenerator(t.Context(), generatorParams{
		addr: server.Listener.Addr().String(), choices: overloadVotes(), connections: 8, timeout: 5 * time.Second,
		rate: func(time.Duration) float64 {
			if paused.Load() {
				asleep.Store(true)
				return 0
			}
			issued.Add(1)
			return 200
		},
	})
	defer g.stop()
	for g.all().due() < 40 {
		require.True(t, wait(t.Context(), 5*time.Millisecond))
	}
	paused.Store(true)
	for !asleep.Load() || g.all().due() < issued.Load() { // none is in the air
		require.True(t, wait(t.Context(), 5*time.Millisecond))
	}
	server.CloseClientConnections()
	g.reconnect()
	paused.Store(false)
	all := waitFor(t, g, g.all().due()+40)
	assert.Zero(t, all.unsettled, "%v", all.what)
}

// The books are by choice, as the votes are.
func TestGeneratorKeepsBooksByChoice(t *testing.T) {
	var mu sync.Mutex
	tally := vote.Tally{}
	choices := overloadVotes()
	g := answering(t, func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Option string }
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&body))
		if body.Option == choices[1].Option {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		mu.Lock()
		tally[body.Option]++
		mu.Unlock()
		w.WriteHeader(http.StatusAccepted)
	})
	waitFor(t, g, 60)
	books := g.byChoice()
	assert.Equal(t, book{accepted: tally[choices[0].Option]}, books[0])
	assert.Zero(t, books[1].accepted)
	assert.Positive(t, books[1].unsettled)
	assert.Equal(t, book{accepted: tally[choices[2].Option]}, books[2])
}

// What one option has too many must not make up for what another lacks.
func TestGeneratorsBooksAndTheTally(t *testing.T) {
	choices := overloadVotes()
	all := newSecond()
	for range 3000 {
		_ = all.accepted.RecordValue(1)
	}
	all.unsettled = 2
	books := []book{{1000, 2}, {1000, 0}, {1000, 0}}
	for _, tt := range []struct {
		ana, bruno, carla, zoe int64
		ok                     bool
	}{
		{1000, 1000, 1000, 0, true}, {1002, 1000, 1000, 0, true}, {999, 1001, 1000, 0, false}, {1000, 999, 1001, 0, false},
		{1003, 1000, 1000, 0, false}, {1000, 1000, 1000, 1, false}, {1001, 999, 1000, 0, false},
	} {
		err := all.fits(choices, books, vote.Tally{"ana": tt.ana, "bruno": tt.bruno, "carla": tt.carla, "zoe": tt.zoe})
		assert.Equal(t, tt.ok, err == nil, "%+v: %v", tt, err)
	}
	even := vote.Tally{"ana": 1000, "bruno": 1000, "carla": 1000}
	all.wrong = 1
	require.ErrorContains(t, all.fits(choices, books, even), "wrong answer")
	all.wrong, all.unsettled, books[0].unsettled = 0, 4, 4
	require.ErrorContains(t, all.fits(choices, books, even), "had no answer")
}

// A server that stands still shows up in all votes that were due meanwhile, and
// not only in those that were sent.
func TestGeneratorMeasuresFromWhenAVoteWasDue(t *testing.T) {
	const still = 600 * time.Millisecond
	from := time.Now().Add(300 * time.Millisecond)
	g := answering(t, func(w http.ResponseWriter, _ *http.Request) {
		if left := time.Until(from.Add(still)); left > 0 && left < still {
			<-time.After(left)
		}
		w.WriteHeader(http.StatusAccepted)
	})
	all := waitFor(t, g, 400)
	// 120 votes were due while it stood still: 60 of them waited for half of it
	// or longer, though only 50 connections could send any.
	assert.GreaterOrEqual(t, all.accepted.Max(), (still - 100*time.Millisecond).Microseconds())
	slow := all.accepted.TotalCount() - countBelow(all, still/2)
	assert.Greater(t, slow, int64(50))
}

func countBelow(s *second, d time.Duration) int64 {
	var n int64
	for _, bar := range s.accepted.Distribution() {
		if bar.To <= d.Microseconds() {
			n += bar.Count
		}
	}
	return n
}

func TestGeneratorKeepsItsRate(t *testing.T) {
	var n atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n.Add(1)
		w.WriteHeader(http.StatusAccepted)
	}))
	defer server.Close()
	const rate, stall = 250, 300 * time.Millisecond
	over := make(chan struct{})
	var stalls, ends sync.Once
	began := time.Now()
	g := startGenerator(t.Context(), generatorParams{
		addr: server.Listener.Addr().String(), choices: overloadVotes(), connections: 20, timeout: time.Minute,
		rate: func(since time.Duration) float64 {
			switch {
			case since < 900*time.Millisecond:
				return 0
			case since < time.Second: // the machine has other things to do
				stalls.Do(func() { wait(t.Context(), stall) })
				return 0
			case since < 2*time.Second:
				return rate
			}
			ends.Do(func() { close(over) })
			return 0
		},
	})
	<-over
	g.stop()
	assert.GreaterOrEqual(t, time.Since(began), 2*time.Second, "nothing before its time")
	assert.EqualValues(t, rate, n.Load())
	assert.EqualValues(t, rate, g.all().due())
	assert.EqualValues(t, rate, g.between(time.Second, 2*time.Second).due())
}

func TestKindOf(t *testing.T) {
	_, refused := net.Dial("tcp", "127.0.0.1:1")
	for _, tt := range []struct {
		err  error
		want string
	}{
		{io.EOF, "closed"}, {io.ErrUnexpectedEOF, "closed"}, {syscall.ECONNRESET, "reset"}, {refused, "connection refused"},
		{&net.OpError{Op: "dial", Err: errors.New("x")}, "dial"}, {errAnswerForm, "failure"},
	} {
		assert.Equal(t, tt.want, kindOf(tt.err))
	}
}

func TestGeneratorConnReadsNoRubbish(t *testing.T) {
	for _, text := range []string{
		"", "HTTP/1.1 2", "HTTP/1.1 abc OK\r\n\r\n", "SSH-2.0\r\n", "HTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort",
		"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n",
	} {
		c := &generatorConn{r: bufio.NewReader(strings.NewReader(text))}
		_, err := c.read()
		assert.Error(t, err, text)
	}
	c := &generatorConn{r: bufio.NewReader(strings.NewReader(
		"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\ncontent-length: 21\r\nRetry-After: 1\r\n\r\n" + `{"code":"overloaded"}`))}
	a, err := c.read()
	require.NoError(t, err)
	assert.Equal(t, generatorAnswer{status: 503, retryAfter: true, overloaded: true, closed: true}, a)
}

func TestNormalAgain(t *testing.T) {
	g := &generator{start: time.Now()}
	add := func(ms, n, refused int) {
		s := newSecond()
		for range n {
			require.NoError(t, s.accepted.RecordValue(int64(ms)*1000))
		}
		for range refused {
			require.NoError(t, s.refused.RecordValue(1000))
		}
		g.seconds = append(g.seconds, s)
	}
	add(10, 100, 0)
	add(900, 50, 900)
	add(500, 100, 0) // slow
	add(10, 100, 5)  // refuses
	add(20, 100, 0)
	add(15, 100, 0)
	usual := g.between(0, time.Second)
	took, ok := normalAgain(g, usual, 2*time.Second, 6*time.Second)
	assert.True(t, ok)
	assert.Equal(t, 2*time.Second, took)
	add(5000, 100, 0)
	_, ok = normalAgain(g, usual, 2*time.Second, 7*time.Second)
	assert.False(t, ok)
}

func TestGauge(t *testing.T) {
	var at atomic.Int64
	numbers := []int64{3, 9, 4, 4, 4}
	g := watch(t.Context(), time.Millisecond, func() (int64, error) {
		n := at.Add(1)
		if n%2 == 0 {
			return 1000, errors.New("not read")
		}
		return numbers[min(int(n/2), len(numbers)-1)], nil
	})
	for at.Load() < 12 {
		require.True(t, wait(t.Context(), time.Millisecond))
	}
	g.stop()
	most, now := g.take()
	assert.EqualValues(t, 9, most)
	assert.EqualValues(t, 4, now)
	most, _ = g.take()
	assert.EqualValues(t, 4, most)
	assert.EqualValues(t, 4, g.look())
	assert.EqualValues(t, 4, g.last(time.Minute), "the median")
}

func TestDrainMeter(t *testing.T) {
	start := time.Now()
	m := drainMeter{full: 1000}
	for _, l := range []struct {
		ms   int
		left int64
		want bool
	}{{0, 1000, false}, {500, 1000, false}, {600, 900, false}, {700, 400, false}, {900, 0, true}} {
		assert.Equal(t, l.want, m.look(start.Add(time.Duration(l.ms)*time.Millisecond), l.left))
	}
	assert.InDelta(t, 900/0.3, m.speed(), 0.001)
	assert.InDelta(t, 2.5, median([]float64{4, 1, 3, 2}), 0)
	assert.InDelta(t, 3, median([]float64{4, 1, 3}), 0)
	assert.Zero(t, median(nil))
}

func TestIsCommit(t *testing.T) {
	assert.True(t, isCommit([]string{"evalsha", "x", "6", "votes:{0}", "archive:{0}", "dead:{0}"}))
	assert.False(t, isCommit([]string{"evalsha", "x", "1", "votes:{0}", "0", "2000"}))
	assert.False(t, isCommit([]string{"BLPOP", "wake:{0}", "1"}))
}

// A slow sender is cut off by a server that does not wait for it, and comes
// again.
func TestSlowSenders(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	var seen atomic.Int64
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			seen.Add(1)
			_, _ = io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		}
	}()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	assert.Equal(t, []string{"header", "body"}, new(slowSendersLoad).spared())
	l := startSlowSenders(ctx, ln.Addr().String(), 4, 100*time.Millisecond)
	for l.cut[0].Load() < 4 || l.cut[1].Load() < 4 {
		require.True(t, wait(ctx, 5*time.Millisecond))
	}
	l.stop()
	assert.Zero(t, l.failed.Load())
	assert.GreaterOrEqual(t, seen.Load(), int64(8))
	assert.GreaterOrEqual(t, l.ends["408 Request Timeout"], int64(8))
	assert.Empty(t, l.spared())
	l.cut[1].Store(0)
	assert.Equal(t, []string{"body"}, l.spared(), "the others do not stand in for them")
}
