package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"paredao/internal/lab"
	"paredao/internal/ledger"
)

// world is what faults happen to.
type world struct {
	r      *run
	s      *stack
	l      *load
	redis  *redis.Client // straight to the server
	nginx  *lab.Nginx
	http   *lab.Toxi // in front of the first api
	disk   *disk     // nil: the archive is no file system of its own
	aof    *lab.AOF  // nil: Redis promises to keep everything
	counts counts
}

// counts is what the faults have seen and done.
type counts struct {
	mu          sync.Mutex
	restarts    int // of redis-server
	loading     int // of those, which were seen to answer LOADING
	longestLoad time.Duration
	windows     []ledger.LossWindow
	misconf     int
}

// action does a fault: begins it, waits, and ends it, however ctx stands by
// then. It returns a remark for the report. An error says that it could not be
// done, or that something broke that should not.
type action func(w *world, ctx context.Context, f fault) (remark string, err error)

// errSkipped says that a fault can't be had here; the report says why.
var errSkipped = errors.New("left out")

// after is a context for what must be done however a run ends.
func after(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), startPatience)
}

// daemon finds the daemon that a fault is about.
func (w *world) daemon(target string) (*lab.Daemon, error) {
	role, number, _ := strings.Cut(target, " ")
	at, err := strconv.Atoi(number)
	if err != nil {
		return nil, fmt.Errorf("no daemon %q", target)
	}
	switch role {
	case api:
		return w.s.apis[at], nil
	case consumer:
		return w.s.consumers[at], nil
	}
	return w.s.archivers[at], nil
}

// killed kills a daemon that runs; one that has ended by itself is an error.
func killed(d *lab.Daemon) error {
	if !d.Running() {
		return fmt.Errorf("%s had ended by itself", d.Name())
	}
	d.Kill()
	return nil
}

func (w *world) kill(ctx context.Context, f fault) (string, error) {
	d, err := w.daemon(f.target)
	if err != nil {
		return "", err
	}
	if err := killed(d); err != nil {
		return "", err
	}
	wait(ctx, f.dur)
	return "", d.Restart()
}

func (w *world) apisKill(ctx context.Context, f fault) (string, error) {
	for _, d := range w.s.apis {
		if err := killed(d); err != nil {
			return "", err
		}
	}
	wait(ctx, f.dur)
	var errs []error
	for _, d := range w.s.apis {
		errs = append(errs, d.Restart())
	}
	return "", errors.Join(errs...)
}

func (w *world) pause(ctx context.Context, f fault) (string, error) {
	d, err := w.daemon(f.target)
	if err != nil {
		return "", err
	}
	if err := d.Stop(ctx); err != nil {
		return "", errors.Join(err, d.Cont())
	}
	wait(ctx, f.dur)
	return "", d.Cont()
}

// rollingRestart restarts one api after the other, each when the one before is
// ready again.
func (w *world) rollingRestart(ctx context.Context, _ fault) (string, error) {
	ctx, cancel := after(ctx)
	defer cancel()
	for _, d := range w.s.apis {
		if !d.Running() {
			return "", fmt.Errorf("%s had ended by itself", d.Name())
		}
		name := d.Name()
		code, err := d.Term(ctx)
		if err == nil && code != 0 {
			err = fmt.Errorf("%s ended with %d after SIGTERM", name, code)
		}
		if err := errors.Join(err, d.Restart()); err != nil {
			return "", err
		}
		if err := d.Ready(ctx); err != nil {
			return "", err
		}
	}
	return "", nil
}

// redisKill kills the server, and starts it again on its files.
func (w *world) redisKill(ctx context.Context, f fault) (string, error) {
	w.s.redis.Kill()
	wait(ctx, f.dur)
	return w.redisUp(ctx)
}

// redisUp starts the server, and waits until it has its data.
func (w *world) redisUp(ctx context.Context) (string, error) {
	ctx, cancel := after(ctx)
	defer cancel()
	if err := w.s.redis.Launch(); err != nil {
		return "", err
	}
	began := time.Now()
	loading := false
	for {
		answer := ping(ctx, w.s.redis.Addr())
		if answer == "+PONG" {
			break
		}
		loading = loading || strings.HasPrefix(answer, "-LOADING")
		if !wait(ctx, time.Millisecond) {
			return "", fmt.Errorf("redis-server does not come back (%q): %s", answer, w.s.redis.Log())
		}
	}
	took := time.Since(began)
	w.counts.mu.Lock()
	defer w.counts.mu.Unlock()
	w.counts.restarts++
	w.counts.longestLoad = max(w.counts.longestLoad, took)
	remark := fmt.Sprintf("up %d ms after its start", took.Milliseconds())
	if loading {
		w.counts.loading++
		remark += ", LOADING was answered"
	}
	return remark, nil
}

// ping asks over a connection of its own, without a client that hides LOADING.
func ping(ctx context.Context, addr string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return err.Error()
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(line)
}

func (w *world) redisPause(ctx context.Context, f fault) (string, error) {
	if err := w.s.redis.Signal(syscall.SIGSTOP); err != nil {
		return "", err
	}
	wait(ctx, f.dur)
	return "", w.s.redis.Signal(syscall.SIGCONT)
}

// redisReadOnly makes the server a replica of an address where nobody listens:
// it keeps its data and takes no write.
func (w *world) redisReadOnly(ctx context.Context, f fault) (string, error) {
	port, err := lab.FreePort()
	if err != nil {
		return "", err
	}
	c, cancel := after(ctx)
	defer cancel()
	if err := w.redis.ReplicaOf(c, "127.0.0.1", strconv.Itoa(port)).Err(); err != nil {
		return "", err
	}
	wait(ctx, f.dur)
	return "", w.redis.ReplicaOf(c, "NO", "ONE").Err()
}

// redisMisconf makes a snapshot fail, with a folder where its file should be,
// and the server refuse writes because of that.
func (w *world) redisMisconf(ctx context.Context, f fault) (remark string, err error) {
	c, cancel := after(ctx)
	defer cancel()
	obstacle := filepath.Join(w.s.redis.Dir, "dump.rdb")
	defer func() {
		// Without save points the server does not mind a failed snapshot.
		err = errors.Join(err, w.redis.ConfigSet(c, "save", "").Err(), os.RemoveAll(obstacle))
	}()
	if err := os.MkdirAll(obstacle, 0o755); err != nil {
		return "", err
	}
	if err := w.redis.ConfigSet(c, "save", "86400 1000000000").Err(); err != nil {
		return "", err
	}
	if err := w.redis.Do(c, "BGSAVE", "SCHEDULE").Err(); err != nil && !strings.Contains(err.Error(), "already in progress") {
		return "", err
	}
	until, stop := context.WithTimeout(ctx, f.dur+5*time.Second) // a rewrite may be under way
	defer stop()
	for {
		err := w.redis.Set(c, "chaos:misconf", 1, time.Millisecond).Err()
		if err != nil && strings.HasPrefix(err.Error(), "MISCONF") {
			break
		}
		if !wait(until, 20*time.Millisecond) {
			return "did not come to be in time", nil
		}
	}
	w.counts.mu.Lock()
	w.counts.misconf++
	w.counts.mu.Unlock()
	wait(ctx, f.dur)
	return "MISCONF was answered", nil
}

func (w *world) redisFull(ctx context.Context, f fault) (string, error) {
	c, cancel := after(ctx)
	defer cancel()
	info, err := w.redis.InfoMap(c, "memory").Result()
	if err != nil {
		return "", err
	}
	used, err := strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
	if err != nil {
		return "", fmt.Errorf("used_memory: %w", err)
	}
	const room = 64 << 10
	if err := w.redis.ConfigSet(c, "maxmemory", strconv.FormatInt(used+room, 10)).Err(); err != nil {
		return "", err
	}
	wait(ctx, f.dur)
	return fmt.Sprintf("at %d MiB", used>>20), w.redis.ConfigSet(c, "maxmemory", "0").Err()
}

func (w *world) scriptFlush(ctx context.Context, f fault) (string, error) {
	until, cancel := context.WithTimeout(ctx, f.dur)
	defer cancel()
	n := 0
	for wait(until, 10*time.Millisecond) {
		if err := w.redis.ScriptFlush(until).Err(); err == nil {
			n++
		}
	}
	return fmt.Sprintf("%d times", n), nil
}

func (w *world) linkCut(ctx context.Context, f fault) (string, error) {
	p := w.s.links[f.target].proxy
	before := p.Cut()
	const share = 0.2
	p.CutBefore(share)
	wait(ctx, f.dur)
	p.CutBefore(0)
	return fmt.Sprintf("%d commands", p.Cut()-before), nil
}

func (w *world) linkDrop(ctx context.Context, f fault) (string, error) {
	p := w.s.links[f.target].proxy
	before := p.Dropped()
	const share = 0.2
	p.DropReplies(share)
	wait(ctx, f.dur)
	p.DropReplies(0)
	return fmt.Sprintf("%d replies", p.Dropped()-before), nil
}

func (w *world) linkStall(ctx context.Context, f fault) (string, error) {
	p := w.s.links[f.target].proxy
	p.Stall()
	wait(ctx, f.dur)
	p.Resume()
	return "", nil
}

// toxic is what a toxiproxy may be told to do.
type toxic struct {
	kind       string
	streams    []string
	attributes map[string]any
}

// poison adds a toxic for the time of a fault.
func (w *world) poison(ctx context.Context, t *lab.Toxi, f fault, what toxic) (_ string, err error) {
	for _, stream := range what.streams {
		name := what.kind + " " + stream
		if err := t.Add(name, what.kind, stream, what.attributes); err != nil {
			return "", err
		}
		defer func() {
			c, cancel := after(ctx)
			defer cancel()
			err = errors.Join(err, t.Remove(c, name))
		}()
	}
	wait(ctx, f.dur)
	return "", nil
}

var (
	up   = []string{"upstream"}
	down = []string{"downstream"}
	both = []string{"upstream", "downstream"}
)

func (w *world) linkLatency(ctx context.Context, f fault) (string, error) {
	return w.poison(ctx, w.s.links[f.target].toxi, f, toxic{"latency", up, map[string]any{"latency": 50, "jitter": 20}})
}

func (w *world) linkBandwidth(ctx context.Context, f fault) (string, error) {
	return w.poison(ctx, w.s.links[f.target].toxi, f, toxic{"bandwidth", both, map[string]any{"rate": 200}})
}

func (w *world) linkReset(ctx context.Context, f fault) (string, error) {
	return w.poison(ctx, w.s.links[f.target].toxi, f, toxic{"reset_peer", down, map[string]any{"timeout": 0}})
}

func (w *world) httpLatency(ctx context.Context, f fault) (string, error) {
	return w.poison(ctx, w.http, f, toxic{"latency", both, map[string]any{"latency": 50, "jitter": 20}})
}

func (w *world) httpBandwidth(ctx context.Context, f fault) (string, error) {
	return w.poison(ctx, w.http, f, toxic{"bandwidth", both, map[string]any{"rate": 20}})
}

func (w *world) httpReset(ctx context.Context, f fault) (string, error) {
	return w.poison(ctx, w.http, f, toxic{"reset_peer", down, map[string]any{"timeout": 0}})
}

func (w *world) hangUps(ctx context.Context, f fault) (string, error) {
	const share = 0.3
	before := w.l.record().Answers()["hung up"]
	w.l.client.SetHangUps(share)
	wait(ctx, f.dur)
	w.l.client.SetHangUps(0)
	return fmt.Sprintf("%d hang-ups", w.l.record().Answers()["hung up"]-before), nil
}

// slowSenders opens connections that never finish a request.
func (w *world) slowSenders(ctx context.Context, f fault) (string, error) {
	urls, err := w.s.apiURLs(ctx)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, f.dur)
	defer cancel()
	const connections = 300
	var senders sync.WaitGroup
	var sent atomic.Int64
	for i := range connections {
		addr := strings.TrimPrefix(urls[i%len(urls)], "http://")
		senders.Go(func() { sent.Add(slowSender(ctx, addr)) })
	}
	senders.Wait()
	return fmt.Sprintf("%d bytes", sent.Load()), nil
}

// slowSender sends a byte a second of a request whose body never comes, and
// begins anew when it is thrown out.
func slowSender(ctx context.Context, addr string) (sent int64) {
	const request = "POST /polls/paredao/votes HTTP/1.1\r\nHost: slow\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
	for wait(ctx, 100*time.Millisecond) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			continue
		}
		for i := range request {
			if _, err := c.Write([]byte{request[i]}); err != nil {
				break
			}
			if sent++; !wait(ctx, time.Second) {
				break
			}
		}
		c.Close()
	}
	return sent
}

func (w *world) archiveGone(ctx context.Context, f fault) (string, error) {
	w.s.azurite.Stop()
	wait(ctx, f.dur)
	return "", w.s.azurite.Start()
}

func (w *world) archiveBusy(ctx context.Context, f fault) (string, error) {
	p := w.s.blobProxy
	before := p.refused.Load()
	p.busy.Store(true)
	wait(ctx, f.dur)
	p.busy.Store(false)
	return fmt.Sprintf("%d requests", p.refused.Load()-before), nil
}

func (w *world) archiveDrops(ctx context.Context, f fault) (string, error) {
	p := w.s.blobProxy
	before := p.unwitting.Load()
	p.dropping.Store(true)
	wait(ctx, f.dur)
	p.dropping.Store(false)
	return fmt.Sprintf("%d PUTs", p.unwitting.Load()-before), nil
}

func (w *world) diskFull(ctx context.Context, f fault) (string, error) {
	return w.withDisk(ctx, f, (*disk).fill)
}

func (w *world) diskReadOnly(ctx context.Context, f fault) (string, error) {
	return w.withDisk(ctx, f, (*disk).readOnly)
}

func (w *world) withDisk(ctx context.Context, f fault, begin func(*disk, context.Context) error) (string, error) {
	if w.disk == nil {
		return "", fmt.Errorf("%w: a file system of its own may not be mounted here", errSkipped)
	}
	if err := begin(w.disk, ctx); err != nil {
		return "", errors.Join(err, w.disk.mend())
	}
	wait(ctx, f.dur)
	return "", w.disk.mend()
}

// happen does every fault at its time, and returns when all have ended. An
// error ends the rest.
func (w *world) happen(ctx context.Context, faults []fault) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for _, f := range faults {
		if !wait(ctx, time.Until(w.l.start.Add(f.at))) {
			break
		}
		all.Go(func() {
			if err := w.one(ctx, f); err != nil {
				cancel(fmt.Errorf("fault %q of %s: %w", f.kind.name, f.target, err))
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// one does a fault and reports it.
func (w *world) one(ctx context.Context, f fault) error {
	w.r.say("begins: %s: %s, for %s", f.target, f.kind.name, f.dur)
	rec := w.r.report.fault(faultRecord{At: time.Since(w.l.start), For: f.dur, Name: f.kind.name, Target: f.target})
	remark, err := f.kind.do(w, ctx, f)
	ended := time.Since(w.l.start)
	w.r.report.change(func() { rec.For, rec.Note = ended-rec.At, remark })
	if errors.Is(err, errSkipped) {
		w.r.report.change(func() { rec.For, rec.Note = 0, err.Error() })
		return nil
	}
	if err != nil {
		w.r.report.change(func() { rec.Note = err.Error() })
		return err
	}
	w.r.say("is over: %s: %s (%s)", f.target, f.kind.name, remark)
	w.l.recovered(func(d time.Duration) { w.r.report.change(func() { rec.Recovery = &d }) })
	for _, role := range []string{consumer, archiver} {
		if strings.HasPrefix(f.target, role) || f.target == partArchive && role == archiver {
			if d, ok := w.moves(ctx, role); ok {
				w.r.report.change(func() { rec.Moving = &d })
			}
		}
	}
	return nil
}

// moves waits until votes are counted, or archived, again.
func (w *world) moves(ctx context.Context, role string) (time.Duration, bool) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	began := time.Now()
	first := int64(-1)
	for {
		if r, err := w.s.store.Results(ctx, mainPoll); err == nil {
			n := r.Ledger.Counted
			if role == archiver {
				n = r.Ledger.Archived
			}
			if first < 0 {
				first = n
			} else if n > first {
				return time.Since(began), true
			}
		}
		if !wait(ctx, 50*time.Millisecond) {
			return 0, false
		}
	}
}

// windows are the times in which votes may have been lost.
func (w *world) windows() []ledger.LossWindow {
	w.counts.mu.Lock()
	defer w.counts.mu.Unlock()
	return slices.Clone(w.counts.windows)
}
