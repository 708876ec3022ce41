package redisstore

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"paredao/internal/vote"
)

// counted puts frames of n votes each on the archive list.
func (e *env) counted(frames, n int) []string {
	e.Helper()
	at, err := e.rdb.LLen(e.ctx(), "archive:{0}").Result()
	e.must(err)
	for i := range frames {
		e.send(e.batch(0, vote.NewFlusherID(), uint64(i+1), some("p", n)...))
	}
	e.count(0)
	return e.list("archive:{0}")[at:]
}

func TestArchive(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p", "q")
		st, err := e.ArchiveState(e.ctx(), 0)
		e.must(err)
		if st.Batch != nil || st.NextSequence != 1 || st.Elements != 0 || st.Votes != 0 || !st.Oldest.IsZero() || st.Now.IsZero() {
			e.Errorf("nothing to archive: %+v", st)
		}
		out := e.send(e.batch(0, "f", 1, ballot{"p", "ana", ""}, ballot{"q", "ana", ""}))
		e.count(0)
		rest := e.counted(4, 10)
		st, err = e.ArchiveState(e.ctx(), 0)
		e.must(err)
		if st.Batch != nil || st.NextSequence != 1 || st.Elements != 5 || st.Votes != 42 || !st.Oldest.Equal(out.AcceptedAt) {
			e.Errorf("five frames: %+v", st)
		}
		elements, err := e.ReadArchive(e.ctx(), 0, 0, all)
		e.must(err)
		b, votes := planBatch(0, 1, elements[:3])
		fixed, err := e.FixBatch(e.ctx(), b, "")
		if err != nil || !reflect.DeepEqual(fixed, b) {
			e.Fatalf("fixed %+v (%v), want %+v", fixed, err, b)
		}
		st, err = e.ArchiveState(e.ctx(), 0)
		if err != nil || !reflect.DeepEqual(st.Batch, b) {
			e.Errorf("state has %+v (%v), want %+v", st.Batch, err, b)
		}
		got, err := e.ReadBatch(e.ctx(), b, 1, vote.ReadLimit{Votes: 1 << 20, Bytes: 1 << 20, Elements: 2})
		if err != nil || !slices.Equal(got, elements[1:3]) {
			e.Errorf("read %d elements (%v)", len(got), err)
		}

		// More comes in meanwhile; the batch stays what it is.
		rest = append(rest, e.counted(2, 1)...)
		b2, _ := planBatch(0, 1, elements)
		if fixed, err := e.FixBatch(e.ctx(), b2, ""); err != nil || !reflect.DeepEqual(fixed, b) {
			e.Errorf("a second batch: %+v (%v), want the first", fixed, err)
		}
		e.conserved("p", "q")

		e.must(e.CommitBatch(e.ctx(), b, votes))
		if l := e.ledger(0, "p"); l.Archived != 21 || l.Counted != 43 {
			e.Errorf("ledger of p: %+v", l)
		}
		if got := e.list("archive:{0}"); !slices.Equal(got, rest[2:]) {
			e.Errorf("%d elements are left, want %d", len(got), len(rest[2:]))
		}
		known, err := e.Batches(e.ctx(), 0, []uint64{1, 2})
		if err != nil || known.Fixed != "" || !reflect.DeepEqual(known.Committed, map[uint64]string{1: b.ID}) {
			e.Errorf("batches %+v (%v)", known, err)
		}
		st, err = e.ArchiveState(e.ctx(), 0)
		if err != nil || st.Batch != nil || st.NextSequence != 2 || st.Elements != 4 || st.Votes != 22 {
			e.Errorf("state %+v (%v)", st, err)
		}
		e.conserved("p", "q")
		e.archiveAll(0)
		e.conserved("p", "q")
		if l := e.ledger(0, "p"); l.Archived != 43 {
			e.Errorf("ledger of p: %+v", l)
		}
	})
}

// What is late, or another's, changes nothing; what is repeated gets the same
// answer.
func TestArchiveBatchGone(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		elements := e.counted(4, 2)
		b, votes := planBatch(0, 1, elements[:2])
		before := e.dump()
		gone := func(what string, err error) {
			e.Helper()
			if !errors.Is(err, vote.ErrBatchGone) {
				e.Errorf("%s: %v", what, err)
			}
			e.unchanged(before, what)
		}
		gone("commit before the fix", e.CommitBatch(e.ctx(), b, votes))
		_, err := e.ReadBatch(e.ctx(), b, 0, all)
		gone("read before the fix", err)
		for name, c := range map[string]func(*vote.ArchiveBatch){
			"not from the head":  func(b *vote.ArchiveBatch) { b.First = vote.ElementID([]byte(elements[1])) },
			"another last frame": func(b *vote.ArchiveBatch) { b.Last = vote.ElementID([]byte(elements[3])) },
			"more than are":      func(b *vote.ArchiveBatch) { b.Elements = 5 },
			"sequence used":      func(b *vote.ArchiveBatch) { b.Sequence = 0 },
		} {
			x := *b
			c(&x)
			_, err := e.FixBatch(e.ctx(), &x, "")
			gone(name, err)
		}

		_, err = e.FixBatch(e.ctx(), b, "")
		e.must(err)
		before = e.dump()
		again, err := e.FixBatch(e.ctx(), b, "")
		if err != nil || !reflect.DeepEqual(again, b) {
			e.Errorf("fixed again: %+v (%v)", again, err)
		}
		e.unchanged(before, "fixed again")
		other := *b
		other.ID = "0-00000001-other"
		gone("commit of another batch", e.CommitBatch(e.ctx(), &other, votes))
		_, err = e.ReadBatch(e.ctx(), &other, 0, all)
		gone("read of another batch", err)

		e.must(e.CommitBatch(e.ctx(), b, votes))
		before = e.dump()
		e.must(e.CommitBatch(e.ctx(), b, votes))
		e.unchanged(before, "committed again")
		_, err = e.FixBatch(e.ctx(), b, "")
		gone("fixed after the commit", err)
		_, err = e.ReadBatch(e.ctx(), b, 0, all)
		gone("read after the commit", err)
		gone("commit of another batch of that number", e.CommitBatch(e.ctx(), &other, votes))
		other.ID = "whatever"
		gone("commit of a batch without a number", e.CommitBatch(e.ctx(), &other, votes))

		// Many batches later, the first one still knows that it was committed.
		e.archiveAll(0)
		before = e.dump()
		e.must(e.CommitBatch(e.ctx(), b, votes))
		e.unchanged(before, "committed again, much later")
		e.conserved("p")
	})
}

// A failover took the knowledge that a sequence number was used: the batch gets
// another one.
func TestReplaceBatch(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		elements := e.counted(3, 2)
		b1, votes := planBatch(0, 1, elements[:2])
		b2, _ := planBatch(0, 2, elements[:2])
		_, err := e.FixBatch(e.ctx(), b1, "")
		e.must(err)
		before := e.dump()
		if got, err := e.FixBatch(e.ctx(), b2, "0-00000009-other"); err != nil || !reflect.DeepEqual(got, b1) {
			e.Errorf("in place of another: %+v (%v), want the fixed one", got, err)
		}
		e.unchanged(before, "in place of another")
		for range 2 {
			if got, err := e.FixBatch(e.ctx(), b2, b1.ID); err != nil || !reflect.DeepEqual(got, b2) {
				e.Errorf("replaced: %+v (%v)", got, err)
			}
		}
		if err := e.CommitBatch(e.ctx(), b1, votes); !errors.Is(err, vote.ErrBatchGone) {
			e.Errorf("commit of the replaced one: %v", err)
		}
		known, err := e.Batches(e.ctx(), 0, []uint64{1, 2})
		if err != nil || known.Fixed != b2.ID || len(known.Committed) != 0 {
			e.Errorf("batches %+v (%v)", known, err)
		}
		e.must(e.CommitBatch(e.ctx(), b2, votes))
		st, err := e.ArchiveState(e.ctx(), 0)
		if err != nil || st.NextSequence != 3 {
			e.Errorf("state %+v (%v)", st, err)
		}
		// Replacing what is not there any more is fixing.
		b3, _ := planBatch(0, 3, elements[2:])
		if got, err := e.FixBatch(e.ctx(), b3, b2.ID); err != nil || !reflect.DeepEqual(got, b3) {
			e.Errorf("in place of a committed one: %+v (%v)", got, err)
		}
		e.conserved("p")
	})
}

func TestArchiveOnBrokenData(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		elements := e.counted(2, 2)
		b, votes := planBatch(0, 1, elements)
		_, err := e.FixBatch(e.ctx(), b, "")
		e.must(err)
		// Someone has taken a frame off the list.
		last := e.rdb.RPop(e.ctx(), "archive:{0}").Val()
		before := e.dump()
		if err := e.CommitBatch(e.ctx(), b, votes); err == nil || errors.Is(err, vote.ErrBatchGone) {
			e.Errorf("a frame is missing: %v", err)
		}
		e.unchanged(before, "a frame is missing")
		e.must(e.rdb.RPush(e.ctx(), "archive:{0}", last).Err())
		for _, v := range []string{"x", "-1", "9223372036854775807"} {
			e.must(e.rdb.HSet(e.ctx(), "ledger:{0}", "archived:p", v).Err())
			before = e.dump()
			if err := e.CommitBatch(e.ctx(), b, votes); err == nil || errors.Is(err, vote.ErrBatchGone) {
				e.Errorf("archived is %s: %v", v, err)
			}
			e.unchanged(before, "archived is "+v)
		}
		e.must(e.rdb.HDel(e.ctx(), "ledger:{0}", "archived:p").Err())
		e.must(e.CommitBatch(e.ctx(), b, votes))
		e.conserved("p")

		// A record that is none is an error, not a batch of zeros.
		for _, field := range []string{"sequence", "elements", "votes"} {
			e.must(e.rdb.HSet(e.ctx(), "batch:{0}", "id", "x", "sequence", "2", "elements", "1", "votes", "1", field, "x").Err())
			if st, err := e.ArchiveState(e.ctx(), 0); err == nil {
				e.Errorf("%s is none: %+v", field, st.Batch)
			}
		}
		e.must(e.rdb.Del(e.ctx(), "batch:{0}").Err())
		// Garbage at the head of the list has no age.
		e.must(e.rdb.RPush(e.ctx(), "archive:{0}", "x").Err())
		if st, err := e.ArchiveState(e.ctx(), 0); err != nil || !st.Oldest.IsZero() || st.Elements != 1 {
			e.Errorf("garbage: %+v (%v)", st, err)
		}
		e.must(e.rdb.HSet(e.ctx(), "ledger:{0}", "counted:p", "many").Err())
		if st, err := e.ArchiveState(e.ctx(), 0); !errors.Is(err, errAnswer) {
			e.Errorf("a ledger of words: %+v (%v)", st, err)
		}
	})
}
