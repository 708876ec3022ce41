package vote

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"
)

func TestPercentages(t *testing.T) {
	for _, c := range []struct {
		votes []int64
		want  []Percent
	}{
		{nil, []Percent{}},
		{[]int64{0}, []Percent{0}},
		{[]int64{0, 0, 0}, []Percent{0, 0, 0}},
		{[]int64{7}, []Percent{10000}},
		{[]int64{9, 5}, []Percent{6429, 3571}},
		{[]int64{1, 1, 1}, []Percent{3334, 3333, 3333}}, // the earlier of equals
		{[]int64{0, 1, 1, 1}, []Percent{0, 3334, 3333, 3333}},
		{[]int64{1, 2, 0}, []Percent{3333, 6667, 0}},
		{[]int64{1, 0, math.MaxInt64 - 1}, []Percent{0, 0, 10000}},
		{[]int64{math.MaxInt64, math.MaxInt64}, []Percent{5000, 5000}},
		{[]int64{-3, 1}, []Percent{0, 10000}},
	} {
		if got := Percentages(c.votes); !reflect.DeepEqual(got, c.want) {
			t.Errorf("Percentages(%v) = %v, want %v", c.votes, got, c.want)
		}
	}
	// Any votes: the sum is exact, no share is a hundredth away from the true
	// one, none without votes has one, and more votes never have less.
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		votes := make([]int64, 1+r.IntN(1000))
		var total int64
		for i := range votes {
			votes[i] = r.Int64N(1 << r.IntN(40))
			total += votes[i]
		}
		if total == 0 {
			continue
		}
		var sum Percent
		for i, p := range Percentages(votes) {
			sum += p
			if exact := float64(votes[i]) * 10000 / float64(total); math.Abs(float64(p)-exact) > 1 {
				t.Fatalf("%d of %d are %s", votes[i], total, p)
			}
			if votes[i] == 0 && p != 0 {
				t.Fatalf("no votes are %s", p)
			}
		}
		if sum != 10000 {
			t.Fatalf("%v add up to %s", votes, sum)
		}
	}
}

func TestPercentText(t *testing.T) {
	for p, want := range map[Percent]string{0: "0.00", 1: "0.01", 70: "0.70", 6429: "64.29", 10000: "100.00"} {
		got, err := json.Marshal(p)
		if err != nil || string(got) != want || p.String() != want {
			t.Errorf("%d hundredths are %s and %s (%v), want %s", int64(p), p, got, err, want)
		}
		var back Percent
		if err := json.Unmarshal(got, &back); err != nil || back != p {
			t.Errorf("%s came back as %d (%v)", got, back, err)
		}
	}
	var p Percent
	if err := json.Unmarshal([]byte(`"x"`), &p); err == nil {
		t.Error("a text was taken for a percentage")
	}
}

func TestLedger(t *testing.T) {
	a := PollLedger{Accepted: 100, Counted: 60, Archived: 50, Dead: 10, Dropped: 5}
	if a.Pending() != 35 || a.Queued() != 25 {
		t.Errorf("pending %d, queued %d, want 35 and 25", a.Pending(), a.Queued())
	}
	a.Add(PollLedger{1, 2, 3, 4, 5})
	if want := (PollLedger{101, 62, 53, 14, 10}); a != want {
		t.Errorf("sum %+v, want %+v", a, want)
	}
}

func TestStatusOf(t *testing.T) {
	now := time.UnixMilli(1768957201234)
	shard := func(opens, closes time.Time, l PollLedger) ShardPolls {
		return ShardPolls{now, map[string]Window{"p": {Opens: opens, Closes: closes}}, map[string]PollLedger{"p": l}}
	}
	var never time.Time
	done, waiting := PollLedger{Accepted: 3, Counted: 2, Dropped: 1}, PollLedger{Accepted: 3, Counted: 2}
	for name, c := range map[string]struct {
		want   Status
		shards []ShardPolls
	}{
		"scheduled":          {StatusScheduled, []ShardPolls{shard(now.Add(1), never, PollLedger{})}},
		"open":               {StatusOpen, []ShardPolls{shard(never, never, done)}},
		"closed, waiting":    {StatusClosed, []ShardPolls{shard(never, now, waiting)}},
		"closed, dead":       {StatusClosed, []ShardPolls{shard(never, now, PollLedger{Accepted: 3, Counted: 2, Dead: 1})}},
		"final":              {StatusFinal, []ShardPolls{shard(never, now, done), shard(never, now, PollLedger{})}},
		"another waits":      {StatusClosed, []ShardPolls{shard(never, now, done), shard(never, now, waiting)}},
		"another is open":    {StatusClosed, []ShardPolls{shard(never, now, done), shard(never, now.Add(1), done)}},
		"another has it not": {StatusClosed, []ShardPolls{shard(never, now, done), {Now: now}}},
	} {
		if got := StatusOf("p", c.shards); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestShow(t *testing.T) {
	p := aPoll()
	now := time.UnixMilli(1768957201234).UTC()
	r := Results{
		AsOf: now, Window: Window{Closes: now},
		Tally:  Tally{"bruno": 5, "ana": 9, "stranger": 7},
		Ledger: PollLedger{Accepted: 17, Counted: 14},
	}
	want := PollResults{
		Poll: p.ID, Title: p.Title, Status: StatusClosed, AsOf: now, Total: 14, Pending: 3,
		Options: []OptionResult{{"ana", "Ana", 9, 6429}, {"bruno", "Bruno", 5, 3571}},
	}
	if got := r.Show(&p); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	r.Final, r.Ledger.Counted = true, 17
	want.Final, want.Status, want.Pending = true, StatusFinal, 0
	if got := r.Show(&p); !reflect.DeepEqual(got, want) {
		t.Errorf("final: got  %+v\nwant %+v", got, want)
	}
	// No votes: every option stands there all the same.
	none := (Results{AsOf: now, Tally: Tally{}}).Show(&p)
	if none.Total != 0 || len(none.Options) != 2 || none.Options[0].Percent != 0 || none.Status != StatusOpen {
		t.Errorf("no votes: %+v", none)
	}
}
