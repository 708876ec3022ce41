package archivefile

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNewest(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b)
	for i := range groupRows + 2000 { // the newest is neither first nor last
		at := noon.Add(time.Duration(i%1000) * time.Millisecond)
		if i == 1500 {
			at = noon.Add(time.Hour)
		}
		require.NoError(t, w.Add(ballot(i, "p", "a"), at, 0))
	}
	require.NoError(t, w.Close())
	got, err := Newest(inMemory(b.Bytes()))
	require.NoError(t, err)
	assert.Equal(t, noon.Add(time.Hour), got)

	got, err = Newest(inMemory(write(t, ballot(1, "p", "a"))))
	require.NoError(t, err)
	assert.Equal(t, noon, got)

	whole := b.Bytes()
	for _, damaged := range [][]byte{nil, whole[:len(whole)/2], make([]byte, len(whole))} {
		_, err := Newest(inMemory(damaged))
		require.ErrorIs(t, err, ErrDamaged)
	}
	for reads := 0; ; reads++ {
		_, err := Newest(&failing{inMemory(whole), reads})
		if err == nil {
			assert.Positive(t, reads)
			break
		}
		require.ErrorIs(t, err, errAway)
		require.NotErrorIs(t, err, ErrDamaged)
	}
}
