package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAheadFrames(t *testing.T) {
	n, err := aheadFrames([]byte(`{"differences":[
		{"shard":0,"what":"batch x","frames":["a-1","a-2"]},{"shard":0,"what":"batch y","frames":["a-2","a-3"]},
		{"shard":1,"what":"batch z","frames":["a-1"]}]}`))
	require.NoError(t, err)
	assert.Equal(t, 4, n)
	// What a restore can't mend must not hide behind what it can.
	_, err = aheadFrames([]byte(`{"differences":[
		{"shard":0,"what":"batch x","frames":["a-1"]},{"shard":1,"poll":"p","what":"counted is 3, but the tally adds up to 2"}]}`))
	require.ErrorContains(t, err, `shard 1, poll "p": counted is 3`)
	for _, text := range []string{"", "{", "{}", `{"differences":[]}`} {
		_, err := aheadFrames([]byte(text))
		require.Error(t, err, text)
	}
}
