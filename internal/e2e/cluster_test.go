package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"paredao/internal/lab"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// clusterShards is more than there are masters, so that one has two shards.
const clusterShards = 4

func startCluster(t *testing.T) *lab.Cluster {
	t.Helper()
	c, err := lab.StartCluster(context.Background(), lab.ClusterParams{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(c.End)
	return c
}

func slotOf(t *testing.T, c *lab.Cluster, shard int) int {
	t.Helper()
	slot, err := c.Slot(t.Context(), shard)
	require.NoError(t, err)
	return slot
}

// accepted watches how many votes one shard has accepted. Acknowledgements of
// all shards together would hide that one stands still.
func accepted(t *testing.T, c *lab.Cluster, shard int) *stopwatch {
	t.Helper()
	hosts := strings.TrimPrefix(c.URL(), "redis-cluster://")
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: strings.Split(hosts, ","), ReadTimeout: time.Second, DialTimeout: time.Second, MaxRedirects: 1,
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return watch(t, func(ctx context.Context) (int64, error) {
		n, err := rdb.HGet(ctx, fmt.Sprintf("ledger:{%d}", shard), "accepted:"+openPoll).Int64()
		if err != nil {
			rdb.ReloadState(ctx)
		}
		return n, err
	})
}

// The slot of a shard moves to another master and back, again and again, under
// load; consumers come meanwhile, and share the shards. Nothing may be lost.
func TestClusterMovesASlot(t *testing.T) {
	for name, replicas := range map[string]int{"as it is": 0, "acknowledged by a replica": 1} {
		t.Run(name, func(t *testing.T) {
			redis := startCluster(t)
			s := newStackOn(t, redis.URL(), clusterShards)
			consumers := []*testkit.Process{s.start("consumer")}
			s.start("archiver")
			l := s.load(steady, s.start("api", "--ack-replicas="+strconv.Itoa(replicas)))
			s.grow(l, 500)

			const shard = 0
			slot := slotOf(t, redis, shard)
			home, err := redis.MasterOf(t.Context(), slot)
			require.NoError(t, err)
			w := accepted(t, redis, shard)
			for _, n := range []int{1, 2, 4} {
				for len(consumers) < n {
					consumers = append(consumers, s.start("consumer"))
				}
				testkit.Eventually(t, fmt.Sprintf("%d consumers share the shards", n), func() bool {
					sum := 0.0
					for _, c := range consumers {
						owned := c.Metric("paredao_shards_owned")
						if sum += owned; owned == 0 {
							return false
						}
					}
					return sum == clusterShards
				})
				masters, err := redis.Masters(t.Context())
				require.NoError(t, err)
				away := masters[0]
				if away == home {
					away = masters[1]
				}
				w.reset()
				moves := 0
				for end := time.Now().Add(faultTime() / 3); time.Now().Before(end); moves++ {
					to := home
					if moves%2 == 0 {
						to = away
					}
					require.NoError(t, redis.MoveSlot(t.Context(), slot, to))
					s.grow(l, 200)
				}
				stop := w.longest()
				t.Logf("%d consumers: %d moves; the shard took no vote for %s", n, moves, stop.Round(time.Millisecond))
				require.Less(t, stop, longestStop)
			}
			// The totals are the sums over shards, and each shard has its part.
			r := s.settle(l, false)
			sum, err := s.store.Results(t.Context(), openPoll)
			require.NoError(t, err)
			require.Equal(t, r.Counted, sum.Ledger.Counted)
			shards, err := s.store.ShardPolls(t.Context())
			require.NoError(t, err)
			var each []vote.PollLedger
			for _, sh := range shards {
				each = append(each, sh.Ledgers[openPoll])
				require.Positive(t, sh.Ledgers[openPoll].Counted)
			}
			t.Logf("by shard: %+v", each)
		})
	}
}

// The master of a shard is killed under load, the next one stands still, and a
// third hands over to its replica; each comes back as a replica.
func TestClusterFailover(t *testing.T) {
	for name, replicas := range map[string]int{"as it is": 0, "acknowledged by a replica": 1} {
		t.Run(name, func(t *testing.T) {
			redis := startCluster(t)
			s := newStackOn(t, redis.URL(), clusterShards)
			s.start("consumer")
			s.start("consumer")
			s.start("archiver")
			l := s.load(steady, s.start("api", "--ack-replicas="+strconv.Itoa(replicas)))
			s.grow(l, 500)
			all := acked(t, l)
			// With ack-replicas there is no service until the replica is there again.
			for shard, f := range []struct {
				name  string
				fault func(slot int, master *lab.Redis) (gone time.Time, err error)
				mend  func(slot int, master *lab.Redis) error
			}{
				{"is killed", func(slot int, _ *lab.Redis) (time.Time, error) {
					_, err := redis.KillMaster(t.Context(), slot)
					return time.Now(), err
				}, func(_ int, old *lab.Redis) error { return old.Start(t.Context()) }},
				{"stands still", func(_ int, master *lab.Redis) (time.Time, error) {
					err := master.Pause(t.Context())
					return time.Now(), err
				}, func(_ int, old *lab.Redis) error { return old.Signal(syscall.SIGCONT) }},
				{"hands over", func(slot int, _ *lab.Redis) (time.Time, error) {
					_, err := redis.Failover(t.Context(), slot)
					return time.Time{}, err // it loses nothing
				}, func(int, *lab.Redis) error { return nil }},
			} {
				slot := slotOf(t, redis, shard)
				w := accepted(t, redis, shard)
				after(faultTime() / 4)
				master, err := redis.MasterOf(t.Context(), slot)
				require.NoError(t, err)
				w.reset()
				s.lossy(l, all, "a master "+f.name, func() time.Time {
					gone, err := f.fault(slot, master)
					require.NoError(t, err)
					_, err = redis.Promoted(t.Context(), slot, master)
					require.NoError(t, err)
					return gone
				}, func() {
					require.NoError(t, f.mend(slot, master))
					require.NoError(t, redis.Settled(t.Context()))
				})
				after(faultTime() / 4)
				stop := w.longest()
				t.Logf("shard %d took no vote for %s", shard, stop.Round(time.Millisecond))
				require.Less(t, stop, longestStop)
			}
			s.settle(l, replicas == 0)
		})
	}
}
