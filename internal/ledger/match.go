package ledger

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
)

// matcher compares the archive's rows with the acked votes, id by id.
type matcher struct {
	choices []Choice
	place   map[Choice]int
	ids     [][]uuid.UUID // sorted, by choice
	found   [][]uint64    // a bit for each id
	// rest are the rows whose ids were never acked: by choice how many more of
	// them there may be, and which were found.
	allowed []int64
	rest    map[uuid.UUID]bool
	windows []LossWindow
	r       *Result
}

func newMatcher(record *Record, windows []LossWindow, r *Result) *matcher {
	m := &matcher{choices: record.Choices(), place: map[Choice]int{}, rest: map[uuid.UUID]bool{}, windows: windows, r: r}
	for i, c := range m.choices {
		m.place[c] = i
		m.ids = append(m.ids, record.sorted(i))
		m.found = append(m.found, make([]uint64, len(m.ids[i])/64+1))
		s := record.Sums(i)
		m.allowed = append(m.allowed, s.Unknown+s.Unsettled)
	}
	return m
}

// row takes a row of the archive.
func (m *matcher) row(c Choice, id uuid.UUID) {
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
	m.never(choice, known, c, id)
}

// never takes a row whose id was never acked. As many votes as were not
// answered may be there, each once.
func (m *matcher) never(choice int, known bool, c Choice, id uuid.UUID) {
	switch {
	case m.rest[id]:
		m.r.Doubled++
		m.r.example("doubled: %s for %s, not acknowledged, is in the archive more than once", id, c)
	case known && m.allowed[choice] > 0:
		m.allowed[choice]--
		m.rest[id] = true
		m.r.Taken++
	default:
		m.rest[id] = true
		m.r.Invented++
		m.r.example("invented: %s for %s was never acknowledged", id, c)
	}
}

// mark notes that an id was found. An id that was acknowledged twice may be
// found twice: that it was is told elsewhere.
func (m *matcher) mark(choice, at int, id uuid.UUID) {
	ids, found := m.ids[choice], m.found[choice]
	for ; at < len(ids) && ids[at] == id; at++ {
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
	for choice, ids := range m.ids {
		for i, id := range ids {
			if m.found[choice][i/64]&(1<<(i%64)) == 0 {
				m.lost(choice, id)
			}
			if i > 0 && ids[i-1] == id {
				m.r.SharedIDs++
				m.r.example("shared id: %s is the receipt of two votes for %s", id, m.choices[choice])
			}
		}
	}
}

func (m *matcher) lost(choice int, id uuid.UUID) {
	if at, ok := timeOf(id); ok && slices.ContainsFunc(m.windows, func(w LossWindow) bool { return w.has(at) }) {
		m.r.LostInWindow++
		m.r.Options[choice].LostInWindow++
		return
	}
	m.r.Lost++
	m.r.example("lost: %s for %s was acknowledged and is not in the archive", id, m.choices[choice])
}

// timeOf is when a UUIDv7 was made; false: it is none.
func timeOf(id uuid.UUID) (time.Time, bool) {
	if id.Version() != 7 {
		return time.Time{}, false
	}
	ms := int64(binary.BigEndian.Uint64(id[:8]) >> 16)
	return time.UnixMilli(ms), true
}

func (m *matcher) find(choice int, id uuid.UUID) (int, bool) {
	return slices.BinarySearchFunc(m.ids[choice], id, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
}

// maxExamples bounds the examples of a result.
const maxExamples = 20

func (r *Result) example(format string, args ...any) {
	if len(r.Examples) < maxExamples {
		r.Examples = append(r.Examples, fmt.Sprintf(format, args...))
	}
}
