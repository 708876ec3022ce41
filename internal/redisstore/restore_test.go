package redisstore

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// lostBatch is a batch of shard 0 with votes of the poll p.
func lostBatch(sequence uint64, t vote.Tally) *vote.RestoredBatch {
	b := &vote.RestoredBatch{Sequence: sequence, ID: fmt.Sprintf("0-%012d-lost", sequence)}
	if t != nil {
		b.Votes = map[string]vote.Tally{"p": t}
	}
	return b
}

func TestRestoreBatch(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p", "q")
		e.counted(2, 3)
		e.archiveAll(0) // batch 1
		e.must(e.BeginRestore(e.ctx(), 0, "mine"))
		b := lostBatch(5, vote.Tally{"ana": 4, "carla": 1})
		b.Votes["q"] = vote.Tally{"bruno": 7}
		for range 2 { // twice is once
			e.must(e.RestoreBatch(e.ctx(), "mine", "next", b))
			if l := e.ledger(0, "p"); l.Accepted != 11 || l.Counted != 11 || l.Archived != 11 {
				e.Errorf("ledger of p: %+v", l)
			}
			if l := e.ledger(0, "q"); l.Accepted != 7 || l.Counted != 7 || l.Archived != 7 {
				e.Errorf("ledger of q: %+v", l)
			}
			_, page, err := snapshot(e.ctx(), e.Store, 0, []string{"p", "q"})
			e.must(err)
			if want := []vote.Tally{{"ana": 6, "bruno": 2, "carla": 3}, {"bruno": 7}}; !reflect.DeepEqual(page.Tallies, want) {
				e.Errorf("tallies %v, want %v", page.Tallies, want)
			}
			if page.LastBatch != 5 || page.LateBatches != 0 {
				e.Errorf("last batch %d, %d late", page.LastBatch, page.LateBatches)
			}
			e.conserved("p", "q")
		}
		// An earlier one, of which Redis has all frames, is only marked, as late.
		for range 2 {
			e.must(e.RestoreBatch(e.ctx(), "next", "last", lostBatch(3, nil)))
			known, err := e.Batches(e.ctx(), 0, []uint64{1, 2, 3, 4, 5})
			if err != nil || len(known.Committed) != 3 || known.Committed[3] != lostBatch(3, nil).ID || known.Late != 1 {
				e.Errorf("batches %+v (%v)", known, err)
			}
			_, page, err := snapshot(e.ctx(), e.Store, 0, nil)
			if err != nil || page.LastBatch != 5 || page.LateBatches != 1 {
				e.Errorf("last batch %d, %d late (%v)", page.LastBatch, page.LateBatches, err)
			}
		}
		if n, err := e.CountBatches(e.ctx(), 0); err != nil || n != 3 {
			e.Errorf("%d batches (%v)", n, err)
		}
		// The archiver goes on after the highest one.
		st, err := e.ArchiveState(e.ctx(), 0)
		if err != nil || st.NextSequence != 6 {
			e.Errorf("state %+v (%v)", st, err)
		}
		e.conserved("p", "q")
	})
}

// What may not be so any more, or is wrong, changes nothing.
func TestRestoreRefused(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		b := lostBatch(2, vote.Tally{"ana": 4})
		lost := func(when, token string) {
			e.Helper()
			before := e.dump()
			if err := e.RestoreBatch(e.ctx(), token, "unused", b); !errors.Is(err, vote.ErrRestoreLost) {
				e.Errorf("%s: %v", when, err)
			}
			e.unchanged(before, when)
		}
		lost("without a token", "mine")
		e.must(e.BeginRestore(e.ctx(), 0, "mine"))
		before := e.dump()
		e.must(e.BeginRestore(e.ctx(), 0, "mine"))
		e.unchanged(before, "begun again")
		e.must(e.BeginRestore(e.ctx(), 0, "other"))
		lost("after another has begun", "mine")

		elements := e.counted(1, 3)
		fixed, votes := planBatch(0, 2, elements)
		_, err := e.FixBatch(e.ctx(), fixed, "")
		e.must(err)
		b.ID = fixed.ID
		before = e.dump()
		if err := e.RestoreBatch(e.ctx(), "other", "next", b); !errors.Is(err, vote.ErrBatchGone) {
			e.Errorf("a fixed batch: %v", err)
		}
		e.unchanged(before, "a fixed batch")

		e.must(e.CommitBatch(e.ctx(), fixed, votes))
		before = e.dump()
		if err := e.RestoreBatch(e.ctx(), "other", "next", b); !errors.Is(err, vote.ErrBatchGone) {
			e.Errorf("a batch that an archiver has committed: %v", err)
		}
		e.unchanged(before, "a committed batch")
		b.ID = "0-000000000002-other"
		before = e.dump()
		if err := e.RestoreBatch(e.ctx(), "other", "next", b); err == nil || !strings.Contains(err.Error(), fixed.ID) {
			e.Errorf("another batch's number: %v", err)
		}
		e.unchanged(before, "another batch's number")

		b = lostBatch(3, vote.Tally{"ana": 4, "bruno": 1})
		for key, fields := range map[string][]string{
			"ledger:{0}":  {"accepted:p", "counted:p", "archived:p", "last_batch", "late_batches"},
			"tally:{0}:p": {"ana", "bruno"},
		} {
			for _, field := range fields {
				for _, v := range []string{"x", "-1", "9223372036854775807"} {
					had := e.rdb.HGet(e.ctx(), key, field).Val()
					e.must(e.rdb.HSet(e.ctx(), key, field, v).Err())
					before := e.dump()
					if err := e.RestoreBatch(e.ctx(), "other", "next", b); err == nil {
						e.Errorf("%s is %s, and no error", field, v)
					}
					e.unchanged(before, field+" is "+v)
					if had == "" {
						e.must(e.rdb.HDel(e.ctx(), key, field).Err())
					} else {
						e.must(e.rdb.HSet(e.ctx(), key, field, had).Err())
					}
				}
			}
		}
		e.must(e.RestoreBatch(e.ctx(), "other", "next", b))
		e.conserved("p")
		// A token that was used, and a repeated call that another restore overtook.
		lost("with a token that was used", "other")
		e.must(e.BeginRestore(e.ctx(), 0, "another"))
		before = e.dump()
		if err := e.RestoreBatch(e.ctx(), "other", "next", lostBatch(3, nil)); !errors.Is(err, vote.ErrRestoreLost) {
			e.Errorf("repeated, after another has begun: %v", err)
		}
		e.unchanged(before, "repeated, after another has begun")
	})
}

// What a restore reads comes with a new token, and only for the last one; a lost
// reply is asked for again.
func TestRestoreReads(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		e.counted(2, 3)
		e.archiveAll(0) // batch 1
		e.counted(1, 2)
		e.send(e.batch(0, "f", 1, some("p", 4)...))
		p := testkit.NewProxy(e.T, e.addr)
		proxied := e.open(Options{URL: p.URL(), Shards: 1})
		token := "mine"
		read := func(s *Store) {
			e.Helper()
			was := token
			page, next, err := s.RestoreSnapshot(e.ctx(), 0, token, [3]int64{})
			e.must(err)
			want, err := e.Snapshot(e.ctx(), 0, nil, [3]int64{})
			e.must(err)
			page.Now, want.Now = time.Time{}, time.Time{}
			if !reflect.DeepEqual(page, want) {
				e.Errorf("page %+v, want %+v", page, want)
			}
			batches, last, err := s.RestoreBatches(e.ctx(), 0, next, []uint64{1, 2})
			e.must(err)
			known, err := e.Batches(e.ctx(), 0, []uint64{1, 2})
			if err != nil || len(known.Committed) != 1 || !reflect.DeepEqual(batches, known) {
				e.Errorf("batches %+v, want %+v (%v)", batches, known, err)
			}
			if token = last; token != e.rdb.HGet(e.ctx(), "ledger:{0}", "restore").Val() {
				e.Errorf("%s is not the token", token)
			}
			before := e.dump()
			for _, old := range []string{"", was, next} {
				if _, _, err := s.RestoreSnapshot(e.ctx(), 0, old, [3]int64{}); !errors.Is(err, vote.ErrRestoreLost) {
					e.Errorf("snapshot with an old token: %v", err)
				}
				if _, _, err := s.RestoreBatches(e.ctx(), 0, old, nil); !errors.Is(err, vote.ErrRestoreLost) {
					e.Errorf("batches with an old token: %v", err)
				}
			}
			e.unchanged(before, "with an old token")
		}
		e.must(e.BeginRestore(e.ctx(), 0, token))
		read(e.Store)
		e.must(e.rdb.ScriptFlush(e.ctx()).Err())
		read(e.Store)
		dropped := p.DropNext(func(cmd []string) bool { return strings.EqualFold(cmd[0], "exec") })
		read(proxied)
		<-dropped
	})
}

// A batch that was fixed before a restore raised the number of the last one is
// committed after it, and counts as late.
func TestCommitAfterRestore(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		b, votes := planBatch(0, 1, e.counted(2, 2))
		_, err := e.FixBatch(e.ctx(), b, "")
		e.must(err)
		e.must(e.BeginRestore(e.ctx(), 0, "mine"))
		e.must(e.RestoreBatch(e.ctx(), "mine", "next", lostBatch(2, vote.Tally{"ana": 1})))
		for range 2 {
			e.must(e.CommitBatch(e.ctx(), b, votes))
			_, page, err := snapshot(e.ctx(), e.Store, 0, nil)
			if err != nil || page.LastBatch != 2 || page.LateBatches != 1 {
				e.Errorf("last batch %d, %d late (%v)", page.LastBatch, page.LateBatches, err)
			}
		}
		e.conserved("p")
		e.counted(1, 1)
		e.archiveAll(0)
		known, err := e.Batches(e.ctx(), 0, []uint64{1, 2, 3})
		if err != nil || len(known.Committed) != 3 || known.Late != 1 {
			e.Errorf("%+v (%v)", known, err)
		}
		// A number that went to another batch is not given away twice.
		b, votes = planBatch(0, 4, e.counted(1, 1))
		_, err = e.FixBatch(e.ctx(), b, "")
		e.must(err)
		e.must(e.RestoreBatch(e.ctx(), "next", "last", lostBatch(4, nil)))
		before := e.dump()
		if err := e.CommitBatch(e.ctx(), b, votes); err == nil || errors.Is(err, vote.ErrBatchGone) {
			e.Errorf("a number twice: %v", err)
		}
		e.unchanged(before, "a number twice")
	})
}

// A header that says more votes than were ever accepted takes nothing from the
// poll when its element is dropped.
func TestDropForgedDead(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		frame := func(id, votes string) string { return "P1 " + id + " 1 1000 - " + votes + "\nunreadable" }
		drop := func(at int, element string) {
			e.Helper()
			if ok, err := e.RemoveDead(e.ctx(), DeadElement{0, at, element}, false); err != nil || !ok {
				e.Errorf("dropped: %v (%v)", ok, err)
			}
		}
		// Into the dead list, past the ledger.
		straight := frame("forged-1", "p:900,ghost:100")
		e.must(e.rdb.RPush(e.ctx(), "dead:{0}", straight).Err())
		e.send(e.batch(0, "f", 1, some("p", 6)...))
		drop(0, straight)
		if l := e.ledger(0, "p"); l != (vote.PollLedger{Accepted: 6}) {
			e.Errorf("ledger %+v", l)
		}
		if n := e.rdb.HExists(e.ctx(), "ledger:{0}", "dropped:ghost").Val(); n {
			e.Error("a poll that nobody voted in has dropped votes")
		}
		e.conserved("p")

		// By the queue: the consumer calls its votes dead. Real ones are dead too.
		dead := e.deadFrames() // 10 and 20 votes; counts the 6
		forged := frame("forged-2", "p:1000")
		e.push(0, forged)
		e.count(0)
		if l := e.ledger(0, "p"); l.Dead != 1030 || l.Accepted != 36 {
			e.Fatalf("ledger %+v", l)
		}
		e.send(e.batch(0, "f", 2, some("p", 5)...))
		for _, d := range dead[1:3] {
			drop(d.Index, d.Element)
			if l := e.ledger(0, "p"); l.Pending() < 0 {
				e.Errorf("ledger %+v", l)
			}
		}
		drop(4, forged)
		e.count(0)
		if l := e.ledger(0, "p"); l.Dead != 0 || l.Accepted != l.Counted+l.Dropped || l.Counted != 11 || l.Dropped != 30 {
			e.Errorf("ledger %+v", l)
		}
		e.conserved("p")
	})
}

// Votes that no consumer called dead are dropped if they were accepted; whether
// they were is not guessed while too much is queued to look.
func TestDropUncountedDead(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		e.send(e.batch(0, "f", 1, some("p", 4)...))
		elements := e.readQueue(0)
		c := e.plan(0, "an older version", elements)
		c.Dead, c.DeadVotes, c.Counts = []int{0}, nil, nil
		e.commit(c, vote.CommitDone, "to the dead list")
		e.must(e.queue().Register(e.ctx(), 0, "g"))
		for seq := range uint64(1100) {
			_, err := e.queue().Enqueue(e.ctx(), e.batch(0, "g", seq+1, some("p", 1)...))
			e.must(err)
		}
		before := e.dump()
		if ok, err := e.RemoveDead(e.ctx(), DeadElement{0, 0, elements[0]}, false); err == nil || !strings.Contains(err.Error(), "tally queue") {
			e.Errorf("with a long queue: %v (%v)", ok, err)
		}
		e.unchanged(before, "with a long queue")
		e.count(0)
		e.send(e.batch(0, "f", 2, some("p", 3)...))
		if ok, err := e.RemoveDead(e.ctx(), DeadElement{0, 0, elements[0]}, false); err != nil || !ok {
			e.Errorf("with a short one: %v (%v)", ok, err)
		}
		if l := e.ledger(0, "p"); l.Dropped != 4 || l.Queued() != 3 {
			e.Errorf("ledger %+v", l)
		}
		e.conserved("p")
	})
}

// A poll is whole with its definition and a window on every shard.
func TestKnownPolls(t *testing.T) {
	onBoth(t, 2, func(e *env) {
		e.apply("a", "b", "c", "d", "e")
		e.must(e.rdb.HDel(e.ctx(), "polls:{0}", "b").Err())
		e.must(e.rdb.HDel(e.ctx(), "windows:{1}", "c").Err())
		e.must(e.rdb.HDel(e.ctx(), "windows:{0}", "d").Err())
		e.must(e.rdb.HDel(e.ctx(), "windows:{1}", "d").Err())
		e.must(e.rdb.HDel(e.ctx(), "polls:{1}", "e").Err()) // readers look at shard 0
		e.must(e.rdb.HSet(e.ctx(), "ledger:{1}", "accepted:f", 1).Err())
		ids, undefined, err := e.KnownPolls(e.ctx())
		if err != nil || strings.Join(ids, "") != "abcdef" || strings.Join(undefined, "") != "bcdf" {
			e.Errorf("known %v, undefined %v (%v)", ids, undefined, err)
		}
	})
}
