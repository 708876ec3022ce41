package vote

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of a poll's definition, from the public contract.
const (
	MaxOptions    = 1000
	MaxTextLength = 200
)

// Option is one choice of a poll.
type Option struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// Poll is a poll's definition. When it takes votes is its Window.
type Poll struct {
	ID      string   `json:"id"`
	Title   string   `json:"title"`
	Options []Option `json:"options"`
	// Results is ResultsLive; the contract knows sealed ones too.
	Results string `json:"results"`
}

// ResultsLive says that anyone may see a poll's results while it runs.
const ResultsLive = "live"

// Validate tells what is wrong with the definition, all of it.
func (p *Poll) Validate() error {
	var errs []error
	add := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if !ValidID(p.ID) {
		add("id %.80q does not match [a-z0-9][a-z0-9_-]{0,62}", p.ID)
	}
	if p.Title == "" {
		add("title is missing")
	}
	checkText(p.Title, "title", add)
	if len(p.Options) < 1 || len(p.Options) > MaxOptions {
		add("has %d options, allowed are 1 to %d", len(p.Options), MaxOptions)
	}
	seen := make(map[string]bool, len(p.Options))
	for _, o := range p.Options {
		if !ValidID(o.ID) {
			add("option id %.80q does not match [a-z0-9][a-z0-9_-]{0,62}", o.ID)
		}
		if seen[o.ID] {
			add("option %q stands twice", o.ID)
		}
		seen[o.ID] = true
		checkText(o.Name, "name of option "+strconv.Quote(o.ID), add)
	}
	if p.Results != ResultsLive {
		add("results %.40q: this version knows %q only", p.Results, ResultsLive)
	}
	return errors.Join(errs...)
}

func checkText(s, what string, add func(string, ...any)) {
	if n := utf8.RuneCountInString(s); n > MaxTextLength {
		add("%s has %d characters, allowed are %d", what, n, MaxTextLength)
	}
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		add("%s is not valid Unicode text", what)
	}
}

// HasOption tells whether the poll has the option.
func (p *Poll) HasOption(id string) bool {
	return slices.ContainsFunc(p.Options, func(o Option) bool { return o.ID == id })
}

// OptionsKey names the poll's list of options, in order. Two definitions with
// the same key take the same votes.
func (p *Poll) OptionsKey() string {
	h := sha256.New()
	for _, o := range p.Options {
		_, _ = io.WriteString(h, o.ID+"\n") // a hash never fails
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Window is the time in which a poll takes votes: from Opens (zero: at once)
// until before Closes (zero: until it is closed by hand).
type Window struct {
	Opens, Closes time.Time
	// Sealed: it was seen closed, and stays so whatever Redis's clock says later.
	Sealed bool
}

// Status of a poll at a time.
type Status string

// The four of the contract. A poll is final when it is closed and nothing is
// pending.
const (
	StatusScheduled Status = "scheduled"
	StatusOpen      Status = "open"
	StatusClosed    Status = "closed"
	StatusFinal     Status = "final"
)

// Status tells the poll's status at now, which must be Redis's time. It never
// says final: that takes the ledger.
func (w Window) Status(now time.Time) Status {
	switch {
	case w.Sealed, !w.Closes.IsZero() && !now.Before(w.Closes):
		return StatusClosed
	case !w.Opens.IsZero() && now.Before(w.Opens):
		return StatusScheduled
	}
	return StatusOpen
}

// Validate checks that the window is not empty.
func (w Window) Validate() error {
	if !w.Closes.IsZero() && !w.Opens.IsZero() && !w.Closes.After(w.Opens) {
		return fmt.Errorf("closes_at %s is not after opens_at %s",
			w.Closes.Format(time.RFC3339), w.Opens.Format(time.RFC3339))
	}
	return nil
}

// PollState is a poll with its window and what a shard, or all of them, hold
// of it.
type PollState struct {
	Poll
	Window
	Status Status
}

// MarshalJSON writes the form of GET /polls/{poll}.
func (s PollState) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Poll
		OpensAt  *time.Time `json:"opens_at,omitempty"`
		ClosesAt *time.Time `json:"closes_at,omitempty"`
		Status   Status     `json:"status"`
	}{s.Poll, timeOrNil(s.Opens), timeOrNil(s.Closes), s.Status})
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
