package daemon

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// OutageParams configure an OutageLog.
type OutageParams struct {
	Log *slog.Logger
	// Message is what the lines say, like "redis does not answer".
	Message string
	// Interval is the least time between two lines of failure; 0 means 30 s.
	Interval time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// OutageLog writes few lines about many failures: the first one at once, then
// at most one an interval, with the number of those left out, and one when the
// outage is over. Failures that come and go write no more than that either.
// It is safe for concurrent use, and success is cheap to report.
type OutageLog struct {
	p    OutageParams
	down atomic.Bool // the last report was a failure

	mu        sync.Mutex
	since     time.Time // when the outage began
	failures  int       // in this outage
	announced bool      // this outage has a line
	last      time.Time // of the last line of failure, in any outage
	left      int       // failures without a line since then
}

// NewOutageLog returns an OutageLog that has seen no failure.
func NewOutageLog(p OutageParams) *OutageLog {
	if p.Interval == 0 {
		p.Interval = 30 * time.Second
	}
	if p.Now == nil {
		p.Now = time.Now
	}
	return &OutageLog{p: p}
}

// Report tells of an attempt: that it failed, or with nil that it succeeded.
func (o *OutageLog) Report(err error) {
	if err == nil && !o.down.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.succeeded()
		return
	}
	o.failed(err)
}

func (o *OutageLog) failed(err error) {
	now := o.p.Now()
	if !o.down.Swap(true) {
		o.since, o.failures, o.announced = now, 0, false
	}
	o.failures++
	if !o.last.IsZero() && now.Sub(o.last) < o.p.Interval {
		o.left++
		return
	}
	args := []any{"err", err}
	if o.left > 0 {
		args = append(args, "suppressed", o.left)
	}
	o.p.Log.Warn(o.p.Message, args...)
	o.last, o.left, o.announced = now, 0, true
}

func (o *OutageLog) succeeded() {
	if !o.down.Swap(false) || !o.announced {
		return // an outage that nobody read of needs no end
	}
	o.p.Log.Info(o.p.Message+": recovered", "after", o.p.Now().Sub(o.since).Round(time.Millisecond), "failures", o.failures)
}
