//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"paredao/internal/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// accept answers as the api does.
func accept(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = io.WriteString(w, `{"id":"x"}`)
}

// serve starts a server and says how to load it for a second.
func serve(t *testing.T, h http.HandlerFunc) (*httptest.Server, loadParams) {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	o := parsed(t, "--rate=1", "--url="+server.URL)
	return server, loadParams{
		target:   o.target,
		requests: requestParams{host: o.base.Host, path: "/polls/demo/votes", choices: o.choices, seed: 1},
		threads:  1, connections: 20, rate: 500, measure: time.Second, drain: time.Minute, timeout: time.Minute,
	}
}

func parsed(t *testing.T, args ...string) options {
	t.Helper()
	o, err := parse(args, io.Discard)
	require.NoError(t, err)
	require.NoError(t, o.resolve(t.Context()))
	return o
}

// from counts what took so long or longer.
func from(h *hdrhistogram.Histogram, d time.Duration) (n int64) {
	for _, bar := range h.Distribution() {
		if bar.From >= d.Microseconds() {
			n += bar.Count
		}
	}
	return n
}

// A server that stands still once shows up in all requests that were due
// meanwhile, though it made only two of them wait after they were sent.
func TestStallShowsInAllThatWereDue(t *testing.T) {
	const stall = 200 * time.Millisecond
	var n atomic.Int64
	var mu sync.RWMutex
	_, p := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) == 300 {
			mu.Lock()
			<-time.After(stall)
			mu.Unlock()
		}
		mu.RLock()
		defer mu.RUnlock()
		accept(w)
	})
	p.connections, p.rate, p.measure = 2, 1000, 2*time.Second
	m, err := load(t.Context(), p)
	require.NoError(t, err)
	assert.EqualValues(t, 2000, m.due)
	assert.EqualValues(t, 2000, m.accepted())
	assert.Zero(t, m.failed())
	assert.GreaterOrEqual(t, quantile(m.latency, 99.9), 3*stall/4)
	// 100 requests were due in the first half of it.
	slow, slowService := from(m.latency, stall/2), from(m.service, stall/2)
	assert.Greater(t, slow, int64(50))
	assert.Positive(t, slowService)
	assert.Less(t, 4*slowService, slow)
	assert.GreaterOrEqual(t, m.allBusy, stall/2)
}

func TestAnswersAreToldApart(t *testing.T) {
	var n atomic.Int64
	_, p := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		switch n.Add(1) % 5 {
		case 0:
			http.Error(w, "full", http.StatusServiceUnavailable)
		case 1:
			w.Header().Set("Connection", "close")
			accept(w)
		case 2:
			panic(http.ErrAbortHandler)
		default:
			accept(w)
		}
	})
	m, err := load(t.Context(), p)
	require.NoError(t, err)
	assert.EqualValues(t, 500, m.due)
	assert.InDelta(t, 100, m.statuses[503], 1)
	assert.InDelta(t, 300, m.accepted(), 2)
	assert.EqualValues(t, m.due, m.answered()+m.failed())
	assert.InDelta(t, 100, m.failed(), 1)
	assert.Subset(t, []string{"closed", "reset"}, slices.Collect(maps.Keys(m.errors)))
	assert.EqualValues(t, m.accepted(), m.latency.TotalCount(), "an error is no throughput")
	assert.EqualValues(t, m.answered(), m.own.TotalCount())

	o := parsed(t, "--rate=500")
	problems := strings.Join(o.judge(m).problems, "; ")
	assert.Contains(t, problems, "answers were not 2xx")
	assert.Contains(t, problems, "had no answer")
	o = parsed(t, "--rate=500", "--allow-errors")
	problems = strings.Join(o.judge(m).problems, "; ")
	assert.NotContains(t, problems, "2xx")
	assert.NotContains(t, problems, "had no answer")
}

// What the server gets is what was asked for, by more threads too.
func TestRequests(t *testing.T) {
	var mu sync.Mutex
	keys, options, agentsSeen, connections := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	handler := func(w http.ResponseWriter, r *http.Request) {
		assert.NoError(t, r.ParseForm())
		mu.Lock()
		defer mu.Unlock()
		assert.Equal(t, "POST /under/polls/demo/votes", r.Method+" "+r.URL.Path)
		keys[r.Header.Get("Idempotency-Key")]++
		agentsSeen[r.UserAgent()]++
		connections[r.RemoteAddr]++
		option := r.PostForm.Get("option")
		if option == "" {
			var body map[string]string
			assert.NoError(t, json.NewDecoder(r.Body).Decode(&body))
			option = body["option"]
		}
		options[option]++
		accept(w)
	}
	server, _ := serve(t, handler)
	for _, form := range []string{"--form", "--form=false"} {
		clear(keys)
		clear(options)
		clear(agentsSeen)
		clear(connections)
		o := parsed(t, "--rate=1001", "--url="+server.URL+"/under/", "--keys", "--varied", "--threads=2", "--connections=3",
			"--options=ana=70,bruno=30,carla=0", "--seconds=1", "--warmup=0", form)
		m, err := o.load(t.Context(), o.rate, true)
		require.NoError(t, err)
		mu.Lock()
		assert.EqualValues(t, 1001, m.accepted())
		assert.Len(t, keys, 1001)
		assert.Len(t, agentsSeen, 5)
		assert.Len(t, connections, 3)
		assert.Equal(t, 1001, options["ana"]+options["bruno"])
		assert.InDelta(t, 701, options["ana"], 60)
		mu.Unlock()
	}
}

// The same seed draws the same options.
func TestSeed(t *testing.T) {
	draw := func(seed uint64) (all []string) {
		r := newRequests(requestParams{path: "/", choices: []choice{{"ana", 1}, {"bruno", 1}}, seed: seed}, 0)
		for n := range int64(50) {
			all = append(all, string(r.next(n)))
		}
		return all
	}
	assert.Equal(t, draw(1), draw(1))
	assert.NotEqual(t, draw(1), draw(2))
}

// A server that is too slow for the rate is found out, and what could not be sent
// is said.
func TestShort(t *testing.T) {
	_, p := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		<-time.After(20 * time.Millisecond)
		accept(w)
	})
	p.connections, p.rate, p.drain = 2, 1000, 50*time.Millisecond // they carry 100 a second
	m, err := load(t.Context(), p)
	require.NoError(t, err)
	assert.EqualValues(t, 1000, m.due)
	assert.Positive(t, m.unsent)
	assert.EqualValues(t, m.due, m.answered()+m.failed()+m.unsent)
	assert.True(t, m.short())
	assert.Greater(t, m.share(m.allBusy), 0.5)
	o := parsed(t, "--rate=1000")
	v := o.judge(m)
	assert.Empty(t, v.generator)
	problems := strings.Join(v.problems, "; ")
	assert.Contains(t, problems, "the server did not keep up")
	assert.Contains(t, problems, "were never sent")
}

func TestTimeout(t *testing.T) {
	end := make(chan struct{})
	var n atomic.Int64
	_, p := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 1 {
			select {
			case <-end:
			case <-r.Context().Done():
			}
		}
		accept(w)
	})
	defer close(end)
	p.timeout = 300 * time.Millisecond
	m, err := load(t.Context(), p)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, m.errors["time-out"], int64(1))
}

func TestWarmupIsNotMeasured(t *testing.T) {
	var n atomic.Int64
	_, p := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) <= 10 {
			http.Error(w, "cold", http.StatusServiceUnavailable)
			return
		}
		accept(w)
	})
	p.warmup = 500 * time.Millisecond
	m, err := load(t.Context(), p)
	require.NoError(t, err)
	assert.EqualValues(t, 500, m.due)
	assert.EqualValues(t, 500, m.accepted())
	assert.EqualValues(t, 10, m.warmupBad)
	assert.EqualValues(t, 750, n.Load())
}

func TestNobodyListens(t *testing.T) {
	server, p := serve(t, func(http.ResponseWriter, *http.Request) {})
	server.Close()
	_, err := load(t.Context(), p)
	assert.ErrorContains(t, err, "can't connect to 127.0.0.1:")
}

// Ctrl-C ends it, and what is known is printed.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var n atomic.Int64
	_, p := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1) == 300 {
			cancel()
		}
		accept(w)
	})
	p.measure = time.Hour
	m, err := load(ctx, p)
	require.NoError(t, err)
	assert.Greater(t, m.accepted(), int64(250))
	assert.LessOrEqual(t, m.due, n.Load()+m.unsent+m.failed())
	assert.Less(t, m.window, p.measure)

	_, err = load(ctx, p)
	assert.Equal(t, errEarly, err)

	var out bytes.Buffer
	o := parsed(t, "--rate=300")
	assert.EqualError(t, o.report(synthetic(3000, 3000, time.Millisecond, 0), nil, true, &out), "interrupted after 10.0 measured seconds")
	assert.Contains(t, out.String(), "since it was due")
	assert.Equal(t, errEarly, o.report(newMeasured(), nil, true, io.Discard))
}

func TestReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "r.json")
	o := parsed(t, "--rate=100", "--json="+file)
	m := synthetic(1000, 1000, 5*time.Millisecond, 0)
	m.allBusy = time.Second
	var out bytes.Buffer
	require.NoError(t, o.report(m, nil, false, &out))
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var r report
	require.NoError(t, json.Unmarshal(b, &r))
	assert.True(t, r.OK)
	assert.EqualValues(t, 1000, r.Accepted)
	assert.Equal(t, map[string]int64{"202": 1000}, r.Statuses)
	assert.InDelta(t, 5, r.Latency.P99, 0.01)
	assert.Regexp(t, `accepted +100 +1000\n`, out.String())
	assert.Contains(t, out.String(), "connections were busy 10.0 % of the time")

	// What was not 2xx is printed, but fails; without an accepted vote too.
	m.statuses[202], m.statuses[503] = 0, 1000
	out.Reset()
	assert.EqualError(t, o.report(m, nil, false, &out), "no vote was accepted; 1000 answers were not 2xx")
	assert.Regexp(t, `status 503 +1000\n`, out.String())

	// The generator's own figures are not.
	require.NoError(t, os.Remove(file))
	out.Reset()
	assert.ErrorContains(t, o.report(synthetic(1000, 1000, 5*time.Millisecond, 4*time.Millisecond), nil, false, &out), "no report, the generator was the limit")
	assert.Empty(t, out.String())
	assert.NoFileExists(t, file)
}

// From the flags to the file, before a real server.
func TestRun(t *testing.T) {
	server, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { accept(w) })
	var out bytes.Buffer
	err := run(t.Context(), []string{"--rate=500", "--warmup=0", "--seconds=1", "--url=" + server.URL}, &out, io.Discard)
	if err != nil { // on a machine that is busy
		assert.Regexp(t, "generator was the limit|did not keep up", err.Error())
		return
	}
	assert.Regexp(t, `accepted +\d+ +500\n`, out.String())
}

func TestWrongUse(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"", "--rate or --find is missing"},
		{"--rate=0", "wrong value 0 for --rate"},
		{"--rate=NaN", "wrong value NaN for --rate"},
		{"--rate=x", "--rate"},
		{"--rate=1 --seconds=0", "for --seconds"},
		{"--rate=1 --warmup=-1", "for --warmup"},
		{"--rate=1 --connections=0", "for --connections"},
		{"--rate=1 --threads=8 --connections=7", "for --connections"},
		{"--rate=1 --timeout=0s", "for --timeout"},
		{"--rate=1 --p99=1s", "--p99 is for --find only"},
		{"--rate=1 --poll=NO", `wrong value "NO" for --poll`},
		{"--rate=1 --options=ana", `wrong value "ana" for --options`},
		{"--rate=1 --options=ana=0", "one weight must be above 0"},
		{"--rate=1 --url=https://127.0.0.1", "for --url"},
		{"--rate=1 --url=127.0.0.1:8080", "for --url"},
		{"--rate=1 --url=http://127.0.0.1:0", "the port must be"},
		{"--rate=1 --url=http://192.0.2.7:8080", "192.0.2.7 is not a loopback address; add --anywhere"},
		{"--rate=1 --url=http://[2001:db8::1]", "2001:db8::1 is not a loopback address"},
		{"--rate=1 extra", `unexpected argument "extra"`},
		{"--rate=1 --nonsense", "nonsense"},
	} {
		err := run(t.Context(), strings.Fields(tt.args), io.Discard, io.Discard)
		assert.ErrorContains(t, err, tt.want, tt.args)
		var wrong *config.UsageError
		require.ErrorAs(t, err, &wrong, tt.args)
		assert.Equal(t, 2, wrong.ExitCode())
	}
	var out bytes.Buffer
	require.ErrorIs(t, run(t.Context(), []string{"--help"}, &out, io.Discard), config.ErrHelp)
	assert.Contains(t, out.String(), "--anywhere")
	for _, url := range []string{"http://127.9.9.9:1", "http://[::1]:1", "http://localhost:1"} {
		assert.True(t, parsed(t, "--rate=1", "--url="+url).target.Addr().IsLoopback())
	}
	assert.Equal(t, "192.0.2.7:80", parsed(t, "--rate=1", "--anywhere", "--url=http://192.0.2.7").target.String())
}

// synthetic is a run of ten seconds in which all took so long.
func synthetic(due, answered int64, latency, own time.Duration) *measured {
	m := newMeasured()
	m.window, m.waited = 10*time.Second, 5*time.Second
	m.due, m.answeredIn, m.acceptedIn = due, answered, answered
	m.statuses[202] = answered
	for range 100 {
		record(m.latency, latency)
		record(m.service, latency)
		record(m.own, own)
	}
	return m
}

func TestGeneratorIsTheLimit(t *testing.T) {
	o := parsed(t, "--rate=1000")
	m := synthetic(10000, 10000, 20*time.Millisecond, time.Millisecond)
	assert.Equal(t, verdict{}, o.judge(m))
	assert.Empty(t, o.judge(synthetic(10000, 10000, 20*time.Millisecond, 3900*time.Microsecond)).generator)
	assert.NotEmpty(t, o.judge(synthetic(10000, 10000, 20*time.Millisecond, 5*time.Millisecond)).generator)
	assert.Empty(t, o.judge(synthetic(10000, 10000, time.Millisecond, time.Millisecond)).generator, "below what matters")

	m.waited = 100 * time.Millisecond
	assert.Empty(t, o.judge(m).generator, "it was at work all the time, and kept the rate")
	m.answeredIn = 9800
	assert.NotEmpty(t, o.judge(m).generator)
	m.waited = 5 * time.Second
	v := o.judge(m)
	assert.Empty(t, v.generator)
	assert.Equal(t, []string{"the server did not keep up: 980 answers a second where 1000 requests were due"}, v.problems)
}

// A generator that is held up says so itself: its loop sees that requests were
// due while connections were free.
func TestOwnLateness(t *testing.T) {
	_, p := serve(t, func(w http.ResponseWriter, _ *http.Request) { accept(w) })
	var stop atomic.Bool
	l, err := newLoop(p, 0, &stop)
	require.NoError(t, err)
	defer l.close()
	require.NoError(t, l.connect())
	// As if it had been stopped for half a second.
	require.NoError(t, l.run(time.Now().Add(-500*time.Millisecond)))
	assert.EqualValues(t, 500, l.m.accepted())
	assert.GreaterOrEqual(t, quantile(l.m.own, 99), 100*time.Millisecond)
	o := parsed(t, "--rate=500")
	assert.Contains(t, o.judge(l.m).generator, "its own delay")
}

func TestFind(t *testing.T) {
	const most = 34_567
	find := func(run func(rate float64, long bool) *measured) (float64, []probe, error) {
		o := parsed(t, "--find")
		f := finder{
			start: 1000, limit: o.p99, judge: o.judge, say: t.Logf,
			run: func(_ context.Context, rate float64, long bool) (*measured, error) { return run(rate, long), nil },
		}
		rate, _, err := f.find(t.Context())
		return rate, f.probes, err
	}
	server := func(most float64) func(rate float64, long bool) *measured {
		return func(rate float64, _ bool) *measured {
			latency := 3 * time.Millisecond
			if rate > most {
				latency = time.Second
			}
			return synthetic(int64(10*rate), int64(10*min(rate, most)), latency, time.Millisecond)
		}
	}

	rate, probes, err := find(server(most))
	require.NoError(t, err)
	assert.LessOrEqual(t, rate, float64(most))
	assert.Greater(t, rate, most/precise-1)
	assert.True(t, probes[len(probes)-1].Long)

	rate, _, err = find(server(123)) // below where it begins
	require.NoError(t, err)
	assert.InDelta(t, 121, rate, 3)

	_, _, err = find(server(3))
	assert.ErrorContains(t, err, "no rate is within 50ms")
	_, _, err = find(server(math.Inf(1)))
	assert.ErrorContains(t, err, "the most that is tried")

	// What short probes did not see.
	rate, _, err = find(func(rate float64, long bool) *measured {
		if long {
			return server(0.93*most)(rate, long)
		}
		return server(most)(rate, long)
	})
	require.NoError(t, err)
	assert.LessOrEqual(t, rate, 0.93*most)
	_, _, err = find(func(rate float64, long bool) *measured {
		if long {
			return server(1)(rate, long)
		}
		return server(most)(rate, long)
	})
	assert.ErrorContains(t, err, "no long run")

	// The generator ends before the server does.
	_, _, err = find(func(rate float64, long bool) *measured {
		m := server(most)(rate, long)
		if rate > most {
			m.waited = 0
		}
		return m
	})
	assert.ErrorContains(t, err, "the generator was the limit")

	_, probes, err = find(func(rate float64, long bool) *measured {
		m := server(most)(rate, long)
		m.statuses[404] = 7
		return m
	})
	assert.ErrorContains(t, err, "7 answers had status 404")
	assert.Empty(t, probes)
}

func TestFindInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := parsed(t, "--find")
	f := finder{start: 1000, limit: o.p99, judge: o.judge, say: t.Logf}
	f.run = func(_ context.Context, rate float64, _ bool) (*measured, error) {
		if rate == 4000 {
			cancel()
			return nil, errEarly
		}
		return synthetic(int64(10*rate), int64(10*rate), time.Millisecond, 0), nil
	}
	_, _, err := f.find(ctx)
	assert.EqualError(t, err, "interrupted before the highest rate was found; 2000/s was within")
}

func TestParseAnswer(t *testing.T) {
	const ok = "HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}"
	for _, tt := range []struct {
		text string
		want answer
		size int
		err  error
	}{
		{ok, answer{status: 202}, len(ok), nil},
		{ok + "HTTP", answer{status: 202}, len(ok), nil},
		{"HTTP/1.1 100 Continue\r\n\r\n" + ok, answer{status: 202}, 25 + len(ok), nil},
		{"HTTP/1.0 200 OK\r\ncontent-length:0\r\n\r\n", answer{status: 200, closes: true}, 37, nil},
		{"HTTP/1.1 503 X\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", answer{status: 503, closes: true}, 56, nil},
		{"HTTP/1.1 204 No Content\r\n\r\n", answer{status: 204}, 27, nil},
		{"", answer{}, 0, nil},
		{ok[:len(ok)-1], answer{}, 0, nil},
		{ok[:30], answer{}, 0, nil},
		{strings.Repeat("x", longestAnswer+1), answer{}, 0, errNoAnswer},
		{"SSH-2.0\r\n\r\n", answer{}, 0, errNoAnswer},
		{"HTTP/1.1 2\r\n\r\n", answer{}, 0, errNoAnswer},
		{"HTTP/1.1 abc\r\n\r\n", answer{}, 0, errNoAnswer},
		{"HTTP/1.1 999 X\r\n\r\n", answer{}, 0, errNoAnswer},
		{"HTTP/1.1 200 OK\r\n\n\n:\r\n\r\n", answer{}, 0, errNoLength},
		{"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", answer{}, 0, errNoAnswer},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", answer{}, 0, errNoLength},
	} {
		a, size, err := parseAnswer([]byte(tt.text))
		assert.Equal(t, tt.err, err, tt.text)
		assert.Equal(t, tt.size, size, tt.text)
		if size > 0 {
			assert.Equal(t, tt.want, a, tt.text)
		}
	}
}

// An answer may come in pieces.
func TestAnswerInPieces(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	o := parsed(t, "--rate=10", "--url=http://"+listener.Addr().String(), "--connections=1", "--seconds=1", "--warmup=0")
	served := make(chan error, 1)
	go func() {
		served <- func() error {
			c, err := listener.Accept()
			if err != nil {
				return err
			}
			defer c.Close()
			b := make([]byte, 4096)
			for {
				if _, err := c.Read(b); err != nil {
					return err
				}
				for _, piece := range []string{"HTTP/1.1 20", "2 Accepted\r\nContent-Length: 4\r\n\r", "\n12", "34"} {
					if _, err := io.WriteString(c, piece); err != nil {
						return err
					}
					<-time.After(5 * time.Millisecond)
				}
			}
		}()
	}()
	m, err := o.load(t.Context(), o.rate, true)
	require.NoError(t, err)
	assert.EqualValues(t, 10, m.accepted())
	assert.True(t, errors.Is(<-served, io.EOF))
}
