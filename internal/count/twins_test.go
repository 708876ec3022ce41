package count

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// A million votes that are the same to the byte, in frames whose bodies are the
// same to the byte: each is one vote. Nothing here looks for an element by its
// content, so identical twins are neither confused nor slow.
func TestAMillionIdenticalVotes(t *testing.T) {
	const million, perFrame = 1_000_000, 1000
	e := newEnv(t, []string{"p"})
	f := e.flusher()
	line := vote.AppendVote(nil, &vote.Vote{ID: uuid.UUID{}, Poll: "p", Option: "ana", Client: "x", UserAgent: "Mozilla/5.0"})
	body := f.codec.Compress(nil, bytes.Repeat(line, perFrame), perFrame)
	p := e.polls["p"]
	q := e.store.Queue(time.Hour, 0, 0)
	require.NoError(t, q.Register(t.Context(), 0, f.id))
	for seq := range uint64(million / perFrame) {
		out, err := q.Enqueue(t.Context(), &vote.Batch{
			ID: vote.FrameID{Flusher: f.id, Seq: seq + 1}, Votes: perFrame, Body: body,
			Polls: []vote.BatchPoll{{Poll: "p", Votes: perFrame, OptionsKey: p.OptionsKey()}},
		})
		require.NoError(t, err)
		require.Equal(t, vote.PollAccepted, out.Polls[0])
	}
	newConsumer(e.store, "w", 2000).drain(t)
	e.exact("p", vote.Tally{"ana": million})
	assert.Empty(t, e.list("votes:{0}"))
	assert.Empty(t, e.list("dead:{0}"))
	assert.EqualValues(t, million/perFrame, e.rdb.LLen(t.Context(), "archive:{0}").Val())
}

// Work that a consumer has in hand stands in the queue until it is committed: a
// scaler that reads the list's length sees it, and does not scale in under it
// (keda#6719).
func TestWorkInHandStandsInTheQueue(t *testing.T) {
	e := newEnv(t, []string{"p"})
	for range 5 {
		e.enqueue(some("p", 3)...)
	}
	store, proxy := e.behind()
	c := newConsumer(store, "w", 100)
	held, release := proxy.HoldNext(isCommit)
	stop := c.start(t)
	<-held
	assert.EqualValues(t, 5, e.rdb.LLen(t.Context(), "votes:{0}").Val(), "all of it is being counted")
	release()
	testkit.Eventually(t, "it is counted", func() bool { return e.counted("p") == 15 })
	stop()
	assert.Empty(t, e.list("votes:{0}"))
}
