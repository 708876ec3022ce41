package e2e

import (
	"context"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"paredao/internal/lab"
	"paredao/internal/ledger"
	"paredao/internal/testkit"
)

// longestStop is how long the service may stand still when a server is lost,
// with the time-outs of the lab: a second until Sentinel sees it, and what a
// failover takes.
const longestStop = 15 * time.Second

// manyServers is a stack on several servers of Redis under one URL.
type manyServers struct {
	*stack

	url string
	all []*testkit.Process
	// windows are when acknowledged votes may have been lost.
	windows []ledger.LossWindow
}

// newStackOn is newStack for servers that are there already.
func newStackOn(t *testing.T, url string, shards int) *manyServers {
	t.Helper()
	s := &manyServers{stack: &stack{t: t, shards: shards, archiveURL: "file:" + t.TempDir()}, url: url}
	s.prepare(url)
	return s
}

func (s *manyServers) start(name string, args ...string) *testkit.Process {
	s.t.Helper()
	p := s.stack.start(name, s.url, args...)
	s.all = append(s.all, p)
	return p
}

// replicaLag is how much earlier than a fault votes may be that no replica has:
// replicas acknowledge once a second.
const replicaLag = time.Second

// lossy runs a fault in which acknowledged votes may be lost, then what mends
// it, and says how long the service stood still. The fault returns when the old
// server could acknowledge no more votes that the new one lacks; the zero time:
// none may be lost.
func (s *manyServers) lossy(l *load, w *stopwatch, what string, fault func() (gone time.Time), mend ...func()) {
	s.t.Helper()
	// Only what an api enqueues waits for replicas, no archiver's commit does.
	s.mayRepeat = true
	w.reset()
	from := time.Now().Add(-replicaLag)
	if gone := fault(); !gone.IsZero() {
		s.windows = append(s.windows, ledger.LossWindow{From: from, To: gone})
	}
	for _, f := range mend {
		f()
	}
	s.grow(l, 500)
	stop := w.longest()
	s.t.Logf("%s: no vote was acknowledged for %s", what, stop.Round(time.Millisecond))
	require.Less(s.t, stop, longestStop, what)
}

// settle judges. Votes may be lost that were acknowledged while a server was,
// if they may at all; all else must hold, after what the archive alone has is
// back in Redis.
func (s *manyServers) settle(l *load, mayLose bool) *ledger.Result {
	s.t.Helper()
	for _, p := range s.all {
		require.NoError(s.t, syscall.Kill(p.Pid(), 0), "a daemon has ended")
	}
	if !mayLose {
		return s.judge(l)
	}
	l.end()
	r := s.verdict(l)
	for _, n := range []int64{r.Lost, r.Doubled, r.Invented, r.WrongOption, r.Overcounted, r.SharedIDs, r.WrongAcks, r.Unsettled} {
		require.Zero(s.t, n)
	}
	if !r.OK() {
		s.restore()
		r = s.verdict(l)
	}
	require.True(s.t, r.OK(), "the ledger does not hold")
	// Else it would show too little.
	require.Less(s.t, r.LossCoverage, 0.5, "votes might be lost for most of the time")
	require.Greater(s.t, r.Acked, int64(1000))
	return r
}

func (s *manyServers) verdict(l *load) *ledger.Result {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r, err := ledger.Judge(ctx, ledger.JudgeParams{
		Store: s.store, Blobs: s.blobs, Record: l.Record, Timeout: 2 * time.Minute, LossWindows: s.windows,
		MayRepeat: s.mayRepeat, Progress: func(what string) { s.t.Log(what) },
	})
	require.NoError(s.t, err)
	s.t.Logf("posted for %s:\n%s", l.client.Took().Round(time.Millisecond), r)
	return r
}

// restore gives Redis back what only the archive has, as an operator does, with
// the consumers and archivers at work.
func (s *manyServers) restore() {
	s.t.Helper()
	out, err := exec.Command(testkit.Binary(s.t, "tally"), "restore", "--settle=5s", "--redis-url="+s.url,
		"--queue-shards="+strconv.Itoa(s.shards), "--archive-url="+s.archiveURL).CombinedOutput()
	s.t.Logf("tally restore: %s", out)
	require.NoError(s.t, err)
}

// stopwatch measures the longest time in which a number did not change.
type stopwatch struct {
	mu   sync.Mutex
	last time.Time
	most time.Duration
}

// watch looks at a number until the test ends; what can't be read has not
// changed.
func watch(t *testing.T, read func(context.Context) (int64, error)) *stopwatch {
	t.Helper()
	w := &stopwatch{last: time.Now()}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for was := int64(-1); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if n, err := read(ctx); err == nil && n != was {
				was = n
				w.note()
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

func (w *stopwatch) note() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most = max(w.most, time.Since(w.last))
	w.last = time.Now()
}

func (w *stopwatch) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.most, w.last = 0, time.Now()
}

func (w *stopwatch) longest() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.most, time.Since(w.last))
}

// acked watches a load's acknowledgements.
func acked(t *testing.T, l *load) *stopwatch {
	t.Helper()
	return watch(t, func(context.Context) (int64, error) { return l.Acked(), nil })
}

func startSentinel(t *testing.T, p lab.SentinelParams) *lab.Sentinel {
	t.Helper()
	p.Dir = t.TempDir()
	s, err := lab.StartSentinel(context.Background(), p)
	require.NoError(t, err)
	t.Cleanup(s.End)
	return s
}

// The primary is killed under load, and the next one, too; the first comes back
// as it was and is made a replica; then Sentinel is asked for a failover. No
// daemon is restarted.
func TestSentinelFailover(t *testing.T) {
	for name, replicas := range map[string]int{"as it is": 0, "acknowledged by a replica": 1} {
		t.Run(name, func(t *testing.T) {
			redis := startSentinel(t, lab.SentinelParams{Replicas: 2})
			s := newStackOn(t, redis.URL(), 2)
			s.start("consumer")
			s.start("consumer")
			s.start("archiver")
			l := s.load(steady, s.start("api", "--ack-replicas="+strconv.Itoa(replicas)))
			s.grow(l, 500)
			w := acked(t, l)
			for range 2 {
				after(faultTime() / 4)
				var old *lab.Redis
				s.lossy(l, w, "the primary is killed", func() time.Time {
					var err error
					old, err = redis.KillMaster(t.Context())
					gone := time.Now()
					require.NoError(t, err)
					_, err = redis.Promoted(t.Context(), old)
					require.NoError(t, err)
					return gone
				})
				// It takes itself for the primary until Sentinel tells it otherwise;
				// nobody may believe it.
				w.reset()
				require.NoError(t, redis.Restart(t.Context(), old))
				require.NoError(t, redis.Settled(t.Context()))
				require.Less(t, w.longest(), longestStop)
			}
			after(faultTime() / 4)
			s.lossy(l, w, "a planned failover", func() time.Time {
				old, err := redis.Master(t.Context())
				require.NoError(t, err)
				require.NoError(t, redis.Failover(t.Context(), replicas > 0))
				// It goes on until it is told.
				require.NoError(t, redis.Demoted(t.Context(), old))
				gone := time.Now()
				_, err = redis.Promoted(t.Context(), old)
				require.NoError(t, err)
				return gone
			})
			require.NoError(t, redis.Settled(t.Context()))
			after(faultTime() / 4)
			s.settle(l, replicas == 0)
		})
	}
}

// The primary and the sentinel that the daemons talk to stand still, as when
// their machine is cut off: nothing is refused, and nothing answers.
func TestSentinelHangs(t *testing.T) {
	redis := startSentinel(t, lab.SentinelParams{Replicas: 1})
	s := newStackOn(t, redis.OneURL(0), 2)
	consumer := s.start("consumer")
	s.start("archiver")
	l := s.load(steady, s.start("api"))
	s.grow(l, 500)
	w := acked(t, l)
	old, err := redis.Master(t.Context())
	require.NoError(t, err)
	s.lossy(l, w, "primary and sentinel stand still", func() time.Time {
		require.NoError(t, redis.SignalSentinel(0, syscall.SIGSTOP))
		require.NoError(t, old.Pause(t.Context()))
		gone := time.Now()
		_, err := redis.Promoted(t.Context(), old)
		require.NoError(t, err)
		return gone
	})
	counted := consumer.MetricOrZero("paredao_votes_counted_total")
	begun := time.Now()
	testkit.Eventually(t, "votes are counted", func() bool { return consumer.MetricOrZero("paredao_votes_counted_total") > counted })
	require.Less(t, time.Since(begun), longestStop)
	after(faultTime() / 4)
	// Both wake up and know nothing of what happened.
	w.reset()
	require.NoError(t, old.Signal(syscall.SIGCONT))
	require.NoError(t, redis.SignalSentinel(0, syscall.SIGCONT))
	require.NoError(t, redis.Settled(t.Context()))
	after(faultTime() / 4)
	require.Less(t, w.longest(), longestStop)
	s.settle(l, true)
}

// A single Redis becomes a replica of nobody, and a primary again. It takes no
// votes meanwhile, and no connection stays read-only.
func TestRoleChange(t *testing.T) {
	s := newStack(t, 2, "--appendonly", "yes")
	consumer := s.start("consumer", "")
	s.start("archiver", "")
	api := s.start("api", "")
	l := s.load(steady, api)
	client := s.redis.Client()
	w := acked(t, l)
	for range 2 {
		s.grow(l, 500)
		nobody, err := lab.FreePort()
		require.NoError(t, err)
		require.NoError(t, client.Do(t.Context(), "REPLICAOF", "127.0.0.1", nobody).Err())
		after(faultTime() / 4)
		w.reset()
		require.NoError(t, client.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
		s.grow(l, 500)
		stop := w.longest()
		t.Logf("the first vote was acknowledged %s after the role was back", stop.Round(time.Millisecond))
		require.Less(t, stop, longestStop)
	}
	require.True(t, api.Logged("READONLY"))
	counted := consumer.MetricOrZero("paredao_votes_counted_total")
	testkit.Eventually(t, "votes are counted", func() bool { return consumer.MetricOrZero("paredao_votes_counted_total") > counted })
	s.judge(l)
}
