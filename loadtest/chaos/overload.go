package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"paredao/internal/ledger"
	"paredao/internal/vote"
)

// What the scenario overload promises.
const (
	excessFactor = 20
	// refusedWithin bounds the 99th percentile of refusals, acceptedWithin that
	// of the votes that are taken.
	refusedWithin, acceptedWithin = 500 * time.Millisecond, time.Second
	// normalWithin is when all is as before after the excess has ended.
	normalWithin = 10 * time.Second
	// goodput is the share of the rated load that must still be taken.
	goodput = 0.8
	// apiMemory bounds the api's resident memory.
	apiMemory = 256 << 20
)

// The stack's own limits, set low: on one small machine the generator can't
// offer twenty times what an api takes without them.
const (
	overloadInFlight = 192
	overloadDelay    = 50 * time.Millisecond // of Redis's answers to the api
	// The ramp looks for a rated load no further than the generator can offer
	// twenty times of.
	rampFrom, rampTo, rampStep = 200.0, 500.0, 1.25
	overloadConnections        = 1024
	// fillMemory is what Redis has to fill.
	fillMemory = 24 << 20
)

// overloadVotes are what the generator votes for; the ledger's client has a
// poll of its own.
func overloadVotes() []ledger.Choice {
	return []ledger.Choice{{Poll: "excess", Option: "ana"}, {Poll: "excess", Option: "bruno"}, {Poll: "excess", Option: "carla"}}
}

func ledgerVotes() []ledger.Choice {
	return []ledger.Choice{{Poll: "ledger", Option: "ana"}, {Poll: "ledger", Option: "bruno"}}
}

// overload is a run of the scenario.
type overload struct {
	r     *run
	s     *stack
	rdb   *redis.Client
	gen   *generator
	load  *load
	rate  atomic.Uint64 // of the generator, as bits of a float64
	rated float64
	// alone is what the rated load was like.
	usual *second
	rss   *gauge // of the api
	redis *gauge // used_memory
}

func (o *overload) setRate(rate float64) { o.rate.Store(math.Float64bits(rate)) }

// runOverload offers 20 times the rated load, and then fills Redis:
//
//	ledger client ─────────┐
//	generator (by clock) ──┴▶ api (max-in-flight 192) ─▶ 50 ms ─▶ Redis ◀─ consumer, archiver
func runOverload(ctx context.Context, r *run) (err error) {
	choices := append(overloadVotes(), ledgerVotes()...)
	s, err := startStack(ctx, stackParams{
		bin: r.bin, dir: r.dir, root: r.root, shards: r.shards, fsync: r.fsyncOr("everysec"),
		apis: 1, consumers: 1, archivers: 1, choices: choices, proxied: true,
		apiArgs: []string{"--max-in-flight=" + strconv.Itoa(overloadInFlight)},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.end(context.WithoutCancel(ctx), err != nil)) }()
	o := &overload{r: r, s: s, rdb: redis.NewClient(&redis.Options{Addr: s.redis.Addr()})}
	defer o.rdb.Close()
	r.report.note("The stack's own limits are set low, so that the generator on the same machine can offer %d times the rated load: "+
		"the api has max-in-flight %d, and Redis's answers to it take %s longer.", excessFactor, overloadInFlight, overloadDelay)
	if err := o.delay(ctx, overloadDelay); err != nil {
		return err
	}
	urls, err := s.apiURLs(ctx)
	if err != nil {
		return err
	}
	o.rss = watch(ctx, 100*time.Millisecond, func() (int64, error) { return s.apis[0].RSS() })
	o.redis = watch(ctx, 50*time.Millisecond, func() (int64, error) { return usedMemory(ctx, o.rdb) })
	defer o.rss.stop()
	defer o.redis.stop()
	o.gen = startGenerator(ctx, generatorParams{
		addr: strings.TrimPrefix(urls[0], "http://"), choices: overloadVotes(), connections: overloadConnections,
		rate:    func(time.Duration) float64 { return math.Float64frombits(o.rate.Load()) },
		timeout: 10 * time.Second,
	})
	defer o.gen.stop()
	if err := o.findRated(ctx); err != nil {
		return err
	}
	source, err := ledger.Draw([]int{2, 1}, 0, r.seed)
	if err != nil {
		return err
	}
	// The judge's votes are a tenth of the rated load, on top of it.
	if o.load, err = r.startLoad(ctx, ledger.Params{
		URLs: urls, Choices: ledgerVotes(), Source: source, Connections: 16, Rate: o.rated / 10, Keyless: 0.3,
	}); err != nil {
		return err
	}
	errs := []error{o.excess(ctx)}
	if ctx.Err() == nil {
		errs = append(errs, o.fill(ctx))
	}
	errs = append(errs, s.well(ctx))
	o.gen.stop()
	o.load.stop()
	_, err = r.judge(ctx, s, o.load)
	errs = append(errs, err, r.count(ctx, s, o.gen))
	return errors.Join(errs...)
}

// delay makes Redis's answers to the api come later; 0: no more.
func (o *overload) delay(ctx context.Context, d time.Duration) error {
	const name = "delay"
	toxi := o.s.links[api].toxi
	if d == 0 {
		return toxi.Remove(ctx, name)
	}
	return toxi.Add(name, "latency", "downstream", map[string]any{"latency": d.Milliseconds()})
}

// during lets the generator run at a rate for a while and returns the whole
// seconds of it.
func (o *overload) during(ctx context.Context, rate float64, d time.Duration) (from, to time.Duration, err error) {
	from = o.gen.since()
	o.setRate(rate)
	if !wait(ctx, d) {
		return from, from, context.Cause(ctx)
	}
	to = o.gen.since()
	return (from + time.Second - 1).Truncate(time.Second), to.Truncate(time.Second), nil
}

// well tells whether the api took all of a load, in good time.
func well(s *second, p99 time.Duration) bool {
	due := s.due()
	return due > 0 && float64(due-s.accepted.TotalCount()) <= 0.005*float64(due) && quantile(s.accepted, 99) <= p99
}

// findRated looks for the load at which the stack is at ease: the ramp's last
// step that went well, less a fifth.
func (o *overload) findRated(ctx context.Context) error {
	if o.rated = o.r.rate; o.rated > 0 {
		return nil
	}
	const step, slow = 4 * time.Second, 500 * time.Millisecond
	var good float64
	var rows [][]string
	for rate := rampFrom; rate <= rampTo*1.01/0.8; rate *= rampStep {
		from, to, err := o.during(ctx, rate, step)
		if err != nil {
			return err
		}
		if !wait(ctx, 200*time.Millisecond) { // the last of them are answered
			return context.Cause(ctx)
		}
		s := o.gen.between(from, to)
		rows = append(rows, o.row(fmt.Sprintf("%.0f/s", rate), s, to-from))
		if !well(s, slow) {
			break
		}
		good = rate
	}
	o.r.report.table("The ramp to the rated load", o.head(), rows)
	if good == 0 {
		return fmt.Errorf("the stack is not at ease at %.0f votes a second", rampFrom)
	}
	o.rated = min(math.Floor(good*0.8), rampTo)
	return nil
}

func (o *overload) head() []string {
	return []string{"load", "due", "accepted/s", "refused/s", "unsettled", "unsent", "accepted p50", "p99", "p99.9", "refused p50", "p99", "p99.9"}
}

func (o *overload) row(name string, s *second, d time.Duration) []string {
	perSecond := func(n int64) string { return fmt.Sprintf("%.0f", float64(n)/max(d.Seconds(), 1)) }
	row := []string{name, commas(s.due()), perSecond(s.accepted.TotalCount()), perSecond(s.refused.TotalCount()), commas(s.unsettled + s.wrong), commas(s.unsent)}
	for _, q := range []float64{50, 99, 99.9} {
		row = append(row, inMillis(quantile(s.accepted, q)))
	}
	for _, q := range []float64{50, 99, 99.9} {
		if s.refused.TotalCount() == 0 {
			row = append(row, "")
			continue
		}
		row = append(row, inMillis(quantile(s.refused, q)))
	}
	return row
}

func inMillis(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

// excess is the first phase: the rated load, twenty times as much, the rated
// load.
func (o *overload) excess(ctx context.Context) error {
	r, length := o.r, time.Duration(o.r.seconds)*time.Second
	r.say("rated load: %.0f votes a second", o.rated)
	before := max(10*time.Second, length/6)
	from, to, err := o.during(ctx, o.rated, before)
	if err != nil {
		return err
	}
	memoryBefore, _ := o.rss.take()
	r.say("%.0f votes a second", excessFactor*o.rated)
	excessFrom, excessTo, err := o.during(ctx, excessFactor*o.rated, length)
	if err != nil {
		return err
	}
	memory, _ := o.rss.take()
	r.say("%.0f votes a second", o.rated)
	_, _, err = o.during(ctx, o.rated, 2*normalWithin)
	if err != nil {
		return err
	}
	end := o.gen.since().Truncate(time.Second)
	memoryAfter, _ := o.rss.take()

	usual, excess := o.gen.between(from, to), o.gen.between(excessFrom, excessTo)
	o.usual = usual
	normal, ok := normalAgain(o.gen, usual, excessTo, end)
	after := o.gen.between(excessTo+normal, end)
	r.report.row("rated load, votes a second", o.rated)
	r.report.row("excess, votes a second", excessFactor*o.rated)
	r.report.table("The load, the excess, the load again", o.head(), [][]string{
		o.row("rated", usual, to-from), o.row(fmt.Sprintf("%d times", excessFactor), excess, excessTo-excessFrom),
		o.row("rated again", after, end-excessTo-normal),
	})
	r.report.row("normal again after the excess", normal)
	r.report.row("api memory before, MiB", memoryBefore>>20)
	r.report.row("api memory at the excess, at most, MiB", memory>>20)
	r.report.row("api memory afterwards, at most, MiB", memoryAfter>>20)
	for what, n := range o.gen.all().what {
		r.report.row("answers: "+what, n)
	}

	var errs []error
	holds := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	holds(well(usual, acceptedWithin), "the stack is not at ease at the rated load: %v", o.row("rated", usual, to-from))
	holds(excess.refused.TotalCount() > 0, "nothing was refused: this was no overload")
	p := quantile(excess.refused, 99)
	holds(p <= refusedWithin, "p99 of the refusals was %s, above %s", p, refusedWithin)
	p = quantile(excess.accepted, 99)
	holds(p <= acceptedWithin, "p99 of the votes taken was %s, above %s", p, acceptedWithin)
	taken := float64(excess.accepted.TotalCount()) / (excessTo - excessFrom).Seconds()
	holds(taken >= goodput*o.rated, "at the excess %.0f votes a second were taken, of %.0f that are usual", taken, o.rated)
	holds(excess.wrong == 0, "%d answers were wrong: %v", excess.wrong, excess.what)
	holds(float64(excess.unsettled) <= mostUnsettled*float64(excess.due()), "%d votes had no answer: %v", excess.unsettled, excess.what)
	holds(float64(excess.unsent) <= 0.01*float64(excess.due()), "the generator could not send %d of %d votes", excess.unsent, excess.due())
	holds(memory <= apiMemory, "the api took %d MiB, above %d", memory>>20, int64(apiMemory)>>20)
	holds(ok && normal <= normalWithin, "not normal again %s after the excess", min(normal, end-excessTo))
	return errors.Join(errs...)
}

// normalAgain is how long after a moment each second is as usual again: all
// votes are taken, and no slower. False: never until the end.
func normalAgain(g *generator, usual *second, from, end time.Duration) (time.Duration, bool) {
	slow := max(2*quantile(usual.accepted, 99), quantile(usual.accepted, 99)+100*time.Millisecond)
	normal := end
	for at := end - time.Second; at >= from; at -= time.Second {
		if !well(g.between(at, at+time.Second), slow) {
			break
		}
		normal = at
	}
	return normal - from, normal < end
}

// fill is the second phase: the consumers stand still, and votes come until
// Redis has no room for more.
func (o *overload) fill(ctx context.Context) error {
	r := o.r
	if err := o.delay(ctx, 0); err != nil {
		return err
	}
	// With its usual limit the api takes votes as fast as it can. Its address
	// stays, the generator pauses meanwhile.
	o.setRate(0)
	if !wait(ctx, time.Second) {
		return context.Cause(ctx)
	}
	if _, err := o.s.apis[0].Term(ctx); err != nil {
		return err
	}
	if err := o.s.apis[0].Restart("--max-in-flight=65536"); err != nil {
		return err
	}
	if err := o.s.apis[0].Ready(ctx); err != nil {
		return err
	}
	o.gen.reconnect()
	used, err := usedMemory(ctx, o.rdb)
	if err != nil {
		return err
	}
	limit := used + fillMemory
	if err := o.rdb.ConfigSet(ctx, "maxmemory", strconv.FormatInt(limit, 10)).Err(); err != nil {
		return err
	}
	for _, c := range o.s.consumers {
		if err := c.Stop(ctx); err != nil {
			return err
		}
	}
	o.redis.take()
	o.rss.take()
	r.say("the consumers stand still, Redis has %d MiB", limit>>20)
	from := o.gen.since()
	o.setRate(excessFactor * o.rated)
	full, err := o.untilFull(ctx, limit)
	if err != nil {
		return err
	}
	r.say("full after %s", full-from)
	const hold = 10 * time.Second // it stays below the limit, while all come
	if !wait(ctx, hold) {
		return context.Cause(ctx)
	}
	fullTo := o.gen.since().Truncate(time.Second)
	whileFull := o.gen.between((full + 2*time.Second).Truncate(time.Second), fullTo)
	memory, _ := o.rss.take()
	most, _ := o.redis.take()

	o.setRate(o.rated)
	began := time.Now()
	for _, c := range o.s.consumers {
		if err := c.Cont(); err != nil {
			return err
		}
	}
	resumed := o.gen.since()
	drained, err := o.untilDrained(ctx)
	if err != nil {
		return err
	}
	drained = max(drained, time.Since(began))
	if !wait(ctx, 12*time.Second) {
		return context.Cause(ctx)
	}
	end := o.gen.since().Truncate(time.Second)
	normal, ok := normalAgain(o.gen, o.usual, resumed, end)
	oom, err := replies(ctx, o.rdb, "OOM")
	if err != nil {
		return err
	}
	mostDraining, _ := o.redis.take()

	r.report.row("Redis's maxmemory, bytes", limit)
	r.report.row("memory in use at most while votes came, bytes", most)
	r.report.row("the same, of maxmemory", fmt.Sprintf("%.1f %%", 100*float64(most)/float64(limit)))
	r.report.row("the same, while it was drained", fmt.Sprintf("%.1f %%", 100*float64(mostDraining)/float64(limit)))
	r.report.row("replies OOM", oom)
	r.report.row("full after", full-from)
	r.report.row("queue drained after", drained)
	r.report.row("normal again after the consumers went on", normal)
	r.report.row("api memory while Redis was full, at most, MiB", memory>>20)
	r.report.table("While Redis is full", o.head(), [][]string{o.row("full", whileFull, hold-2*time.Second)})

	var errs []error
	holds := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	holds(most < limit, "what waits in Redis took %d bytes, maxmemory is %d", most, limit)
	holds(oom == 0, "Redis said OOM %d times", oom)
	p := quantile(whileFull.refused, 99)
	holds(whileFull.refused.TotalCount() > 0, "nothing was refused while Redis was full")
	holds(p <= refusedWithin, "p99 of the refusals while Redis was full was %s, above %s", p, refusedWithin)
	holds(whileFull.wrong == 0, "%d answers were wrong while Redis was full: %v", whileFull.wrong, whileFull.what)
	holds(memory <= apiMemory, "the api took %d MiB, above %d", memory>>20, int64(apiMemory)>>20)
	holds(ok && normal <= drained+normalWithin, "not normal again %s after the consumers went on", min(normal, end-resumed))
	return errors.Join(errs...)
}

// untilFull waits until little memory is left and the api refuses nearly all
// votes, and returns when that began.
func (o *overload) untilFull(ctx context.Context, limit int64) (time.Duration, error) {
	const patience, nearly = 5 * time.Minute, 0.8
	for began := time.Now(); time.Since(began) < patience; {
		if !wait(ctx, 100*time.Millisecond) {
			return 0, context.Cause(ctx)
		}
		at := o.gen.since().Truncate(time.Second) - time.Second
		s := o.gen.between(at, at+time.Second)
		used := o.redis.look()
		if n := s.refused.TotalCount(); float64(used) > nearly*float64(limit) && n > 0 && float64(n) > 0.9*float64(s.due()) {
			return at, nil
		}
	}
	return 0, fmt.Errorf("after %s Redis was not full", patience)
}

// untilDrained waits until nothing waits to be counted that came before.
func (o *overload) untilDrained(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	for {
		queues, err := o.s.store.Queues(ctx)
		if err != nil {
			return 0, err
		}
		busy := false
		for _, q := range queues {
			// The load goes on: the queue is drained when its head is new.
			busy = busy || q.Frames > 0 && q.Now.Sub(q.Oldest) > 2*time.Second
		}
		if !busy {
			return time.Since(began), nil
		}
		if !wait(ctx, 20*time.Millisecond) {
			return 0, context.Cause(ctx)
		}
	}
}

// mostUnsettled is the share of the generator's votes that may have no answer
// that settles them: more would be room for lost and doubled ones.
const mostUnsettled = 0.001

// count compares the generator's own books with the tally, option by option: it
// keeps no ids.
func (r *run) count(ctx context.Context, s *stack, gen *generator) error {
	all := gen.all()
	result, err := s.store.Results(ctx, overloadVotes()[0].Poll)
	if err != nil {
		return err
	}
	var counted int64
	for _, n := range result.Tally {
		counted += n
	}
	books := gen.byChoice()
	acked := all.accepted.TotalCount()
	r.report.row("generator: votes due", all.due())
	r.report.row("generator: acknowledged", acked)
	r.report.row("generator: refused", all.refused.TotalCount())
	r.report.row("generator: without an answer that settles it", all.unsettled)
	r.report.row("generator: never sent", all.unsent)
	r.report.row("counted in the generator's poll", counted)
	return all.fits(overloadVotes(), books, result.Tally)
}

// fits compares all votes of a generator, and its books, with a tally.
func (s *second) fits(choices []ledger.Choice, books []book, tally vote.Tally) error {
	var errs []error
	left := maps.Clone(tally)
	for i, c := range choices {
		b, n := books[i], left[c.Option]
		delete(left, c.Option)
		if n < b.accepted || n > b.accepted+b.unsettled {
			errs = append(errs, fmt.Errorf("%s has %d votes; %d were acknowledged, %d have no answer", c, n, b.accepted, b.unsettled))
		}
	}
	for option, n := range left {
		if n != 0 {
			errs = append(errs, fmt.Errorf("%s has %d votes, and nobody voted for it", option, n))
		}
	}
	if s.wrong > 0 {
		errs = append(errs, fmt.Errorf("%d of the generator's votes had a wrong answer: %v", s.wrong, s.what))
	}
	if float64(s.unsettled) > mostUnsettled*float64(s.due()) {
		errs = append(errs, fmt.Errorf("%d of the generator's %d votes had no answer: %v", s.unsettled, s.due(), s.what))
	}
	return errors.Join(errs...)
}

// usedMemory is Redis's used_memory.
func usedMemory(ctx context.Context, rdb *redis.Client) (int64, error) {
	return infoNumber(ctx, rdb, "memory", "used_memory:")
}

// replies is how many errors of a kind Redis has answered.
func replies(ctx context.Context, rdb *redis.Client, kind string) (int64, error) {
	return infoNumber(ctx, rdb, "errorstats", "errorstat_"+kind+":count=")
}

// infoNumber is the number behind a text in a section of INFO; 0 if it is not
// there.
func infoNumber(ctx context.Context, rdb *redis.Client, section, prefix string) (int64, error) {
	text, err := rdb.Info(ctx, section).Result()
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, prefix); ok {
			return strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, nil
}

// gauge looks at a number again and again.
type gauge struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu        sync.Mutex
	most, now int64
	recent    []reading // of the last minute
}

type reading struct {
	at time.Time
	n  int64
}

// watch begins to look. A look that fails is left out.
func watch(ctx context.Context, every time.Duration, look func() (int64, error)) *gauge {
	ctx, cancel := context.WithCancel(ctx)
	g := &gauge{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(g.done)
		for {
			if n, err := look(); err == nil {
				g.note(time.Now(), n)
			}
			if !wait(ctx, every) {
				return
			}
		}
	}()
	return g
}

// take returns the highest number since the last take, and the one now.
func (g *gauge) take() (most, now int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	most, now = g.most, g.now
	g.most = g.now
	return most, now
}

func (g *gauge) note(now time.Time, n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now, g.most = n, max(g.most, n)
	g.recent = append(g.recent, reading{now, n})
	for now.Sub(g.recent[0].at) > time.Minute {
		g.recent = g.recent[1:]
	}
}

// last returns the median of the last readings, of up to a minute.
func (g *gauge) last(d time.Duration) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []float64
	for _, r := range g.recent {
		if time.Since(r.at) <= d {
			all = append(all, float64(r.n))
		}
	}
	return int64(median(all))
}

// look returns the number as it is now.
func (g *gauge) look() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.now
}

func (g *gauge) stop() {
	g.cancel()
	<-g.done
}
