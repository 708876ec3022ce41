// Package share shares the queue's shards out among the live workers of one
// role, evenly, so that they do not do each other's work again.
//
// It is advisory. Two workers on one shard, or none for some seconds, cost time
// and nothing else: each step forward is a compare-and-swap in Redis.
package share

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Members is where workers meet.
type Members interface {
	// Join says that this worker is alive and returns all live ones, sorted.
	Join(ctx context.Context) ([]string, error)
	// Leave says that this worker is gone.
	Leave(ctx context.Context) error
	// Claim takes or keeps a shard; false: it is another's.
	Claim(ctx context.Context, shard int) (bool, error)
	// Release hands a shard back.
	Release(ctx context.Context, shard int) error
}

// Params configure a Sharing.
type Params struct {
	Members Members
	// Worker is this worker's name among the members.
	Worker string
	Shards int
	// TTL is after how long a silent worker's shards go to others.
	TTL time.Duration
	// Work works on a shard until its context is done.
	Work func(ctx context.Context, shard int)
	// Owned shows the number of shards worked on.
	Owned prometheus.Gauge
	// Outage gets each failed talk to the members (an error) and each good one.
	Outage func(error)
	Log    *slog.Logger
}

// leaveTimeout bounds the handing back at shutdown.
const leaveTimeout = 2 * time.Second

// Run works on this worker's share of the shards until ctx is done. Then it
// waits for the work in hand and hands the shards back.
func Run(ctx context.Context, p Params) error {
	s := &sharing{p: p, running: map[int]*work{}}
	// Often enough to notice a takeover, and to take over, within a second.
	beat := min(p.TTL/3, time.Second)
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		s.p.Outage(s.step(ctx))
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.leave(context.WithoutCancel(ctx))
			return nil
		}
	}
}

type sharing struct {
	p       Params
	running map[int]*work
}

// work is a shard that is being worked on.
type work struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// step looks who is there and takes what this worker should have.
func (s *sharing) step(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.p.TTL)
	defer cancel()
	// Also when Redis goes away half-way.
	defer func() { s.p.Owned.Set(float64(len(s.running))) }()
	live, err := s.p.Members.Join(ctx)
	if err != nil {
		return err
	}
	mine := func(shard int) bool { return live[shard%len(live)] == s.p.Worker }
	// All at once, and not for long: a shard whose Redis does not answer must not
	// keep the others from being worked on, nor this worker from saying that it
	// is alive.
	few, stop := context.WithTimeout(ctx, s.p.TTL/3)
	defer stop()
	claimed, errs := make([]bool, s.p.Shards), make([]error, s.p.Shards)
	var wg sync.WaitGroup
	for shard := range s.p.Shards {
		if mine(shard) {
			wg.Go(func() { claimed[shard], errs[shard] = s.p.Members.Claim(few, shard) })
		}
	}
	wg.Wait()
	for shard, got := range claimed {
		if !mine(shard) {
			errs[shard] = s.giveUp(ctx, shard)
			continue
		}
		if errs[shard] != nil {
			continue
		}
		_, has := s.running[shard]
		switch {
		case got && !has:
			s.start(shard)
		case !got && has:
			s.p.Log.Info("shard was taken over by another worker", "shard", shard)
			s.stop(shard)
		}
	}
	return errors.Join(errs...)
}

func (s *sharing) start(shard int) {
	// Not the caller's context: leave stops the work, after its last step.
	ctx, cancel := context.WithCancel(context.Background())
	w := &work{cancel, make(chan struct{})}
	s.running[shard] = w
	s.p.Log.Info("shard taken", "shard", shard)
	go func() {
		defer close(w.done)
		s.p.Work(ctx, shard)
	}()
}

func (s *sharing) stop(shard int) {
	w := s.running[shard]
	w.cancel()
	<-w.done
	delete(s.running, shard)
}

func (s *sharing) giveUp(ctx context.Context, shard int) error {
	if _, has := s.running[shard]; !has {
		return nil
	}
	s.stop(shard)
	s.p.Log.Info("shard handed over", "shard", shard)
	return s.p.Members.Release(ctx, shard)
}

// leave ends the work and hands everything back. It has a deadline of its own,
// which the shutdown's signal has not cancelled.
func (s *sharing) leave(ctx context.Context) {
	var wg sync.WaitGroup
	for _, w := range s.running {
		w.cancel()
	}
	for _, w := range s.running {
		wg.Go(func() { <-w.done })
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	var shards []int
	for shard := range s.running {
		shards = append(shards, shard)
	}
	slices.Sort(shards)
	for _, shard := range shards {
		if err := s.p.Members.Release(ctx, shard); err != nil {
			s.p.Log.Warn("shard not handed back; it is free once owner-ttl is over", "shard", shard, "err", err)
		}
	}
	if err := s.p.Members.Leave(ctx); err != nil {
		s.p.Log.Warn("did not leave the members", "err", err)
	}
	s.p.Owned.Set(0)
}
