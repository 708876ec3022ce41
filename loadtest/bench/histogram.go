package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"paredao/internal/ledger/child"
)

// histogram is a Prometheus histogram: observations up to and including each
// bound, the last of which is +Inf.
type histogram map[float64]float64

// parseHistogram adds up the buckets of a metric, whatever its other labels, in
// the text of /metrics.
func parseHistogram(text, name string) (histogram, error) {
	h := histogram{}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name+"_bucket{")
		if !ok {
			continue
		}
		labels, value, ok := strings.Cut(rest, "} ")
		_, bound, has := strings.Cut(labels, `le="`)
		if !ok || !has {
			return nil, fmt.Errorf("metric line %q", line)
		}
		bound, _, _ = strings.Cut(bound, `"`)
		le, err1 := strconv.ParseFloat(bound, 64)
		n, err2 := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("metric line %q: %w", line, err)
		}
		h[le] += n
	}
	if len(h) == 0 {
		return nil, fmt.Errorf("there is no metric %s", name)
	}
	return h, nil
}

// since is what was observed after an earlier reading.
func (h histogram) since(before histogram) histogram {
	d := histogram{}
	for le, n := range h {
		d[le] = n - before[le]
	}
	return d
}

// count is the number of observations.
func (h histogram) count() float64 { return h[math.Inf(1)] }

// quantile estimates a quantile as Prometheus does: within a bucket the
// observations are taken to be spread evenly. Above the last finite bound it is
// +Inf, since it could be anything.
func (h histogram) quantile(q float64) float64 {
	bounds := make([]float64, 0, len(h))
	for le := range h {
		bounds = append(bounds, le)
	}
	slices.Sort(bounds)
	rank := q * h.count()
	if h.count() == 0 {
		return math.NaN()
	}
	low, below := 0.0, 0.0
	for _, le := range bounds {
		if n := h[le]; n >= rank && n > below {
			if math.IsInf(le, 1) {
				return le
			}
			return low + (le-low)*(rank-below)/(n-below)
		}
		low, below = le, h[le]
	}
	return math.Inf(1)
}

// scrape reads a histogram of a daemon.
func scrape(ctx context.Context, admin, name string) (histogram, error) {
	text, err := child.Get(ctx, "http://"+admin+"/metrics")
	if err != nil {
		return nil, err
	}
	return parseHistogram(text, name)
}
