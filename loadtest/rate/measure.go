//go:build linux

package main

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// measured is what one thread, or all, have measured. Requests belong to the
// time in which they were due; only answeredIn and acceptedIn go by when the
// answer came.
type measured struct {
	// of the accepted, in µs: latency from when they were due, service from when
	// they were sent.
	latency, service *hdrhistogram.Histogram
	// own is of all answers the part of the latency that may be the generator's.
	own *hdrhistogram.Histogram
	// took is the sum of the service times of all answers.
	took time.Duration

	statuses [600]int64
	errors   map[string]int64
	// due, and of those never sent.
	due, unsent int64
	// answers that came in the measured time.
	answeredIn, acceptedIn int64
	// warmupBad are answers of the warm-up that were not 2xx, and its errors.
	warmupBad int64

	// window is how long was measured; less than asked for after Ctrl-C.
	window time.Duration
	// allBusy is how long of it no connection was free, waited how long the loop
	// slept. Of more threads: the mean, and that of the one that slept least.
	allBusy, waited time.Duration
	// cores is how many processors' time the whole process took.
	cores float64
}

const longestLatency = time.Hour

func newMeasured() *measured {
	h := func() *hdrhistogram.Histogram {
		const digits = 3
		return hdrhistogram.New(1, longestLatency.Microseconds(), digits)
	}
	return &measured{latency: h(), service: h(), own: h(), errors: map[string]int64{}}
}

func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(d, time.Microsecond), longestLatency).Microseconds()) // within the bounds
}

func quantile(h *hdrhistogram.Histogram, percent float64) time.Duration {
	return time.Duration(h.ValueAtQuantile(percent)) * time.Microsecond
}

// merge sums up the threads.
func merge(threads []*measured) *measured {
	sum := newMeasured()
	for i, m := range threads {
		sum.latency.Merge(m.latency)
		sum.service.Merge(m.service)
		sum.own.Merge(m.own)
		sum.took += m.took
		for s, n := range m.statuses {
			sum.statuses[s] += n
		}
		for kind, n := range m.errors {
			sum.errors[kind] += n
		}
		sum.due += m.due
		sum.unsent += m.unsent
		sum.answeredIn += m.answeredIn
		sum.acceptedIn += m.acceptedIn
		sum.warmupBad += m.warmupBad
		sum.allBusy += m.allBusy / time.Duration(len(threads))
		if i == 0 || m.waited < sum.waited {
			sum.waited = m.waited
		}
		sum.window = max(sum.window, m.window)
	}
	return sum
}

func (m *measured) accepted() int64 { return m.statuses[202] }

func (m *measured) answered() (n int64) {
	for _, k := range m.statuses {
		n += k
	}
	return n
}

// bad are the answers that are not 2xx.
func (m *measured) bad() (n int64) {
	for s, k := range m.statuses {
		if s/100 != 2 {
			n += k
		}
	}
	return n
}

func (m *measured) failed() (n int64) {
	for _, k := range m.errors {
		n += k
	}
	return n
}

// perSecond is the rate of n in the measured time.
func (m *measured) perSecond(n int64) float64 {
	if m.window <= 0 {
		return 0
	}
	return float64(n) / m.window.Seconds()
}

// share of the measured time, from 0 to 1.
func (m *measured) share(d time.Duration) float64 {
	if m.window <= 0 {
		return 0
	}
	return min(max(d.Seconds()/m.window.Seconds(), 0), 1)
}

// working is the share of the time in which the loop did not sleep.
func (m *measured) working() float64 {
	if m.window <= 0 {
		return 0
	}
	return 1 - m.share(m.waited)
}

// meanService is of all answers.
func (m *measured) meanService() time.Duration {
	if n := m.answered(); n > 0 {
		return m.took / time.Duration(n)
	}
	return 0
}

// short tells whether more than one percent of the requests that were due had no
// answer in the measured time. Answers of the warm-up's last requests stand in
// for those that come after the end. The few are for short runs at low rates.
func (m *measured) short() bool {
	const few = 5
	return float64(m.due-m.answeredIn) > 0.01*float64(m.due)+few
}
