package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"paredao/internal/ledger"
)

// What the scenario slow-senders does and promises.
const (
	slowSenders = 2000
	// slowRate is the usual client's, unless given: so many that Redis's fsync,
	// once a second, meets fewer than one in a hundred.
	slowRate  = 1000.0
	slowUsual = 512 // its connections, kept alive
	// sendersCome is over how long they come; they are cut off after as long, so
	// that all the time some are cut off and others come.
	sendersCome = 10 * time.Second
	measured    = 10 * time.Second
	// slowerBy bounds the usual client's 99th percentile beside the slow
	// senders, against the one without them; memoryBack the api's memory after
	// them, against the one before.
	slowerBy, memoryBack = 2.0, 1.2
)

// runSlow measures a usual client alone, then beside senders that give a byte a
// second, then alone again:
//
//	ledger client (few votes) ─┐
//	generator (by clock) ──────┤
//	2,000 slow senders ────────┴▶ api ─▶ Redis ◀─ consumer, archiver
func runSlow(ctx context.Context, r *run) (err error) {
	s, err := startStack(ctx, stackParams{
		bin: r.bin, dir: r.dir, root: r.root, shards: r.shards, fsync: r.fsyncOr("everysec"),
		apis: 1, consumers: 1, archivers: 1, choices: append(overloadVotes(), ledgerVotes()...),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.end(context.WithoutCancel(ctx), err != nil)) }()
	urls, err := s.apiURLs(ctx)
	if err != nil {
		return err
	}
	addr := strings.TrimPrefix(urls[0], "http://")
	usual := slowRate
	if r.rate > 0 {
		usual = r.rate
	}
	// A busy start: the api gets the size that it has on an evening.
	const busy, busyTimes = 5 * time.Second, 3
	gen := startGenerator(ctx, generatorParams{
		addr: addr, choices: overloadVotes(), connections: slowUsual, timeout: 10 * time.Second,
		rate: func(since time.Duration) float64 {
			if since < busy {
				return busyTimes * usual
			}
			return usual
		},
	})
	defer gen.stop()
	// The judge's votes are a tenth of the usual ones, on top of them.
	source, err := ledger.Draw([]int{2, 1}, 0, r.seed)
	if err != nil {
		return err
	}
	l, err := r.startLoad(ctx, ledger.Params{
		URLs: urls, Choices: ledgerVotes(), Source: source, Connections: 16, Keyless: 0.3, Rate: usual / 10,
	})
	if err != nil {
		return err
	}
	defer l.stop()
	const settle = 2 * time.Second
	length := time.Duration(r.seconds) * time.Second
	rss := watch(ctx, 100*time.Millisecond, func() (int64, error) { return s.apis[0].RSS() })
	defer rss.stop()
	if !wait(ctx, busy+settle) {
		return context.Cause(ctx)
	}
	r.report.note("For its first %s the usual client sends %d times as much, so that the api has its usual size when it is measured. "+
		"Each part takes %s; memory is the median of its last %s.", busy, busyTimes, length, measured)
	// part is what the usual client meets meanwhile.
	part := func(name string) (*second, error) {
		r.say("%s", name)
		from := gen.since().Truncate(time.Second) + time.Second
		if !wait(ctx, length+time.Second) {
			return nil, context.Cause(ctx)
		}
		return gen.between(from, from+length), nil
	}
	alone, err := part("the usual client alone")
	if err != nil {
		return err
	}
	rss.take()
	before := rss.last(measured)
	senders := startSlowSenders(ctx, addr, slowSenders, sendersCome)
	defer senders.stop()
	if !wait(ctx, sendersCome+settle) {
		return context.Cause(ctx)
	}
	beside, err := part(fmt.Sprintf("beside %d slow senders", slowSenders))
	if err != nil {
		return err
	}
	most, during := rss.take()
	senders.stop()
	after, err := part("alone again")
	if err != nil {
		return err
	}
	back := rss.last(measured)
	well := s.well(ctx)
	gen.stop()
	l.stop()

	o := &overload{}
	r.report.table("The usual client", o.head(), [][]string{
		o.row("alone", alone, length), o.row("beside", beside, length), o.row("alone again", after, length),
	})
	ratio := float64(quantile(beside.accepted, 99)) / float64(max(quantile(alone.accepted, 99), 1))
	r.report.row("usual client, votes a second", usual)
	r.report.row("usual client, connections", slowUsual)
	r.report.row("length of each part", length)
	r.report.row("p99 beside, times that alone", ratio)
	r.report.row("api memory before, MiB", mib(before))
	r.report.row("api memory beside, at most, MiB", mib(most))
	r.report.row("api memory beside, at the end, MiB", mib(during))
	r.report.row("api memory after, MiB", mib(back))
	r.report.row("slow senders", slowSenders)
	senders.addTo(r.report)

	errs := []error{well}
	holds := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	holds(ratio <= slowerBy, "the usual client's p99 was %s, %.1f times the %s alone",
		quantile(beside.accepted, 99), ratio, quantile(alone.accepted, 99))
	for name, s := range map[string]*second{"alone": alone, "beside": beside, "afterwards": after} {
		holds(s.due() == s.accepted.TotalCount(), "%d of the usual client's %d votes were not taken %s: %v",
			s.due()-s.accepted.TotalCount(), s.due(), name, s.what)
	}
	holds(float64(back) <= memoryBack*float64(before), "the api's memory is %.0f MiB, and was %.0f before", mib(back), mib(before))
	for _, what := range senders.spared() {
		holds(false, "no slow sender was cut off that is slow with its %s", what)
	}
	_, err = r.judge(ctx, s, l)
	errs = append(errs, err, r.count(ctx, s, gen))
	return errors.Join(errs...)
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// slowSendersLoad are clients that send a byte a second, and connect again when
// they are cut off.
type slowSendersLoad struct {
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	connect atomic.Int64
	cut     [len(slowKinds)]atomic.Int64
	failed  atomic.Int64 // to connect

	mu   sync.Mutex
	held *hdrhistogram.Histogram // for how long, in µs
	ends map[string]int64
}

func startSlowSenders(ctx context.Context, addr string, n int, over time.Duration) *slowSendersLoad {
	ctx, cancel := context.WithCancel(ctx)
	l := &slowSendersLoad{cancel: cancel, held: newHistogram(), ends: map[string]int64{}}
	for i := range n {
		l.wg.Go(func() {
			// They come one by one.
			for ok := wait(ctx, time.Duration(i)*over/time.Duration(n)); ok; ok = wait(ctx, 10*time.Millisecond) {
				l.once(ctx, addr, i)
			}
		})
	}
	return l
}

func (l *slowSendersLoad) stop() {
	l.cancel()
	l.wg.Wait()
}

// slowKinds are what a slow sender is slow with, in turn.
var slowKinds = [...]string{"header", "body"}

// slowText is what a slow sender has: some are slow from the first byte on,
// others send a whole header, and are slow with the body that it promises.
func slowText(i int) (atOnce, slowly string) {
	header := "POST /polls/excess/votes HTTP/1.1\r\nHost: vote.example\r\nContent-Type: application/json\r\n"
	if slowKinds[i%len(slowKinds)] == "header" {
		return "", header + "Cookie: " + strings.Repeat("x", 4000)
	}
	return header + "Content-Length: 4000\r\n\r\n", `{"option":"` + strings.Repeat("x", 4000)
}

// once is one connection's life.
func (l *slowSendersLoad) once(ctx context.Context, addr string, i int) {
	conn, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		l.failed.Add(1)
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	l.connect.Add(1)
	began := time.Now()
	atOnce, slowly := slowText(i)
	_, err = io.WriteString(conn, atOnce)
	var answer []byte
	buf := make([]byte, 512)
	for at := 0; err == nil && at < len(slowly); at++ {
		if _, err = io.WriteString(conn, slowly[at:at+1]); err != nil {
			break
		}
		// The pause between two bytes is spent listening.
		next := began.Add(time.Duration(at+1) * time.Second)
		for err == nil {
			_ = conn.SetReadDeadline(next)
			var n int
			n, err = conn.Read(buf)
			answer = append(answer, buf[:n]...)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
	}
	if ctx.Err() != nil {
		return
	}
	l.cut[i%len(slowKinds)].Add(1)
	end := kindOf(err)
	if status, _, ok := strings.Cut(string(answer), "\r\n"); ok {
		end = strings.TrimPrefix(status, "HTTP/1.1 ")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.held.RecordValue(min(time.Since(began), longestLatency).Microseconds()) // within the bounds
	l.ends[end]++
}

// spared are the kinds of which none was cut off.
func (l *slowSendersLoad) spared() []string {
	var kinds []string
	for i, what := range slowKinds {
		if l.cut[i].Load() == 0 {
			kinds = append(kinds, what)
		}
	}
	return kinds
}

func (l *slowSendersLoad) addTo(r *report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.row("slow connections", l.connect.Load())
	for i, what := range slowKinds {
		r.row("of them cut off while slow with the "+what, l.cut[i].Load())
	}
	r.row("not connected", l.failed.Load())
	r.row("a slow connection lived, median", quantile(l.held, 50))
	r.row("a slow connection lived, at most", quantile(l.held, 100))
	for end, n := range l.ends {
		r.row("cut off with: "+end, n)
	}
}
