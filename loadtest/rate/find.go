//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// finder looks for the highest rate whose p99 is below the limit.
type finder struct {
	start float64
	limit time.Duration
	pause time.Duration // between runs, for the server to come to rest
	run   func(ctx context.Context, rate float64, long bool) (*measured, error)
	judge func(*measured) verdict
	say   func(format string, args ...any)

	probes []probe
}

// probe is one run at one rate.
type probe struct {
	Rate     float64 `json:"rate"`
	Long     bool    `json:"long"`
	Within   bool    `json:"within"`
	Why      string  `json:"why,omitempty"`
	Accepted float64 `json:"accepted_per_second"`
	P99      float64 `json:"p99_ms"`

	generator string
}

const (
	// precise is how near the bounds come to each other.
	precise = 1.03
	// lower is how far below a rate that was not confirmed the next one is.
	lower         = 0.95
	confirmations = 5
	lowest        = 10
)

// find returns the rate and its confirming run. What has stopped that it was
// higher must have been the server.
func (f *finder) find(ctx context.Context) (float64, *measured, error) {
	within, beyond := 0.0, 0.0
	var limit probe // the lowest that failed
	for rate := f.start; beyond == 0 || beyond > max(within, lowest)*precise; {
		p, _, err := f.probe(ctx, rate, false)
		if err != nil {
			return 0, nil, err
		}
		if p.Within {
			within = rate
		} else {
			beyond, limit = rate, p
		}
		switch {
		case beyond == 0 && rate == maxRate:
			return 0, nil, fmt.Errorf("%d requests a second are the most that is tried, and they are within", maxRate)
		case beyond == 0:
			rate = min(2*rate, maxRate)
		default:
			rate = math.Round((within + beyond) / 2)
		}
	}
	if limit.generator != "" {
		return 0, nil, fmt.Errorf("no highest rate: %.0f/s is within, but at %.0f/s the generator was the limit: %s", within, limit.Rate, limit.generator)
	}
	if within == 0 {
		return 0, nil, fmt.Errorf("no rate is within %s: at %.0f/s %s", f.limit, limit.Rate, limit.Why)
	}
	rate := within
	for range confirmations {
		p, m, err := f.probe(ctx, rate, true)
		if err != nil {
			return 0, nil, err
		}
		if p.generator != "" {
			return 0, nil, fmt.Errorf("%.0f/s could not be confirmed, the generator was the limit: %s", rate, p.generator)
		}
		if p.Within {
			return rate, m, nil
		}
		rate = math.Round(rate * lower)
	}
	return 0, nil, fmt.Errorf("short probes were within at %.0f/s, but no long run down to %.0f/s was", within, rate/lower)
}

func (f *finder) probe(ctx context.Context, rate float64, long bool) (p probe, m *measured, err error) {
	if len(f.probes) > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(f.pause):
		}
	}
	if ctx.Err() == nil {
		m, err = f.run(ctx, rate, long)
	}
	if ctx.Err() != nil {
		return p, nil, errors.New("interrupted before the highest rate was found" + f.known())
	}
	if err != nil {
		return p, nil, err
	}
	v := f.judge(m)
	if v.hopeless != "" {
		return p, nil, errors.New(v.hopeless)
	}
	p99 := quantile(m.latency, 99)
	p = probe{Rate: rate, Long: long, Accepted: m.perSecond(m.acceptedIn), P99: millis(p99), generator: v.generator}
	why := v.problems
	if p99 >= f.limit {
		why = append(why, fmt.Sprintf("p99 is %s ms", ms(p99)))
	}
	if v.generator != "" {
		why = []string{"the generator was the limit: " + v.generator}
	}
	p.Within, p.Why = len(why) == 0, strings.Join(why, "; ")
	f.probes = append(f.probes, p)
	kind, outcome := "probe", "within"
	if long {
		kind = "confirming"
	}
	if !p.Within {
		outcome = p.Why
	}
	f.say("%s %.0f/s: %.0f accepted a second, p99 %s ms: %s", kind, rate, p.Accepted, ms(p99), outcome)
	return p, m, nil
}

// known is what Ctrl-C does not take away.
func (f *finder) known() string {
	best := 0.0
	for _, p := range f.probes {
		if p.Within {
			best = max(best, p.Rate)
		}
	}
	if best == 0 {
		return ""
	}
	return fmt.Sprintf("; %.0f/s was within", best)
}
