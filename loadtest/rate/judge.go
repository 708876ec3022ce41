//go:build linux

package main

import (
	"fmt"
	"time"
)

// verdict is what is to be thought of a run.
type verdict struct {
	// generator says why the generator was the limit; then the figures are void.
	generator string
	// problems are the server's, or the run's.
	problems []string
	// hopeless is the problem that no lower rate mends.
	hopeless string
}

const (
	// ownFloor and ownShare bound what of the p99 may be the generator's own.
	ownFloor = 2 * time.Millisecond
	ownShare = 5 // a fifth
	// working is the share of the time above which it has none left: the rest
	// goes with fetching events.
	working = 0.9
)

func (o *options) judge(m *measured) (v verdict) {
	own, p99 := quantile(m.own, 99), quantile(m.latency, 99)
	switch {
	case own > max(ownFloor, p99/ownShare):
		v.generator = fmt.Sprintf("of the latencies (p99 %s ms) up to %s ms (p99) may be its own delay while connections were free or answers unread; "+
			"give it a processor of its own", ms(p99), ms(own))
	case m.short() && m.working() > working:
		v.generator = fmt.Sprintf("it was at work %.0f %% of the time and had %.0f answers a second where %.0f were due; "+
			"give it a processor of its own, or more --threads", 100*m.working(), m.perSecond(m.answeredIn), m.perSecond(m.due))
	}
	problem := func(format string, args ...any) { v.problems = append(v.problems, fmt.Sprintf(format, args...)) }
	if m.accepted() == 0 {
		problem("no vote was accepted")
	}
	if !o.allowErrors {
		if n := m.bad(); n > 0 {
			problem("%d answers were not 2xx", n)
		}
		if n := m.failed(); n > 0 {
			problem("%d requests had no answer", n)
		}
		if m.warmupBad > 0 {
			problem("%d requests of the warm-up were not answered with 2xx", m.warmupBad)
		}
		for s, n := range m.statuses {
			if s/100 == 4 && s != 429 && n > 0 {
				v.hopeless = fmt.Sprintf("%d answers had status %d; are the poll and its options right, and is it open?", n, s)
				problem("%s", v.hopeless)
			}
		}
	}
	if m.short() {
		problem("the server did not keep up: %.0f answers a second where %.0f requests were due", m.perSecond(m.answeredIn), m.perSecond(m.due))
	}
	if m.unsent > 0 {
		problem("%d requests were never sent, for want of a free connection: the percentiles lack them", m.unsent)
	}
	return v
}
