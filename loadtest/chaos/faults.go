package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	// late keeps faults that delay acknowledgements and those that make Redis
	// forget apart, where one comes later than planned: the former share it.
	late sync.RWMutex
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
// then. An error says that it could not be done, or that something broke that
// should not.
type action func(w *world, ctx context.Context, f fault) (effect, error)

// effect is what came of a fault.
type effect struct {
	// took says that it was seen to do what its name says.
	took   bool
	remark string
}

// tookEffect is a fault that can't but do what its name says.
var tookEffect = effect{took: true}

// during lets a fault's time pass and tells whether seen held at any moment of
// it.
func during(ctx context.Context, f fault, seen func(context.Context) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, f.dur)
	defer cancel()
	for ctx.Err() == nil {
		// What is seen as the time ends may come of that.
		if seen(ctx) && ctx.Err() == nil {
			<-ctx.Done()
			return true
		}
		wait(ctx, 50*time.Millisecond)
	}
	return false
}

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

func (w *world) kill(ctx context.Context, f fault) (effect, error) {
	d, err := w.daemon(f.target)
	if err != nil {
		return effect{}, err
	}
	if err := killed(d); err != nil {
		return effect{}, err
	}
	wait(ctx, f.dur)
	return tookEffect, d.Restart()
}

func (w *world) apisKill(ctx context.Context, f fault) (effect, error) {
	for _, d := range w.s.apis {
		if err := killed(d); err != nil {
			return effect{}, err
		}
	}
	wait(ctx, f.dur)
	var errs []error
	for _, d := range w.s.apis {
		errs = append(errs, d.Restart())
	}
	return tookEffect, errors.Join(errs...)
}

func (w *world) pause(ctx context.Context, f fault) (effect, error) {
	d, err := w.daemon(f.target)
	if err != nil {
		return effect{}, err
	}
	if err := d.Stop(ctx); err != nil {
		return effect{}, errors.Join(err, d.Cont())
	}
	wait(ctx, f.dur)
	return tookEffect, d.Cont()
}

// rollingRestart restarts one api after the other, each when the one before is
// ready again.
func (w *world) rollingRestart(ctx context.Context, _ fault) (effect, error) {
	ctx, cancel := after(ctx)
	defer cancel()
	for _, d := range w.s.apis {
		if !d.Running() {
			return effect{}, fmt.Errorf("%s had ended by itself", d.Name())
		}
		name := d.Name()
		code, err := d.Term(ctx)
		if err == nil && code != 0 {
			err = fmt.Errorf("%s ended with %d after SIGTERM", name, code)
		}
		if err := errors.Join(err, d.Restart()); err != nil {
			return effect{}, err
		}
		if err := d.Ready(ctx); err != nil {
			return effect{}, err
		}
	}
	return tookEffect, nil
}

// redisKill kills the server, and starts it again on its files.
func (w *world) redisKill(ctx context.Context, f fault) (effect, error) {
	w.s.redis.Kill()
	wait(ctx, f.dur)
	remark, err := w.redisUp(ctx)
	return effect{true, remark}, err
}

// redisMended makes the server take writes again, whatever a fault that failed
// has left it as.
func (w *world) redisMended(ctx context.Context) error {
	if !w.s.redis.Running() {
		if _, err := w.redisUp(ctx); err != nil {
			return err
		}
	}
	return errors.Join(
		w.s.redis.Signal(syscall.SIGCONT), w.redis.ReplicaOf(ctx, "NO", "ONE").Err(),
		w.redis.ConfigSet(ctx, "save", "").Err(), w.redis.ConfigSet(ctx, "maxmemory", "0").Err(),
	)
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
func ping(ctx context.Context, addr string) string { return ask(ctx, addr, "PING\r\n") }

// pong is what a Redis answers that is well.
const pong = "+PONG"

// ask sends a text and returns the answer's first line, or what went wrong.
func ask(ctx context.Context, addr, text string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	_ = c.SetDeadline(deadline)
	if _, err := io.WriteString(c, text); err != nil {
		return err.Error()
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(line)
}

func (w *world) redisPause(ctx context.Context, f fault) (effect, error) {
	if err := w.s.redis.Signal(syscall.SIGSTOP); err != nil {
		return effect{}, err
	}
	silent := during(ctx, f, func(ctx context.Context) bool { return ping(ctx, w.s.redis.Addr()) != pong })
	return effect{took: silent}, w.s.redis.Signal(syscall.SIGCONT)
}

// refuses tells whether the server answers a write with an error of a kind.
func (w *world) refuses(ctx context.Context, kind string) bool {
	err := w.redis.Set(ctx, "chaos:probe", 1, time.Millisecond).Err()
	return err != nil && strings.HasPrefix(err.Error(), kind)
}

// redisReadOnly makes the server a replica of an address where nobody listens:
// it keeps its data and takes no write.
func (w *world) redisReadOnly(ctx context.Context, f fault) (effect, error) {
	port, err := lab.FreePort()
	if err != nil {
		return effect{}, err
	}
	c, cancel := after(ctx)
	defer cancel()
	if err := w.redis.ReplicaOf(c, "127.0.0.1", strconv.Itoa(port)).Err(); err != nil {
		return effect{}, err
	}
	took := during(ctx, f, func(ctx context.Context) bool { return w.refuses(ctx, "READONLY") })
	return effect{took: took}, w.redis.ReplicaOf(c, "NO", "ONE").Err()
}

// redisMisconf makes a snapshot fail, with a folder where its file should be,
// and the server refuse writes because of that.
func (w *world) redisMisconf(ctx context.Context, f fault) (e effect, err error) {
	c, cancel := after(ctx)
	defer cancel()
	// A rewrite under way would put the snapshot off, for as long as it takes.
	resume, err := w.noRewrite(c)
	if err != nil {
		return e, err
	}
	// A name of its own for each: a snapshot that comes late after all must not
	// stand in the way of the next fault.
	file := fmt.Sprintf("misconf-%d.rdb", w.l.start.Add(f.at).UnixNano())
	obstacle := filepath.Join(w.s.redis.Dir, file)
	defer func() {
		// Without save points the server does not mind a failed snapshot. What
		// stands in the file's place goes when no snapshot is under way any more.
		err = errors.Join(err, w.redis.ConfigSet(c, "save", "").Err(), w.noChild(c), os.RemoveAll(obstacle), resume())
	}()
	if err := w.redis.ConfigSet(c, "dbfilename", file).Err(); err != nil {
		return e, err
	}
	if err := os.Mkdir(obstacle, 0o755); err != nil {
		return e, err
	}
	if err := w.redis.ConfigSet(c, "save", "86400 1000000000").Err(); err != nil {
		return e, err
	}
	if err := w.redis.BgSave(c).Err(); err != nil {
		return e, err
	}
	const patience = 20 * time.Second // all data are written before it fails
	until, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for !w.refuses(c, "MISCONF") {
		if !wait(until, 20*time.Millisecond) {
			return effect{remark: "no write was refused in time"}, nil
		}
	}
	w.counts.mu.Lock()
	w.counts.misconf++
	w.counts.mu.Unlock()
	wait(ctx, f.dur)
	return effect{true, "MISCONF was answered"}, nil
}

// noRewrite keeps the server from rewriting its file, and returns when no
// rewrite or snapshot is under way. resume lets it rewrite again.
func (w *world) noRewrite(ctx context.Context) (resume func() error, err error) {
	const rewrite = "auto-aof-rewrite-percentage"
	resume = func() error {
		c, cancel := after(ctx)
		defer cancel()
		return w.redis.ConfigSet(c, rewrite, "100").Err()
	}
	if err := w.redis.ConfigSet(ctx, rewrite, "0").Err(); err != nil {
		return nil, err
	}
	if err := w.noChild(ctx); err != nil {
		return nil, errors.Join(err, resume())
	}
	return resume, nil
}

// noChild waits until the server neither rewrites its file nor writes a
// snapshot, and is not about to.
func (w *world) noChild(ctx context.Context) error {
	for {
		info, err := w.redis.InfoMap(ctx, "persistence").Result()
		if err != nil {
			return err
		}
		p := info["Persistence"]
		if p["aof_rewrite_in_progress"] == "0" && p["aof_rewrite_scheduled"] == "0" && p["rdb_bgsave_in_progress"] == "0" {
			return nil
		}
		if !wait(ctx, 20*time.Millisecond) {
			return fmt.Errorf("redis-server writes its files still: %w", context.Cause(ctx))
		}
	}
}

func (w *world) redisFull(ctx context.Context, f fault) (effect, error) {
	c, cancel := after(ctx)
	defer cancel()
	used, err := usedMemory(c, w.redis)
	if err != nil {
		return effect{}, err
	}
	before, err := replies(c, w.redis, "OOM")
	if err != nil {
		return effect{}, err
	}
	// An api refuses votes before Redis would have to.
	const overloaded = "503 overloaded"
	refusals := w.l.record().Answers()[overloaded]
	const room = 64 << 10
	if err := w.redis.ConfigSet(c, "maxmemory", strconv.FormatInt(used+room, 10)).Err(); err != nil {
		return effect{}, err
	}
	wait(ctx, f.dur)
	refusals = w.l.record().Answers()[overloaded] - refusals
	oom, err := replies(c, w.redis, "OOM")
	oom -= before
	return effect{
		took:   oom+refusals > 0,
		remark: fmt.Sprintf("at %d MiB; Redis said OOM %d times, the apis refused %d times", used>>20, oom, refusals),
	}, errors.Join(err, w.redis.ConfigSet(c, "maxmemory", "0").Err())
}

func (w *world) scriptFlush(ctx context.Context, f fault) (effect, error) {
	c, cancel := after(ctx)
	defer cancel()
	before, err := replies(c, w.redis, "NOSCRIPT")
	if err != nil {
		return effect{}, err
	}
	until, stop := context.WithTimeout(ctx, f.dur)
	defer stop()
	n := 0
	for wait(until, 10*time.Millisecond) {
		if err := w.redis.ScriptFlush(until).Err(); err == nil {
			n++
		}
	}
	missed, err := replies(c, w.redis, "NOSCRIPT")
	missed -= before
	return effect{missed > 0, fmt.Sprintf("%d times; a script was missed %d times", n, missed)}, err
}

func (w *world) linkCut(ctx context.Context, f fault) (effect, error) {
	p := w.s.links[f.target].proxy
	before := p.Cut()
	const share = 0.2
	p.CutBefore(share)
	wait(ctx, f.dur)
	p.CutBefore(0)
	n := p.Cut() - before
	return effect{n > 0, fmt.Sprintf("%d commands", n)}, nil
}

func (w *world) linkDrop(ctx context.Context, f fault) (effect, error) {
	p := w.s.links[f.target].proxy
	before := p.Dropped()
	const share = 0.2
	p.DropReplies(share)
	wait(ctx, f.dur)
	p.DropReplies(0)
	n := p.Dropped() - before
	return effect{n > 0, fmt.Sprintf("%d replies", n)}, nil
}

func (w *world) linkStall(ctx context.Context, f fault) (effect, error) {
	p := w.s.links[f.target].proxy
	p.Stall()
	took := during(ctx, f, func(ctx context.Context) bool { return w.silent(ctx, p.Addr()) })
	p.Resume()
	return effect{took: took}, nil
}

// silent tells whether the server is well, and can't be asked over a way.
func (w *world) silent(ctx context.Context, way string) bool {
	return ping(ctx, way) != pong && ping(ctx, w.s.redis.Addr()) == pong
}

// toxic is what a toxiproxy may be told to do.
type toxic struct {
	kind       string
	streams    []string
	attributes map[string]any
}

// poison adds a toxic for the time of a fault, and tells whether seen held at
// any moment of it.
func (w *world) poison(ctx context.Context, t *lab.Toxi, f fault, what toxic, seen func(context.Context) bool) (e effect, err error) {
	for _, stream := range what.streams {
		name := what.kind + " " + stream
		if err := t.Add(name, what.kind, stream, what.attributes); err != nil {
			return e, err
		}
		defer func() {
			c, cancel := after(ctx)
			defer cancel()
			err = errors.Join(err, t.Remove(c, name))
		}()
	}
	return effect{took: during(ctx, f, seen)}, nil
}

var (
	up   = []string{"upstream"}
	down = []string{"downstream"}
	both = []string{"upstream", "downstream"}
)

// echoes returns a check that a way to Redis takes at least so long for an ECHO
// of n bytes.
func echoes(way *link, n int, least time.Duration) func(context.Context) bool {
	text := fmt.Sprintf("*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n", n, strings.Repeat("x", n))
	return slow(way.proxy.Addr(), text, "$", least)
}

// slow returns a check that an answer, of which the beginning is known, takes at
// least so long.
func slow(addr, text, answer string, least time.Duration) func(context.Context) bool {
	return func(ctx context.Context) bool {
		began := time.Now()
		return strings.HasPrefix(ask(ctx, addr, text), answer) && time.Since(began) >= least
	}
}

func (w *world) linkLatency(ctx context.Context, f fault) (effect, error) {
	way := w.s.links[f.target]
	return w.poison(ctx, way.toxi, f, toxic{"latency", up, map[string]any{"latency": 50, "jitter": 20}},
		echoes(way, 1, 30*time.Millisecond))
}

func (w *world) linkBandwidth(ctx context.Context, f fault) (effect, error) {
	way := w.s.links[f.target]
	const bytes = 40_000 // 200 ms each way
	return w.poison(ctx, way.toxi, f, toxic{"bandwidth", both, map[string]any{"rate": 200}}, echoes(way, bytes, 150*time.Millisecond))
}

func (w *world) linkReset(ctx context.Context, f fault) (effect, error) {
	way := w.s.links[f.target]
	return w.poison(ctx, way.toxi, f, toxic{"reset_peer", down, map[string]any{"timeout": 0}},
		func(ctx context.Context) bool { return w.silent(ctx, way.proxy.Addr()) })
}

// look is a request to an api, whose header takes n bytes more.
func look(n int) string {
	return "GET / HTTP/1.1\r\nHost: chaos\r\nConnection: close\r\nX-Pad: " + strings.Repeat("x", n) + "\r\n\r\n"
}

const answersHTTP = "HTTP/1.1 "

func (w *world) httpLatency(ctx context.Context, f fault) (effect, error) {
	return w.poison(ctx, w.http, f, toxic{"latency", both, map[string]any{"latency": 50, "jitter": 20}},
		slow(w.http.Addr(), look(1), answersHTTP, 60*time.Millisecond))
}

func (w *world) httpBandwidth(ctx context.Context, f fault) (effect, error) {
	const bytes = 2000 // 100 ms
	return w.poison(ctx, w.http, f, toxic{"bandwidth", both, map[string]any{"rate": 20}},
		slow(w.http.Addr(), look(bytes), answersHTTP, 80*time.Millisecond))
}

func (w *world) httpReset(ctx context.Context, f fault) (effect, error) {
	straight, err := w.s.apis[0].Public(ctx)
	if err != nil {
		return effect{}, err
	}
	return w.poison(ctx, w.http, f, toxic{"reset_peer", down, map[string]any{"timeout": 0}}, func(ctx context.Context) bool {
		return !strings.HasPrefix(ask(ctx, w.http.Addr(), look(1)), answersHTTP) && strings.HasPrefix(ask(ctx, straight, look(1)), answersHTTP)
	})
}

func (w *world) hangUps(ctx context.Context, f fault) (effect, error) {
	const share = 0.3
	before := w.l.record().Answers()["hung up"]
	w.l.client.SetHangUps(share)
	wait(ctx, f.dur)
	w.l.client.SetHangUps(0)
	n := w.l.record().Answers()["hung up"] - before
	return effect{n > 0, fmt.Sprintf("%d hang-ups", n)}, nil
}

// slowSenders opens connections that never finish a request.
func (w *world) slowSenders(ctx context.Context, f fault) (effect, error) {
	urls, err := w.s.apiURLs(ctx)
	if err != nil {
		return effect{}, err
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
	return effect{sent.Load() > 0, fmt.Sprintf("%d bytes", sent.Load())}, nil
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

func (w *world) archiveGone(ctx context.Context, f fault) (effect, error) {
	before := w.s.blobProxy.failed.Load()
	w.s.azurite.Stop()
	wait(ctx, f.dur)
	n := w.s.blobProxy.failed.Load() - before
	return effect{n > 0, fmt.Sprintf("%d requests failed", n)}, w.s.azurite.Start()
}

func (w *world) archiveBusy(ctx context.Context, f fault) (effect, error) {
	p := w.s.blobProxy
	before := p.refused.Load()
	p.busy.Store(true)
	wait(ctx, f.dur)
	p.busy.Store(false)
	n := p.refused.Load() - before
	return effect{n > 0, fmt.Sprintf("%d requests", n)}, nil
}

func (w *world) archiveDrops(ctx context.Context, f fault) (effect, error) {
	p := w.s.blobProxy
	before := p.unwitting.Load()
	p.dropping.Store(true)
	wait(ctx, f.dur)
	p.dropping.Store(false)
	n := p.unwitting.Load() - before
	return effect{n > 0, fmt.Sprintf("%d PUTs", n)}, nil
}

func (w *world) diskFull(ctx context.Context, f fault) (effect, error) {
	return w.withDisk(ctx, f, (*disk).fill, "no space left on device")
}

func (w *world) diskReadOnly(ctx context.Context, f fault) (effect, error) {
	return w.withDisk(ctx, f, (*disk).readOnly, "read-only file system")
}

// withDisk has taken effect once an archiver says that it met it.
func (w *world) withDisk(ctx context.Context, f fault, begin func(*disk, context.Context) error, says string) (effect, error) {
	if w.disk == nil {
		return effect{}, fmt.Errorf("%w: a file system of its own may not be mounted here", errSkipped)
	}
	began := time.Now()
	if err := begin(w.disk, ctx); err != nil {
		return effect{}, errors.Join(err, w.disk.mend())
	}
	logged := func(text string, since time.Time) func(*lab.Daemon) bool {
		return func(d *lab.Daemon) bool { return loggedSince(d.Log().String(), text, since) }
	}
	took := during(ctx, f, func(context.Context) bool { return slices.ContainsFunc(w.s.archivers, logged(says, began)) })
	err := w.disk.mend()
	// An archiver logs a failure once in so long, and may have logged another.
	const rarely = 30 * time.Second
	if err == nil && !took && slices.ContainsFunc(w.s.archivers, logged(cantArchive, began.Add(-rarely))) {
		err = fmt.Errorf("%w of what is judged: an archiver may have met it, and had logged another failure less than %s before", errSkipped, rarely)
	}
	return effect{took: took}, err
}

// cantArchive is what an archiver logs of any failure.
const cantArchive = "votes can't be archived"

// loggedSince tells whether a daemon's log has a line with a text of a moment or
// later.
func loggedSince(log, text string, since time.Time) bool {
	for line := range strings.Lines(log) {
		var entry struct{ Time time.Time }
		if strings.Contains(line, text) && json.Unmarshal([]byte(line), &entry) == nil && !entry.Time.Before(since) {
			return true
		}
	}
	return false
}

// happen does every fault at its time, and returns when all have ended. An
// error ends the rest.
func (w *world) happen(ctx context.Context, faults []fault) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A fault that takes longer than planned puts off the next one of its part.
	parts := map[string]*sync.Mutex{}
	for _, f := range faults {
		parts[f.part()] = new(sync.Mutex)
	}
	var all sync.WaitGroup
	for _, f := range faults {
		if !wait(ctx, time.Until(w.l.start.Add(f.at))) {
			break
		}
		all.Go(func() {
			if err := w.one(ctx, f, parts[f.part()]); err != nil {
				cancel(fmt.Errorf("fault %q of %s: %w", f.kind.name, f.target, err))
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// one does a fault and reports it.
func (w *world) one(ctx context.Context, f fault, part *sync.Mutex) error {
	rec, e, err := w.inject(ctx, f, part)
	if rec == nil {
		return nil // it was put off, and the faults have ended
	}
	if err == nil && !e.took && ctx.Err() != nil {
		err = fmt.Errorf("%w, since the faults had to end", errSkipped)
	}
	if errors.Is(err, errSkipped) {
		w.r.report.change(func() { rec.For, rec.Note, rec.Skipped = 0, err.Error(), true })
		return nil
	}
	if err != nil {
		w.r.report.change(func() { rec.Note = err.Error() })
		return err
	}
	w.r.say("is over: %s: %s (%s)", f.target, f.kind.name, cmp.Or(e.remark, map[bool]string{true: "seen", false: "not seen"}[e.took]))
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

// inject does a fault when none is under way that it must not meet.
func (w *world) inject(ctx context.Context, f fault, part *sync.Mutex) (rec *faultRecord, e effect, err error) {
	part.Lock()
	defer part.Unlock()
	switch {
	case f.kind.delays:
		w.late.RLock()
		defer w.late.RUnlock()
	case f.kind.forgets:
		w.late.Lock()
		defer w.late.Unlock()
	}
	if ctx.Err() != nil {
		return nil, e, nil
	}
	w.r.say("begins: %s: %s, for %s", f.target, f.kind.name, f.dur)
	rec = w.r.report.fault(faultRecord{At: time.Since(w.l.start), For: f.dur, Name: f.kind.name, Target: f.target, Kind: f.kind.String()})
	e, err = f.kind.do(w, ctx, f)
	ended := time.Since(w.l.start)
	w.r.report.change(func() { rec.For, rec.Note, rec.Took = ended-rec.At, e.remark, e.took })
	return rec, e, err
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
