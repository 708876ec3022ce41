package audit

import (
	"context"
	"sync"
	"testing"

	"paredao/internal/vote"
)

// The audit is clean at any moment, while votes are accepted, counted and
// archived at full speed.
func TestAuditOfALivePipeline(t *testing.T) {
	r := newRig(t, "alpha", "beta")
	ctx, cancel := context.WithCancel(t.Context())
	var producers sync.WaitGroup
	for shard := range shards {
		codec, err := vote.NewCodec()
		r.must(err)
		t.Cleanup(codec.Close)
		producers.Go(func() {
			for ctx.Err() == nil {
				r.seq[shard]++
				id := vote.FrameID{Flusher: flusher(shard), Seq: r.seq[shard]}
				b := r.batch(codec, shard, id, 1+int(id.Seq%40), r.polls...)
				// Not ctx: a frame must not be cut off.
				if _, err := r.queue.Enqueue(t.Context(), b); err != nil {
					t.Errorf("enqueue: %v", err)
					return
				}
			}
		})
	}
	stopConsumer, stopArchiver := start(r.consumer(r.store, 100)), start(r.archiver(1000))
	moved := map[int64]bool{}
	for i := range 50 {
		p := r.params()
		p.Recount = i%5 == 4
		report := r.clean(p)
		moved[report.Polls[0].Accepted] = true
	}
	cancel()
	producers.Wait()
	r.empty("votes")
	stopConsumer()
	stopArchiver()
	r.archiveAll(100_000)
	report := r.clean(r.params())
	for _, p := range report.Polls {
		if p.Accepted != p.Counted || p.Accepted != *p.Recounted || p.Accepted == 0 {
			t.Errorf("%+v", p)
		}
	}
	if len(moved) < 25 {
		t.Errorf("the pipeline stood still: %d states", len(moved))
	}
	t.Logf("%d votes, %d batches", report.Polls[0].Accepted+report.Polls[1].Accepted, len(r.names("manifest/")))
}
