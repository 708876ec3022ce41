package ledger

import (
	"bytes"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Record is what a client has sent and been answered. It takes 20 bytes for an
// acked vote and nothing for another, so ten million fit well into a gigabyte.
type Record struct {
	choices []Choice
	began   time.Time
	entries []entry
	sent    atomic.Int64
	acked   atomic.Int64
	refused atomic.Int64

	mu sync.Mutex
	// answers counts the answers that were neither 202 nor the first attempt's
	// success, by what they were: "503 queue-unavailable", "timeout".
	answers map[string]int64
	wrong   []string
	wrongs  int64
}

// expectation is what must become of the votes for a choice.
type expectation uint8

const (
	mustTake expectation = iota // the usual one
	mustRefuse
	mayRefuse
)

// receipt is an acked vote.
type receipt struct {
	id uuid.UUID
	// at is when the answer had been received, in milliseconds since the record
	// began: 49 days fit, so it may always be kept.
	at uint32
}

// entry is the record of one choice.
type entry struct {
	expect                  expectation
	mu                      sync.Mutex
	sent, refused, replayed int64
	unknown, unsettled      int64
	unsent                  int64
	acked                   int64
	receipts                [][]receipt // in pieces, so that growing copies nothing
}

// Sums are a choice's numbers. Sent = Acked + Refused + Unknown + Unsettled +
// Unsent once the client has ended.
type Sums struct {
	// Sent votes, however often each was repeated.
	Sent int64 `json:"sent"`
	// Acked votes were answered 202; Replayed are those of them whose answer
	// said that an earlier attempt had been taken.
	Acked    int64 `json:"acked"`
	Replayed int64 `json:"replayed"`
	Refused  int64 `json:"refused"`
	// Unknown votes had no key, so they could not be sent again when they were
	// not answered. They may have been taken or not, each once at most.
	Unknown int64 `json:"unknown"`
	// Unsent votes had no key, and no api to be sent to: no connection was made.
	Unsent int64 `json:"unsent"`
	// Unsettled votes had a key and still no answer when the client gave up.
	Unsettled int64 `json:"unsettled"`
}

const (
	piece      = 8192 // receipts
	maxAnswers = 200
	maxWrong   = 10
)

// NewRecord returns an empty record for the choices.
func NewRecord(choices []Choice) *Record {
	return &Record{
		choices: slices.Clone(choices), began: time.Now(), entries: make([]entry, len(choices)), answers: map[string]int64{},
	}
}

// Choices are those of the client.
func (r *Record) Choices() []Choice { return r.choices }

// Sent is the number of votes sent so far.
func (r *Record) Sent() int64 { return r.sent.Load() }

// Acked is the number of votes answered 202 so far.
func (r *Record) Acked() int64 { return r.acked.Load() }

// Refused is the number of votes answered 4xx so far.
func (r *Record) Refused() int64 { return r.refused.Load() }

// Sums are a choice's numbers so far.
func (r *Record) Sums(choice int) Sums {
	e := &r.entries[choice]
	e.mu.Lock()
	defer e.mu.Unlock()
	return Sums{Sent: e.sent, Acked: e.acked, Replayed: e.replayed, Refused: e.refused, Unknown: e.unknown, Unsettled: e.unsettled, Unsent: e.unsent}
}

// Answers counts the answers that settled nothing, and the refusals, by what
// they were.
func (r *Record) Answers() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.answers)
}

// Wrong is the number of acknowledgements for another vote than the one sent, or
// without a receipt, and examples of them.
func (r *Record) Wrong() (int64, []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wrongs, slices.Clone(r.wrong)
}

func (r *Record) addSent(choice int) {
	r.sent.Add(1)
	e := &r.entries[choice]
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sent++
}

// expect says what must become of a choice's votes, before any is sent; false:
// there is no such choice, or it has been said.
func (r *Record) expect(c Choice, want expectation) bool {
	i := slices.Index(r.choices, c)
	if i < 0 || r.entries[i].expect != mustTake {
		return false
	}
	r.entries[i].expect = want
	return true
}

// since is a time in milliseconds since the record began.
func (r *Record) since(at time.Time) int64 { return at.Sub(r.began).Milliseconds() }

func (r *Record) addAcked(choice int, id uuid.UUID, replayed bool, at time.Time) {
	e := &r.entries[choice]
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.receipts); n == 0 || len(e.receipts[n-1]) == piece {
		e.receipts = append(e.receipts, make([]receipt, 0, piece))
	}
	last := &e.receipts[len(e.receipts)-1]
	*last = append(*last, receipt{id, uint32(min(max(r.since(at), 0), math.MaxUint32))})
	e.acked++
	if replayed {
		e.replayed++
	}
	r.acked.Add(1)
}

func (r *Record) addRefused(choice int) {
	e := &r.entries[choice]
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused++
	r.refused.Add(1)
}

func (r *Record) addUnknown(choice int) {
	e := &r.entries[choice]
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unknown++
}

func (r *Record) addUnsent(choice int) {
	e := &r.entries[choice]
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unsent++
}

func (r *Record) addUnsettled(choice int) {
	e := &r.entries[choice]
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unsettled++
}

func (r *Record) addAnswer(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.answers[what]; !known && len(r.answers) >= maxAnswers {
		what = "other"
	}
	r.answers[what]++
}

func (r *Record) addWrong(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrongs++
	if len(r.wrong) < maxWrong {
		r.wrong = append(r.wrong, what)
	}
}

// sorted returns the receipts of a choice's acked votes, in the order of their
// ids.
func (r *Record) sorted(choice int) []receipt {
	e := &r.entries[choice]
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]receipt, 0, e.acked)
	for _, some := range e.receipts {
		all = append(all, some...)
	}
	slices.SortFunc(all, func(a, b receipt) int { return bytes.Compare(a.id[:], b.id[:]) })
	return all
}
