package redisstore

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"paredao/internal/vote"
)

func TestQueues(t *testing.T) {
	onBoth(t, 2, func(e *env) {
		e.apply("p", "q")
		queues, err := e.Queues(e.ctx())
		e.must(err)
		for shard, q := range queues {
			if q.Now.IsZero() {
				e.Error("no time")
			}
			q.Now = time.Time{}
			if q != (ShardQueue{Shard: shard}) {
				e.Errorf("nothing there: %+v", q)
			}
		}
		first := e.send(e.batch(1, "f", 1, append(some("p", 10), some("q", 5)...)...)).AcceptedAt
		e.send(e.batch(1, "f", 2, some("p", 10)...))
		e.count(1)
		second := e.send(e.batch(1, "f", 3, some("p", 4)...)).AcceptedAt
		b := e.batch(1, "f", 4, some("q", 10)...)
		b.Body[len(b.Body)-1] ^= 1
		e.send(b)
		q := e.queueOf(1)
		want := ShardQueue{
			Shard: 1, Now: q.Now, Frames: 2, Votes: 14, Oldest: second,
			AwaitingFrames: 2, AwaitingVotes: 25, AwaitingOldest: first,
		}
		if q != want {
			e.Errorf("got  %+v\nwant %+v", q, want)
		}
		e.count(1)
		q = e.queueOf(1)
		want.Now, want.Frames, want.Votes, want.Oldest = q.Now, 0, 0, time.Time{}
		want.AwaitingFrames, want.AwaitingVotes, want.Dead, want.DeadVotes = 3, 29, 1, 10
		if q != want {
			e.Errorf("got  %+v\nwant %+v", q, want)
		}
		// Garbage at the heads has no age, and stops nobody from looking.
		e.push(0, "garbage")
		e.must(e.rdb.RPush(e.ctx(), "archive:{0}", "garbage").Err())
		if q := e.queueOf(0); q.Frames != 1 || q.AwaitingFrames != 1 || !q.Oldest.IsZero() || !q.AwaitingOldest.IsZero() {
			e.Errorf("garbage: %+v", q)
		}
		e.must(e.rdb.HSet(e.ctx(), "ledger:{0}", "counted:q", "many").Err())
		if _, err := e.Queues(e.ctx()); !errors.Is(err, errAnswer) {
			e.Errorf("a ledger of words: %v", err)
		}
	})
}

func (e *env) queueOf(shard int) ShardQueue {
	e.Helper()
	queues, err := e.Queues(e.ctx())
	e.must(err)
	return queues[shard]
}

// deadFrames makes a dead list of garbage and of frames that can't be read.
func (e *env) deadFrames() []DeadElement {
	e.Helper()
	e.push(0, "garbage")
	for seq, n := range []int{10, 20} {
		b := e.batch(0, "dead", uint64(seq+1), some("p", n)...)
		b.Body[len(b.Body)-1] ^= 1
		e.send(b)
	}
	e.push(0, "garbage")
	e.count(0)
	dead, err := e.Dead(e.ctx(), 0, 0, 100)
	e.must(err)
	return dead
}

func TestDeadList(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		dead := e.deadFrames()
		if len(dead) != 4 {
			e.Fatalf("%d dead elements", len(dead))
		}
		for i, d := range dead {
			if d.Shard != 0 || d.Index != i || (d.Element == "garbage") != (i == 0 || i == 3) {
				e.Errorf("element %d is %+v", i, d)
			}
		}
		page, err := e.Dead(e.ctx(), 0, 1, 2)
		if err != nil || !reflect.DeepEqual(page, dead[1:3]) {
			e.Errorf("a page: %+v (%v)", page, err)
		}
		if page, err := e.Dead(e.ctx(), 0, 4, 2); err != nil || len(page) != 0 {
			e.Errorf("beyond the end: %+v (%v)", page, err)
		}
		remove := func(d DeadElement, requeue, want bool) {
			e.Helper()
			if got, err := e.RemoveDead(e.ctx(), d, requeue); err != nil || got != want {
				e.Errorf("removed: %v (%v), want %v", got, err, want)
			}
			e.conserved("p")
		}
		// One from the middle goes back to the queue, and wakes a consumer.
		remove(dead[1], true, true)
		if q := e.readQueue(0); !slices.Equal(q, []string{dead[1].Element}) {
			e.Errorf("the queue holds %d elements", len(q))
		}
		if n := e.rdb.LLen(e.ctx(), "wake:{0}").Val(); n != 1 {
			e.Errorf("%d signals", n)
		}
		if l := e.ledger(0, "p"); l.Dead != 20 || l.Accepted != 30 || l.Queued() != 10 || l.Dropped != 0 {
			e.Errorf("ledger %+v", l)
		}
		before := e.dump()
		remove(dead[1], true, false)
		remove(dead[1], false, false)
		e.unchanged(before, "removed again")
		// One whose place has changed meanwhile is dropped.
		remove(dead[2], false, true)
		if l := e.ledger(0, "p"); l.Dead != 0 || l.Dropped != 20 || l.Pending() != 10 {
			e.Errorf("ledger %+v", l)
		}
		before = e.dump()
		remove(dead[2], false, false)
		remove(DeadElement{0, 99, "garbagé"}, false, false)
		e.unchanged(before, "removed again")
		// Of twins, the one that is meant and then the other.
		remove(dead[3], false, true)
		remove(dead[3], true, true)
		if q := e.readQueue(0); !slices.Equal(q, []string{dead[1].Element, "garbage"}) {
			e.Errorf("the queue holds %d elements", len(q))
		}
		// What comes back unreadable is dead again.
		e.count(0)
		if l := e.ledger(0, "p"); l.Dead != 10 {
			e.Errorf("ledger %+v", l)
		}
		e.conserved("p")
		remove(DeadElement{0, 0, dead[1].Element}, true, true)
		remove(DeadElement{0, 0, "garbage"}, false, true)
		if n := e.rdb.LLen(e.ctx(), "dead:{0}").Val(); n != 0 {
			e.Errorf("%d dead elements are left", n)
		}
		remove(DeadElement{0, 0, "garbage"}, false, false) // of an empty list
	})
}

// Elements with the script's own marker, patterns, and every place of a long
// list; the rest keeps its order.
func TestRemoveDeadFromAnywhere(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		var all []string
		for i := range 400 {
			all = append(all, fmt.Sprintf("e%d", i))
		}
		all[0], all[3], all[200] = "removed", "%removed%", "removed"
		push := func() {
			e.must(e.rdb.Del(e.ctx(), "dead:{0}").Err())
			e.must(e.rdb.RPush(e.ctx(), "dead:{0}", all).Err())
		}
		for _, c := range []struct{ seen, at int }{
			{0, 0}, {399, 399}, {5, 5}, {399, 0}, {399, 1}, {300, 3}, {399, 271}, {399, 270}, {143, 15}, {143, 16}, {4000, 250}, {200, 200},
		} {
			push()
			ok, err := e.RemoveDead(e.ctx(), DeadElement{0, c.seen, all[c.at]}, false)
			if err != nil || !ok {
				e.Errorf("%+v: %v (%v)", c, ok, err)
			}
			want := slices.Delete(slices.Clone(all), c.at, c.at+1)
			got := e.list("dead:{0}")
			if all[c.at] == "removed" { // either of the twins
				slices.Sort(got)
				slices.Sort(want)
			}
			if !slices.Equal(got, want) {
				e.Errorf("%+v: %d elements are left, not the right ones", c, len(got))
			}
		}
		// An element that is behind the place where it was seen was not seen.
		push()
		if ok, err := e.RemoveDead(e.ctx(), DeadElement{0, 10, "e11"}, false); err != nil || ok {
			e.Errorf("behind its place: %v (%v)", ok, err)
		}
		// A whole list, worked off in order of the places seen at first.
		for i, el := range all {
			if ok, err := e.RemoveDead(e.ctx(), DeadElement{0, i, el}, true); err != nil || !ok {
				e.Fatalf("element %d: %v (%v)", i, ok, err)
			}
		}
		if got := e.readQueue(0); !slices.Equal(got, all) {
			e.Errorf("%d elements came back in another order", len(got))
		}
	})
}

// Votes whose header no one could read then were never counted as dead; they
// must not be counted out.
func TestRemoveDeadThatWasNotCounted(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		e.send(e.batch(0, "f", 1, some("p", 3)...))
		e.send(e.batch(0, "f", 2, some("p", 4)...))
		elements := e.readQueue(0)
		c := e.plan(0, "an older version", elements)
		c.Dead, c.DeadVotes, c.Counts = []int{0, 1}, nil, nil
		e.commit(c, vote.CommitDone, "both to the dead list")
		for i, requeue := range []bool{true, false} {
			if ok, err := e.RemoveDead(e.ctx(), DeadElement{0, i, elements[i]}, requeue); err != nil || !ok {
				e.Errorf("%v (%v)", ok, err)
			}
		}
		if l := e.ledger(0, "p"); l.Dead != 0 || l.Dropped != 4 || l.Queued() != 3 {
			e.Errorf("ledger %+v", l)
		}
		e.conserved("p")
		for _, field := range []string{"dead:p", "dropped:p"} {
			e.push(0, elements[1])
			e.must(e.rdb.RPush(e.ctx(), "dead:{0}", elements[1]).Err())
			e.must(e.rdb.HSet(e.ctx(), "ledger:{0}", field, "many").Err())
			before := e.dump()
			if ok, err := e.RemoveDead(e.ctx(), DeadElement{0, 0, elements[1]}, false); err == nil {
				e.Errorf("%s is a word: %v", field, ok)
			}
			e.unchanged(before, field)
			e.must(e.rdb.HDel(e.ctx(), "ledger:{0}", field).Err())
		}
	})
}

func TestSnapshot(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p", "q")
		lists, page, err := snapshot(e.ctx(), e.Store, 0, []string{"p", "nope"})
		e.must(err)
		if len(lists[0])+len(lists[1])+len(lists[2]) != 0 || !page.Complete || page.Now.IsZero() ||
			!reflect.DeepEqual(page.Tallies, []vote.Tally{{}, {}}) || len(page.Ledgers) != 0 {
			e.Errorf("nothing there: %+v", page)
		}
		e.deadFrames()
		e.send(e.batch(0, "f", 1, some("p", 4)...))
		e.send(e.batch(0, "f", 2, some("q", 2)...))
		e.count(0)
		e.archiveAll(0)
		e.send(e.batch(0, "f", 3, some("p", 1)...))
		e.count(0)
		e.send(e.batch(0, "f", 4, some("p", 2)...))
		lists, page, err = snapshot(e.ctx(), e.Store, 0, []string{"q", "p"})
		e.must(err)
		if len(lists[0]) != 1 || len(lists[1]) != 1 || len(lists[2]) != 4 || page.LastBatch != 1 {
			e.Errorf("%d, %d, %d elements, last batch %d", len(lists[0]), len(lists[1]), len(lists[2]), page.LastBatch)
		}
		if want := []vote.Tally{{"ana": 1, "bruno": 1}, {"ana": 3, "bruno": 1, "carla": 1}}; !reflect.DeepEqual(page.Tallies, want) {
			e.Errorf("tallies %v, want %v", page.Tallies, want)
		}
		if page.Queue.Head != 7 || page.Archive.Head != 2 || page.Dead.Head != 0 {
			e.Errorf("heads %d, %d, %d", page.Queue.Head, page.Archive.Head, page.Dead.Head)
		}
		if want := (vote.PollLedger{Accepted: 37, Counted: 5, Archived: 4, Dead: 30}); page.Ledgers["p"] != want {
			e.Errorf("ledger %+v, want %+v", page.Ledgers["p"], want)
		}
		// A page from beyond the end says so by its places.
		page, err = e.Snapshot(e.ctx(), 0, nil, [3]int64{99, 99, 99})
		if err != nil || page.Queue.Head != 7 || page.Queue.From != 99 || len(page.Queue.Elements) != 0 {
			e.Errorf("beyond the end: %+v (%v)", page.Queue, err)
		}
		e.must(e.rdb.HSet(e.ctx(), "ledger:{0}", "last_batch", "many").Err())
		if _, err := e.Snapshot(e.ctx(), 0, nil, [3]int64{}); !errors.Is(err, errAnswer) {
			e.Errorf("last_batch is a word: %v", err)
		}
		e.must(e.rdb.HSet(e.ctx(), "ledger:{0}", "last_batch", "1", "counted:p", "many").Err())
		if _, err := e.Snapshot(e.ctx(), 0, nil, [3]int64{}); !errors.Is(err, errAnswer) {
			e.Errorf("a ledger of words: %v", err)
		}
		e.must(e.rdb.HSet(e.ctx(), "ledger:{0}", "counted:p", "1").Err())
		e.must(e.rdb.HSet(e.ctx(), "tally:{0}:p", "ana", "many").Err())
		if _, err := e.Snapshot(e.ctx(), 0, []string{"p"}, [3]int64{}); !errors.Is(err, errAnswer) {
			e.Errorf("a tally of words: %v", err)
		}
	})
}

// While an audit pages through a deep queue, votes come in at its end, are
// counted at its head, archived, and moved on from the dead list: every snapshot
// adds up, of its one instant.
func TestSnapshotOfAMovingQueue(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		q := e.queue()
		e.must(q.Register(e.ctx(), 0, "f"))
		for seq := range uint64(1500) {
			_, err := q.Enqueue(e.ctx(), e.batch(0, "f", seq+1, some("p", 1+int(seq%7))...))
			e.must(err)
		}
		// The worker has helpers of its own, apart from the test's codec.
		w := *e
		var err error
		if w.codec, err = vote.NewCodec(); err != nil {
			e.Fatal(err)
		}
		defer w.codec.Close()
		stop := make(chan struct{})
		var working sync.WaitGroup
		working.Go(func() {
			for i := uint64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := w.move(q, 1501+i); err != nil {
					e.Error(err)
					return
				}
			}
		})
		for range 8 {
			e.conserved("p")
		}
		close(stop)
		working.Wait()
		e.conserved("p")
	})
}

// move takes one step of everything that may happen to a shard.
func (e *env) move(q *Queue, seq uint64) error {
	ctx := e.ctx()
	b := e.batch(0, "f", seq, some("p", 1+int(seq%5))...)
	if seq%3 == 0 {
		b.Body = []byte("unreadable")
	}
	if _, err := q.Enqueue(ctx, b); err != nil {
		return err
	}
	elements, err := e.ReadQueue(ctx, 0, vote.ReadLimit{Votes: 10, Bytes: 1 << 20, Elements: 3})
	if err != nil {
		return err
	}
	if len(elements) > 0 {
		if status, _, err := e.CommitCount(ctx, e.plan(0, uuid.NewString(), elements)); err != nil || status != vote.CommitDone {
			return fmt.Errorf("commit: %d, %w", status, err)
		}
	}
	if seq%4 == 0 {
		st, err := e.ArchiveState(ctx, 0)
		if err != nil {
			return err
		}
		awaiting, err := e.ReadArchive(ctx, 0, 0, vote.ReadLimit{Votes: 40, Bytes: 1 << 20, Elements: 20})
		if err != nil || len(awaiting) == 0 {
			return err
		}
		batch, votes := planBatch(0, st.NextSequence, awaiting)
		if _, err := e.FixBatch(ctx, batch, ""); err != nil {
			return err
		}
		return e.CommitBatch(ctx, batch, votes)
	}
	return nil
}

// An audit that reads on after something left the middle of the dead list can
// tell by the head.
func TestSnapshotTellsOfRemovedDead(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		dead := e.deadFrames()
		before, err := e.Snapshot(e.ctx(), 0, nil, [3]int64{})
		e.must(err)
		_, err = e.RemoveDead(e.ctx(), dead[2], false)
		e.must(err)
		after, err := e.Snapshot(e.ctx(), 0, nil, [3]int64{0, 0, before.Dead.From})
		e.must(err)
		if before.Dead.Head == after.Dead.Head {
			e.Error("the head says that nothing has changed")
		}
	})
}

// An answer of another form is an error, never a zero.
func TestAnswers(t *testing.T) {
	list := func(v ...any) []any { return v }
	page := list(int64(1), int64(1), list("e"))
	good := list(int64(1), page, page, page, int64(1), list("accepted:p", "1"), list(list("ana", "1")))
	if got, err := asSnapshot(good); err != nil || got.Tallies[0]["ana"] != 1 || got.Ledgers["p"].Accepted != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	with := func(i int, v any) []any {
		out := slices.Clone(good)
		out[i] = v
		return out
	}
	for name, v := range map[string]any{
		"nil": nil, "text": "x", "short": good[:6], "long": append(slices.Clone(good), 1),
		"now": with(0, "x"), "now is nil": with(0, nil), "no page": with(1, int64(1)), "short page": with(2, page[:2]),
		"head": with(3, list("x", int64(1), page[2])), "from": with(1, list(int64(1), nil, page[2])),
		"elements": with(1, list(int64(1), int64(1), "x")), "element": with(1, list(int64(1), int64(1), list(int64(1)))),
		"done": with(4, "x"), "ledger": with(5, "x"), "ledger's field": with(5, list(int64(1), "x")),
		"ledger's votes": with(5, list("accepted:p", nil)), "tallies": with(6, "x"), "tally": with(6, list("x")),
		"tally's votes": with(6, list(list("ana", "x"))), "half a ledger": with(5, list("accepted:p")),
	} {
		if got, err := asSnapshot(v); !errors.Is(err, errAnswer) {
			t.Errorf("snapshot, %s: %+v, %v", name, got, err)
		}
	}
	for _, v := range []any{nil, list(), list("same", int64(1), int64(1)), list(int64(1), int64(1), int64(1), int64(1)), list("same", "x", int64(1), int64(1)), list("same", int64(1), nil, int64(1))} {
		if _, _, err := asWindowAnswer(v); !errors.Is(err, errAnswer) {
			t.Errorf("window, %v: %v", v, err)
		}
	}
	for _, v := range []any{nil, list(int64(1), list()), list("x", list(), list()), list(int64(1), "x", list()), list(int64(1), list("p", "x"), list()), list(int64(1), list(), "x")} {
		if _, err := asShardPolls(v); !errors.Is(err, errAnswer) {
			t.Errorf("shard polls, %v: %v", v, err)
		}
	}
}

func TestBatches(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		var all []uint64
		want := map[uint64]string{}
		pipe := e.rdb.Pipeline()
		for i := range uint64(2500) {
			all = append(all, i+1)
			if i%2 == 0 {
				want[i+1] = fmt.Sprintf("0-%d-x", i+1)
				pipe.HSet(e.ctx(), "batches:{0}", strconv.FormatUint(i+1, 10), want[i+1])
			}
		}
		_, err := pipe.Exec(e.ctx())
		e.must(err)
		got, err := e.Batches(e.ctx(), 0, all)
		if err != nil || got.Fixed != "" || !reflect.DeepEqual(got.Committed, want) {
			e.Errorf("%d batches (%v), want %d", len(got.Committed), err, len(want))
		}
		if got, err := e.Batches(e.ctx(), 0, nil); err != nil || len(got.Committed) != 0 {
			e.Errorf("none asked for: %+v (%v)", got, err)
		}
	})
}

func TestCheckShards(t *testing.T) {
	onBoth(t, 3, func(e *env) {
		if e.Shards() != 3 {
			e.Errorf("Shards() = %d", e.Shards())
		}
		empty := e.dump()
		e.must(e.SameShards(e.ctx()))
		e.unchanged(empty, "looked at")
		e.must(e.CheckShards(e.ctx()))
		e.must(e.SameShards(e.ctx()))
		before := e.dump()
		e.must(e.CheckShards(e.ctx()))
		other := e.open(Options{URL: "redis://" + e.addr, Shards: 2})
		for _, err := range []error{other.CheckShards(e.ctx()), other.SameShards(e.ctx())} {
			if !errors.Is(err, vote.ErrShardsMismatch) || !strings.Contains(err.Error(), "is 2") || !strings.Contains(err.Error(), "set queue-shards to 3") {
				e.Errorf("another number: %v", err)
			}
		}
		e.unchanged(before, "checked again")
	})
}

func TestClientKey(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		var keys [4][]byte
		var errs [4]error
		var asking sync.WaitGroup
		for i := range keys {
			asking.Go(func() { keys[i], errs[i] = e.ClientKey(e.ctx()) })
		}
		asking.Wait()
		e.must(errors.Join(errs[:]...))
		for _, k := range keys {
			if len(k) != 32 || !slices.Equal(k, keys[0]) {
				e.Errorf("keys %x", keys)
			}
		}
		e.must(e.rdb.HSet(e.ctx(), "meta:{0}", "ip_hmac_key", "S3CRET").Err())
		if k, err := e.ClientKey(e.ctx()); err == nil || strings.Contains(err.Error(), "S3CRET") {
			e.Errorf("no key: %x, %v", k, err)
		}
	})
}
