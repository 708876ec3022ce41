package daemon

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func newTestOutage(out *output) (o *OutageLog, now *time.Time) {
	now = new(time.Time)
	*now = time.Date(2026, 1, 20, 22, 0, 0, 0, time.UTC)
	return NewOutageLog(OutageParams{
		Log: logTo(out), Message: "redis does not answer", Interval: 10 * time.Second, Now: func() time.Time { return *now },
	}), now
}

func TestOutageLog(t *testing.T) {
	var out output
	o, now := newTestOutage(&out)
	down := errors.New("connection refused")

	o.Report(nil)
	assert.Empty(t, out.String(), "nothing to say")

	for range 250 { // 25 s
		o.Report(down)
		*now = now.Add(100 * time.Millisecond)
	}
	o.Report(nil)
	o.Report(nil)
	assert.Equal(t, ""+
		"level=WARN msg=\"redis does not answer\" err=\"connection refused\"\n"+
		"level=WARN msg=\"redis does not answer\" err=\"connection refused\" suppressed=99\n"+
		"level=WARN msg=\"redis does not answer\" err=\"connection refused\" suppressed=99\n"+
		"level=INFO msg=\"redis does not answer: recovered\" after=25s failures=250\n", out.String())
}

func TestOutageLogWhenItFlaps(t *testing.T) {
	var out output
	o, now := newTestOutage(&out)
	for range 1000 { // 100 s
		o.Report(errors.New("reset"))
		o.Report(nil)
		*now = now.Add(100 * time.Millisecond)
	}
	assert.Len(t, out.lines("WARN"), 10)
	assert.Len(t, out.lines("INFO"), 10, "an outage without a line has no end either")
}

func TestOutageLogLongAfter(t *testing.T) {
	var out output
	o, now := newTestOutage(&out)
	o.Report(errors.New("first"))
	o.Report(nil)
	*now = now.Add(time.Hour)
	o.Report(errors.New("second"))
	assert.Len(t, out.lines("second"), 1, "at once")
	assert.NotContains(t, out.String(), "suppressed")
}

func TestOutageLogConcurrently(t *testing.T) {
	var (
		out output
		wg  sync.WaitGroup
	)
	o := NewOutageLog(OutageParams{Log: logTo(&out), Message: "down", Interval: time.Hour})
	for range 8 {
		wg.Go(func() {
			for i := range 1000 {
				if i%2 == 0 {
					o.Report(errors.New("x"))
				} else {
					o.Report(nil)
				}
			}
		})
	}
	wg.Wait()
	assert.Len(t, out.lines("WARN"), 1)
}
