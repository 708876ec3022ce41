package ledger

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// matcher compares the archive's rows with the acked votes, id by id.
type matcher struct {
	choices  []Choice
	place    map[Choice]int
	receipts [][]receipt // sorted, by choice
	found    [][]uint64  // a bit for each receipt
	// rest are the rows whose ids were never acked: by choice how many more of
	// them there may be, and which were found.
	budgets []budget
	rest    map[uuid.UUID]bool
	windows []span
	r       *Result
}

// budget is how many votes of a choice may be in the archive though they were
// never acked. Those without a key, most of which were never taken, must not
// hide one with a key that was taken twice.
type budget struct{ keyless, keyed int64 }

func newMatcher(record *Record, windows []span, r *Result) *matcher {
	m := &matcher{choices: record.Choices(), place: map[Choice]int{}, rest: map[uuid.UUID]bool{}, windows: windows, r: r}
	for i, c := range m.choices {
		m.place[c] = i
		m.receipts = append(m.receipts, record.sorted(i))
		m.found = append(m.found, make([]uint64, len(m.receipts[i])/64+1))
		s := record.Sums(i)
		m.budgets = append(m.budgets, budget{keyless: s.Unknown, keyed: s.Unsettled})
	}
	return m
}

// row takes a row of the archive.
func (m *matcher) row(c Choice, id uuid.UUID, keyless bool) {
	m.r.Archived++
	choice, known := m.place[c]
	if known {
		m.r.Options[choice].Archived++
		if at, ok := m.find(choice, id); ok {
			m.mark(choice, at, id)
			return
		}
	}
	for other := range m.choices {
		if at, ok := m.find(other, id); ok {
			m.r.WrongOption++
			m.r.example("wrong option: %s was voted as %s and archived as %s", id, m.choices[other], c)
			m.mark(other, at, id)
			return
		}
	}
	var left *int64
	if known {
		left = &m.budgets[choice].keyed
		if keyless {
			left = &m.budgets[choice].keyless
		}
	}
	switch {
	case m.rest[id]:
		m.r.Doubled++
		m.r.example("doubled: %s for %s, not acknowledged, is in the archive more than once", id, c)
	case known && *left > 0:
		*left--
		m.rest[id] = true
		m.r.Taken++
		m.r.Options[choice].Taken++
	case keyless:
		m.rest[id] = true
		m.r.Invented++
		m.r.example("invented: %s for %s, without a key, was never acknowledged", id, c)
	default:
		m.rest[id] = true
		m.r.Invented++
		m.r.example("invented: %s for %s was never acknowledged; it may be the twin of a vote that was", id, c)
	}
}

// mark notes that an id was found. An id that was acknowledged twice may be
// found twice: that it was is told elsewhere.
func (m *matcher) mark(choice, at int, id uuid.UUID) {
	receipts, found := m.receipts[choice], m.found[choice]
	for ; at < len(receipts) && receipts[at].id == id; at++ {
		if bit := uint64(1) << (at % 64); found[at/64]&bit == 0 {
			found[at/64] |= bit
			return
		}
	}
	m.r.Doubled++
	m.r.example("doubled: %s for %s is in the archive more than once", id, m.choices[choice])
}

// end counts what was never found, and ids that stand for more than one vote.
// (Where those are for different options, one of the two is lost.)
func (m *matcher) end() {
	for choice, receipts := range m.receipts {
		for i, receipt := range receipts {
			if m.found[choice][i/64]&(1<<(i%64)) == 0 {
				m.lost(choice, receipt)
			}
			if i > 0 && receipts[i-1].id == receipt.id {
				m.r.SharedIDs++
				m.r.example("shared id: %s is the receipt of two votes for %s", receipt.id, m.choices[choice])
			}
		}
	}
	m.r.LossCoverage = m.coverage()
}

func (m *matcher) lost(choice int, lost receipt) {
	if slices.ContainsFunc(m.windows, func(w span) bool { return w.has(int64(lost.at)) }) {
		m.r.LostInWindow++
		m.r.Options[choice].LostInWindow++
		return
	}
	m.r.Lost++
	m.r.example("lost: %s for %s was acknowledged %.3f s after the start and is not in the archive",
		lost.id, m.choices[choice], float64(lost.at)/1000)
}

// coverage is the share of the time from the first receipt to the last that
// the windows cover.
func (m *matcher) coverage() float64 {
	if len(m.windows) == 0 {
		return 0
	}
	var posting span
	some := false
	for _, receipts := range m.receipts {
		for _, r := range receipts {
			at := int64(r.at)
			if !some {
				posting, some = span{at, at}, true
			}
			posting = span{min(posting.from, at), max(posting.to, at)}
		}
	}
	if !some {
		return 0
	}
	return posting.covered(m.windows)
}

func (m *matcher) find(choice int, id uuid.UUID) (int, bool) {
	return slices.BinarySearchFunc(m.receipts[choice], id, func(a receipt, b uuid.UUID) int { return bytes.Compare(a.id[:], b[:]) })
}

// maxExamples bounds the examples of a result.
const maxExamples = 20

func (r *Result) example(format string, args ...any) {
	if len(r.Examples) < maxExamples {
		r.Examples = append(r.Examples, fmt.Sprintf(format, args...))
	}
}
