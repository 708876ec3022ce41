package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// fault is one entry of a schedule.
type fault struct {
	at, dur time.Duration
	kind    *kind
	target  string
}

func (f fault) end() time.Duration { return f.at + f.dur }

func (f fault) String() string {
	return fmt.Sprintf("%7.1fs  %4.1fs  %s: %s", f.at.Seconds(), f.dur.Seconds(), f.kind.name, f.target)
}

// kind is a kind of fault.
type kind struct {
	name string
	// targets are whom it may hit, one at a time.
	targets []string
	// part is what it breaks; faults of one part never overlap. Empty: the
	// target.
	part string
	// outage says that no votes can be taken meanwhile, or hardly any.
	outage bool
	// delays says that an acknowledgement may come as late as the fault ends;
	// forgets, that Redis loses what it has acknowledged. The two never meet:
	// else a vote that was lost would seem to be acknowledged after the loss.
	delays, forgets bool
	least, most     time.Duration
	// apart is the least time between two of the kind.
	apart time.Duration
	do    action
}

// String tells kinds apart.
func (k *kind) String() string {
	if len(k.targets) == 0 {
		return k.name
	}
	return k.name + ": " + strings.Join(k.targets, ", ")
}

func (f fault) part() string {
	if f.kind.part != "" {
		return f.kind.part
	}
	return f.target
}

// Times of a schedule.
const (
	// lead is before the first fault, tail after the last: so that there is
	// work to be hit, and time to see that all has come back.
	lead = 2 * time.Second
	tail = 5 * time.Second
	// between faults of one part.
	between = time.Second
	// outageGap is between two outages: with 2 to 5 s each, service is up about
	// three quarters of the time.
	outageGapLeast, outageGapMost = 8 * time.Second, 16 * time.Second
	gapLeast, gapMost             = time.Second, 5 * time.Second
	// soloGapOutage follows an outage in the first part of a run.
	soloGapOutage = 3 * time.Second
)

// deck deals kinds in a random order, each once before any comes again.
type deck struct {
	random *rand.Rand
	all    []*kind
	left   []*kind
}

// deal returns the next kind that fits; nil: none does.
func (d *deck) deal(fits func(*kind) bool) *kind {
	for range 2 {
		if i := slices.IndexFunc(d.left, fits); i >= 0 {
			k := d.left[i]
			d.left = slices.Delete(d.left, i, i+1)
			return k
		}
		if len(d.left) >= len(d.all) {
			return nil // all are there, and none fits
		}
		fresh := slices.Clone(d.all)
		d.random.Shuffle(len(fresh), func(i, j int) { fresh[i], fresh[j] = fresh[j], fresh[i] })
		d.left = append(d.left, fresh...)
	}
	return nil
}

// planner makes a schedule.
type planner struct {
	random           *rand.Rand
	end              time.Duration
	faults           []fault
	outages, partial deck
}

// planFaults makes the schedule of a run of a length: it follows from the seed, the
// kinds, and the faults that are set already. First each comes alone, for about
// a third of the time; then up to three overlap, one of them an outage.
func planFaults(seed uint64, length time.Duration, kinds []*kind, set ...fault) []fault {
	random := rand.New(rand.NewPCG(seed, seed))
	p := &planner{random: random, end: length - tail, faults: slices.Clone(set)}
	p.outages.random, p.partial.random = random, random
	for _, k := range kinds {
		if k.outage {
			p.outages.all = append(p.outages.all, k)
		} else {
			p.partial.all = append(p.partial.all, k)
		}
	}
	mixed := p.solo(lead, length*3/10)
	p.lane(&p.outages, mixed, outageGapLeast, outageGapMost)
	p.lane(&p.partial, mixed, gapLeast, gapMost)
	p.lane(&p.partial, mixed, gapLeast, gapMost)
	slices.SortStableFunc(p.faults, func(a, b fault) int { return int(a.at - b.at) })
	return p.faults
}

// solo deals faults one after the other, and returns when the last has ended.
func (p *planner) solo(at, until time.Duration) time.Duration {
	for n := 0; ; n++ {
		d := &p.partial
		const outageOf = 3 // every third is an outage
		if n%outageOf == 0 {
			d = &p.outages
		}
		f, ok := p.deal(d, at)
		if !ok || f.end() > until {
			return at
		}
		p.faults = append(p.faults, f)
		at = f.end() + p.between(gapLeast, 2*gapLeast)
		if f.kind.outage {
			at += soloGapOutage
		}
	}
}

// lane deals faults with gaps between them until the end.
func (p *planner) lane(d *deck, at, least, most time.Duration) {
	for {
		at += p.between(least, most)
		if at > p.end {
			return
		}
		f, ok := p.deal(d, at)
		if !ok {
			continue // everything is broken already
		}
		p.faults = append(p.faults, f)
		at = f.end()
	}
}

// deal draws a fault that begins at a time and meets no other of its part.
func (p *planner) deal(d *deck, at time.Duration) (f fault, ok bool) {
	if len(d.all) == 0 {
		return f, false
	}
	k := d.deal(func(k *kind) bool {
		f = fault{at: at, dur: p.between(k.least, k.most), kind: k, target: k.targets[p.random.IntN(len(k.targets))]}
		return p.fits(f)
	})
	return f, k != nil
}

func (p *planner) fits(f fault) bool {
	if f.end() > p.end {
		return false
	}
	return !slices.ContainsFunc(p.faults, func(o fault) bool {
		apart := f.kind == o.kind && f.at < o.at+f.kind.apart && o.at < f.at+f.kind.apart
		late := f.kind.delays && o.kind.forgets || f.kind.forgets && o.kind.delays
		meet := (late || f.part() == o.part()) && f.at < o.end()+between && o.at < f.end()+between
		return apart || meet || f.kind.outage && o.kind.outage && f.at < o.end()+outageGapLeast/2 && o.at < f.end()+outageGapLeast/2
	})
}

func (p *planner) between(least, most time.Duration) time.Duration {
	if most <= least {
		return least
	}
	return (least + time.Duration(p.random.Int64N(int64(most-least)))).Round(100 * time.Millisecond)
}

func planText(faults []fault) string {
	var b strings.Builder
	for _, f := range faults {
		b.WriteString(f.String() + "\n")
	}
	return b.String()
}
