package archive

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"paredao/internal/vote"
)

// What a Redis may still lose in a crash is not archived yet.
func TestYoungVotesWait(t *testing.T) {
	e := newEnv(t)
	a := e.archiver(func(p *Params) { p.Settle = time.Minute })
	e.count(young(), some("p", 12)...)
	assert.Zero(t, a.drain(t), "enough votes, but all are young")

	e.restore(saved{})
	e.accepted = map[string]archived{}
	e.count(long, some("p", 3)...)
	e.count(long, some("p", 3)...)
	e.count(young(), some("p", 3)...)
	assert.Equal(t, 1, a.drain(t), "two of three frames have settled")
	assert.Equal(t, map[string]int64{"p": 6}, e.ledger())
	assert.Equal(t, 1, e.waiting())
}

func TestDue(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	a := New(Params{MaxVotes: 1000, MaxAge: 30 * time.Second, Settle: 3 * time.Second})
	for _, c := range []struct {
		what           string
		elements       int
		votes          int64
		oldest, newest time.Time
		want           bool
	}{
		{"nothing", 0, 0, time.Time{}, time.Time{}, false},
		{"old", 1, 1, ago(30 * time.Second), ago(30 * time.Second), true},
		{"old, and still coming", 2, 2, ago(30 * time.Second), now, true},
		{"few", 5, 999, ago(29 * time.Second), ago(20 * time.Second), false},
		{"enough, settled", 5, 1000, ago(4 * time.Second), ago(3 * time.Second), true},
		{"enough, young", 5, 5000, ago(2 * time.Second), ago(time.Second), false},
		{"half of it has settled", 5, 1999, ago(6 * time.Second), now, false},
		{"enough has settled", 5, 2000, ago(6 * time.Second), now, true},
		{"frames, half of them settled", 2*batchFrames - 1, 1, ago(6 * time.Second), now, false},
		{"frames, enough settled", 2 * batchFrames, 1, ago(6 * time.Second), now, true},
		{"before the clock went back", 1, 1, now.Add(time.Minute), now.Add(time.Minute), true},
	} {
		got := a.due(vote.ArchiveState{Now: now, Elements: c.elements, Votes: c.votes, Oldest: c.oldest, Newest: c.newest})
		assert.Equal(t, c.want, got, c.what)
	}
}
