package redisstore

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"paredao/internal/vote"
)

// votesIn reads all votes that count in a shard's queue.
func (e *env) votesIn(shard int) (ids []string, headers []vote.Header) {
	e.Helper()
	for _, el := range e.readQueue(shard) {
		h, err := e.codec.Read([]byte(el), func(v *vote.RawVote) { ids = append(ids, string(v.ID)) })
		e.must(err)
		headers = append(headers, h)
	}
	return ids, headers
}

func (e *env) ledger(shard int, poll string) vote.PollLedger {
	e.Helper()
	shards, err := e.ShardPolls(e.ctx())
	e.must(err)
	return shards[shard].Ledgers[poll]
}

func TestEnqueue(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		before := e.now()
		for seq, n := range []int{1, 4, 5, 100, vote.MaxFrameVotes} {
			out := e.send(e.batch(0, "f", uint64(seq+1), some("p", n)...))
			if len(out.Polls) != 1 || out.Polls[0] != vote.PollAccepted || out.Keys != nil {
				e.Errorf("outcome %+v", out)
			}
			if at := out.AcceptedAt; at.Before(before.Truncate(time.Millisecond)) || at.After(e.now()) {
				e.Errorf("accepted at %v, which is not between %v and now", at, before)
			}
			_, headers := e.votesIn(0)
			want := vote.Header{
				ID: fmt.Sprintf("f-%d", seq+1), AcceptedAt: out.AcceptedAt, Votes: n,
				Polls: []vote.PollVotes{{Poll: "p", Votes: int64(n)}},
			}
			if got := headers[len(headers)-1]; !reflect.DeepEqual(got, want) {
				e.Errorf("header %+v, want %+v", got, want)
			}
		}
		if l := e.ledger(0, "p"); l.Accepted != 1+4+5+100+vote.MaxFrameVotes || l.Pending() != l.Accepted {
			e.Errorf("ledger %+v", l)
		}
		e.conserved("p")
	})
}

// One frame holds votes of every outcome: the header says what counts, and the
// codec reads just that.
func TestEnqueueOutcomes(t *testing.T) {
	for _, n := range []int{1, 5} { // raw and compressed
		onBoth(t, 1, func(e *env) {
			now := e.now()
			e.apply("open", "changed")
			e.applyIn("later", vote.Window{Opens: now.Add(time.Hour)})
			e.applyIn("over", vote.Window{Closes: now.Add(-time.Hour)})
			var ballots []ballot
			for range n {
				for _, p := range []string{"later", "open", "over", "unknown", "changed"} {
					ballots = append(ballots, ballot{p, "ana", ""})
				}
			}
			b := e.batch(0, "f", 1, ballots...)
			b.Polls[4].OptionsKey = "other"
			out := e.send(b)
			want := []vote.PollOutcome{vote.PollNotOpen, vote.PollAccepted, vote.PollClosed, vote.PollUnknown, vote.PollStale}
			if !reflect.DeepEqual(out.Polls, want) {
				e.Errorf("outcomes %q, want %q", out.Polls, want)
			}
			ids, headers := e.votesIn(0)
			if len(ids) != n || !reflect.DeepEqual(headers[0].Polls, []vote.PollVotes{{Poll: "open", Votes: int64(n)}}) ||
				headers[0].Votes != 5*n {
				e.Errorf("%d votes count, header %+v", len(ids), headers[0])
			}
			for _, p := range []string{"later", "over", "unknown", "changed"} {
				if l := e.ledger(0, p); l != (vote.PollLedger{}) {
					e.Errorf("poll %s: %+v", p, l)
				}
			}
			e.conserved("open", "later", "over", "unknown", "changed")
		})
	}
}

// A frame of refused votes is none; that it was refused is remembered, also
// when the poll opens in between.
func TestEnqueueAllRefused(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.applyIn("p", vote.Window{Opens: e.now().Add(time.Hour)})
		b := e.batch(0, "f", 1, ballot{"p", "ana", "key"}, ballot{"nope", "ana", ""})
		first := e.send(b)
		if want := []vote.PollOutcome{vote.PollNotOpen, vote.PollUnknown}; !reflect.DeepEqual(first.Polls, want) {
			e.Errorf("outcomes %q, want %q", first.Polls, want)
		}
		if got := e.readQueue(0); len(got) != 0 {
			e.Errorf("the queue holds %q", got)
		}
		e.must(e.OpenPoll(e.ctx(), "p"))
		before := e.dump()
		again := e.send(b)
		if !reflect.DeepEqual(again, first) {
			e.Errorf("again: %+v, first %+v", again, first)
		}
		e.unchanged(before, "sent again")
		// Its key was not used up.
		if out := e.send(e.batch(0, "f", 2, ballot{"p", "bruno", "key"})); out.Polls[0] != vote.PollAccepted || out.Keys != nil {
			e.Errorf("the key of a refused vote: %+v", out)
		}
	})
}

func TestEnqueueAgain(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		e.send(e.batch(0, "g", 1, ballot{"p", "ana", "used"}))
		b := e.batch(0, "f", 7, ballot{"p", "ana", ""}, ballot{"p", "ana", "used"}, ballot{"p", "bruno", "used"}, ballot{"p", "ana", "new"})
		first := e.send(b)
		before := e.dump()
		for range 3 {
			if again := e.send(b); !reflect.DeepEqual(again, first) {
				e.Errorf("again: %+v, first %+v", again, first)
			}
		}
		e.unchanged(before, "sent again")
		e.must(e.ClosePoll(e.ctx(), "p"))
		before = e.dump()
		if again := e.send(b); !reflect.DeepEqual(again, first) {
			e.Errorf("after the close: %+v, first %+v", again, first)
		}
		e.unchanged(before, "sent again after the close")

		// A late copy of an earlier frame changes nothing, and is not told the
		// fate of a later one.
		b.ID.Seq = 6
		if out, err := e.queue().Enqueue(e.ctx(), b); err == nil || errors.Is(err, vote.ErrFlusherLost) {
			e.Errorf("a frame before the last: %+v, %v", out, err)
		}
		e.unchanged(before, "an earlier frame")
		e.conserved("p")
	})
}

func TestIdempotencyKeys(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p", "q")
		first := e.batch(0, "f", 1, ballot{"p", "ana", "k"}, ballot{"p", "bruno", ""})
		out := e.send(first)
		if out.Keys != nil {
			e.Errorf("a new key: %+v", out)
		}
		receipt := vote.Receipt{ID: first.Keyed[0].ID, Option: "ana", AcceptedAt: out.AcceptedAt, Replayed: true}
		replayed, reused := vote.KeyOutcome{First: receipt}, vote.KeyOutcome{Reused: true}

		for name, c := range map[string]struct {
			ballots []ballot
			want    map[int]vote.KeyOutcome
			counts  int
		}{
			"replay":                      {[]ballot{{"p", "ana", "k"}}, map[int]vote.KeyOutcome{0: replayed}, 0},
			"reuse":                       {[]ballot{{"p", "carla", "k"}}, map[int]vote.KeyOutcome{0: reused}, 0},
			"another poll's key":          {[]ballot{{"q", "carla", "k"}}, nil, 1},
			"among others":                {[]ballot{{"p", "ana", ""}, {"p", "ana", "k"}, {"p", "bruno", ""}, {"p", "carla", "k"}}, map[int]vote.KeyOutcome{1: replayed, 3: reused}, 2},
			"all of it used":              {[]ballot{{"p", "ana", "k"}, {"p", "ana", "k"}, {"p", "bruno", "k"}}, map[int]vote.KeyOutcome{0: replayed, 1: replayed, 2: reused}, 0},
			"one poll's all used":         {[]ballot{{"p", "ana", "k"}, {"q", "ana", ""}}, map[int]vote.KeyOutcome{0: replayed}, 1},
			"many, compressed":            {append([]ballot{{"p", "ana", "k"}}, some("p", 20)...), map[int]vote.KeyOutcome{0: replayed}, 20},
			"a poll that is not there":    {[]ballot{{"nope", "ana", "k"}}, nil, 0},
			"keys beside the known ones":  {[]ballot{{"p", "ana", "x"}, {"p", "ana", "k"}, {"p", "ana", "y"}}, map[int]vote.KeyOutcome{1: replayed}, 2},
			"upper case is another key":   {[]ballot{{"p", "bruno", "K"}}, nil, 1},
			"a space is another key":      {[]ballot{{"p", "bruno", "k "}}, nil, 1},
			"a name as good as any other": {[]ballot{{"p", "bruno", "__proto__"}}, nil, 1},
		} {
			flusher := strings.ReplaceAll(name, " ", "")
			b := e.batch(0, flusher, 1, c.ballots...)
			queued := len(e.readQueue(0))
			got := e.send(b)
			if !reflect.DeepEqual(got.Keys, c.want) {
				e.Errorf("%s: %+v, want %+v", name, got.Keys, c.want)
			}
			elements := e.readQueue(0)[queued:]
			n := 0
			for _, el := range elements {
				if _, err := e.codec.Read([]byte(el), func(*vote.RawVote) { n++ }); err != nil {
					e.Errorf("%s: %v", name, err)
				}
			}
			if n != c.counts || (n == 0) != (len(elements) == 0) {
				e.Errorf("%s: %d votes in %d frames count, want %d", name, n, len(elements), c.counts)
			}
		}
		e.conserved("p", "q", "nope")

		// After the close the first answer stands; a new key is refused.
		e.must(e.ClosePoll(e.ctx(), "p"))
		queued := len(e.readQueue(0))
		got := e.send(e.batch(0, "late", 1, ballot{"p", "ana", "k"}, ballot{"p", "bruno", "k"}, ballot{"p", "ana", "late"}))
		if want := map[int]vote.KeyOutcome{0: replayed, 1: reused}; !reflect.DeepEqual(got.Keys, want) || got.Polls[0] != vote.PollClosed {
			e.Errorf("after the close: %+v, want keys %+v", got, want)
		}
		if len(e.readQueue(0)) != queued {
			e.Error("after the close: a frame came in")
		}
		e.conserved("p", "q")
	})
}

// The same key twice in one batch, as from a page that sends everything twice.
func TestKeyTwiceInABatch(t *testing.T) {
	for _, extra := range []int{0, 10} {
		onBoth(t, 1, func(e *env) {
			e.apply("p")
			b := e.batch(0, "f", 1, append([]ballot{{"p", "ana", "k"}, {"p", "ana", "k"}, {"p", "bruno", "k"}, {"p", "ana", "k2"}}, some("p", extra)...)...)
			out := e.send(b)
			want := map[int]vote.KeyOutcome{
				1: {First: vote.Receipt{ID: b.Keyed[0].ID, Option: "ana", AcceptedAt: out.AcceptedAt, Replayed: true}},
				2: {Reused: true},
			}
			if !reflect.DeepEqual(out.Keys, want) {
				e.Errorf("%+v, want %+v", out.Keys, want)
			}
			ids, headers := e.votesIn(0)
			if len(ids) != 2+extra || ids[0] != b.Keyed[0].ID.String() || !reflect.DeepEqual(headers[0].Refused, []int{1, 2}) {
				e.Errorf("votes %v, header %+v", ids, headers[0])
			}
			e.conserved("p")
		})
	}
}

// Both polls in one frame, one of them closed, keys in both.
func TestTwoPollsOneClosed(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p", "q")
		first := e.batch(0, "f", 1, ballot{"q", "ana", "k"})
		at := e.send(first).AcceptedAt
		e.must(e.ClosePoll(e.ctx(), "q"))
		b := e.batch(0, "f", 2, ballot{"p", "ana", ""}, ballot{"q", "ana", "k"}, ballot{"q", "bruno", ""}, ballot{"p", "ana", "k"}, ballot{"q", "ana", "k3"}, ballot{"p", "ana", "k"})
		out := e.send(b)
		if want := []vote.PollOutcome{vote.PollAccepted, vote.PollClosed}; !reflect.DeepEqual(out.Polls, want) {
			e.Errorf("outcomes %q", out.Polls)
		}
		want := map[int]vote.KeyOutcome{
			1: {First: vote.Receipt{ID: first.Keyed[0].ID, Option: "ana", AcceptedAt: at, Replayed: true}},
			5: {First: vote.Receipt{ID: b.Keyed[1].ID, Option: "ana", AcceptedAt: out.AcceptedAt, Replayed: true}},
		}
		if !reflect.DeepEqual(out.Keys, want) {
			e.Errorf("keys %+v, want %+v", out.Keys, want)
		}
		_, headers := e.votesIn(0)
		if h := headers[1]; h.Votes != 6 || !reflect.DeepEqual(h.Refused, []int{1, 5}) ||
			!reflect.DeepEqual(h.Polls, []vote.PollVotes{{Poll: "p", Votes: 2}}) {
			e.Errorf("header %+v", h)
		}
		e.conserved("p", "q")
	})
}

// The largest frame, with as much of everything as it can hold.
func TestLargestBatch(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p", "q")
		ballots := make([]ballot, vote.MaxFrameVotes)
		for i := range ballots {
			ballots[i] = ballot{[]string{"p", "q"}[i%2], "ana", fmt.Sprintf("key %d", i/2)}
		}
		b := e.batch(0, "f", 1, ballots...)
		first := e.send(b)
		if first.Keys != nil {
			e.Errorf("%d new keys had been used", len(first.Keys))
		}
		// All of them again, each second one for another option; and one new vote.
		for i := range ballots {
			ballots[i].option = []string{"ana", "bruno"}[i/2%2]
		}
		ballots[17].key = ""
		out := e.send(e.batch(0, "g", 1, ballots...))
		replayed := 0
		for i, k := range out.Keys {
			if !k.Reused {
				replayed++
			}
			if k.Reused != (ballots[i].option == "bruno") || !k.Reused && k.First.ID != b.Keyed[i].ID {
				e.Fatalf("vote %d: %+v", i, k)
			}
		}
		if len(out.Keys) != len(ballots)-1 || replayed != len(ballots)/2-1 {
			e.Errorf("%d of %d keys are known, %d replayed", len(out.Keys), len(ballots), replayed)
		}
		ids, headers := e.votesIn(0)
		if len(ids) != vote.MaxFrameVotes+1 || len(headers[1].Refused) != vote.MaxFrameVotes-1 {
			e.Errorf("%d votes, header %+v", len(ids), headers[1])
		}
		// As many polls as votes.
		var polls []ballot
		for i := range vote.MaxFrameVotes {
			polls = append(polls, ballot{fmt.Sprintf("p%d", i), "ana", ""})
			if i%4 == 0 {
				e.apply(polls[i].poll)
			}
		}
		out = e.send(e.batch(0, "h", 1, polls...))
		for i, o := range out.Polls {
			if (o == vote.PollAccepted) != (i%4 == 0) {
				e.Fatalf("poll %d: %q", i, o)
			}
		}
		e.count(0)
		e.archiveAll(0)
		e.conserved("p", "q", "p0", "p4", "p1020")
	})
}

func TestFlusherLost(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		b := e.batch(0, "f", 1, ballot{"p", "ana", "k"})
		before := e.dump()
		if out, err := e.queue().Enqueue(e.ctx(), b); !errors.Is(err, vote.ErrFlusherLost) {
			e.Errorf("no record: %+v, %v", out, err)
		}
		e.unchanged(before, "an unknown flusher")
		e.send(b)
		if ttl := e.rdb.PTTL(e.ctx(), "flusher:{0}:f").Val(); ttl <= 0 || ttl > flusherLife {
			e.Errorf("the record lives %v", ttl)
		}
		e.must(e.rdb.Del(e.ctx(), "flusher:{0}:f").Err())
		before = e.dump()
		if out, err := e.queue().Enqueue(e.ctx(), b); !errors.Is(err, vote.ErrFlusherLost) {
			e.Errorf("record gone: %+v, %v", out, err)
		}
		e.unchanged(before, "a lost flusher")
	})
}

// Registering again does not forget what was sent.
func TestRegisterAgain(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		e.send(e.batch(0, "f", 3, ballot{"p", "ana", ""}))
		before := e.dump()
		e.must(e.queue().Register(e.ctx(), 0, "f"))
		e.unchanged(before, "registered again")
	})
}

// The record and the keys live as long as they should, and a repetition renews
// the record.
func TestLives(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		b := e.batch(0, "f", 1, ballot{"p", "ana", "k"})
		idem := shardKeys(0).idem(b.Keyed[0].Key)
		q := e.Queue(10*time.Minute, 0, 0)
		e.must(q.Register(e.ctx(), 0, "f"))
		_, err := q.Enqueue(e.ctx(), b)
		e.must(err)
		if ttl := e.rdb.PTTL(e.ctx(), idem).Val(); ttl <= 0 || ttl > 10*time.Minute {
			e.Errorf("the key lives %v", ttl)
		}
		e.must(e.rdb.PExpire(e.ctx(), "flusher:{0}:f", time.Minute).Err())
		_, err = q.Enqueue(e.ctx(), b)
		e.must(err)
		if ttl := e.rdb.PTTL(e.ctx(), "flusher:{0}:f").Val(); ttl <= time.Hour || ttl > flusherLife {
			e.Errorf("the record lives %v after a repetition", ttl)
		}
		// The key has expired: it is a new vote.
		e.must(e.rdb.Del(e.ctx(), idem).Err())
		if out := e.send(e.batch(0, "f", 2, ballot{"p", "bruno", "k"})); out.Keys != nil || out.Polls[0] != vote.PollAccepted {
			e.Errorf("after the key's life: %+v", out)
		}
		e.conserved("p")
	})
}

// What Redis keeps for a keyed vote, which docs/operations.md counts on, and a
// committer to know when to look at the memory.
func TestKeyTakesLittle(t *testing.T) {
	e := onRedis(t, 1)
	e.apply("p")
	b := e.batch(0, "f", 1, ballot{"p", "bruno", "k"})
	e.send(b)
	n, err := e.rdb.MemoryUsage(e.ctx(), shardKeys(0).idem(b.Keyed[0].Key)).Result()
	e.must(err)
	// Besides, the tables of keys and of expiries take about 56 bytes.
	if n > 144 {
		e.Errorf("a key takes %d bytes", n)
	}
}

// A life of nothing must not make the script fail half-way.
func TestKeyWithoutALife(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		q := e.Queue(0, 0, 0)
		e.must(q.Register(e.ctx(), 0, "f"))
		out, err := q.Enqueue(e.ctx(), e.batch(0, "f", 1, ballot{"p", "ana", "k"}))
		if err != nil || out.Polls[0] != vote.PollAccepted {
			e.Errorf("%+v, %v", out, err)
		}
		if ids, _ := e.votesIn(0); len(ids) != 1 {
			e.Errorf("%d votes on the queue", len(ids))
		}
		e.conserved("p")
	})
}

// An idle consumer is woken when votes come to an empty queue, by one signal.
func TestWakeUp(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		signals := func() int64 { return e.rdb.LLen(e.ctx(), "wake:{0}").Val() }
		if signals() != 0 {
			e.Errorf("%d signals before any vote", signals())
		}
		e.send(e.batch(0, "f", 1, some("nope", 1)...))
		if signals() != 0 {
			e.Error("a refused frame woke a consumer")
		}
		for seq := range uint64(3) {
			e.send(e.batch(0, "f", seq+2, some("p", 1)...))
			if signals() != 1 {
				e.Errorf("%d signals after frame %d", signals(), seq+1)
			}
		}
		e.count(0)
		e.send(e.batch(0, "f", 5, some("p", 1)...)) // no one took the first signal
		if signals() != 1 {
			e.Errorf("%d signals after the queue ran empty and filled", signals())
		}
		e.must(e.AwaitVotes(e.ctx(), 0, time.Minute))
		if signals() != 0 || len(e.readQueue(0)) != 1 {
			e.Errorf("after the wake-up: %d signals, %d frames", signals(), len(e.readQueue(0)))
		}
		// The queue is not empty: nobody sleeps.
		e.send(e.batch(0, "f", 6, some("p", 1)...))
		if signals() != 0 {
			e.Error("a signal though the queue was not empty")
		}
		// Without a signal the wait ends by itself, without an error.
		e.must(e.AwaitVotes(e.ctx(), 0, time.Second))
	})
}

// The blocked consumer gets the signal, wherever it stands.
func TestWakeUpWhileBlocked(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		woken := make(chan error, 1)
		go func() { woken <- e.AwaitVotes(e.ctx(), 0, time.Minute) }()
		e.send(e.batch(0, "f", 1, some("p", 1)...))
		e.must(<-woken)
		if len(e.readQueue(0)) != 1 {
			e.Error("the wake-up took a vote along")
		}
	})
}

func TestShardsAreApart(t *testing.T) {
	onBoth(t, 3, func(e *env) {
		e.apply("p")
		e.send(e.batch(2, "f", 1, ballot{"p", "ana", "k"}))
		// The same flusher id and key on another shard are others.
		if out := e.send(e.batch(1, "f", 1, ballot{"p", "ana", "k"})); out.Keys != nil {
			e.Errorf("%+v", out)
		}
		for shard, want := range []int{0, 1, 1} {
			if n := len(e.readQueue(shard)); n != want {
				e.Errorf("shard %d: %d frames, want %d", shard, n, want)
			}
		}
		e.conserved("p")
	})
}

// What is stored under a key of ours may be anything, if an operator's hand
// slips. Then nothing is done at all.
func TestEnqueueOnBrokenData(t *testing.T) {
	for name, spoil := range map[string]func(redis.Pipeliner, *env){
		"accepted is no number":  func(p redis.Pipeliner, e *env) { p.HSet(e.ctx(), "ledger:{0}", "accepted:p", "x") },
		"accepted is negative":   func(p redis.Pipeliner, e *env) { p.HSet(e.ctx(), "ledger:{0}", "accepted:p", "-1") },
		"accepted is a fraction": func(p redis.Pipeliner, e *env) { p.HSet(e.ctx(), "ledger:{0}", "accepted:p", "1.5") },
		"accepted is too large": func(p redis.Pipeliner, e *env) {
			p.HSet(e.ctx(), "ledger:{0}", "accepted:p", "9223372036854775807")
		},
		"accepted is far too large": func(p redis.Pipeliner, e *env) {
			p.HSet(e.ctx(), "ledger:{0}", "accepted:p", strings.Repeat("9", 30))
		},
		"the window is none":    func(p redis.Pipeliner, e *env) { p.HSet(e.ctx(), "windows:{0}", "p", "whatever") },
		"the record has no end": func(p redis.Pipeliner, e *env) { p.Set(e.ctx(), "flusher:{0}:f", "1", 0) },
		"the record is none":    func(p redis.Pipeliner, e *env) { p.Set(e.ctx(), "flusher:{0}:f", "x\n", 0) },
	} {
		onBoth(t, 1, func(e *env) {
			e.apply("p")
			e.must(e.queue().Register(e.ctx(), 0, "f"))
			_, err := e.rdb.Pipelined(e.ctx(), func(p redis.Pipeliner) error { spoil(p, e); return nil })
			e.must(err)
			before := e.dump()
			out, err := e.queue().Enqueue(e.ctx(), e.batch(0, "f", 1, ballot{"p", "ana", "k"}))
			if err == nil || errors.Is(err, vote.ErrFlusherLost) || errors.Is(err, vote.ErrOverloaded) {
				e.Errorf("%s: %+v, %v", name, out, err)
			}
			e.unchanged(before, name)
		})
	}
}

// An answer that is none is an error, never a zero.
func TestParseOutcome(t *testing.T) {
	b := &vote.Batch{
		Polls: []vote.BatchPoll{{Poll: "p"}, {Poll: "q"}},
		Keyed: []vote.KeyedVote{{Index: 5}},
	}
	const id = "AZvgAAAAcACAAAAAAAAAAA"
	if out, err := parseOutcome("1768957201234\nac\n0 ana "+id+" 17\n", b); err != nil ||
		out.Keys[5].First.Option != "ana" ||
		out.Keys[5].First.ID.String() != "019be000-0000-7000-8000-000000000000" || out.AcceptedAt.UnixMilli() != 1768957201234 {
		t.Errorf("%+v, %v", out, err)
	}
	for _, text := range []string{
		"", "x", "1", "1\n", "1\na\n", "1\naaa\n", "x\naa\n", "\naa\n", "1\naa",
		"1\naa\n1 ana " + id + " 17\n", "1\naa\n-1 ana " + id + " 17\n", "1\naa\nx ana " + id + " 17\n",
		"1\naa\n0 ana x 17\n", "1\naa\n0 ana AZvg 17\n", "1\naa\n0 ana 019be000-0000-7000-8000-000000000000 17\n",
		"1\naa\n0 ana " + id + " x\n", "1\naa\n0 ana " + id + "\n", "1\naa\n\n",
	} {
		if out, err := parseOutcome(text, b); !errors.Is(err, errAnswer) {
			t.Errorf("%q: %+v, %v", text, out, err)
		}
	}
}
