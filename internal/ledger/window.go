package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// LossWindow is a time in which acknowledged votes may be lost, since Redis
// promised no more: with appendfsync everysec, the second before a power cut.
// To is the instant of the fault, the kill or the cut, not the end of what
// followed: who answers after that has no excuse. From is the earliest moment
// whose writes the fault may take.
//
// It is compared with the client's own clock at the receipt of the answer, so
// From and To are read on the client's machine.
type LossWindow struct{ From, To time.Time }

// lossMargin is added to both ends of a window. After the fault: the answer was
// under way, through an api, to one of thousands of connections of a client that
// shares its processors with everything else, and a caller notes the time once
// it has sent the signal. Before: what a server has answered it may pass on, to
// its file or its replicas, a moment later. All of that takes milliseconds, on a
// crowded machine tens of them, and a server that goes on to take votes is soon
// past it.
const lossMargin = 250 * time.Millisecond

// span is a time in a record's milliseconds, both ends included.
type span struct{ from, to int64 }

func (s span) has(at int64) bool { return at >= s.from && at <= s.to }

// covered is the share of the span that others cover, each moment once.
func (s span) covered(others []span) float64 {
	others = slices.Clone(others)
	slices.SortFunc(others, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var sum int64
	upTo := s.from
	for _, o := range others {
		from, to := max(o.from, upTo), min(o.to, s.to)
		if to > from {
			sum += to - from
			upTo = to
		}
	}
	return float64(sum) / float64(max(s.to-s.from, 1))
}

// spans are the windows with their margins, in the record's time.
func (r *Record) spans(windows []LossWindow) ([]span, error) {
	var spans []span
	for _, w := range windows {
		if w.From.IsZero() || w.To.Before(w.From) {
			return nil, fmt.Errorf("the loss window from %s to %s has no beginning or ends before it",
				w.From.Format(time.StampMilli), w.To.Format(time.StampMilli))
		}
		spans = append(spans, span{r.since(w.From.Add(-lossMargin)), r.since(w.To.Add(lossMargin))})
	}
	return spans, nil
}
