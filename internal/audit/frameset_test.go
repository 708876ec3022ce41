package audit

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"paredao/internal/vote"
)

// A frameSet is a set, whatever the order and the numbers.
func TestFrameSet(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	s, want := frameSet{}, map[string]bool{}
	flushers := []string{"a", "b", vote.NewFlusherID()}
	for range 20_000 {
		seq := random.Uint64N(500)
		switch random.IntN(10) {
		case 0:
			seq += math.MaxUint64 - 500
		case 1:
			seq = random.Uint64()
		}
		id := vote.FrameID{Flusher: flushers[random.IntN(len(flushers))], Seq: seq}.String()
		if s.has(id) != want[id] {
			t.Fatalf("has %s: %v", id, !want[id])
		}
		if fresh, err := s.add(id); err != nil || fresh == want[id] {
			t.Fatalf("add %s: %v, %v", id, fresh, err)
		}
		want[id] = true
	}
	for id := range want {
		if !s.has(id) {
			t.Errorf("%s is gone", id)
		}
	}
	n := 0
	for _, f := range flushers {
		for seq := range uint64(600) {
			if id := f + "-" + strconv.FormatUint(seq, 10); s.has(id) != want[id] {
				t.Errorf("has %s: %v", id, !want[id])
			}
			n++
		}
	}
	for _, id := range []string{"", "a", "a-", "-1", "a-01", "a--1", "a-18446744073709551616", "A 1"} {
		if _, err := s.add(id); err == nil {
			t.Errorf("%q was added", id)
		}
		if s.has(id) {
			t.Errorf("has %q", id)
		}
	}
}
