package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"paredao/internal/lab"
)

// runCluster moves the slots of shards, and kills, pauses and replaces their
// masters.
func runCluster(ctx context.Context, r *run) error {
	const shards = 4 // more than masters
	r.shards = max(r.shards, shards)
	dir, err := r.folder("servers")
	if err != nil {
		return err
	}
	fsync := r.fsyncOr("everysec")
	cluster, err := lab.StartCluster(ctx, lab.ClusterParams{Dir: dir, Redis: []string{"--appendfsync", fsync}})
	if err != nil {
		return err
	}
	defer cluster.End()
	settings := "three masters with a replica each, appendonly yes, appendfsync " + fsync +
		", cluster-node-timeout 1500, cluster-require-full-coverage no"
	return r.failovers(ctx, cluster.URL(), settings, func(f *failover) []failoverFault {
		f.shards = watchShards(cluster.URL(), r.shards)
		return clusterFaults(f, cluster)
	})
}

func clusterFaults(f *failover, cluster *lab.Cluster) []failoverFault {
	// on is a fault of the master of a random shard.
	type action = func(ctx context.Context, slot int, master *lab.Redis) (gone time.Time, err error)
	type mending = func(ctx context.Context, master *lab.Redis) error
	on := func(fault action, mend mending) func(context.Context) (string, time.Time, error) {
		return func(ctx context.Context) (_ string, gone time.Time, err error) {
			shard := f.random.IntN(f.r.shards)
			slot, err := cluster.Slot(ctx, shard)
			if err != nil {
				return "", gone, err
			}
			master, err := cluster.MasterOf(ctx, slot)
			if err != nil {
				return "", gone, err
			}
			if gone, err = fault(ctx, slot, master); err != nil {
				return "", gone, err
			}
			if err := mend(ctx, master); err != nil {
				return "", gone, err
			}
			return fmt.Sprintf("shard %d", shard), gone, cluster.Settled(ctx)
		}
	}
	replaced := func(ctx context.Context, slot int, master *lab.Redis) error {
		_, err := cluster.Promoted(ctx, slot, master)
		return err
	}
	nothing := func(context.Context, *lab.Redis) error { return nil }
	return []failoverFault{
		{"kill -9 of the master, and back", on(func(ctx context.Context, slot int, master *lab.Redis) (time.Time, error) {
			master.Kill()
			return time.Now(), replaced(ctx, slot, master)
		}, func(ctx context.Context, master *lab.Redis) error { return master.Start(ctx) })},
		{"SIGSTOP of the master, until its replica is promoted", on(func(ctx context.Context, slot int, master *lab.Redis) (time.Time, error) {
			err := master.Pause(ctx)
			return time.Now(), errors.Join(err, replaced(ctx, slot, master))
		}, func(_ context.Context, master *lab.Redis) error { return master.Signal(syscall.SIGCONT) })},
		{"CLUSTER FAILOVER", on(func(ctx context.Context, slot int, master *lab.Redis) (time.Time, error) {
			_, err := cluster.Failover(ctx, slot)
			return time.Time{}, errors.Join(err, replaced(ctx, slot, master))
		}, nothing)},
		{"slot moved to another master and back, three times", on(func(ctx context.Context, slot int, master *lab.Redis) (gone time.Time, err error) {
			masters, err := cluster.Masters(ctx)
			if err != nil {
				return gone, err
			}
			away := masters[0]
			if away == master {
				away = masters[1]
			}
			for range 3 {
				for _, to := range []*lab.Redis{away, master} {
					if err := cluster.MoveSlot(ctx, slot, to); err != nil {
						return gone, err
					}
					if !wait(ctx, 300*time.Millisecond) {
						return gone, errors.New("interrupted")
					}
				}
			}
			return gone, nil
		}, nothing)},
	}
}

// shardWatch watches each shard's accepted votes: those of all shards together
// would hide that one stands still.
type shardWatch struct {
	rdb      *redis.ClusterClient
	monitors []*monitor
	cancel   context.CancelFunc
	polls    sync.WaitGroup
}

func watchShards(url string, shards int) *shardWatch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &shardWatch{cancel: cancel, rdb: redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:       strings.Split(strings.TrimPrefix(url, "redis-cluster://"), ","),
		ReadTimeout: time.Second, DialTimeout: time.Second, MaxRedirects: 1, DialerRetries: 1,
	})}
	for shard := range shards {
		// What was lost comes off the number, so its changes are what grows.
		var changes atomic.Int64
		w.monitors = append(w.monitors, newMonitor(changes.Load))
		w.polls.Go(func() { w.poll(ctx, shard, &changes) })
	}
	return w
}

func (w *shardWatch) poll(ctx context.Context, shard int, changes *atomic.Int64) {
	const every = 20 * time.Millisecond
	key, field := fmt.Sprintf("ledger:{%d}", shard), "accepted:"+mainPoll
	for last := int64(0); wait(ctx, every); {
		n, err := w.rdb.HGet(ctx, key, field).Int64()
		switch {
		case err != nil:
			w.rdb.ReloadState(ctx)
		case n != last:
			last = n
			changes.Add(1)
		}
	}
}

// stop ends the watch.
func (w *shardWatch) stop() {
	w.cancel()
	w.polls.Wait()
	for _, m := range w.monitors {
		m.stop()
	}
	_ = w.rdb.Close()
}

// verdict says which shard took no votes for too long.
func (w *shardWatch) verdict(r *report) error {
	var errs []error
	for shard, m := range w.monitors {
		stop, at := m.longestStop()
		r.row(fmt.Sprintf("longest stop of shard %d", shard), stop.Round(time.Millisecond))
		if stop > failoverStop {
			errs = append(errs, fmt.Errorf("shard %d took no vote for %s from %s on; %s are allowed",
				shard, stop.Round(time.Millisecond), at.Round(time.Millisecond), failoverStop))
		}
	}
	return errors.Join(errs...)
}
