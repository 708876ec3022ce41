package share

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"paredao/internal/redisstore"
	"paredao/internal/testkit"
)

func TestMain(m *testing.M) {
	redisstore.DiscardClientLog()
	// The client's pool looks for a lost Redis once a second, and ends after it.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

var _ Members = (*redisstore.Shares)(nil)

const shards = 4

// forever is a TTL that no test outlives: what is free before was handed back.
const forever = time.Hour

func openStore(t *testing.T) (*testkit.RedisServer, *redisstore.Store) {
	t.Helper()
	server := testkit.Redis(t)
	s, err := redisstore.Open(redisstore.Options{URL: server.URL(), Shards: shards})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return server, s
}

// worker is a worker whose work waits for its end, and which remembers what it
// works on.
type worker struct {
	*sharing
	name string

	mu      sync.Mutex
	at      map[int]bool
	outages []error
}

func newWorker(name string, m Members, ttl time.Duration) *worker {
	w := &worker{name: name, at: map[int]bool{}}
	w.sharing = &sharing{running: map[int]*work{}, p: Params{
		Members: m, Worker: name, Shards: shards, TTL: ttl, Work: w.work,
		Owned: prometheus.NewGauge(prometheus.GaugeOpts{Name: "owned"}),
		Outage: func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.outages = append(w.outages, err)
		},
		Log: slog.New(slog.DiscardHandler),
	}}
	return w
}

func (w *worker) work(ctx context.Context, shard int) {
	w.set(shard, true)
	<-ctx.Done()
	w.set(shard, false)
}

func (w *worker) set(shard int, works bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at[shard] == works {
		panic(fmt.Sprintf("%s works on shard %d twice, or not at all", w.name, shard))
	}
	w.at[shard] = works
}

// works returns the shards whose work runs now.
func (w *worker) works() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	var on []int
	for _, shard := range slices.Sorted(maps.Keys(w.at)) {
		if w.at[shard] {
			on = append(on, shard)
		}
	}
	return on
}

// owns waits until the worker works on these shards, and checks the gauge.
func (w *worker) owns(t *testing.T, want ...int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%s works on %v", w.name, want), func() bool { return slices.Equal(w.works(), want) })
	if got := int(testutil.ToFloat64(w.p.Owned)); got != len(want) {
		t.Errorf("%s: the gauge says %d, it works on %v", w.name, got, want)
	}
}

func (w *worker) mustStep(t *testing.T) {
	t.Helper()
	if err := w.step(t.Context()); err != nil {
		t.Fatalf("%s: %v", w.name, err)
	}
}

// However many workers come and go, each shard has one, and none has two more
// than another.
func TestSpread(t *testing.T) {
	_, store := openStore(t)
	var all []*worker
	settle := func(when string) {
		t.Helper()
		for range 3 { // meet, hand over, take
			for _, w := range all {
				w.mustStep(t)
			}
		}
		var taken []int
		least, most := shards, 0
		for _, w := range all {
			n := len(w.running)
			least, most = min(least, n), max(most, n)
			shards := slices.Sorted(maps.Keys(w.running))
			taken = append(taken, shards...)
			w.owns(t, shards...)
		}
		slices.Sort(taken)
		if !slices.Equal(taken, []int{0, 1, 2, 3}) || most-least > 1 {
			t.Errorf("%s: shards %v, from %d to %d a worker", when, taken, least, most)
		}
	}
	for n := range 5 {
		name := fmt.Sprintf("w%d", 5-n) // each comes before the others
		all = append(all, newWorker(name, store.Shares(redisstore.RoleConsumer, name, forever), forever))
		settle(fmt.Sprintf("%d workers", n+1))
	}
	for len(all) > 1 {
		all[0].leave(t.Context())
		all[0].owns(t)
		all = all[1:]
		settle(fmt.Sprintf("%d workers left", len(all)))
	}
	all[0].leave(t.Context())
}

// A shard whose Redis does not answer keeps no other from being worked on, nor
// the worker from saying in time that it is alive.
func TestSilentShard(t *testing.T) {
	_, store := openStore(t)
	const ttl = 3 * time.Second
	w := newWorker("w", silent{t, store.Shares(redisstore.RoleConsumer, "w", forever), 0, ttl}, ttl)
	defer w.leave(context.WithoutCancel(t.Context()))
	if err := w.step(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the silent shard: %v", err)
	}
	w.owns(t, 1, 2, 3)
}

// silent does not answer for one shard. Who asks must give up before the others
// take the worker for gone.
type silent struct {
	t testing.TB
	Members
	shard int
	ttl   time.Duration
}

func (m silent) Claim(ctx context.Context, shard int) (bool, error) {
	if shard == m.shard {
		if until, bound := ctx.Deadline(); !bound || time.Until(until) > m.ttl/2 {
			m.t.Errorf("it waits until %s", until)
		}
		<-ctx.Done()
		return false, ctx.Err()
	}
	return m.Members.Claim(ctx, shard)
}

// The two roles do not take each other's shards.
func TestRoles(t *testing.T) {
	_, store := openStore(t)
	for _, role := range []string{redisstore.RoleConsumer, redisstore.RoleArchiver} {
		w := newWorker("w", store.Shares(role, "w", forever), forever)
		w.mustStep(t)
		w.owns(t, 0, 1, 2, 3)
		defer w.leave(context.WithoutCancel(t.Context()))
	}
}

// A worker that is killed says nothing; its shards go to the others when its
// time is over.
func TestTakeoverFromASilentWorker(t *testing.T) {
	_, store := openStore(t)
	const ttl = 100 * time.Millisecond
	silent := newWorker("silent", store.Shares(redisstore.RoleConsumer, "silent", ttl), ttl)
	silent.mustStep(t)
	defer silent.leave(context.WithoutCancel(t.Context()))

	// It asks often enough for the other, whose life is long.
	w := newWorker("w", members{
		Members: store.Shares(redisstore.RoleConsumer, "w", forever),
		join:    store.Shares(redisstore.RoleConsumer, "w", ttl).Join,
	}, forever)
	defer w.leave(context.WithoutCancel(t.Context()))
	testkit.Eventually(t, "all shards are taken over", func() bool {
		w.mustStep(t)
		return len(w.running) == shards
	})
	w.owns(t, 0, 1, 2, 3)

	// The silent one wakes up, finds that another has its shards, and stops. Its
	// time is the other's here: a claim that has more than twice one's own left is
	// taken for one from before Redis's clock went back.
	silent.p.Members = members{
		Members: store.Shares(redisstore.RoleConsumer, "silent", forever),
		join:    func(context.Context) ([]string, error) { return []string{"silent"}, nil },
	}
	silent.mustStep(t)
	silent.owns(t)
	w.mustStep(t)
	w.owns(t, 0, 1, 2, 3)
}

// At the end of Run all work has ended, and the shards are free at once.
func TestHandOverAtShutdown(t *testing.T) {
	_, store := openStore(t)
	shares := func(name string) Members { return store.Shares(redisstore.RoleConsumer, name, forever) }
	first := newWorker("first", shares("first"), forever)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Run(ctx, first.p) }()
	testkit.Eventually(t, "the first works", func() bool { return len(first.works()) == shards })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if on := first.works(); len(on) > 0 || testutil.ToFloat64(first.p.Owned) != 0 {
		t.Errorf("still works on %v, the gauge says %v", on, testutil.ToFloat64(first.p.Owned))
	}
	second := newWorker("second", shares("second"), forever)
	second.mustStep(t)
	second.owns(t, 0, 1, 2, 3)
	second.leave(t.Context())
}

// Two workers that run share, and one that is left alone takes all; Redis may be
// away meanwhile.
func TestRun(t *testing.T) {
	server, store := openStore(t)
	const ttl = 2 * time.Second
	type running struct {
		*worker
		cancel context.CancelFunc
		ended  chan error
	}
	start := func(name string) running {
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		r := running{newWorker(name, store.Shares(redisstore.RoleArchiver, name, ttl), ttl), cancel, make(chan error, 1)}
		go func() { r.ended <- Run(ctx, r.p) }()
		return r
	}
	a, b := start("a"), start("b")
	testkit.Eventually(t, "each has its half", func() bool {
		return slices.Equal(a.works(), []int{0, 2}) && slices.Equal(b.works(), []int{1, 3})
	})
	b.cancel()
	if err := <-b.ended; err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, "a has all", func() bool { return len(a.works()) == shards })

	server.Kill()
	testkit.Eventually(t, "a has noticed", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.outages[len(a.outages)-1] != nil
	})
	if on := a.works(); len(on) != shards {
		t.Errorf("without Redis it works on %v", on)
	}
	server.Start() // empty: nothing of the sharing is known
	testkit.Eventually(t, "a is back", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.outages[len(a.outages)-1] == nil
	})
	testkit.Eventually(t, "a has all again", func() bool { return len(a.works()) == shards })
	server.Kill()
	a.cancel()
	if err := <-a.ended; err != nil {
		t.Errorf("a shutdown without Redis: %v", err)
	}
	if on := a.works(); len(on) != 0 || testutil.ToFloat64(a.p.Owned) != 0 {
		t.Errorf("still works on %v", on)
	}
}

// members replaces what is set.
type members struct {
	Members
	join    func(context.Context) ([]string, error)
	claim   func(shard int) (bool, error)
	release func(shard int) error
	leave   func() error
}

func (m members) Join(ctx context.Context) ([]string, error) {
	if m.join != nil {
		return m.join(ctx)
	}
	return m.Members.Join(ctx)
}

func (m members) Claim(ctx context.Context, shard int) (bool, error) {
	if m.claim != nil {
		return m.claim(shard)
	}
	return m.Members.Claim(ctx, shard)
}

func (m members) Release(ctx context.Context, shard int) error {
	if m.release != nil {
		return m.release(shard)
	}
	return m.Members.Release(ctx, shard)
}

func (m members) Leave(ctx context.Context) error {
	if m.leave != nil {
		return m.leave()
	}
	return m.Members.Leave(ctx)
}

var errAway = errors.New("redis is away")

func live(names ...string) func(context.Context) ([]string, error) {
	return func(context.Context) ([]string, error) { return names, nil }
}

func always(int) (bool, error) { return true, nil }

// While Redis is away the work goes on: nothing depends on the sharing.
func TestRedisAway(t *testing.T) {
	good := members{
		join: live("w"), claim: always,
		release: func(int) error { return nil }, leave: func() error { return nil },
	}
	w := newWorker("w", good, forever)
	defer w.leave(context.WithoutCancel(t.Context()))

	// One shard can't be reached: the others are worked on, and the gauge says so.
	half := good
	half.claim = func(shard int) (bool, error) {
		if shard == 2 {
			return false, errAway
		}
		return true, nil
	}
	w.p.Members = half
	if err := w.step(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("got %v", err)
	}
	w.owns(t, 0, 1, 3)
	w.p.Members = good
	w.mustStep(t)
	w.owns(t, 0, 1, 2, 3)

	gone := good
	gone.join = func(context.Context) ([]string, error) { return nil, errAway }
	w.p.Members = gone
	for range 3 {
		if err := w.step(t.Context()); !errors.Is(err, errAway) {
			t.Errorf("got %v", err)
		}
		w.owns(t, 0, 1, 2, 3)
	}

	// Another has come, and Redis goes away as its shards are handed over.
	shared := good
	shared.join, shared.release = live("v", "w"), func(int) error { return errAway }
	w.p.Members = shared
	if err := w.step(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("got %v", err)
	}
	w.owns(t, 1, 3)
	w.p.Members = good
	w.mustStep(t)
	w.owns(t, 0, 1, 2, 3)
}

// Another worker has one of the shards: its work ends, the rest goes on.
func TestAShardIsTakenOver(t *testing.T) {
	server, store := openStore(t)
	w := newWorker("w", store.Shares(redisstore.RoleConsumer, "w", forever), forever)
	w.mustStep(t)
	defer w.leave(context.WithoutCancel(t.Context()))
	owner := "owner:{2}:" + redisstore.RoleConsumer
	rdb := server.Client()
	if err := rdb.Set(t.Context(), owner, "other", 0).Err(); err != nil {
		t.Fatal(err)
	}
	w.mustStep(t)
	w.owns(t, 0, 1, 3)
	w.leave(t.Context())
	if got := rdb.Get(t.Context(), owner).Val(); got != "other" {
		t.Errorf("the other's shard is %q's now", got)
	}
	w.running = map[int]*work{}
}

// A shutdown is no failure because Redis is away; the shards are free once their
// time is over.
func TestShutdownWithoutRedis(t *testing.T) {
	released := 0
	w := newWorker("w", members{
		join: live("w"), claim: always,
		release: func(int) error { released++; return errAway },
		leave:   func() error { return errAway },
	}, forever)
	ctx, cancel := context.WithCancel(t.Context())
	w.p.Outage = func(err error) {
		if err != nil {
			t.Errorf("an outage: %v", err)
		}
		cancel()
	}
	if err := Run(ctx, w.p); err != nil {
		t.Error(err)
	}
	if on := w.works(); len(on) != 0 || released != shards || testutil.ToFloat64(w.p.Owned) != 0 {
		t.Errorf("works on %v, released %d", on, released)
	}
}
