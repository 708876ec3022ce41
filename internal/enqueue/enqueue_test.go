package enqueue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// hold makes a queue keep its first frame in the air until release is called.
func hold(w *wrapped) (reached <-chan struct{}, release func()) {
	came, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	next := w.enqueue
	if next == nil {
		next = w.next.Enqueue
	}
	w.enqueue = func(ctx context.Context, b *vote.Batch) (vote.BatchOutcome, error) {
		once.Do(func() {
			close(came)
			<-leave
		})
		return next(ctx, b)
	}
	return came, sync.OnceFunc(func() { close(leave) })
}

func TestSubmitOutcomes(t *testing.T) {
	r := newRedis(t, 1)
	c, _ := run(t, r.queue())
	ctx := context.Background()

	v := ballot("p", "a")
	got, err := c.Submit(v, optionsKey, nil)
	require.NoError(t, err)
	now, err := r.store.Now(ctx)
	require.NoError(t, err)
	assert.Equal(t, v.ID, got.ID)
	assert.Equal(t, "a", got.Option)
	assert.False(t, got.Replayed)
	assert.WithinRange(t, got.AcceptedAt, now.Add(-time.Minute), now)
	assert.Equal(t, map[uuid.UUID]vote.Vote{v.ID: *v}, r.stored())

	k := key("k")
	first, err := c.Submit(ballot("p", "a"), optionsKey, k)
	require.NoError(t, err)
	again, err := c.Submit(ballot("p", "a"), optionsKey, k)
	require.NoError(t, err)
	assert.True(t, again.Replayed)
	again.Replayed = false
	assert.Equal(t, first, again)
	_, err = c.Submit(ballot("p", "b"), optionsKey, k)
	require.ErrorIs(t, err, vote.ErrKeyReused)

	later := vote.Window{Opens: now.Add(time.Hour)}
	_, err = r.store.ApplyPoll(ctx, poll("later"), later)
	require.NoError(t, err)
	for id, want := range map[string]error{
		"over": vote.ErrPollClosed, "later": vote.ErrPollNotOpen, "nowhere": vote.ErrPollNotFound,
	} {
		_, err := c.Submit(ballot(id, "a"), optionsKey, nil)
		require.ErrorIs(t, err, want)
		_, err = c.Submit(ballot(id, "a"), optionsKey, key("for "+id))
		require.ErrorIs(t, err, want)
	}
	// Checked against a definition that is not the poll's any more: not taken,
	// and the voter may try again.
	_, err = c.Submit(ballot("p", "a"), "0000000000000000", nil)
	require.ErrorIs(t, err, vote.ErrUnavailable)
	require.ErrorContains(t, err, "changed")
	assert.Len(t, r.stored(), 2)
	assert.EqualValues(t, 2, testutil.ToFloat64(c.p.Metrics.Accepted.WithLabelValues("p")))
	assert.Equal(t, 1, testutil.CollectAndCount(c.p.Metrics.Accepted))
}

// What comes in while a frame is in the air goes out as one frame.
func TestGroupCommit(t *testing.T) {
	r := newRedis(t, 1)
	w := &wrapped{next: r.queue()}
	reached, release := hold(w)
	c, _ := run(t, w)
	var wg sync.WaitGroup
	submit := func(n int) {
		for i := range n {
			wg.Go(func() {
				v := ballot([]string{"p", "q"}[i%2], []string{"a", "b"}[i%2])
				got, err := c.Submit(v, optionsKey, nil)
				assert.NoError(t, err)
				assert.Equal(t, v.ID, got.ID)
			})
		}
	}
	submit(1)
	<-reached
	submit(500)
	testkit.Eventually(t, "500 votes wait", func() bool { return c.flushers[0].waiting() == 500 })
	release()
	wg.Wait()
	frames := w.sent()
	require.Len(t, frames, 2)
	assert.Equal(t, 500, frames[1].votes)
	assert.EqualValues(t, 2, frames[1].id.Seq)
	assert.Len(t, r.stored(), 501)
	assert.EqualValues(t, 251, testutil.ToFloat64(c.p.Metrics.Accepted.WithLabelValues("p")))
	assert.EqualValues(t, 250, testutil.ToFloat64(c.p.Metrics.Accepted.WithLabelValues("q")))
}

func TestFrameBounds(t *testing.T) {
	for name, tt := range map[string]struct {
		votes, agent int
		atMost       int // frames
	}{
		"votes":             {3000, 10, 4},
		"bytes":             {2000, vote.MaxUserAgent, 5},
		"bytes, escaped":    {1500, -vote.MaxUserAgent, 12},
		"exactly one frame": {1024, 1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRedis(t, 1)
			w := &wrapped{next: r.queue()}
			reached, release := hold(w)
			c, _ := run(t, w)
			var wg sync.WaitGroup
			submit := func(agent string) {
				wg.Go(func() {
					v := ballot("p", "a")
					v.UserAgent = agent
					_, err := c.Submit(v, optionsKey, nil)
					assert.NoError(t, err)
				})
			}
			agent := strings.Repeat("x", max(tt.agent, 0)) + strings.Repeat("\x01", max(-tt.agent, 0))
			submit("")
			<-reached
			for range tt.votes {
				submit(agent)
			}
			testkit.Eventually(t, "all wait", func() bool { return c.flushers[0].waiting() == tt.votes })
			release()
			wg.Wait()
			frames := w.sent()
			assert.LessOrEqual(t, len(frames), tt.atMost)
			for _, f := range frames {
				assert.LessOrEqual(t, f.votes, vote.MaxFrameVotes)
				assert.Less(t, len(f.body), vote.MaxFrameBytes+64<<10)
			}
			assert.Len(t, r.stored(), tt.votes+1) // every frame can be read
		})
	}
}

// A frame names a poll once: votes that were checked against two definitions
// go into two frames.
func TestTwoDefinitionsOfAPoll(t *testing.T) {
	w := memory()
	reached, release := hold(w)
	c, _ := run(t, w)
	var wg sync.WaitGroup
	submit := func(p, options string) {
		wg.Go(func() {
			_, err := c.Submit(ballot(p, "a"), options, nil)
			assert.NoError(t, err)
		})
	}
	submit("p", "one")
	<-reached
	n := 0
	for _, s := range [][2]string{{"p", "one"}, {"q", "one"}, {"p", "two"}, {"q", "two"}, {"p", "one"}} {
		submit(s[0], s[1])
		n++
		testkit.Eventually(t, "it waits", func() bool { return c.flushers[0].waiting() == n })
	}
	release()
	wg.Wait()
	var sizes []int
	for _, f := range w.sent() {
		sizes = append(sizes, f.votes)
	}
	assert.Equal(t, []int{1, 2, 2, 1}, sizes)
}

// The strings of a vote may change as soon as it is in the batch.
func TestSubmitCopies(t *testing.T) {
	r := newRedis(t, 1)
	w := &wrapped{next: r.queue()}
	reached, release := hold(w)
	c, _ := run(t, w)
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = c.Submit(ballot("p", "a"), optionsKey, nil) })
	<-reached
	v := ballot("p", "b")
	v.UserAgent, v.Client = "before", "before"
	wg.Go(func() { _, _ = c.Submit(v, optionsKey, nil) })
	testkit.Eventually(t, "it waits", func() bool { return c.flushers[0].waiting() == 1 })
	release()
	wg.Wait()
	assert.Equal(t, "before", r.stored()[v.ID].UserAgent)
}

// One key, many submits at once, in one frame and over several: one counts.
func TestOneKeyAtOnce(t *testing.T) {
	r := newRedis(t, 2)
	c, _ := run(t, r.queue(), func(p *Params) { p.Shards = 2 })
	for round := range 20 {
		k := key(fmt.Sprint(round))
		var mu sync.Mutex
		ids := map[uuid.UUID]bool{}
		fresh, reused := 0, 0
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				got, err := c.Submit(ballot("p", []string{"a", "b"}[i%2]), optionsKey, k)
				mu.Lock()
				defer mu.Unlock()
				if errors.Is(err, vote.ErrKeyReused) {
					reused++
					return
				}
				assert.NoError(t, err)
				ids[got.ID] = true
				if !got.Replayed {
					fresh++
				}
			})
		}
		wg.Wait()
		assert.Len(t, ids, 1)
		assert.Equal(t, 1, fresh)
		assert.Equal(t, 25, reused)
	}
	assert.Len(t, r.stored(), 20)
	assert.EqualValues(t, 20, testutil.ToFloat64(c.p.Metrics.Accepted.WithLabelValues("p")))
}

// Redis does not answer: the voters are told in time, and later votes are taken
// as if nothing had been.
func TestTimeoutAndRecovery(t *testing.T) {
	r := newRedis(t, 1)
	proxy := testkit.NewProxy(t, r.server.Addr())
	store := r.open(proxy.URL())
	var outage atomic.Int64
	c, _ := run(t, store.Queue(10*time.Minute, 0, time.Second), func(p *Params) {
		p.Timeout = 200 * time.Millisecond
		p.Outage = func(err error) {
			if err != nil {
				outage.Add(1)
			}
		}
	})
	_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
	require.NoError(t, err)
	proxy.Stall()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			_, err := c.Submit(ballot("p", "a"), optionsKey, key(fmt.Sprint(i)))
			assert.ErrorIs(t, err, vote.ErrUnavailable)
		})
	}
	wg.Wait()
	assert.Zero(t, c.inFlight.Load())
	testkit.Eventually(t, "the outage is reported", func() bool { return outage.Load() > 0 })
	proxy.Resume()
	testkit.Eventually(t, "votes are taken again", func() bool {
		_, err := c.Submit(ballot("p", "b"), optionsKey, key("after"))
		return err == nil
	})
	// Who sends again with the same key is counted once, taken before or not.
	for i := range 50 {
		testkit.Eventually(t, "taken", func() bool {
			_, err := c.Submit(ballot("p", "a"), optionsKey, key(fmt.Sprint(i)))
			return err == nil
		})
	}
	assert.Len(t, r.stored(), 52)
}

// A vote that was given up before it was sent is not sent later.
func TestExpiredVotesAreNotSent(t *testing.T) {
	r := newRedis(t, 1)
	w := &wrapped{next: r.queue()}
	reached, release := hold(w)
	c, _ := run(t, w, func(p *Params) { p.Timeout = 300 * time.Millisecond })
	var wg sync.WaitGroup
	wg.Go(func() {
		// It was in the air: its fate is unknown to the voter.
		_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
		assert.ErrorIs(t, err, vote.ErrUnavailable)
	})
	<-reached
	late := ballot("p", "b")
	_, err := c.Submit(late, optionsKey, nil)
	require.ErrorIs(t, err, vote.ErrUnavailable)
	wg.Wait()
	release()
	v := ballot("p", "a")
	testkit.Eventually(t, "votes are taken again", func() bool {
		v = ballot("p", "a")
		_, err := c.Submit(v, optionsKey, nil)
		return err == nil
	})
	all := r.stored()
	assert.Contains(t, all, v.ID)
	assert.NotContains(t, all, late.ID)
}

// Redis forgets everything. The flusher notices, begins anew, and votes go on.
func TestFlusherLost(t *testing.T) {
	r := newRedis(t, 2)
	w := &wrapped{next: r.queue()}
	c, _ := run(t, w, func(p *Params) { p.Shards = 2 })
	submit := func(n int) {
		for range n {
			_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
			require.NoError(t, err)
		}
	}
	submit(5)
	before := w.sent()[0].id.Flusher
	for round := range 3 {
		require.NoError(t, r.rdb.FlushAll(context.Background()).Err())
		r.polls()
		submit(10)
		assert.Len(t, r.stored(), 10, "round %d", round)
	}
	last := w.sent()
	assert.NotEqual(t, before, last[len(last)-1].id.Flusher)
}

// Only the record is gone, which is as much as a failover can take away.
func TestFlusherRecordGone(t *testing.T) {
	r := newRedis(t, 1)
	w := &wrapped{next: r.queue()}
	c, _ := run(t, w)
	for range 5 {
		_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
		require.NoError(t, err)
		f := w.sent()[len(w.sent())-1]
		require.NoError(t, r.rdb.Del(context.Background(), "flusher:{0}:"+f.id.Flusher).Err())
	}
	assert.Len(t, r.stored(), 5)
}

// Replies are lost and connections cut, on every command: what was acknowledged
// is there once, and nothing else is.
func TestLostReplies(t *testing.T) {
	for name, fault := range map[string]func(*testkit.Proxy){
		"replies":  func(p *testkit.Proxy) { p.DropReplies(0.2) },
		"commands": func(p *testkit.Proxy) { p.CutBefore(0.2) },
		"both":     func(p *testkit.Proxy) { p.DropReplies(0.1); p.CutBefore(0.1) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRedis(t, 2)
			proxy := testkit.NewProxy(t, r.server.Addr())
			c, stop := run(t, r.open(proxy.URL()).Queue(10*time.Minute, 0, time.Second), func(p *Params) { p.Shards = 2 })
			fault(proxy)
			var acked sync.Map
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					for j := range 40 {
						var k *vote.IdempotencyKey
						if j%2 == 0 {
							k = key(fmt.Sprint(i, " ", j))
						}
						v := ballot("p", "a")
						got, err := c.Submit(v, optionsKey, k)
						if assert.NoError(t, err) {
							assert.Equal(t, v.ID, got.ID)
							acked.Store(v.ID, true)
						}
					}
				})
			}
			wg.Wait()
			stop()
			assert.Positive(t, proxy.Dropped()+proxy.Cut())
			stored := r.stored()
			assert.Len(t, stored, 800)
			for id := range stored {
				_, ok := acked.Load(id)
				assert.True(t, ok, "%s was not acknowledged", id)
			}
		})
	}
}

// A reply is lost each time, until the batch's time is up: the frame is there
// once for all its repetitions.
func TestRepeatedFrameCountsOnce(t *testing.T) {
	r := newRedis(t, 1)
	w := &wrapped{next: r.queue()}
	lost := errors.New("the reply was lost")
	var drop atomic.Bool
	drop.Store(true)
	w.enqueue = func(ctx context.Context, b *vote.Batch) (vote.BatchOutcome, error) {
		out, err := w.next.Enqueue(ctx, b)
		if drop.Load() {
			return vote.BatchOutcome{}, errors.Join(err, lost)
		}
		return out, err
	}
	c, _ := run(t, w, func(p *Params) { p.Timeout = 400 * time.Millisecond })
	v := ballot("p", "a")
	_, err := c.Submit(v, optionsKey, key("k"))
	require.ErrorIs(t, err, vote.ErrUnavailable)
	n := len(w.sent())
	assert.Greater(t, n, 1)
	drop.Store(false)
	got, err := c.Submit(ballot("p", "a"), optionsKey, key("k"))
	require.NoError(t, err)
	assert.Equal(t, v.ID, got.ID, "the voter's second try finds the first")
	assert.True(t, got.Replayed)
	assert.Len(t, r.stored(), 1)
	for _, f := range w.sent()[:n] {
		assert.Equal(t, w.sent()[0].id, f.id)
	}
}

func TestMaxInFlight(t *testing.T) {
	w := memory()
	reached, release := hold(w)
	c, _ := run(t, w, func(p *Params) { p.MaxInFlight = 10 })
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
			assert.NoError(t, err)
		})
	}
	<-reached
	testkit.Eventually(t, "all are in", func() bool { return c.inFlight.Load() == 10 })
	for range 3 {
		_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
		require.ErrorIs(t, err, vote.ErrOverloaded)
		require.ErrorContains(t, err, "max-in-flight")
	}
	release()
	wg.Wait()
	assert.Zero(t, c.inFlight.Load())
	_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
	require.NoError(t, err)
}

func TestMemoryGate(t *testing.T) {
	w := memory()
	var answer atomic.Value
	answer.Store("room")
	var looks atomic.Int64
	w.hasRoom = func() (bool, error) {
		looks.Add(1)
		switch answer.Load() {
		case "full":
			return false, nil
		case "away":
			return false, errors.New("away")
		}
		return true, nil
	}
	c, _ := run(t, w)
	submit := func() error {
		_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
		return err
	}
	require.NoError(t, submit())
	answer.Store("full")
	testkit.Eventually(t, "votes are refused", func() bool { return errors.Is(submit(), vote.ErrOverloaded) })
	// Not one server answers: none takes votes either, and what was last known
	// stands. (Of a cluster those decide that answer.)
	answer.Store("away")
	for before := looks.Load(); looks.Load() < before+2; {
		require.ErrorIs(t, submit(), vote.ErrOverloaded)
		c.lookNow()
	}
	answer.Store("room")
	testkit.Eventually(t, "votes are taken", func() bool { return submit() == nil })
}

// Redis itself says that it has no memory: the voters hear it at once.
func TestRedisIsFull(t *testing.T) {
	r := newRedis(t, 1)
	c, _ := run(t, r.queue())
	_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
	require.NoError(t, err)
	ctx := context.Background()
	require.NoError(t, r.rdb.ConfigSet(ctx, "maxmemory", "1mb").Err())
	_, err = c.Submit(ballot("p", "a"), optionsKey, nil)
	require.ErrorIs(t, err, vote.ErrOverloaded)
	require.NoError(t, r.rdb.ConfigSet(ctx, "maxmemory", "0").Err())
	testkit.Eventually(t, "votes are taken again", func() bool {
		_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
		return err == nil
	})
	assert.Len(t, r.stored(), 2)
}

// An attempt whose fate is not known, and then a Redis that has no memory, so
// that the script can't say what became of it: the vote may have been taken, and
// its voter must not hear that it was not.
func TestFullAfterALostReply(t *testing.T) {
	lost := errors.New("the reply was lost")
	for name, tt := range map[string]struct {
		// answers are those to the attempts; the last one stays.
		answers []error
		room    bool // in the end
		want    error
	}{
		"full at once":                {[]error{vote.ErrOverloaded}, false, vote.ErrOverloaded},
		"lost, then full":             {[]error{lost, vote.ErrOverloaded}, false, vote.ErrUnavailable},
		"lost, full, then room":       {[]error{lost, vote.ErrOverloaded, vote.ErrOverloaded}, true, nil},
		"the record gone, then full":  {[]error{vote.ErrFlusherLost, vote.ErrOverloaded}, false, vote.ErrOverloaded},
		"lost, the record gone, full": {[]error{lost, vote.ErrFlusherLost, vote.ErrOverloaded}, false, vote.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			w := memory()
			n := 0
			w.enqueue = func(ctx context.Context, b *vote.Batch) (vote.BatchOutcome, error) {
				n++
				if n > len(tt.answers) && tt.room {
					return accept(ctx, b)
				}
				return vote.BatchOutcome{}, tt.answers[min(n, len(tt.answers))-1]
			}
			c, stop := run(t, w, func(p *Params) { p.Timeout = 300 * time.Millisecond })
			_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
			require.ErrorIs(t, err, tt.want)
			if !errors.Is(tt.want, vote.ErrOverloaded) {
				require.NotErrorIs(t, err, vote.ErrOverloaded)
			}
			stop()
			if errors.Is(tt.want, vote.ErrUnavailable) {
				assert.Greater(t, n, len(tt.answers), "it is tried until the time is up")
			}
		})
	}
	t.Run("no record can be made", func(t *testing.T) {
		w := memory()
		w.register = func(int, string) error { return vote.ErrOverloaded }
		c, _ := run(t, w)
		_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
		require.ErrorIs(t, err, vote.ErrOverloaded)
	})
}

// The same with a Redis. Its client must not repeat the script by itself: then
// the lost reply would be hidden behind the OOM of the second attempt.
func TestFullAfterALostReplyOnTheWire(t *testing.T) {
	r := newRedis(t, 1)
	proxy := testkit.NewProxy(t, r.server.Addr())
	c, _ := run(t, r.open(proxy.URL()).Queue(10*time.Minute, 0, time.Second), func(p *Params) {
		p.Timeout = time.Second
	})
	_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
	require.NoError(t, err)
	ctx := context.Background()
	proxy.DropReplies(1)
	k := key("k")
	v := ballot("p", "a")
	told := make(chan error, 1)
	go func() {
		_, err := c.Submit(v, optionsKey, k)
		told <- err
	}()
	testkit.Eventually(t, "the frame is there", func() bool { return len(r.elements(0)) == 2 })
	require.NoError(t, r.rdb.ConfigSet(ctx, "maxmemory", "1mb").Err())
	proxy.DropReplies(0)
	err = <-told
	require.ErrorIs(t, err, vote.ErrUnavailable)
	require.NotErrorIs(t, err, vote.ErrOverloaded)
	require.NoError(t, r.rdb.ConfigSet(ctx, "maxmemory", "0").Err())
	testkit.Eventually(t, "the voter's repeat finds it", func() bool {
		again, err := c.Submit(ballot("p", "a"), optionsKey, k)
		return err == nil && again.ID == v.ID && again.Replayed
	})
	assert.Len(t, r.stored(), 2)
}

// A shutdown answers every vote in hand.
func TestRunDrains(t *testing.T) {
	r := newRedis(t, 3)
	w := &wrapped{next: r.queue()}
	reached, release := hold(w)
	c, stop := run(t, w, func(p *Params) { p.Shards = 3 })
	var acked atomic.Int64
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() {
			if _, err := c.Submit(ballot("p", "a"), optionsKey, key(fmt.Sprint(i))); assert.NoError(t, err) {
				acked.Add(1)
			}
		})
	}
	<-reached
	testkit.Eventually(t, "the votes are in hand", func() bool { return acked.Load()+c.inFlight.Load() == 300 })
	stopped := make(chan struct{})
	go func() { stop(); close(stopped) }()
	release()
	wg.Wait()
	<-stopped
	assert.Len(t, r.stored(), 300)
	// Who comes too late is told, and not left waiting.
	c.p.Timeout = 50 * time.Millisecond
	_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
	require.ErrorIs(t, err, vote.ErrUnavailable)
	assert.Len(t, r.stored(), 300)
}

// A shutdown while Redis is away ends with the batch's own time.
func TestRunEndsWithoutRedis(t *testing.T) {
	w := memory()
	w.register = func(int, string) error { return errors.New("away") }
	c, stop := run(t, w, func(p *Params) { p.Timeout = 200 * time.Millisecond })
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
			assert.ErrorIs(t, err, vote.ErrUnavailable)
		})
	}
	testkit.Eventually(t, "the votes are in", func() bool { return c.inFlight.Load() == 10 })
	stop()
	wg.Wait()
	assert.Empty(t, w.sent(), "nothing is sent before the record is there")
}

// Keyed votes choose their shard by the key, the others go by turns.
func TestShards(t *testing.T) {
	r := newRedis(t, 4)
	c, _ := run(t, r.queue(), func(p *Params) { p.Shards = 4 })
	for range 40 {
		_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
		require.NoError(t, err)
	}
	for shard := range 4 {
		assert.Len(t, r.elements(shard), 10)
	}
	require.NoError(t, r.rdb.Del(context.Background(), "votes:{0}", "votes:{1}", "votes:{2}", "votes:{3}").Err())
	var want [4]int
	for i := range 200 {
		k := key(fmt.Sprint(i))
		want[(int(k[0])<<8|int(k[1]))%4]++
		for range 2 {
			_, err := c.Submit(ballot("p", "a"), optionsKey, k)
			require.NoError(t, err)
		}
	}
	for shard := range 4 {
		assert.Len(t, r.elements(shard), want[shard])
		assert.Greater(t, want[shard], 25)
	}
}

// A shard that fails (a master of a cluster is away) holds up only the votes
// that must go to it.
func TestFailingShardIsPassedOver(t *testing.T) {
	w := memory()
	var away atomic.Bool
	away.Store(true)
	tried := make(chan struct{}, 1000)
	w.enqueue = func(ctx context.Context, b *vote.Batch) (vote.BatchOutcome, error) {
		if b.Shard == 1 && away.Load() {
			tried <- struct{}{}
			return vote.BatchOutcome{}, errors.New("away")
		}
		return accept(ctx, b)
	}
	c, _ := run(t, w, func(p *Params) { p.Shards = 3 })
	var onDead *vote.IdempotencyKey
	for i := 0; onDead == nil; i++ {
		if k := key(fmt.Sprint(i)); c.flusher(k).shard == 1 {
			onDead = k
		}
	}
	stuck := make(chan error, 1)
	go func() {
		_, err := c.Submit(ballot("p", "a"), optionsKey, onDead)
		stuck <- err
	}()
	<-tried
	<-tried // the first failure is known by now
	for range 300 {
		_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
		require.NoError(t, err)
	}
	away.Store(false)
	require.NoError(t, <-stuck)
	testkit.Eventually(t, "the shard takes part again", func() bool {
		_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
		require.NoError(t, err)
		n := 0
		for _, f := range w.sent() {
			if f.shard == 1 && f.votes == 1 {
				n++
			}
		}
		return n > len(tried)+2
	})
	// Where all fail, there is nothing to choose.
	for _, f := range c.flushers {
		f.failing.Store(true)
	}
	_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
	require.NoError(t, err)
}

// An outcome that this version does not know is no acknowledgement.
func TestUnknownOutcome(t *testing.T) {
	w := memory()
	w.enqueue = func(_ context.Context, b *vote.Batch) (vote.BatchOutcome, error) {
		return vote.BatchOutcome{Polls: slices.Repeat([]vote.PollOutcome{'?'}, len(b.Polls))}, nil
	}
	c, _ := run(t, w)
	_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
	require.ErrorIs(t, err, vote.ErrUnavailable)
}

// A vote that takes unusually much leaves no large buffer behind.
func TestSpareBuffersAreBounded(t *testing.T) {
	c, _ := run(t, memory())
	f := c.flushers[0]
	for range 2 * maxSpare {
		f.recycle(&batch{lines: make([]byte, 0, 100)})
		f.recycle(&batch{lines: make([]byte, 0, 3*vote.MaxFrameBytes)})
	}
	assert.Len(t, f.spare, maxSpare)
	for _, b := range f.spare {
		assert.LessOrEqual(t, cap(b), 2*vote.MaxFrameBytes)
	}
}

// BenchmarkSubmit is a vote's way through the committer, without Redis. Its
// allocations are those of the vote in the batch.
func BenchmarkSubmit(b *testing.B) {
	for _, waiters := range []int{64, 512} {
		for _, keyed := range []bool{false, true} {
			b.Run(fmt.Sprintf("waiters=%d/keyed=%v", waiters, keyed), func(b *testing.B) {
				w := memory()
				w.enqueue = accept
				c, _ := run(b, quiet{w})
				submit(b, c, waiters, keyed)
			})
		}
	}
}

// quiet keeps no frames.
type quiet struct{ *wrapped }

func (q quiet) Enqueue(ctx context.Context, b *vote.Batch) (vote.BatchOutcome, error) {
	return accept(ctx, b)
}

func BenchmarkSubmitToRedis(b *testing.B) {
	r := newRedis(b, 1)
	c, _ := run(b, r.queue())
	submit(b, c, 512, false)
	b.StopTimer()
	n, err := r.rdb.LLen(context.Background(), "votes:{0}").Result()
	require.NoError(b, err)
	b.ReportMetric(float64(b.N)/float64(n), "votes/frame")
}

func submit(b *testing.B, c *Committer, waiters int, keyed bool) {
	b.ReportAllocs()
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range waiters {
		wg.Go(func() {
			v := ballot("p", "a")
			v.UserAgent = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
			for {
				n := next.Add(1)
				if n > int64(b.N) {
					return
				}
				var k *vote.IdempotencyKey
				if keyed {
					k = &vote.IdempotencyKey{0: byte(n), 1: byte(n >> 8), 2: byte(n >> 16), 3: byte(n >> 24)}
				}
				if _, err := c.Submit(v, optionsKey, k); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkAdd is the part under the flusher's lock.
func BenchmarkAdd(b *testing.B) {
	c, err := New(Params{Queue: memory(), Shards: 1, Timeout: time.Hour})
	require.NoError(b, err)
	f := c.flushers[0]
	defer f.codec.Close()
	v := ballot("p", "a")
	v.UserAgent = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		f.add(v, optionsKey, nil)
		if n++; n%vote.MaxFrameVotes == 0 {
			for t := f.take(); t != nil; t = f.take() {
				t.timer.Stop()
				f.recycle(t)
			}
		}
	}
	for t := f.take(); t != nil; t = f.take() {
		t.timer.Stop()
	}
}
