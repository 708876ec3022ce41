package count

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
	"paredao/internal/vote"
)

func TestCountsAndReports(t *testing.T) {
	e := newEnv(t, []string{"p", "q"})
	e.enqueue(ballot{"p", "", "ana"}, ballot{"q", "", "ana"}, ballot{"p", "unico", "ana"})
	e.enqueue(some("p", 30)...)
	e.enqueue(some("q", 3)...)
	c := newConsumer(e.store, "w", 1000)
	assert.Equal(t, 1, c.drain(t))

	e.exact("p", vote.Tally{"ana": 11, "bruno": 10, "carla": 10, "unico/ana": 1})
	e.exact("q", vote.Tally{"ana": 2, "bruno": 1, "carla": 1})
	assert.Empty(t, e.list("votes:{0}"))
	assert.Empty(t, e.list("dead:{0}"))
	m := c.p.Metrics
	assert.InDelta(t, 32, testutil.ToFloat64(m.Counted.WithLabelValues("p")), 0)
	assert.InDelta(t, 4, testutil.ToFloat64(m.Counted.WithLabelValues("q")), 0)
	assert.Zero(t, testutil.ToFloat64(m.Refused))
	assert.Zero(t, testutil.CollectAndCount(m.Dead))
	n, sum := c.observed(t)
	assert.EqualValues(t, 3, n, "one observation a frame")
	assert.GreaterOrEqual(t, sum, 0.0)
}

// A clock that went back gives no negative time.
func TestAcceptedInTheFuture(t *testing.T) {
	e := newEnv(t, []string{"p"})
	e.enqueue(some("p", 1)...)
	c := newConsumer(e.store, "w", 10)
	c.worker(t).report(&vote.CountCommit{}, []time.Time{time.Now().Add(time.Hour)}, time.Now())
	n, sum := c.observed(t)
	assert.EqualValues(t, 1, n)
	assert.Zero(t, sum)
}

// What was refused, one by one or as a whole poll, is not counted.
func TestRefusedVotesAreNotCounted(t *testing.T) {
	e := newEnv(t, []string{"p"})
	c := newConsumer(e.store, "w", 100)
	codec := c.worker(t).codec
	e.push(frame(codec, 1, "0,2", "p:1", ballot{"p", "", "ana"}, ballot{"p", "", "bruno"}, ballot{"p", "", "ana"}, ballot{"shut", "", "x"}))
	c.drain(t)
	r, err := e.store.Results(t.Context(), "p")
	require.NoError(t, err)
	assert.Equal(t, vote.Tally{"bruno": 1}, r.Tally)
	assert.EqualValues(t, 0, e.rdb.Exists(t.Context(), "tally:{0}:shut").Val())
}

// A consumer that has found nothing blocks, and the next vote wakes it: the
// first wait of this one is far longer than the test.
func TestVoteWakesAnIdleConsumer(t *testing.T) {
	e := newEnv(t, []string{"p"})
	var once sync.Once
	idle := make(chan struct{})
	q := &hooked{Queue: e.store, await: func(_ context.Context, d time.Duration) time.Duration {
		assert.Equal(t, idleWait, d)
		once.Do(func() {
			d = time.Hour
			close(idle)
		})
		return d
	}}
	c := newConsumer(q, "w", 100)
	stop := c.start(t)
	<-idle
	e.enqueue(some("p", 1)...)
	testkit.Eventually(t, "the vote is counted", func() bool { return e.counted("p") == 1 })
	// Again, from the state that follows.
	e.enqueue(some("p", 2)...)
	testkit.Eventually(t, "the next votes are counted", func() bool { return e.counted("p") == 3 })
	stop()
	e.exact("p", vote.Tally{"ana": 2, "bruno": 1})
	assert.Zero(t, c.failures())
}

// Another consumer was faster: the late commit changes nothing, is counted and
// logged, and this consumer goes on.
func TestCommitRefused(t *testing.T) {
	e := newEnv(t, []string{"p"})
	e.enqueue(some("p", 6)...)
	other := newConsumer(e.store, "other", 100)
	var once sync.Once
	c := newConsumer(&hooked{Queue: e.store, beforeCommit: func(*vote.CountCommit) {
		once.Do(func() {
			other.drain(t)
			e.enqueue(some("p", 3)...)
		})
	}}, "late", 100)

	w := c.worker(t)
	empty, err := w.chunk(t.Context())
	require.NoError(t, err)
	assert.False(t, empty)
	assert.InDelta(t, 1, testutil.ToFloat64(c.p.Metrics.Refused), 0)
	assert.Equal(t, 1, strings.Count(c.log.String(), "commit refused"))
	assert.Contains(t, c.log.String(), "shard=0")
	assert.Zero(t, testutil.CollectAndCount(c.p.Metrics.Counted), "a refused commit counts nothing")
	e.exact("p", vote.Tally{"ana": 2, "bruno": 2, "carla": 2})

	c.drain(t)
	e.exact("p", vote.Tally{"ana": 3, "bruno": 3, "carla": 3})
	assert.InDelta(t, 3, testutil.ToFloat64(c.p.Metrics.Counted.WithLabelValues("p")), 0)
}

// Garbage has twins: with the same ends, the chunk may have become another one.
func TestCommitRefusedBetweenTwins(t *testing.T) {
	e := newEnv(t, []string{"p"})
	e.push("twin")
	e.enqueue(some("p", 3)...)
	e.push("twin")
	other := newConsumer(e.store, "other", 100)
	var once sync.Once
	c := newConsumer(&hooked{Queue: e.store, beforeCommit: func(*vote.CountCommit) {
		once.Do(func() {
			other.drain(t)
			e.push("twin")
			e.enqueue(ballot{"p", "", "carla"})
			e.push("twin")
		})
	}}, "late", 100)
	c.drain(t)
	e.exact("p", vote.Tally{"ana": 1, "bruno": 1, "carla": 2})
	assert.InDelta(t, 1, testutil.ToFloat64(c.p.Metrics.Refused), 0)
	assert.Len(t, e.list("dead:{0}"), 4)
}

// What can't be read goes to the dead list byte by byte, is counted by what its
// header says, and holds no one up.
func TestDeadElements(t *testing.T) {
	e := newEnv(t, []string{"p", "q"})
	c := newConsumer(e.store, "w", 1000)
	codec := c.worker(t).codec
	good := frame(codec, 1, "-", "p:3", some("p", 3)...)
	head, body, _ := strings.Cut(frame(codec, 2, "-", "p:9", some("p", 9)...), "\n")
	dead := []string{
		"", "garbage", "P1 ", "P1 x-1 1 1 - p:1", "\x00\xff\n", "P2" + good[2:], // no header
		strings.Replace(good, "p:3", "p:2", 1),                                                                  // fewer accepted than held
		strings.Replace(frame(codec, 3, "-", "p:3", some("p", 3)...), " 3 - ", " 4 - ", 1),                      // fewer lines than said
		frame(codec, 4, "-", "p:2,q:1", ballot{"p", "", "ana"}, ballot{"p", "", "ana"}, ballot{"p", "", "ana"}), // other polls
		head + "\n" + body[:len(body)/2],                                                                        // cut
	}
	e.push(good)
	e.push(dead...)
	e.push(frame(codec, 5, "-", "p:1", ballot{"p", "", "carla"}))
	assert.Equal(t, 1, c.drain(t))

	assert.Equal(t, dead, e.list("dead:{0}"))
	assert.Empty(t, e.list("votes:{0}"))
	assert.Len(t, e.list("archive:{0}"), 2)
	for poll, want := range map[string]struct {
		tally vote.Tally
		dead  int64
	}{"p": {vote.Tally{"ana": 1, "bruno": 1, "carla": 2}, 2 + 3 + 2 + 9}, "q": {vote.Tally{}, 1}} {
		r, err := e.store.Results(t.Context(), poll)
		require.NoError(t, err)
		assert.Equal(t, want.tally, r.Tally, "nothing of a dead frame is counted")
		assert.Equal(t, want.dead, r.Ledger.Dead, poll)
	}
	assert.InDelta(t, 17, testutil.ToFloat64(c.p.Metrics.Dead.WithLabelValues("unreadable")), 0)
	assert.InDelta(t, 4, testutil.ToFloat64(c.p.Metrics.Counted.WithLabelValues("p")), 0)
	assert.Equal(t, deadLines, strings.Count(c.log.String(), "unreadable element,"), "not a line for each")
	assert.Contains(t, c.log.String(), fmt.Sprintf("elements=%d", len(dead)-deadLines))
	n, _ := c.observed(t)
	assert.EqualValues(t, 2, n)
}

// More poison than a chunk holds goes to the dead list, and the votes behind it
// are counted.
func TestPoisonDoesNotStopTheLine(t *testing.T) {
	e := newEnv(t, []string{"p"})
	const n = chunkElements + 10
	poison := make([]any, n)
	for i := range poison {
		poison[i] = "the same poison"
	}
	require.NoError(t, e.rdb.RPush(t.Context(), "votes:{0}", poison...).Err())
	e.enqueue(some("p", 3)...)
	c := newConsumer(e.store, "w", 1<<20)
	assert.Equal(t, 2, c.drain(t), "a chunk is bounded by elements")
	assert.EqualValues(t, n, e.rdb.LLen(t.Context(), "dead:{0}").Val())
	assert.InDelta(t, n, testutil.ToFloat64(c.p.Metrics.Dead.WithLabelValues("unreadable")), 0)
	e.exact("p", vote.Tally{"ana": 1, "bruno": 1, "carla": 1})
}

// A chunk ends with the frame that reaches chunk-size, and holds at least one.
func TestChunkBounds(t *testing.T) {
	for _, tt := range []struct{ size, frames int }{{1, 1}, {10, 1}, {11, 2}, {20, 2}, {25, 3}, {70, 7}, {1000, 7}} {
		t.Run(strconv.Itoa(tt.size), func(t *testing.T) {
			e := newEnv(t, []string{"p"})
			for range 7 {
				e.enqueue(some("p", 10)...)
			}
			var chunks [][]string
			c := newConsumer(&hooked{Queue: e.store, afterRead: func(s []string) { chunks = append(chunks, s) }}, "w", tt.size)
			c.drain(t)
			for i, chunk := range chunks[:len(chunks)-1] {
				assert.Len(t, chunk, min(tt.frames, 7-i*tt.frames), "chunk %d", i)
			}
			assert.Empty(t, chunks[len(chunks)-1])
			e.exact("p", vote.Tally{"ana": 28, "bruno": 21, "carla": 21})
		})
	}
}

// Two consumers on one shard, which must not be but may: exact all the same.
func TestTwoConsumersOnOneShard(t *testing.T) {
	e := newEnv(t, []string{"p"})
	const senders, frames, votes = 3, 120, 99
	a, b := newConsumer(e.store, "a", 1000), newConsumer(e.store, "b", 1000)
	stopA, stopB := a.start(t), b.start(t)
	var wg sync.WaitGroup
	for range senders {
		f := e.flusher()
		wg.Go(func() {
			for range frames {
				if err := f.send(t.Context(), some("p", votes)...); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	const total = senders * frames * votes
	testkit.Eventually(t, "all is counted", func() bool { return e.counted("p") >= total })
	stopA()
	stopB()
	e.exact("p", vote.Tally{"ana": total / 3, "bruno": total / 3, "carla": total / 3})
	assert.Empty(t, e.list("dead:{0}"))
	t.Logf("refused commits: %v and %v", testutil.ToFloat64(a.p.Metrics.Refused), testutil.ToFloat64(b.p.Metrics.Refused))
	var sum float64
	for _, c := range []*consumer{a, b} {
		sum += testutil.ToFloat64(c.p.Metrics.Counted.WithLabelValues("p"))
		assert.Zero(t, c.failures(), "%v", c.outages)
	}
	assert.InDelta(t, total, sum, 0)
}

// Redis is killed again and again while votes come and are counted, and keeps
// what it acknowledged.
func TestRedisKilledWhileCounting(t *testing.T) {
	e := newEnv(t, []string{"p"}, "--appendonly", "yes", "--appendfsync", "always")
	const senders, frames, votes = 2, 150, 60
	a, b := newConsumer(e.store, "a", 300), newConsumer(e.store, "b", 300)
	stopA, stopB := a.start(t), b.start(t)
	var sent atomic.Int64
	var wg sync.WaitGroup
	var all []*flusher
	for range senders {
		f := e.flusher()
		all = append(all, f)
		wg.Go(func() {
			for range frames {
				if err := f.send(t.Context(), some("p", votes)...); err != nil {
					t.Error(err)
					return
				}
				sent.Add(votes)
			}
		})
	}
	const total = senders * frames * votes
	for kill := int64(1); kill <= 4; kill++ {
		testkit.Eventually(t, "votes come in", func() bool { return sent.Load() >= kill*total/6 })
		e.server.Kill()
		// All have noticed before it comes back.
		failures := func() [3]int64 {
			return [...]int64{int64(a.failures()), int64(b.failures()), all[0].failed.Load() + all[1].failed.Load()}
		}
		before := failures()
		testkit.Eventually(t, "consumers and senders fail", func() bool {
			now := failures()
			return now[0] > before[0] && now[1] > before[1] && now[2] > before[2]
		})
		e.server.Start()
	}
	wg.Wait()
	testkit.Eventually(t, "all is counted", func() bool { return e.counted("p") >= total })
	stopA()
	stopB()
	assert.EqualValues(t, total, sent.Load())
	e.exact("p", vote.Tally{"ana": total / 3, "bruno": total / 3, "carla": total / 3})
	assert.Empty(t, e.list("votes:{0}"))
	assert.Empty(t, e.list("dead:{0}"))
}

// The chunk in hand is finished when the consumer is told to stop.
func TestStopFinishesTheChunkInHand(t *testing.T) {
	e := newEnv(t, []string{"p"})
	e.enqueue(some("p", 3)...)
	e.enqueue(some("p", 3)...)
	ctx, cancel := context.WithCancel(t.Context())
	c := newConsumer(&hooked{Queue: e.store, beforeCommit: func(*vote.CountCommit) { cancel() }}, "w", 3)
	c.Work(ctx, 0)
	r, err := e.store.Results(t.Context(), "p")
	require.NoError(t, err)
	assert.Equal(t, vote.Tally{"ana": 1, "bruno": 1, "carla": 1}, r.Tally, "the chunk in hand, and no other")
	assert.Len(t, e.list("votes:{0}"), 1)
}

func TestStopWhileIdle(t *testing.T) {
	e := newEnv(t, []string{"p"})
	idle := make(chan struct{}, 1000)
	c := newConsumer(&hooked{Queue: e.store, await: func(_ context.Context, d time.Duration) time.Duration {
		idle <- struct{}{}
		return d
	}}, "w", 3)
	stop := c.start(t)
	<-idle
	stop()
	assert.Zero(t, c.failures())
}

// broken is a queue that fails in some way.
type broken struct {
	read   func() ([]string, error)
	commit func() (vote.CommitStatus, time.Time, error)
	await  func(context.Context) error
}

func (b *broken) ReadQueue(context.Context, int, vote.ReadLimit) ([]string, error) { return b.read() }
func (b *broken) CommitCount(context.Context, *vote.CountCommit) (vote.CommitStatus, time.Time, error) {
	return b.commit()
}
func (b *broken) AwaitVotes(ctx context.Context, _ int, _ time.Duration) error { return b.await(ctx) }

// An outage is asked about ever more rarely, up to once a second, and the pause
// begins anew after it. The clock is the test's own.
func TestPausesInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		away := errors.New("away")
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		var at []time.Duration
		q := &broken{
			read: func() ([]string, error) {
				at = append(at, time.Since(begin).Round(time.Millisecond))
				switch {
				case len(at) <= 8:
					return nil, away
				case len(at) == 9:
					return nil, nil // all is well; then it fails in other ways
				case len(at) == 10:
					return []string{"garbage"}, nil
				}
				cancel()
				return nil, away
			},
			await:  func(context.Context) error { return nil },
			commit: func() (vote.CommitStatus, time.Time, error) { return vote.CommitRefused, time.Time{}, away },
		}
		c := newConsumer(q, "w", 10)
		c.Work(ctx, 0)
		var want []time.Duration
		for _, ms := range []int{0, 20, 60, 140, 300, 620, 1260, 2260, 3260, 3260, 3280} {
			want = append(want, time.Duration(ms)*time.Millisecond)
		}
		assert.Equal(t, want, at)
		assert.Equal(t, 10, c.failures())
	})
}

// A wait that fails is an outage too.
func TestAwaitFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		n := 0
		q := &broken{
			read: func() ([]string, error) { return nil, nil },
			await: func(context.Context) error {
				if n++; n == 3 {
					cancel()
				}
				return errors.New("away")
			},
		}
		c := newConsumer(q, "w", 10)
		c.Work(ctx, 0)
		assert.Equal(t, 2, c.failures(), "none is reported after the stop")
	})
}

// A vote costs no allocation: what is allocated is per chunk and per frame.
func TestAddDoesNotAllocatePerVote(t *testing.T) {
	w, elements, votes := addInput(t)
	perRun := testing.AllocsPerRun(20, func() { w.add(&vote.CountCommit{}, elements) })
	assert.Less(t, perRun/float64(votes), 0.05, "allocations a vote")
}

func addInput(tb testing.TB) (w *worker, elements []string, votes int) {
	tb.Helper()
	w = newConsumer(nil, "w", 20_000).worker(tb)
	for i := range 20 {
		elements = append(elements, frame(w.codec, i, "-", "p:1000", some("p", 1000)...))
		votes += 1000
	}
	return w, elements, votes
}

func BenchmarkAdd(b *testing.B) {
	w, elements, votes := addInput(b)
	b.ReportAllocs()
	allocs := testing.AllocsPerRun(5, func() { w.add(&vote.CountCommit{}, elements) })
	for b.Loop() {
		w.add(&vote.CountCommit{}, elements)
	}
	total := float64(b.N) * float64(votes)
	b.ReportMetric(allocs/float64(votes), "allocs/vote")
	b.ReportMetric(total/b.Elapsed().Seconds(), "votes/s")
}
