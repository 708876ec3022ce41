package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/redis/go-redis/v9"

	"paredao/internal/lab"
	"paredao/internal/ledger"
)

// The polls of a mix: two take votes, one is closed.
const (
	mainPoll = "paredao"
	sidePoll = "aside"
	shutPoll = "shut"
)

// mixChoices are what is voted for, the last two in vain: an option that does
// not exist, and a closed poll.
func mixChoices() (choices []ledger.Choice, weights []int) {
	return []ledger.Choice{
		{Poll: mainPoll, Option: "ana"}, {Poll: mainPoll, Option: "bruno"}, {Poll: mainPoll, Option: "carla"},
		{Poll: sidePoll, Option: "yes"}, {Poll: sidePoll, Option: "no"}, {Poll: shutPoll, Option: "ana"},
		{Poll: mainPoll, Option: "nobody"},
	}, []int{50, 30, 14, 3, 2, 1, 1}
}

// How many of the choices, from the end, must be refused; and do not exist.
const refused, inVain = 2, 1

// mixPlan is how a mix differs.
type mixPlan struct {
	fsync string
	// kill is what becomes of redis-server; set are faults that do not follow
	// from the seed.
	kill *kind
	set  []fault
	// watchAOF for power cuts; settle, if set, repairs what was lost before the
	// judgement.
	watchAOF bool
	settle   func(ctx context.Context, w *world) error
	// archiveMaxAge is the archivers', if not the stack's usual one.
	archiveMaxAge time.Duration
}

func runMix(ctx context.Context, r *run) error {
	return r.mix(ctx, mixPlan{fsync: "always", kill: killKind(r.length(), "kill -9", (*world).redisKill)})
}

func (r *run) length() time.Duration { return time.Duration(r.seconds) * time.Second }

// mix posts votes while faults happen as planned:
//
//	           ┌─────────────▶ api 0, api 1 ─┐
//	client ────┼─▶ toxiproxy ─▶ api 0        ├▶ proxy ▶ toxiproxy ▶ redis-server
//	           └─▶ nginx ─────▶ api 0, api 1 │      (a pair for each kind of daemon)
//	                 consumers ×3 ───────────┤
//	                 archivers ×2 ───────────┴▶ (proxy) ▶ archive
func (r *run) mix(ctx context.Context, plan mixPlan) (err error) {
	w := &world{r: r}
	p, err := r.mixParams(w, plan)
	if err != nil {
		return err
	}
	// A power cut takes written data, too; a process that is killed only what it
	// has not written yet, which appendfsync always has before it answers.
	r.mayForget = plan.watchAOF || p.fsync != "always"
	faults := r.schedule(&p, plan)
	r.say("the faults will be:\n%s", planText(faults))
	failed := true
	defer func() { err = errors.Join(err, w.end(context.WithoutCancel(ctx), failed || err != nil)) }()
	if err := w.start(ctx, p, plan); err != nil {
		return err
	}
	w.describe()
	err = w.post(ctx, faults)
	if w.l == nil || ctx.Err() != nil {
		return err
	}
	if err != nil {
		r.drain = brokenPatience
	}
	// Whatever failed until here: what was acknowledged is compared all the same.
	if plan.settle != nil {
		err = errors.Join(err, plan.settle(ctx, w))
	}
	_, judged := r.judge(ctx, w.s, w.l, w.windows()...)
	err = errors.Join(err, judged)
	w.summary()
	err = errors.Join(err, r.effects())
	failed = err != nil
	return err
}

// effects reports the kinds of faults that did nothing. In a long run each has
// to have done something.
func (r *run) effects() error {
	const long = 10 * time.Minute
	idle, kinds := r.report.idle()
	r.report.row("kinds of faults injected", kinds)
	r.report.row("of those, never seen to take effect", len(idle))
	if len(idle) == 0 {
		return nil
	}
	r.report.note("Faults that were never seen to take effect: %s.", strings.Join(idle, "; "))
	if r.length() < long {
		return nil
	}
	return fmt.Errorf("faults that never took effect: %s", strings.Join(idle, "; "))
}

// mixParams says what stack there is to be; some of that follows from the seed.
func (r *run) mixParams(w *world, plan mixPlan) (p stackParams, err error) {
	choices, _ := mixChoices()
	p = stackParams{
		bin: r.bin, dir: r.dir, root: r.root, shards: r.shards, fsync: r.fsyncOr(plan.fsync),
		apis: 2, consumers: 3, archivers: 2, proxied: true, choices: choices[:len(choices)-inVain],
		// A replay may be asked for as long as the client repeats; longer costs
		// memory.
		apiArgs:      []string{"--idempotency-ttl=5m"},
		consumerArgs: []string{"--owner-ttl=" + ownerTTL.String()},
		archiverArgs: []string{"--owner-ttl=" + ownerTTL.String()},
	}
	if plan.archiveMaxAge > 0 {
		p.archiverArgs = append(p.archiverArgs, "--archive-max-age="+plan.archiveMaxAge.String())
	}
	p.azurite = r.seed%2 == 0
	if r.archive != "" {
		p.azurite = r.archive == "azurite"
	}
	if !p.azurite {
		dir, err := r.folder("archive")
		if err != nil {
			return p, err
		}
		p.archiveDir = dir
		if w.disk, err = r.left.mount(dir); err != nil {
			r.report.note("ENOSPC and a read-only file system were left out: %v", err)
		}
	}
	skews := []string{"", "+10m", "-10m"}
	if skew := skews[r.seed/2%uint64(len(skews))]; skew != "" {
		if p.redisEnv, err = fakeTime(skew); err != nil {
			r.report.note("a skew of %s between Redis and everyone else was left out: %v", skew, err)
		} else {
			r.report.row("clock of Redis", skew+" from everyone else's")
		}
	}
	return p, nil
}

// fakeTime is the environment in which redis-server has another clock. (A Go
// program asks the kernel, and can't be told a wrong time so.)
func fakeTime(skew string) ([]string, error) {
	found, err := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
	if err != nil || len(found) == 0 {
		return nil, errors.New("libfaketime is not installed")
	}
	// libc stands there again so that its malloc comes before jemalloc, which
	// asks for the time before libfaketime can tell it.
	env := []string{"LD_PRELOAD=" + found[0] + ":libc.so.6", "FAKETIME=" + skew, "DONT_FAKE_MONOTONIC=1"}
	const enough = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), enough)
	defer cancel()
	try := exec.CommandContext(ctx, "redis-server", "--version")
	try.Env = append(try.Environ(), env...)
	if out, err := try.CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "Redis server") {
		return nil, fmt.Errorf("redis-server does not run with libfaketime: %w", err)
	}
	return env, nil
}

// schedule is what will happen. Beside what follows from the seed, redis-server
// dies once in any case: it is what every run is to show.
func (r *run) schedule(p *stackParams, plan mixPlan) []fault {
	set := append([]fault{{
		at: r.length() * 2 / 5, dur: plan.kill.most, kind: plan.kill, target: plan.kill.targets[0],
	}}, plan.set...)
	if p.azurite {
		const early = time.Second // before the first batch is due
		set = append(set, fault{at: early, kind: &kind{
			name: "container deleted, before the first batch", part: partArchive, do: (*world).containerGone,
		}, target: partArchive})
	}
	return planFaults(r.seed, r.length(), kinds(p, plan.kill), set...)
}

// start starts the stack, and what stands around it.
func (w *world) start(ctx context.Context, p stackParams, plan mixPlan) (err error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if w.s, err = startStack(ctx, p); err != nil {
		return err
	}
	w.redis = redis.NewClient(&redis.Options{Addr: w.s.redis.Addr(), MaxRetries: -1, DialTimeout: time.Second})
	if err := w.s.store.ClosePoll(ctx, shutPoll); err != nil {
		return err
	}
	urls, err := w.s.apiURLs(ctx)
	if err != nil {
		return err
	}
	var addrs []string
	for _, u := range urls {
		addrs = append(addrs, strings.TrimPrefix(u, "http://"))
	}
	if w.http, err = lab.StartToxi(addrs[0]); err != nil {
		return err
	}
	dir, err := w.r.folder("nginx")
	if err != nil {
		return err
	}
	if w.nginx, err = lab.StartNginx(ctx, dir, addrs); err != nil {
		w.r.report.note("no connection went through nginx: %v", err)
	}
	if plan.watchAOF {
		w.aof = lab.WatchAOF(w.s.redis.Dir)
	}
	return nil
}

// ways are the URLs of the client. One that stands there more often gets more
// of the connections.
func (w *world) ways(ctx context.Context) ([]string, error) {
	urls, err := w.s.apiURLs(ctx)
	if err != nil {
		return nil, err
	}
	all := append([]string{}, urls...)
	all = append(all, urls...)
	all = append(all, urls...)
	if w.nginx != nil {
		all = append(all, "http://"+w.nginx.Addr())
	}
	all = append(all, "http://"+w.http.Addr())
	return all, nil
}

// containerGone deletes the archive's container, while it is empty.
func (w *world) containerGone(ctx context.Context, _ fault) (effect, error) {
	for range w.s.blobs.List(ctx, "") {
		return effect{}, fmt.Errorf("%w, since the archive has objects already", errSkipped)
	}
	u, err := url.Parse(w.s.archiveURL)
	if err != nil {
		return effect{}, err
	}
	c, err := container.NewClientFromConnectionString(w.s.azurite.ConnectionString(), u.Host, nil)
	if err != nil {
		return effect{}, err
	}
	if _, err := c.Create(ctx, nil); err != nil && !strings.Contains(err.Error(), "ContainerAlreadyExists") {
		return effect{}, err
	}
	_, err = c.Delete(ctx, nil)
	return tookEffect, err
}

// post posts votes for the time of the run, while the faults happen.
func (w *world) post(ctx context.Context, faults []fault) error {
	choices, weights := mixChoices()
	source, err := ledger.Draw(weights, 0, w.r.seed)
	if err != nil {
		return err
	}
	ways, err := w.ways(ctx)
	if err != nil {
		return err
	}
	const keyless, timeout = 0.3, 5 * time.Second
	w.l, err = w.r.startLoad(ctx, ledger.Params{URLs: ways, Choices: choices, Source: source, Refuse: choices[len(choices)-refused:], Keyless: keyless, Timeout: timeout})
	if err != nil {
		return err
	}
	defer w.l.stop()
	seen, stop := context.WithCancel(ctx)
	defer stop()
	go w.progress(seen)
	injected := w.happen(ctx, faults)
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if injected != nil {
		w.r.say("the faults end here: %v", injected)
		injected = errors.Join(injected, w.redisMended(ctx))
	}
	if err := w.s.healed(ctx); err != nil {
		return errors.Join(injected, err)
	}
	if injected == nil && !wait(ctx, time.Until(w.l.start.Add(w.r.length()))) {
		return errors.New("interrupted")
	}
	return errors.Join(injected, w.s.allServe(ctx))
}

// progress says now and then how far it is.
func (w *world) progress(ctx context.Context) {
	const every = 5 * time.Second
	last := w.l.record().Acked()
	for wait(ctx, every) {
		acked := w.l.record().Acked()
		depth := "unknown"
		ask, cancel := context.WithTimeout(ctx, time.Second)
		if queues, err := w.s.store.Queues(ask); err == nil {
			var queued, awaiting int64
			for _, q := range queues {
				queued, awaiting = queued+q.Votes, awaiting+q.AwaitingVotes
			}
			depth = fmt.Sprintf("%d, %d to archive", queued, awaiting)
		}
		cancel()
		w.r.say("%d acknowledged, %d/s; queued %s", acked, int64(float64(acked-last)/every.Seconds()), depth)
		last = acked
	}
}

// describe puts what was started into the report.
func (w *world) describe() {
	p, r := w.s.p, w.r.report
	r.row("redis settings", strings.Join(append([]string{"appendonly yes", "appendfsync " + p.fsync}, p.redisArgs...), ", "))
	kindOf := "a folder"
	if p.azurite {
		kindOf = "Azurite, behind a proxy"
	}
	if w.disk != nil {
		kindOf += " on a small file system of its own"
	}
	r.row("stack", fmt.Sprintf("%d apis, %d consumers, %d archivers, %d queue shards; the archive is %s",
		p.apis, p.consumers, p.archivers, p.shards, kindOf))
	r.row("client", fmt.Sprintf("%d connections: to both apis, and a few to one through toxiproxy and to both through nginx; 30 %% of the votes without a key",
		w.r.connections))
}

// summary puts what the faults saw into the report.
func (w *world) summary() {
	w.counts.mu.Lock()
	defer w.counts.mu.Unlock()
	r := w.r.report
	r.row("time without any acknowledged vote, in stops over half a second", w.l.stopped().Round(time.Millisecond))
	r.row("restarts of redis-server", w.counts.restarts)
	r.row("of those, seen to answer LOADING", w.counts.loading)
	r.row("longest start of redis-server", w.counts.longestLoad.Round(time.Millisecond))
	r.row("MISCONF faults that were answered so", w.counts.misconf)
}

// end ends all that start started.
func (w *world) end(ctx context.Context, failed bool) error {
	var errs []error
	if w.nginx != nil {
		w.nginx.Kill()
	}
	if w.http != nil {
		w.http.Close()
	}
	if w.aof != nil {
		w.aof.Close()
	}
	if w.redis != nil {
		errs = append(errs, w.redis.Close())
	}
	if w.s != nil {
		errs = append(errs, w.s.end(ctx, failed))
	}
	if w.disk != nil {
		if failed && w.r.keep {
			errs = append(errs, os.CopyFS(filepath.Join(w.r.dir, "archive-kept"), os.DirFS(w.disk.dir)))
		}
		errs = append(errs, w.disk.close())
	}
	return errors.Join(errs...)
}
