package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Times are compared as the client's clock has them, whatever another clock
// says, and in whole milliseconds.
func TestLossWindowEdges(t *testing.T) {
	r := NewRecord(choices)
	fault := r.began.Add(10 * time.Second)
	spans, err := r.spans([]LossWindow{{From: fault.Add(-time.Second), To: fault}})
	require.NoError(t, err)
	require.Len(t, spans, 1)
	for at, in := range map[time.Duration]bool{
		-time.Second - lossMargin - time.Millisecond: false,
		-time.Second - lossMargin:                    true,
		-time.Second:                                 true,
		0:                                            true,
		lossMargin:                                   true,
		lossMargin + time.Millisecond:                false,
		3 * time.Second:                              false,
	} {
		assert.Equal(t, in, spans[0].has(r.since(fault.Add(at))), "%s from the fault", at)
	}
}

func TestLossCoverage(t *testing.T) {
	posting := span{1000, 2000}
	for name, c := range map[string]struct {
		windows []span
		want    float64
	}{
		"none":            {nil, 0},
		"outside":         {[]span{{0, 900}, {2100, 3000}}, 0},
		"inside":          {[]span{{1100, 1200}}, 0.1},
		"over the start":  {[]span{{0, 1200}}, 0.2},
		"over the end":    {[]span{{1700, 5000}}, 0.3},
		"all":             {[]span{{0, 5000}}, 1},
		"two, overlapped": {[]span{{1500, 1700}, {1400, 1600}}, 0.3},
		"one in another":  {[]span{{1100, 1900}, {1200, 1300}, {1850, 1950}}, 0.85},
	} {
		assert.InDelta(t, c.want, posting.covered(c.windows), 1e-9, name)
	}
	assert.Zero(t, span{5, 5}.covered([]span{{0, 10}}), "a single moment")

	r := NewRecord(choices)
	m := newMatcher(r, []span{{0, 1}}, &Result{})
	assert.Zero(t, m.coverage(), "nothing was acknowledged")
}
