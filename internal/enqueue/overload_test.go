package enqueue

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// A batch is opened unless it would wait for more than half of its time.
func TestLate(t *testing.T) {
	c, err := New(Params{Shards: 1, Timeout: 2 * time.Second})
	require.NoError(t, err)
	f := c.flushers[0]
	defer f.codec.Close()
	for _, tt := range []struct {
		waiting int
		took    [2]time.Duration
		want    bool
	}{
		{0, [2]time.Duration{}, false},
		{100, [2]time.Duration{}, false}, // nothing has been acknowledged yet
		{0, [2]time.Duration{3 * time.Second, 3 * time.Second}, false},
		{8, [2]time.Duration{100 * time.Millisecond, 100 * time.Millisecond}, false},
		{9, [2]time.Duration{100 * time.Millisecond, 100 * time.Millisecond}, true},
		{9, [2]time.Duration{100 * time.Millisecond, 10 * time.Millisecond}, false}, // one slow answer, or a failover
		{9, [2]time.Duration{10 * time.Millisecond, time.Second}, false},
	} {
		f.pending = make([]*batch, tt.waiting)
		f.took = tt.took
		assert.Equal(t, tt.want, f.late(), "%+v", tt)
	}
}

// Redis takes some time for each frame, and far more votes come than it can
// take: no vote waits in vain until its time is up, the excess hears it at once,
// while the votes before it still wait.
func TestSlowRedisRefusesAtOnce(t *testing.T) {
	const timeout, votes = 4 * time.Second, 100
	w := memory()
	w.enqueue = func(ctx context.Context, b *vote.Batch) (vote.BatchOutcome, error) {
		<-time.After(timeout / 16)
		return accept(ctx, b)
	}
	c, _ := run(t, w, func(p *Params) { p.Timeout = timeout })
	for range 2 { // it is known how long Redis takes
		_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
		require.NoError(t, err)
	}
	var taken, refused atomic.Int64
	var longest, slowest atomic.Int64 // of the votes that were taken, and of the refusals
	atRefusal := make([]int64, votes) // how many had been taken when it came
	var wg sync.WaitGroup
	for i := range votes {
		wg.Go(func() {
			began := time.Now()
			// Checked against a definition of its own, each is a frame of its own.
			_, err := c.Submit(ballot("p", "a"), fmt.Sprint(i), nil)
			took := int64(time.Since(began))
			if err != nil {
				assert.ErrorIs(t, err, vote.ErrOverloaded)
				atRefusal[refused.Add(1)-1] = taken.Load()
				raise(&slowest, took)
				return
			}
			taken.Add(1)
			raise(&longest, took)
		})
	}
	wg.Wait()
	assert.Positive(t, refused.Load())
	assert.GreaterOrEqual(t, taken.Load(), int64(2))
	for _, n := range atRefusal[:refused.Load()] {
		assert.Less(t, n, taken.Load(), "a refusal came after all the votes before it")
	}
	assert.Less(t, slowest.Load(), longest.Load(), "a refusal took as long as a vote that was taken")
	_, err := c.Submit(ballot("p", "a"), optionsKey, nil)
	require.NoError(t, err)
}

// raise makes n the greater of the two.
func raise(n *atomic.Int64, to int64) {
	for was := n.Load(); was < to && !n.CompareAndSwap(was, to); was = n.Load() {
	}
}

// Much is sent within a second: Redis's memory is looked at before the second
// is over.
func TestMemoryIsLookedAtByVolume(t *testing.T) {
	for name, keyed := range map[string]bool{"bodies": false, "keys": true} {
		t.Run(name, func(t *testing.T) {
			w := memory()
			var looks, sent atomic.Int64
			w.hasRoom = func() (bool, error) {
				looks.Add(1)
				return true, nil
			}
			w.enqueue = func(ctx context.Context, b *vote.Batch) (vote.BatchOutcome, error) {
				sent.Add(int64(len(b.Body) + keyedBytes*len(b.Keyed)))
				return accept(ctx, b)
			}
			c, _ := run(t, quietFrames{w})
			testkit.Eventually(t, "a look a MiB", func() bool {
				var wg sync.WaitGroup
				for i := range 200 {
					wg.Go(func() {
						v := ballot("p", "a")
						var k *vote.IdempotencyKey
						if keyed {
							k = key(fmt.Sprint(i, v.ID))
						} else {
							v.UserAgent = v.ID.String() + strings.Repeat(v.ID.String(), 10)
						}
						_, err := c.Submit(v, optionsKey, k)
						assert.NoError(t, err)
					})
				}
				wg.Wait()
				return looks.Load() >= 4
			})
			// By the clock alone four looks take four seconds.
			assert.Less(t, sent.Load(), int64(40*lookBytes))
		})
	}
}

// quietFrames keeps no frames, but calls the test's enqueue.
type quietFrames struct{ *wrapped }

func (q quietFrames) Enqueue(ctx context.Context, b *vote.Batch) (vote.BatchOutcome, error) {
	return q.enqueue(ctx, b)
}
