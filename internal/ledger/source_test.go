package ledger

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func exhaust(s Source, choices int) (counts []int64, order []int) {
	counts = make([]int64, choices)
	for i, ok := s(); ok; i, ok = s() {
		counts[i]++
		order = append(order, i)
	}
	return counts, order
}

func TestShuffleGivesExactlyTheCounts(t *testing.T) {
	want := []int64{300, 0, 500, 1}
	counts, order := exhaust(Shuffle(want, 7), len(want))
	assert.Equal(t, want, counts)
	_, again := exhaust(Shuffle(want, 7), len(want))
	assert.Equal(t, order, again, "the same seed")
	_, other := exhaust(Shuffle(want, 8), len(want))
	assert.NotEqual(t, order, other, "another seed")
}

func TestDraw(t *testing.T) {
	s, err := Draw([]int{70, 0, 30}, 10_000, 1)
	require.NoError(t, err)
	counts, _ := exhaust(s, 3)
	assert.Equal(t, int64(10_000), counts[0]+counts[1]+counts[2])
	assert.Zero(t, counts[1])
	assert.InDelta(t, 7000, counts[0], 300)

	for _, weights := range [][]int{nil, {0, 0}, {1, -1}} {
		_, err := Draw(weights, 1, 1)
		require.Error(t, err, "%v", weights)
	}
}
