package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"paredao/internal/lab"
	"paredao/internal/ledger"
	"paredao/internal/vote"
)

// What the scenario deep-queue does and promises.
const (
	deepRounds = 3
	// shallowVotes is how short a short queue is, deepFast how fast a deep one
	// must be drained, against the short one.
	shallowVotes = 50_000
	deepFast     = 0.80
	// slowCommand is how long no command may take.
	slowCommand = 50 * time.Millisecond
)

// frameKind is a way to fill the queue.
type frameKind struct {
	name string
	// votes is how many a frame has; 0: as many as it may, or few, at random.
	votes int
	// same makes all votes equal to the byte.
	same bool
}

func frameKinds() []frameKind {
	return []frameKind{
		{name: "frames of 1 to 1,024 votes"},
		{name: "frames of one vote", votes: 1},
		{name: "full frames of byte-identical votes", votes: vote.MaxFrameVotes, same: true},
		{name: "frames of one byte-identical vote", votes: 1, same: true},
	}
}

// deepQueue is a run of the scenario.
type deepQueue struct {
	r      *run
	s      *stack
	rdb    *redis.Client
	worker *lab.Daemon
	choice string // the options' digest
	waits  *waitWatch
	// filled is how many votes each option has been given.
	filled []atomic.Int64
}

// runDeepQueue fills the queue while the consumer stands still, and lets it
// drain, deep and short in turn. Then the same with an archiver, which has a deep
// list before it, and an audit:
//
//	redisstore.Queue ─▶ votes:{0} ─▶ one consumer ─▶ archive:{0} (─▶ one archiver)
func runDeepQueue(ctx context.Context, r *run) error {
	r.report.note("The votes come through the enqueue path of the api (its script, with frames made by its codec), without HTTP before it. " +
		"Where speeds are compared there is no archiver: counted frames pile up in the archive's list, and are thrown away after each drain. " +
		"What is counted is compared with what was enqueued, option by option, after every drain.")
	r.report.note("The speed of a drain is measured from the first to the last commit that is seen. " +
		"Redis does not rewrite its append-only file meanwhile (auto-aof-rewrite-percentage 0).")
	r.report.note("Commands over 50 ms: SLOWLOG goes by the clock, and so counts what redis-server waits for a processor that others have. "+
		"An entry is not held against a command if in some stretch of time that is as long as the entry, and lies where it may lie, "+
		"redis-server was ready to run and had no processor for all of it but %s (Linux's schedstat, looked at every %s).", slowCommand, waitSampled)
	r.report.headline("A deep queue is drained about as fast as a short one, no command stood in the others' way, and the tally is what was enqueued, option by option. " +
		"(These votes have no receipts to be compared one by one.)")
	return errors.Join(r.deepSpeeds(ctx), r.deepArchive(ctx))
}

// deepStack starts a stack with a consumer and so many archivers.
func (r *run) deepStack(ctx context.Context, name string, archivers int) (*deepQueue, error) {
	dir, err := r.folder(name)
	if err != nil {
		return nil, err
	}
	choices := overloadVotes()
	s, err := startStack(ctx, stackParams{
		bin: r.bin, dir: dir, root: r.root, shards: 1, fsync: r.fsyncOr("no"), consumers: 1, archivers: archivers, choices: choices,
	})
	if err != nil {
		return nil, err
	}
	d := &deepQueue{
		r: r, s: s, worker: s.consumers[0], choice: pollsOf(choices)[0].OptionsKey(),
		rdb: redis.NewClient(&redis.Options{Addr: s.redis.Addr()}), waits: watchWaits(s.redis.Pid()), filled: make([]atomic.Int64, len(choices)),
	}
	// What else runs on the machine should show as little as it can.
	preferred := prefer(s.redis.Pid())
	for _, daemon := range s.daemons() {
		preferred = errors.Join(preferred, prefer(daemon.Pid()))
	}
	if preferred == nil {
		r.report.note("%s: redis-server and the daemons run at the highest priority, so that other processes of the machine disturb them less.", name)
	}
	// It would fall into the deep drains alone: a short queue's file is small.
	if err := d.rdb.ConfigSet(ctx, "auto-aof-rewrite-percentage", "0").Err(); err != nil {
		return nil, d.end(ctx, fmt.Errorf("no rewrite of the append-only file: %w", err))
	}
	if err := d.watchSlowCommands(ctx); err != nil {
		return nil, d.end(ctx, err)
	}
	return d, nil
}

func (d *deepQueue) end(ctx context.Context, err error) error {
	d.waits.stop()
	return errors.Join(err, d.rdb.Close(), d.s.end(context.WithoutCancel(ctx), err != nil))
}

func (r *run) deepSpeeds(ctx context.Context) (err error) {
	d, err := r.deepStack(ctx, "speeds", 0)
	if err != nil {
		return err
	}
	defer func() { err = d.end(ctx, err) }()
	var rows [][]string
	var errs []error
	for _, kind := range frameKinds() {
		row, err := d.compare(ctx, kind)
		if row == nil {
			return err
		}
		rows, errs = append(rows, row), append(errs, err)
	}
	r.report.table("Votes counted a second, medians of the rounds",
		[]string{"frames", "deep", "votes", "elements", "short", "deep, of short", "rounds deep", "rounds short"}, rows)
	return errors.Join(append(errs, d.slowCommands(ctx, "speeds"), d.s.healed(ctx))...)
}

// deepArchive lets the archive's list get deep while the archiver stands still,
// in frames of one vote, which make it longest.
func (r *run) deepArchive(ctx context.Context) (err error) {
	d, err := r.deepStack(ctx, "archive", 1)
	if err != nil {
		return err
	}
	defer func() { err = d.end(ctx, err) }()
	archiver := d.s.archivers[0]
	if err := archiver.Stop(ctx); err != nil {
		return err
	}
	speed, elements, err := d.drain(ctx, frameKind{name: "frames of one vote, to be archived", votes: 1}, r.votes)
	if err != nil {
		return err
	}
	r.say("%d frames are counted, %.0f a second; now they are archived", elements, speed)
	began := time.Now()
	if err := archiver.Cont(); err != nil {
		return err
	}
	if err := ledger.Drain(ctx, d.s.store, drainPatience, func(left string) { r.say("drain: %s", left) }); err != nil {
		return err
	}
	took := time.Since(began)
	r.report.row("archive's list, elements", elements)
	r.report.row("archived in", took)
	r.report.row("votes archived a second", int64(float64(r.votes)/took.Seconds()))
	errs := []error{d.slowCommands(ctx, "archive"), d.s.healed(ctx)}
	out, err := d.s.tally(ctx, "audit", "--recount")
	r.report.command("tally audit --recount", out, err)
	if err != nil {
		errs = append(errs, fmt.Errorf("tally audit --recount: %w", err))
	}
	return errors.Join(errs...)
}

// exact compares what is counted with what was enqueued.
func (d *deepQueue) exact(ctx context.Context) error {
	choices := overloadVotes()
	results, err := d.s.store.Results(ctx, choices[0].Poll)
	if err != nil {
		return err
	}
	var errs []error
	for i, c := range choices {
		if filled, counted := d.filled[i].Load(), results.Tally[c.Option]; counted != filled {
			errs = append(errs, fmt.Errorf("%d votes for %s were enqueued, and %d are counted", filled, c, counted))
		}
	}
	return errors.Join(errs...)
}

// compare drains deep and short queues of a kind in turn.
func (d *deepQueue) compare(ctx context.Context, kind frameKind) ([]string, error) {
	votes := d.r.votes
	var deep, short []float64
	var elements int64
	for round := range deepRounds {
		speed, n, err := d.drain(ctx, kind, votes)
		if err != nil {
			return nil, err
		}
		elements = n
		deep = append(deep, speed)
		// As many votes as the deep one has, up to twenty short queues.
		var shorts []float64
		for range min(max(votes/shallowVotes, 1), 20) {
			speed, _, err := d.drain(ctx, kind, min(shallowVotes, votes))
			if err != nil {
				return nil, err
			}
			shorts = append(shorts, speed)
		}
		short = append(short, median(shorts))
		d.r.say("%s, round %d: deep %.0f votes/s, short %.0f", kind.name, round+1, deep[round], short[round])
	}
	ratio := median(deep) / median(short)
	row := []string{
		kind.name, commas(int64(median(deep))), commas(votes), commas(elements), commas(int64(median(short))),
		fmt.Sprintf("%.2f", ratio), numbers(deep), numbers(short),
	}
	if ratio < deepFast {
		return row, fmt.Errorf("%s: a deep queue is drained at %.2f of a short one's speed, below %.2f", kind.name, ratio, deepFast)
	}
	return row, nil
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	if n == 0 {
		return 0
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func numbers(all []float64) string {
	var text []string
	for _, n := range all {
		text = append(text, commas(int64(n)))
	}
	return strings.Join(text, ", ")
}

// drain drains a queue, again where it was empty before it was seen to get
// shorter, which says nothing about its speed.
func (d *deepQueue) drain(ctx context.Context, kind frameKind, votes int64) (speed float64, elements int64, err error) {
	const tries = 10
	for range tries {
		if speed, elements, err = d.drainOnce(ctx, kind, votes); err != nil || speed > 0 {
			return speed, elements, err
		}
	}
	return 0, 0, fmt.Errorf("%s: %d votes were counted too fast to be measured", kind.name, votes)
}

// drainOnce fills the queue with votes, lets the consumer drain it, and returns
// how many votes a second it counted, and how many elements there were.
func (d *deepQueue) drainOnce(ctx context.Context, kind frameKind, votes int64) (speed float64, elements int64, err error) {
	if err := d.worker.Stop(ctx); err != nil {
		return 0, 0, err
	}
	before, err := d.s.store.Queues(ctx)
	if err != nil {
		return 0, 0, err
	}
	if before[0].Frames > 0 {
		return 0, 0, fmt.Errorf("the queue has %d elements already", before[0].Frames)
	}
	if elements, err = fillQueue(ctx, d, kind, votes); err != nil {
		return 0, 0, err
	}
	meter := drainMeter{full: votes}
	if err := d.worker.Cont(); err != nil {
		return 0, 0, err
	}
	for began := time.Now(); ; {
		queues, err := d.s.store.Queues(ctx)
		if err != nil {
			return 0, 0, err
		}
		if meter.look(time.Now(), queues[0].Votes) {
			break
		}
		if time.Since(began) > drainPatience {
			return 0, 0, fmt.Errorf("%d votes are left after %s", queues[0].Votes, drainPatience)
		}
		if !wait(ctx, 2*time.Millisecond) {
			return 0, 0, context.Cause(ctx)
		}
	}
	if err := d.exact(ctx); err != nil || len(d.s.archivers) > 0 {
		return meter.speed(), elements, err
	}
	// In pieces: to delete a list of millions is itself a long command.
	for {
		n, err := d.rdb.LLen(ctx, "archive:{0}").Result()
		if err != nil {
			return 0, 0, err
		}
		if n == 0 {
			return meter.speed(), elements, nil
		}
		if err := d.rdb.LTrim(ctx, "archive:{0}", 2000, -1).Err(); err != nil {
			return 0, 0, err
		}
	}
}

// drainMeter measures how fast a queue gets shorter, from the first change that
// is seen to the end.
type drainMeter struct {
	full  int64
	first time.Time // when a shorter queue was seen first
	had   int64     // and how many votes it had
	rate  float64
}

// look takes the number of votes left; true: it is drained.
func (m *drainMeter) look(now time.Time, left int64) bool {
	if m.first.IsZero() && left < m.full {
		m.first, m.had = now, left
	}
	if left > 0 {
		return false
	}
	if took := now.Sub(m.first).Seconds(); took > 0 && m.had > 0 {
		m.rate = float64(m.had) / took
	}
	return true
}

func (m *drainMeter) speed() float64 { return m.rate }

// fillers put votes on the queue at one time, each as an api would.
const fillers = 16

// fillQueue puts votes on the queue and returns how many elements they are.
func fillQueue(ctx context.Context, d *deepQueue, kind frameKind, votes int64) (int64, error) {
	var left, elements atomic.Int64
	left.Store(votes)
	errs := make([]error, fillers)
	var wg sync.WaitGroup
	for i := range fillers {
		wg.Go(func() { errs[i] = d.filler(ctx, kind, &left, &elements, uint64(i)) })
	}
	wg.Wait()
	return elements.Load(), errors.Join(errs...)
}

func (d *deepQueue) filler(ctx context.Context, kind frameKind, left, elements *atomic.Int64, seed uint64) error {
	codec, err := vote.NewCodec()
	if err != nil {
		return err
	}
	defer codec.Close()
	queue := d.s.store.Queue(10*time.Minute, 0, time.Second)
	flusher := vote.NewFlusherID()
	if err := queue.Register(ctx, 0, flusher); err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(d.r.seed, seed))
	choices, agents := overloadVotes(), agents()
	one := vote.Vote{ID: uuid.Must(uuid.NewV7()), Poll: choices[0].Poll, Option: choices[0].Option, Client: "c29tZSBjbGllbnQ", UserAgent: agents[0]}
	var lines, body []byte
	given := make([]int64, len(choices))
	for seq := uint64(1); ; seq++ {
		n := kind.votes
		if n == 0 {
			n = 1 + random.IntN(vote.MaxFrameVotes)
		}
		if rest := left.Add(-int64(n)) + int64(n); rest <= 0 {
			return nil
		} else if rest < int64(n) {
			n = int(rest)
		}
		lines = lines[:0]
		clear(given)
		for range n {
			v, option := one, 0
			if !kind.same {
				option = random.IntN(len(choices))
				v = vote.Vote{
					ID: uuid.Must(uuid.NewV7()), Poll: choices[0].Poll, Option: choices[option].Option,
					Client: fmt.Sprintf("%016x", random.Uint64()), UserAgent: agents[random.IntN(len(agents))],
				}
			}
			given[option]++
			lines = vote.AppendVote(lines, &v)
		}
		body = codec.Compress(body[:0], lines, n)
		out, err := queue.Enqueue(ctx, &vote.Batch{
			ID: vote.FrameID{Flusher: flusher, Seq: seq}, Votes: n, Body: body,
			Polls: []vote.BatchPoll{{Poll: one.Poll, Votes: n, OptionsKey: d.choice}},
		})
		if err != nil {
			return err
		}
		if out.Polls[0] != vote.PollAccepted {
			return fmt.Errorf("the votes were not taken: %c", out.Polls[0])
		}
		for i, n := range given {
			d.filled[i].Add(n)
		}
		elements.Add(1)
	}
}

func (d *deepQueue) watchSlowCommands(ctx context.Context) error {
	for name, value := range map[string]string{"slowlog-log-slower-than": fmt.Sprint(slowCommand.Microseconds()), "slowlog-max-len": "1000"} {
		if err := d.rdb.ConfigSet(ctx, name, value).Err(); err != nil {
			return err
		}
	}
	return d.rdb.Do(ctx, "SLOWLOG", "RESET").Err()
}

// slowCommands puts Redis's own log of slow commands into the report; none may
// be there but those that had no processor.
func (d *deepQueue) slowCommands(ctx context.Context, phase string) error {
	const most = 1000
	entries, err := d.rdb.SlowLogGet(ctx, most).Result()
	if err != nil {
		return err
	}
	d.r.report.row("commands over 50 ms by the clock: "+phase, len(entries))
	if waited, known := d.waits.sum(); known {
		d.r.report.row("redis-server was ready to run and had no processor, in all: "+phase, waited)
	} else {
		d.r.report.note("%s: how long redis-server waited for a processor can't be seen here; every entry of SLOWLOG counts.", phase)
	}
	var rows [][]string
	var slow []string
	for _, e := range entries {
		words := e.Args
		for i, w := range words {
			if len(w) > 40 {
				words[i] = w[:40] + "…"
			}
		}
		command := strings.Join(words[:min(len(words), 8)], " ")
		waited := d.waits.most(e.Time.Add(-e.Duration), e.Time.Add(time.Second), e.Duration)
		own := e.Duration - waited
		if own > slowCommand {
			slow = append(slow, fmt.Sprintf("%s (%s of it may be waiting): %s", e.Duration, waited, command))
		}
		rows = append(rows, []string{e.Duration.String(), waited.String(), command})
	}
	d.r.report.row("of those, not explained by waiting for a processor: "+phase, len(slow))
	if len(rows) > 0 {
		d.r.report.table("Commands over 50 ms by the clock: "+phase, []string{"took", "of it, waited for a processor at most", "command"}, rows)
	}
	if len(slow) > 0 {
		return fmt.Errorf("%d commands took over %s, the first %s", len(slow), slowCommand, slow[0])
	}
	return nil
}

// prefer gives a process the highest priority, if this user may.
func prefer(pid int) error {
	const highest = -20
	return syscall.Setpriority(syscall.PRIO_PROCESS, pid, highest)
}
