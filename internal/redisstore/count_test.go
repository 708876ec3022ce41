package redisstore

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"paredao/internal/vote"
)

// push puts elements on a shard's queue past the script, as a stranger might.
func (e *env) push(shard int, elements ...string) {
	e.Helper()
	for _, el := range elements {
		e.must(e.rdb.RPush(e.ctx(), shardKeys(shard).votes(), el).Err())
	}
}

func (e *env) list(key string) []string {
	e.Helper()
	elements, err := e.rdb.LRange(e.ctx(), key, 0, -1).Result()
	e.must(err)
	return elements
}

func (e *env) commit(c *vote.CountCommit, want vote.CommitStatus, when string) {
	e.Helper()
	before := e.now().Truncate(time.Millisecond)
	status, at, err := e.CommitCount(e.ctx(), c)
	if err != nil || status != want {
		e.Errorf("%s: status %d, %v, want %d", when, status, err, want)
	}
	if at.Before(before) || at.After(e.now()) {
		e.Errorf("%s: at %v, which is not now", when, at)
	}
}

func TestCount(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p", "q")
		e.send(e.batch(0, "f", 1, ballot{"p", "ana", ""}, ballot{"p", "ana", ""}, ballot{"q", "bruno", ""}))
		e.send(e.batch(0, "f", 2, some("p", 30)...))
		elements := e.readQueue(0)
		e.commit(e.plan(0, "t", elements), vote.CommitDone, "first")
		r, err := e.Results(e.ctx(), "p")
		e.must(err)
		if want := (vote.Tally{"ana": 12, "bruno": 10, "carla": 10}); !reflect.DeepEqual(r.Tally, want) {
			e.Errorf("tally %v, want %v", r.Tally, want)
		}
		if l := r.Ledger; l.Accepted != 32 || l.Counted != 32 || l.Pending() != 0 {
			e.Errorf("ledger %+v", l)
		}
		if got := e.list("archive:{0}"); !slices.Equal(got, elements) {
			e.Errorf("the archive list has %d elements, want the %d counted ones", len(got), len(elements))
		}
		if len(e.readQueue(0)) != 0 {
			e.Error("the queue is not empty")
		}
		e.conserved("p", "q")
	})
}

// A commit that is late, for whatever reason, changes nothing and is told so;
// one that is repeated gets its first answer.
func TestCommitIsACompareAndSwap(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		for seq := range uint64(6) {
			e.send(e.batch(0, "f", seq+1, some("p", 2)...))
		}
		elements := e.readQueue(0)
		late := e.plan(0, "late", elements[:3])
		more := e.plan(0, "more", elements)
		e.commit(e.plan(0, "one", elements[:2]), vote.CommitDone, "the first two")

		before := e.dump()
		e.commit(e.plan(0, "one", elements[:2]), vote.CommitDone, "the same again")
		e.unchanged(before, "the same again")
		e.commit(late, vote.CommitRefused, "the same with one more")
		e.commit(more, vote.CommitRefused, "all")
		e.commit(e.plan(0, "two", elements[3:]), vote.CommitRefused, "not from the head")
		long := e.plan(0, "long", elements[2:])
		long.Elements++
		e.commit(long, vote.CommitRefused, "more than there are")
		short := e.plan(0, "short", elements[2:])
		short.Elements--
		e.commit(short, vote.CommitRefused, "fewer than said")
		other := e.plan(0, "other", elements[2:])
		other.Last = "f-99"
		e.commit(other, vote.CommitRefused, "another last one")
		e.unchanged(before, "refused commits")

		e.commit(e.plan(0, "three", elements[2:]), vote.CommitDone, "the rest")
		before = e.dump()
		// Another commit came between: its answer is true as well.
		e.commit(e.plan(0, "one", elements[:2]), vote.CommitRefused, "the first again")
		e.commit(e.plan(0, "three", elements[2:]), vote.CommitDone, "the rest again")
		e.commit(more, vote.CommitRefused, "on an empty queue")
		e.unchanged(before, "late commits")
		e.conserved("p")
	})
}

// Between equal ends, a chunk may have become another one: garbage has twins.
// Then the votes in it must not be counted in place of others.
func TestTwinsAtTheEnds(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		frame := func(seq uint64, option string) string {
			e.send(e.batch(0, "f", seq, ballot{"p", option, ""}))
			el := e.list("votes:{0}")
			e.must(e.rdb.Del(e.ctx(), "votes:{0}").Err())
			return el[len(el)-1]
		}
		ana, bruno := frame(1, "ana"), frame(2, "bruno")
		e.push(0, "twin", ana, "twin", "twin", bruno, "twin")
		elements := e.readQueue(0)
		slow := e.plan(0, "slow", elements[:3])
		e.commit(e.plan(0, "fast", elements[:3]), vote.CommitDone, "the first three")
		before := e.dump()
		e.commit(slow, vote.CommitRefused, "the first three, late")
		e.unchanged(before, "a late commit between twins")
		e.count(0)
		r, err := e.Results(e.ctx(), "p")
		e.must(err)
		if want := (vote.Tally{"ana": 1, "bruno": 1}); !reflect.DeepEqual(r.Tally, want) {
			e.Errorf("tally %v, want %v", r.Tally, want)
		}
		if dead := e.list("dead:{0}"); !slices.Equal(dead, []string{"twin", "twin", "twin", "twin"}) {
			e.Errorf("dead are %q", dead)
		}
		e.conserved("p")
	})
}

// A failover took a frame whose flusher sent it again, and by then it was
// decided otherwise. What was read before must not be counted.
func TestFrameDecidedAgain(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p", "q")
		b := e.batch(0, "f", 1, ballot{"p", "ana", ""}, ballot{"q", "ana", ""})
		e.send(b)
		read := e.plan(0, "t", e.readQueue(0))
		e.must(e.rdb.Del(e.ctx(), "votes:{0}", "ledger:{0}", "flusher:{0}:f").Err())
		e.must(e.ClosePoll(e.ctx(), "q"))
		e.send(b)
		before := e.dump()
		e.commit(read, vote.CommitRefused, "a frame that is another one under its id")
		e.unchanged(before, "a commit of what is not there")
		e.count(0)
		e.conserved("p", "q")
	})
}

// A million identical bytes are as good as any others; and each way to name
// them is the same in Go and in Lua.
func TestDeadElements(t *testing.T) {
	garbage := []string{
		"", "x", "\x00", "P1", "P1 ", "P1 x", "P1 x ", "P1 a-1 1 1 - p:1\n", "P1 a\nb c", "P1 a\x00b c\n", "P2 a-1 1 1 - p:1\n{}\n",
		"P1 " + strings.Repeat("x", 100) + " y\nz", "P1 " + strings.Repeat("x", 101) + " y", "P1 \n", "P1\n", "\n", "P1  \n",
		strings.Repeat("x", 100_000), "\xff\xfe", "😀", `{"option":"ana"}`, "%", "%z", "P1 %s %d\n", "twin", "twin", "twin",
	}
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		e.send(e.batch(0, "f", 1, some("p", 2)...))
		e.push(0, garbage...)
		e.send(e.batch(0, "f", 2, some("p", 2)...))
		elements := e.readQueue(0)
		if len(elements) != len(garbage)+2 {
			e.Fatalf("read %d of %d elements", len(elements), len(garbage)+2)
		}
		// Every run of them is told by its ends and its digest.
		for n := 1; n <= len(elements); n++ {
			c := e.plan(0, strconv.Itoa(n), elements[:n])
			c.Digest = strings.Repeat("0", 40)
			e.commit(c, vote.CommitRefused, "another digest")
		}
		for i, el := range elements {
			e.commit(e.plan(0, "one by one "+strconv.Itoa(i), []string{el}), vote.CommitDone, fmt.Sprintf("%.40q", el))
		}
		if dead := e.list("dead:{0}"); !slices.Equal(dead, garbage) {
			e.Errorf("dead are %.80q", dead)
		}
		if archived := e.list("archive:{0}"); !slices.Equal(archived, []string{elements[0], elements[len(elements)-1]}) {
			e.Errorf("to archive are %.80q", archived)
		}
	})
	// The same in one commit, dead and living mixed.
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		var frames []string
		for i, g := range garbage {
			e.push(0, g)
			if i%3 == 0 {
				e.send(e.batch(0, "f", uint64(i+1), some("p", 1+i)...))
			}
		}
		elements := e.readQueue(0)
		for _, el := range elements {
			if !slices.Contains(garbage, el) {
				frames = append(frames, el)
			}
		}
		e.commit(e.plan(0, "all", elements), vote.CommitDone, "all at once")
		if dead := e.list("dead:{0}"); !slices.Equal(dead, garbage) {
			e.Errorf("dead are %.80q", dead)
		}
		if archived := e.list("archive:{0}"); !slices.Equal(archived, frames) {
			e.Errorf("%d frames to archive, want %d", len(archived), len(frames))
		}
	})
}

// A frame whose header can be read and whose body can't is dead with its votes.
func TestDeadFrame(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p", "q")
		b := e.batch(0, "f", 1, append(some("p", 10), some("q", 5)...)...)
		b.Body[len(b.Body)-1] ^= 1
		e.send(b)
		e.send(e.batch(0, "f", 2, some("p", 3)...))
		e.count(0)
		if l := e.ledger(0, "p"); l.Accepted != 13 || l.Counted != 3 || l.Dead != 10 || l.Pending() != 10 || l.Queued() != 0 {
			e.Errorf("ledger of p: %+v", l)
		}
		if l := e.ledger(0, "q"); l.Accepted != 5 || l.Counted != 0 || l.Dead != 5 {
			e.Errorf("ledger of q: %+v", l)
		}
		e.conserved("p", "q")
	})
}

// Lua's numbers are doubles: whatever is added up must not pass through them.
func TestBeyondTwoToThe53(t *testing.T) {
	const big = 1<<53 + 1
	onBoth(t, 2, func(e *env) {
		e.apply("p")
		for shard := range 2 {
			k := shardKeys(shard)
			e.must(e.rdb.HSet(e.ctx(), k.ledger(), "accepted:p", big, "counted:p", big, "archived:p", big).Err())
			e.must(e.rdb.HSet(e.ctx(), k.tally("p"), "ana", big).Err())
			e.send(e.batch(shard, "f", 1, ballot{"p", "ana", ""}, ballot{"p", "ana", ""}))
			e.count(shard)
			e.archiveAll(shard)
		}
		r, err := e.Results(e.ctx(), "p")
		e.must(err)
		want := vote.PollLedger{Accepted: 2 * (big + 2), Counted: 2 * (big + 2), Archived: 2 * (big + 2)}
		if r.Ledger != want || r.Tally["ana"] != 2*(big+2) {
			e.Errorf("ledger %+v, tally %v, want %+v", r.Ledger, r.Tally, want)
		}
		e.conserved("p")
		// Votes of a commit that are themselves so many.
		e.push(0, "x")
		c := e.plan(0, "t", []string{"x"})
		c.Dead, c.Counts = nil, map[string]vote.Tally{"p": {"ana": big, "bruno": 1}}
		e.commit(c, vote.CommitDone, "many votes")
		r, err = e.Results(e.ctx(), "p")
		e.must(err)
		if r.Tally["ana"] != 2*(big+2)+big || r.Ledger.Counted != want.Counted+big+1 {
			e.Errorf("tally %v, ledger %+v", r.Tally, r.Ledger)
		}
	})
}

func TestCommitOnBrokenData(t *testing.T) {
	for name, spoil := range map[string]func(*env) error{
		"counted is no number": func(e *env) error { return e.rdb.HSet(e.ctx(), "ledger:{0}", "counted:p", "x").Err() },
		"counted is too large": func(e *env) error {
			return e.rdb.HSet(e.ctx(), "ledger:{0}", "counted:p", "9223372036854775807").Err()
		},
		"the tally is no number": func(e *env) error { return e.rdb.HSet(e.ctx(), "tally:{0}:p", "bruno", "1e3").Err() },
		"the tally is too large": func(e *env) error {
			return e.rdb.HSet(e.ctx(), "tally:{0}:p", "bruno", strings.Repeat("9", 20)).Err()
		},
		"dead is no number": func(e *env) error { return e.rdb.HSet(e.ctx(), "ledger:{0}", "dead:q", "").Err() },
	} {
		onBoth(t, 1, func(e *env) {
			e.apply("p", "q")
			e.send(e.batch(0, "f", 1, some("p", 3)...))
			b := e.batch(0, "f", 2, some("q", 10)...)
			b.Body[len(b.Body)-1] ^= 1
			e.send(b)
			e.must(spoil(e))
			before := e.dump()
			if status, _, err := e.CommitCount(e.ctx(), e.plan(0, "t", e.readQueue(0))); err == nil {
				e.Errorf("%s: status %d", name, status)
			}
			e.unchanged(before, name)
		})
	}
}

func TestReadLimits(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		for seq := range uint64(40) {
			e.send(e.batch(0, "f", seq+1, some("p", 10)...))
		}
		whole := e.readQueue(0)
		size := len(whole[0])
		for _, c := range []struct {
			limit vote.ReadLimit
			least int
			most  int
		}{
			{all, 40, 40},
			{vote.ReadLimit{Votes: 1, Bytes: 1 << 20, Elements: 100}, 1, 1},
			{vote.ReadLimit{Votes: 10, Bytes: 1 << 20, Elements: 100}, 1, 1},
			{vote.ReadLimit{Votes: 11, Bytes: 1 << 20, Elements: 100}, 2, 2},
			{vote.ReadLimit{Votes: 250, Bytes: 1 << 20, Elements: 100}, 25, 25},
			{vote.ReadLimit{Votes: 1000, Bytes: 1 << 20, Elements: 7}, 7, 7},
			{vote.ReadLimit{Votes: 1000, Bytes: 1, Elements: 7}, 1, 1},
			{vote.ReadLimit{Votes: 1000, Bytes: 5 * size, Elements: 100}, 5, 7},
			{vote.ReadLimit{}, 0, 0},
		} {
			got, err := e.ReadQueue(e.ctx(), 0, c.limit)
			if err != nil || len(got) < c.least || len(got) > c.most || !slices.Equal(got, whole[:len(got)]) {
				e.Errorf("%+v: %d elements (%v), want %d to %d", c.limit, len(got), err, c.least, c.most)
			}
		}
		// What can't be read counts as one vote; a header that promises none does
		// not make the read endless.
		e.must(e.rdb.Del(e.ctx(), "votes:{0}").Err())
		e.push(0, "x", "y", "P1 a 1 0 ", "P1 a 1 0 ", "z")
		got, err := e.ReadQueue(e.ctx(), 0, vote.ReadLimit{Votes: 3, Bytes: 1 << 20, Elements: 100})
		if err != nil || !slices.Equal(got, []string{"x", "y", "P1 a 1 0 ", "P1 a 1 0 ", "z"}) {
			e.Errorf("garbage: %q (%v)", got, err)
		}
		if got, err := e.ReadArchive(e.ctx(), 0, 5, all); err != nil || len(got) != 0 {
			e.Errorf("beyond the end: %q (%v)", got, err)
		}
	})
}

// unpack of a table fails near 8,000 elements; none may be used.
func TestDeepQueue(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		const n = 9_000
		e.apply("p")
		e.send(e.batch(0, "f", 1, ballot{"p", "ana", ""}))
		frame := e.list("votes:{0}")[0]
		e.must(e.rdb.Del(e.ctx(), "votes:{0}").Err())
		pipe := e.rdb.Pipeline()
		for i := range n {
			pipe.RPush(e.ctx(), "votes:{0}", strings.Replace(frame, "f-1", fmt.Sprintf("f-%d", i+1), 1))
		}
		_, err := pipe.Exec(e.ctx())
		e.must(err)
		e.must(e.rdb.HSet(e.ctx(), "ledger:{0}", "accepted:p", n).Err())
		elements := e.readQueue(0)
		if len(elements) != n {
			e.Fatalf("read %d elements", len(elements))
		}
		e.commit(e.plan(0, "t", elements), vote.CommitDone, "all of it")
		e.conserved("p")
		e.archiveAll(0)
		e.conserved("p")
		if l := e.ledger(0, "p"); l.Archived != n {
			e.Errorf("ledger %+v", l)
		}
	})
}
