package redisstore

import (
	"errors"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"paredao/internal/vote"
)

// mainPath takes votes the whole way through a store that is empty: whatever
// stands between it and Redis, all of it must work. It uses nothing but the
// store.
func mainPath(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	codec, err := vote.NewCodec()
	if err != nil {
		t.Fatal(err)
	}
	defer codec.Close()
	e := &env{T: t, Store: s, codec: codec}

	if h, err := s.Health(ctx); err != nil || h.Problem != "" {
		t.Errorf("health: %+v, %v", h, err)
	}
	e.must(s.CheckShards(ctx))
	e.must(s.CheckShards(ctx))
	key, err := s.ClientKey(ctx)
	e.must(err)
	if again, err := s.ClientKey(ctx); err != nil || !reflect.DeepEqual(again, key) {
		t.Errorf("the client key changed (%v)", err)
	}
	e.apply("p", "q")
	want := vote.Tally{}
	total := int64(0)
	for shard := range s.Shards() {
		consumer := s.Shares(RoleConsumer, "c", time.Minute)
		if live, err := consumer.Join(ctx); err != nil || len(live) != 1 {
			t.Errorf("live %v, %v", live, err)
		}
		if ok, err := consumer.Claim(ctx, shard); err != nil || !ok {
			t.Errorf("claim of shard %d: %v, %v", shard, ok, err)
		}
		for seq, n := range []int{1, 3, 50} {
			b := e.batch(shard, "f", uint64(seq+1), append(some("p", n), ballot{"q", "ana", ""}, ballot{"p", "ana", strconv.Itoa(seq)}, ballot{"p", "ana", strconv.Itoa(seq)})...)
			out := e.send(b)
			if len(out.Keys) != 1 || string(rune(out.Polls[0])) != "a" {
				t.Errorf("outcome %+v", out)
			}
			again, err := s.Queue(time.Hour, 0, 0).Enqueue(ctx, b)
			if err != nil || !reflect.DeepEqual(again, out) {
				t.Errorf("again: %+v (%v)", again, err)
			}
			for i := range n {
				want[[]string{"ana", "bruno", "carla"}[i%3]]++
			}
			want["ana"]++
			total += int64(n) + 1
		}
		e.must(s.AwaitVotes(ctx, shard, time.Second))
		e.count(shard)
		st, err := s.ArchiveState(ctx, shard)
		e.must(err)
		elements, err := s.ReadArchive(ctx, shard, 0, all)
		e.must(err)
		b, votes := planBatch(shard, st.NextSequence, elements)
		fixed, err := s.FixBatch(ctx, b, "")
		e.must(err)
		if got, err := s.ReadBatch(ctx, fixed, 0, all); err != nil || !reflect.DeepEqual(got, elements) {
			t.Errorf("read batch: %d elements, %v", len(got), err)
		}
		e.must(s.CommitBatch(ctx, fixed, votes))
		if known, err := s.Batches(ctx, shard, []uint64{1}); err != nil || known.Committed[1] != b.ID {
			t.Errorf("batches %+v, %v", known, err)
		}

		// One that no one can read, and that is dropped.
		spoilt := e.batch(shard, "f", 4, some("p", 5)...)
		spoilt.Body[len(spoilt.Body)-1] ^= 1
		e.send(spoilt)
		e.count(shard)
		dead, err := s.Dead(ctx, shard, 0, 10)
		if err != nil || len(dead) != 1 {
			t.Fatalf("dead: %d, %v", len(dead), err)
		}
		if ok, err := s.RemoveDead(ctx, dead[0], true); err != nil || !ok {
			t.Errorf("requeue: %v, %v", ok, err)
		}
		read, err := s.ReadQueue(ctx, shard, all)
		e.must(err)
		if status, _, err := s.CommitCount(ctx, e.plan(shard, uuid.NewString(), read)); err != nil || status != vote.CommitDone {
			t.Errorf("commit: %d, %v", status, err)
		}
		if ok, err := s.RemoveDead(ctx, dead[0], false); err != nil || !ok {
			t.Errorf("drop: %v, %v", ok, err)
		}
		e.must(consumer.Release(ctx, shard))
		e.must(consumer.Leave(ctx))
	}
	e.conserved("p", "q")
	e.must(s.ClosePoll(ctx, "p"))
	if err := s.OpenPoll(ctx, "p"); !errors.Is(err, vote.ErrPollClosed) {
		t.Errorf("open after the close: %v", err)
	}
	r, err := s.Results(ctx, "p")
	e.must(err)
	if !r.Final || !reflect.DeepEqual(r.Tally, want) || r.Ledger.Counted != total || r.Ledger.Archived != total {
		t.Errorf("results %+v, want final and %v", r, want)
	}
	queues, err := s.Queues(ctx)
	e.must(err)
	for _, q := range queues {
		if q.Frames != 0 || q.AwaitingFrames != 0 || q.Dead != 0 || q.Consumer != "" {
			t.Errorf("queue %+v", q)
		}
	}
	ids, _, err := s.KnownPolls(ctx)
	if err != nil || !reflect.DeepEqual(ids, []string{"p", "q"}) {
		t.Errorf("polls %v, %v", ids, err)
	}
	if polls, err := s.Polls(ctx); err != nil || len(polls) != 2 {
		t.Errorf("polls %v, %v", polls, err)
	}
	if rev, err := s.PollsRevision(ctx); err != nil || rev == "" {
		t.Errorf("revision %q, %v", rev, err)
	}
	if _, err := s.ShardPolls(ctx); err != nil {
		t.Error(err)
	}
}

func TestMainPath(t *testing.T) {
	onBoth(t, 4, func(e *env) { mainPath(e.T, e.Store) })
}
