package vote

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"time"
)

// Percent is a share in hundredths of a percent: 6429 is 64.29 %.
type Percent int64

// String writes two decimals.
func (p Percent) String() string { return fmt.Sprintf("%d.%02d", p/100, p%100) }

// MarshalJSON writes a number with two decimals.
func (p Percent) MarshalJSON() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalJSON reads what MarshalJSON writes.
func (p *Percent) UnmarshalJSON(b []byte) error {
	var f float64
	if err := json.Unmarshal(b, &f); err != nil {
		return fmt.Errorf("percent: %w", err)
	}
	*p = Percent(f*100 + 0.5)
	return nil
}

// Percentages returns the shares of votes in their sum. They add up to exactly
// 100.00, or are all 0 where there are no votes: largest remainder (Hamilton's
// method), the earlier of equal remainders first.
func Percentages(votes []int64) []Percent {
	out := make([]Percent, len(votes))
	var total uint64
	for _, v := range votes {
		total += uint64(max(v, 0))
	}
	if total == 0 {
		return out
	}
	left := Percent(10000)
	remainders := make([]uint64, len(votes))
	order := make([]int, len(votes))
	for i, v := range votes {
		hi, lo := bits.Mul64(uint64(max(v, 0)), 10000)
		q, r := bits.Div64(hi, lo, total) // a share of at most 10000, so no overflow
		out[i], remainders[i], order[i] = Percent(q), r, i
		left -= out[i]
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case remainders[a] > remainders[b]:
			return -1
		case remainders[a] < remainders[b]:
			return 1
		}
		return 0
	})
	for _, i := range order[:left] {
		out[i]++
	}
	return out
}

// OptionResult is one option's line of a poll's results.
type OptionResult struct {
	ID      string  `json:"id"`
	Name    string  `json:"name"`
	Votes   int64   `json:"votes"`
	Percent Percent `json:"percent"`
}

// PollResults is what GET /polls/{poll}/results and the CLI show of a poll.
type PollResults struct {
	Poll   string `json:"poll"`
	Title  string `json:"title"`
	Status Status `json:"status"`
	// Final: closed on every shard, and nothing pending. Never taken back.
	Final bool      `json:"final"`
	AsOf  time.Time `json:"as_of"`
	// Total is the sum of the options' counted votes.
	Total int64 `json:"total"`
	// Pending votes are accepted and not yet counted.
	Pending int64          `json:"pending"`
	Options []OptionResult `json:"options"`
}

// Show puts a poll's totals into the form that people see: every option, in the
// poll's order.
func (r Results) Show(p *Poll) PollResults {
	out := PollResults{
		Poll: p.ID, Title: p.Title, Status: r.Window.Status(r.AsOf), Final: r.Final, AsOf: r.AsOf,
		Pending: r.Ledger.Pending(), Options: make([]OptionResult, len(p.Options)),
	}
	if r.Final {
		out.Status = StatusFinal
	}
	votes := make([]int64, len(p.Options))
	for i, o := range p.Options {
		votes[i] = r.Tally[o.ID]
		out.Total += votes[i]
	}
	for i, percent := range Percentages(votes) {
		o := p.Options[i]
		out.Options[i] = OptionResult{o.ID, o.Name, votes[i], percent}
	}
	return out
}
