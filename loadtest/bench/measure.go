package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"paredao/internal/audit"
)

// measurement is a run's raw figures.
type measurement struct {
	Run         string `json:"run"`
	Round       int    `json:"round"`
	System      string `json:"system"`
	Connections int    `json:"connections,omitempty"`
	Appendfsync string `json:"appendfsync,omitempty"`
	RedisRunID  string `json:"redis_run_id,omitempty"`

	WarmUp wrkFigures `json:"warm_up"`
	Load   wrkFigures `json:"load"`
	// Fill makes the queue deeper for the drain.
	Fill wrkFigures `json:"fill"`

	// CPU is processor time during the load, in seconds (utime and stime of
	// /proc/PID/stat; wrk's by its rusage), CPUPerVote in µs a request.
	CPU        map[string]float64 `json:"cpu_seconds,omitempty"`
	CPUPerVote map[string]float64 `json:"cpu_us_a_vote,omitempty"`
	Machine    shares             `json:"machine"`
	// GeneratorBusy is wrk's processor time by that of its threads.
	GeneratorBusy float64 `json:"generator_busy"`

	Audit    *audit.PollAudit `json:"audit,omitempty"`
	Memory   *memory          `json:"memory,omitempty"`
	EndToEnd *endToEnd        `json:"end_to_end,omitempty"`
	Drain    *drain           `json:"drain,omitempty"`
	Rate     *rateFigures     `json:"rate,omitempty"`
}

// memory is what queued votes take.
type memory struct {
	Votes int64 `json:"votes"`
	// ListBytes is MEMORY USAGE of the list with every element looked at, and
	// UsedBytes the growth of used_memory, which has other things in it, too.
	ListBytes  int64   `json:"list_bytes"`
	UsedBytes  int64   `json:"used_bytes"`
	BytesAVote float64 `json:"bytes_a_vote"`
}

// endToEnd is a load while consumer and archiver run.
type endToEnd struct {
	// PerSecond is the lesser of accepted and counted votes a second: an api
	// that outruns the consumer is no throughput.
	PerSecond float64 `json:"per_second"`
	Counted   float64 `json:"counted_per_second"`
	Archived  float64 `json:"archived_per_second"`
	// Drained is how long after the load all was counted and archived.
	Drained float64 `json:"drained_seconds"`
}

// drain is a queue that one consumer empties.
type drain struct {
	Votes     float64            `json:"votes"`
	Seconds   float64            `json:"seconds"`
	PerSecond float64            `json:"per_second"`
	CPU       map[string]float64 `json:"cpu_seconds"`
}

// bench makes the runs.
type bench struct {
	o      settings
	dir    string
	script string
	// highest is the rate that the first round found.
	highest float64
}

// measure makes one run, on a system of its own.
func (b *bench) measure(ctx context.Context, sp spec, roundNumber int) (_ *measurement, err error) {
	dir := filepath.Join(b.dir, fmt.Sprintf("%d-%s", roundNumber, sp.id))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	m := &measurement{Run: sp.id, Round: roundNumber, System: sp.system, Connections: sp.connections, Appendfsync: sp.fsync}
	s, err := startSystem(ctx, b.o.bin, dir, sp)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, s.end(err != nil), os.RemoveAll(dir)) }()
	m.RedisRunID = s.runID
	if sp.rate {
		err = b.constantRate(ctx, s, m)
	} else {
		err = b.closedLoop(ctx, s, m)
	}
	return m, errors.Join(err, s.alive())
}

// closedLoop is a run under wrk, and what follows from the queue that it leaves.
func (b *bench) closedLoop(ctx context.Context, s *system, m *measurement) (err error) {
	usedBefore, err := s.usedMemory(ctx)
	if err != nil {
		return err
	}
	if m.WarmUp, err = b.wrk(ctx, s, b.o.warmup, m.Round*10); err != nil {
		return err
	}
	if err := b.load(ctx, s, m); err != nil {
		return err
	}
	if s.spec.results {
		return errors.Join(m.check(), s.sameRedis(ctx))
	}
	if s.spec.drain && s.spec.system == ours {
		if left := float64(b.o.drainVotes - s.sent); left > 0 {
			const longest = 600
			seconds := min(math.Ceil(left/max(m.Load.PerSecond, 1)), longest)
			if m.Fill, err = b.wrk(ctx, s, int(seconds), m.Round*10+2); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(s.alive(), m.check()); err != nil {
		return err
	}
	// Once the api has ended, all that it took is in Redis.
	if err := s.stop("api"); err != nil {
		return err
	}
	if s.spec.whole {
		if m.EndToEnd.Drained, err = s.awaitEmpty(ctx); err != nil {
			return err
		}
	}
	if err := s.settle(ctx, m); err != nil {
		return err
	}
	if s.spec.varied {
		if m.Memory, err = s.memory(ctx, usedBefore); err != nil {
			return err
		}
	}
	if s.spec.drain {
		if err := b.drain(ctx, s, m); err != nil {
			return err
		}
	}
	return s.sameRedis(ctx)
}

// wrk runs the load generator, and keeps account of what was sent.
func (b *bench) wrk(ctx context.Context, s *system, seconds, seed int) (wrkFigures, error) {
	p := wrkParams{
		script: b.script, url: s.url, method: "POST", path: votesPath, threads: b.o.threads, connections: s.spec.connections,
		time: time.Duration(seconds) * time.Second, varied: s.spec.varied, seed: seed,
	}
	if s.spec.results {
		p.method, p.path = "GET", resultsPath
	}
	f, err := runWrk(ctx, p)
	if !s.spec.results {
		s.sent += f.Requests
		s.unknown += int64(s.spec.connections)
	}
	return f, err
}

// load is the measured part.
func (b *bench) load(ctx context.Context, s *system, m *measurement) error {
	counted, archived, err := s.progress(ctx)
	if err != nil {
		return err
	}
	before, err := s.times()
	if err != nil {
		return err
	}
	machine, err := readMachine()
	if err != nil {
		return err
	}
	own := ownTime()
	if m.Load, err = b.wrk(ctx, s, b.o.seconds, m.Round*10+1); err != nil {
		return err
	}
	after, err := s.times()
	if err != nil {
		return err
	}
	machineAfter, err := readMachine()
	if err != nil {
		return err
	}
	m.CPU = map[string]float64{"wrk": m.Load.CPU}
	known := m.Load.CPU + (ownTime() - own).Seconds()
	for name, t := range after {
		m.CPU[name] = t - before[name]
		known += m.CPU[name]
	}
	m.CPUPerVote = map[string]float64{}
	for name, t := range m.CPU {
		m.CPUPerVote[name] = t * 1e6 / float64(max(m.Load.Requests, 1))
	}
	m.Machine = share(machine, machineAfter, time.Duration(known*float64(time.Second)))
	m.GeneratorBusy = m.Load.CPU / (float64(b.o.threads) * m.Load.Seconds)
	if !s.spec.whole {
		return nil
	}
	countedAfter, archivedAfter, err := s.progress(ctx)
	if err != nil {
		return err
	}
	e := &endToEnd{Counted: (countedAfter - counted) / m.Load.Seconds, Archived: (archivedAfter - archived) / m.Load.Seconds}
	e.PerSecond = min(e.Counted, m.Load.PerSecond)
	m.EndToEnd = e
	if e.Archived == 0 {
		return errors.New("the archiver has written nothing during the load, so this is no end to end: raise --seconds")
	}
	return nil
}

// progress is how many votes consumer and archiver have done.
func (s *system) progress(ctx context.Context) (counted, archived float64, err error) {
	if !s.spec.whole {
		return 0, 0, nil
	}
	counted, err1 := s.proc("consumer").Metric(ctx, "paredao_votes_counted_total")
	archived, err2 := s.proc("archiver").Metric(ctx, "paredao_votes_archived_total")
	return counted, archived, errors.Join(err1, err2)
}

// awaitEmpty waits until all is counted and archived.
func (s *system) awaitEmpty(ctx context.Context) (seconds float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	began := time.Now()
	for {
		left, err := s.rdb.LLen(ctx, ourQueue).Result()
		more, err2 := s.rdb.LLen(ctx, ourArchive).Result()
		if err := errors.Join(err, err2, s.alive()); err != nil {
			return 0, err
		}
		if left+more == 0 {
			return time.Since(began).Seconds(), nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("not all is counted and archived: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// settle sees, once nothing runs that could change it, that nothing was lost or
// doubled at full speed.
func (s *system) settle(ctx context.Context, m *measurement) error {
	switch s.spec.system {
	case naive:
		queued, err := s.rdb.LLen(ctx, naiveQueue).Result()
		if err != nil {
			return err
		}
		return checkSum("the naive peer's queued votes", queued, s.sent, s.unknown)
	case ours:
		a, err := s.audit(ctx, s.spec.whole)
		if err != nil {
			return err
		}
		m.Audit = &a
		switch {
		case a.Dead+a.Dropped > 0:
			return fmt.Errorf("tally audit: %d votes are dead, %d dropped", a.Dead, a.Dropped)
		case a.Accepted != a.Queued+a.Counted:
			return fmt.Errorf("tally audit: %d accepted, but %d queued and %d counted", a.Accepted, a.Queued, a.Counted)
		case s.spec.whole && (a.Archived != a.Accepted || a.Recounted == nil || *a.Recounted != a.Accepted):
			return fmt.Errorf("tally audit --recount: %d accepted, but %d archived", a.Accepted, a.Archived)
		case s.spec.rate:
			return nil // wrk has sent nothing to compare with
		}
		return checkSum("queued and counted votes", a.Queued+a.Counted, s.sent, s.unknown)
	}
	return nil
}

// usedMemory is used_memory of Redis.
func (s *system) usedMemory(ctx context.Context) (int64, error) {
	if s.redis == nil {
		return 0, nil
	}
	info, err := s.rdb.InfoMap(ctx, "memory").Result()
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(info["Memory"]["used_memory"], 10, 64)
}

// memory measures the queue, which holds all votes.
func (s *system) memory(ctx context.Context, usedBefore int64) (*memory, error) {
	key := ourQueue
	var votes int64
	if s.spec.system == naive {
		key = naiveQueue
		n, err := s.rdb.LLen(ctx, key).Result()
		if err != nil {
			return nil, err
		}
		votes = n
	} else {
		a, err := s.audit(ctx, false)
		if err != nil {
			return nil, err
		}
		votes = a.Queued
	}
	const every = 0
	bytes, err := s.rdb.MemoryUsage(ctx, key, every).Result()
	if err != nil {
		return nil, err
	}
	used, err := s.usedMemory(ctx)
	if err != nil {
		return nil, err
	}
	return &memory{Votes: votes, ListBytes: bytes, UsedBytes: used - usedBefore, BytesAVote: float64(bytes) / float64(max(votes, 1))}, nil
}

// drain starts one consumer on the queue as it stands and watches it run empty.
func (b *bench) drain(ctx context.Context, s *system, m *measurement) error {
	key := ourQueue
	var votes int64
	var err error
	if s.spec.system == naive {
		key = naiveQueue
		votes, err = s.rdb.LLen(ctx, key).Result()
	} else {
		votes = m.Audit.Queued
	}
	if err != nil {
		return err
	}
	before, err := s.times()
	if err != nil {
		return err
	}
	full, err := s.rdb.LLen(ctx, key).Result()
	if err != nil {
		return err
	}
	if s.spec.system == naive {
		err = s.start("consumer", naive, "consumer", "--redis-url="+s.redis.URL())
	} else {
		err = s.startDaemon("consumer")
	}
	if err != nil {
		return err
	}
	if m.Drain, err = s.watchDrain(ctx, key, votes, full, time.Duration(b.o.seconds)*time.Second); err != nil {
		return err
	}
	after, err := s.times()
	if err != nil {
		return err
	}
	m.Drain.CPU = map[string]float64{}
	for _, name := range []string{"redis", "consumer"} {
		m.Drain.CPU[name] = after[name] - before[name]
	}
	if err := s.stop("consumer"); err != nil {
		return err
	}
	if s.spec.system == naive {
		return s.naiveCounted(ctx, votes)
	}
	a, err := s.audit(ctx, false)
	if err != nil {
		return err
	}
	if a.Queued != 0 || a.Counted != m.Audit.Accepted {
		return fmt.Errorf("after the drain %d votes are queued and %d counted, of %d", a.Queued, a.Counted, m.Audit.Accepted)
	}
	m.Audit = &a
	return nil
}

// naiveCounted sees that the naive peer has lost nothing, either.
func (s *system) naiveCounted(ctx context.Context, votes int64) error {
	left, err := s.rdb.LLen(ctx, naiveQueue).Result()
	if err != nil {
		return err
	}
	tally, err := s.rdb.HVals(ctx, naiveTally).Result()
	if err != nil {
		return err
	}
	for _, text := range tally {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return err
		}
		left += n
	}
	if left != votes {
		return fmt.Errorf("the naive peer has %d votes queued and counted, of %d", left, votes)
	}
	return nil
}

// sample is the length of a queue at a time.
type sample struct {
	at   time.Time
	left int64
}

// watchDrain looks at the queue's length from the first element that is gone
// until it is empty, or the time is up: so the consumer's start is not in it.
func (s *system) watchDrain(ctx context.Context, key string, votes, full int64, limit time.Duration) (*drain, error) {
	ctx, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	// A millisecond is seldom enough to cost Redis nothing that shows.
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var first sample
	for looks := 0; ; looks++ {
		left, err := s.rdb.LLen(ctx, key).Result()
		now := sample{time.Now(), left}
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
		if first.at.IsZero() && left < full {
			first = now
		}
		if !first.at.IsZero() && (left == 0 || now.at.Sub(first.at) >= limit) {
			return drainOf(first, now, votes, full)
		}
		if looks%100 == 0 {
			if err := s.alive(); err != nil {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the queue does not run empty: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// drainOf is the rate between two samples of a queue that held votes in full
// elements.
func drainOf(first, last sample, votes, full int64) (*drain, error) {
	const shortest = 50 * time.Millisecond // so that a sample's millisecond is 2 % at most
	took := last.at.Sub(first.at)
	if took < shortest {
		return nil, fmt.Errorf("the queue ran empty in %v, too fast to measure: raise --drain-votes", took)
	}
	d := &drain{Votes: float64(votes) * float64(first.left-last.left) / float64(full), Seconds: took.Seconds()}
	d.PerSecond = d.Votes / d.Seconds
	return d, nil
}
