package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"paredao/internal/lab"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// is matches a command by its first words.
func is(words ...string) func([]string) bool {
	return func(cmd []string) bool {
		return len(cmd) >= len(words) && slices.EqualFunc(cmd[:len(words)], words, strings.EqualFold)
	}
}

// The proxy itself: what goes through it comes out as it was.
func TestProxyIsTransparent(t *testing.T) {
	onBoth(t, 2, func(e *env) {
		p := testkit.NewProxy(e.T, e.addr)
		mainPath(e.T, e.open(Options{URL: p.URL(), Shards: 2}))
		c := redis.NewClient(&redis.Options{Addr: p.Addr()})
		defer c.Close()
		for _, v := range []string{"", "\r\n", "$5\r\nhello\r\n", "\x00\xff", strings.Repeat("x", 1<<20)} {
			e.must(c.Set(e.ctx(), "k", v, 0).Err())
			if got, err := c.Get(e.ctx(), "k").Result(); err != nil || got != v {
				e.Errorf("%.20q came back as %.20q (%v)", v, got, err)
			}
		}
		if err := c.Get(e.ctx(), "nil").Err(); !errors.Is(err, redis.Nil) {
			e.Errorf("a null: %v", err)
		}
		if err := c.LPush(e.ctx(), "k", "x").Err(); err == nil || !strings.HasPrefix(err.Error(), "WRONGTYPE") {
			e.Errorf("an error: %v", err)
		}
		cmds, err := c.Pipelined(e.ctx(), func(p redis.Pipeliner) error {
			for i := range 1000 {
				p.RPush(e.ctx(), "l", i)
			}
			p.LRange(e.ctx(), "l", 0, -1)
			p.HSet(e.ctx(), "h", "a", 1, "b", 2)
			p.HGetAll(e.ctx(), "h")
			return nil
		})
		if err != nil || len(cmds) != 1003 || len(cmds[1000].(*redis.StringSliceCmd).Val()) != 1000 ||
			!reflect.DeepEqual(cmds[1002].(*redis.MapStringStringCmd).Val(), map[string]string{"a": "1", "b": "2"}) {
			e.Errorf("a pipeline: %v", err)
		}
		if _, err := c.TxPipelined(e.ctx(), func(p redis.Pipeliner) error { p.Incr(e.ctx(), "n"); p.Incr(e.ctx(), "n"); return nil }); err != nil {
			e.Error(err)
		}
		sub := c.Subscribe(e.ctx(), "news")
		defer sub.Close()
		if _, err := sub.Receive(e.ctx()); err != nil {
			e.Error(err)
		}
		e.must(c.Publish(e.ctx(), "news", "hello").Err())
		if m, err := sub.ReceiveMessage(e.ctx()); err != nil || m.Payload != "hello" {
			e.Errorf("message %v (%v)", m, err)
		}
		if p.Dropped() != 0 || p.Cut() != 0 {
			e.Errorf("%d dropped, %d cut", p.Dropped(), p.Cut())
		}
	})
}

// What the proxy is for: a dropped reply makes a plain push happen twice, and
// the client reports success, see go-redis#2339.
func TestProxyDropsReplies(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		p := testkit.NewProxy(e.T, e.addr)
		c := redis.NewClient(&redis.Options{Addr: p.Addr()})
		defer c.Close()
		dropped := p.DropNext(is("rpush", "l"))
		e.must(c.RPush(e.ctx(), "l", "x").Err())
		<-dropped
		if n := e.rdb.LLen(e.ctx(), "l").Val(); n != 2 || p.Dropped() != 1 {
			e.Errorf("pushed %d times, %d replies dropped", n, p.Dropped())
		}
		// A probability is one per command.
		c2 := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1})
		defer c2.Close()
		p.DropReplies(0.5)
		failed := int64(0)
		for range 200 {
			if c2.Incr(e.ctx(), "n").Err() != nil {
				failed++
			}
		}
		p.DropReplies(0)
		if n := e.rdb.Get(e.ctx(), "n").Val(); n != "200" || failed != p.Dropped()-1 || failed < 50 || failed > 150 {
			e.Errorf("n = %s after 200 commands, %d failed, %d dropped", n, failed, p.Dropped())
		}
		// Cut before: the command never came.
		p.CutBefore(0.5)
		failed = 0
		for range 200 {
			if c2.Incr(e.ctx(), "m").Err() != nil {
				failed++
			}
		}
		p.CutBefore(0)
		if n := e.rdb.Get(e.ctx(), "m").Val(); n != strconv.FormatInt(200-failed, 10) || failed != p.Cut() || failed < 50 || failed > 150 {
			e.Errorf("m = %s after 200 commands, %d failed, %d cut", n, failed, p.Cut())
		}
		p.DropReplies(1)
		if err := c2.Ping(e.ctx()).Err(); err == nil {
			e.Error("all replies are dropped, and one came")
		}
	})
}

// A proxy without a test, in front of nothing, and closed more than once.
func TestProxyWithoutATarget(t *testing.T) {
	p, err := lab.StartProxy("127.0.0.1:1", 7)
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1})
	defer c.Close()
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Error("an answer from nobody")
	}
	p.Close()
	p.Close()
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Error("an answer from a closed proxy")
	}
}

// Closing ends what is held back, stalled, or blocked in Redis.
func TestProxyCloses(t *testing.T) {
	e := onRedis(t, 1)
	p, err := lab.StartProxy(e.addr, 1)
	e.must(err)
	c := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1, ReadTimeout: time.Minute})
	defer c.Close()
	held, _ := p.HoldNext(is("get", "held"))
	var waiting sync.WaitGroup
	for _, f := range []func() error{
		func() error { return c.Get(e.ctx(), "held").Err() },
		func() error { return c.BLPop(e.ctx(), time.Minute, "nothing").Err() },
	} {
		waiting.Go(func() {
			if err := f(); err == nil || errors.Is(err, redis.Nil) {
				e.Errorf("an answer: %v", err)
			}
		})
	}
	<-held
	testkit.Eventually(t, "one is blocked", func() bool {
		return strings.Contains(e.rdb.Info(e.ctx(), "clients").Val(), "blocked_clients:1")
	})
	p.Stall()
	waiting.Go(func() { _ = c.Get(e.ctx(), "stalled").Err() })
	p.Close()
	waiting.Wait()
	// Redis knows that the blocked client is gone.
	testkit.Eventually(t, "none is blocked", func() bool {
		return strings.Contains(e.rdb.Info(e.ctx(), "clients").Val(), "blocked_clients:0")
	})
}

// A client that hangs up while it is blocked takes no wake-up along.
func TestProxyTellsOfHangUps(t *testing.T) {
	e := onRedis(t, 1)
	p := testkit.NewProxy(t, e.addr)
	s := e.open(Options{URL: p.URL(), Shards: 1})
	done := make(chan error, 1)
	go func() { done <- s.AwaitVotes(e.ctx(), 0, time.Minute) }()
	blocked := func(n string) func() bool {
		return func() bool { return strings.Contains(e.rdb.Info(e.ctx(), "clients").Val(), "blocked_clients:"+n) }
	}
	testkit.Eventually(t, "it is blocked", blocked("1"))
	e.must(s.Close())
	if err := <-done; err == nil {
		t.Error("a signal from nobody")
	}
	testkit.Eventually(t, "it is gone", blocked("0"))
}

// After a time-out a connection must not be used again, or it would answer with
// what was asked before, see go-redis#1113.
func TestStalledConnection(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		e.send(e.batch(0, "f", 1, some("p", 3)...))
		p := testkit.NewProxy(e.T, e.addr)
		s := e.open(Options{URL: p.URL(), Shards: 1})
		if _, err := s.Results(e.ctx(), "p"); err != nil {
			e.Error(err)
		}
		p.Stall()
		p.Stall()
		for range 3 {
			ctx, cancel := context.WithTimeout(e.ctx(), 20*time.Millisecond)
			if got, err := s.ReadQueue(ctx, 0, all); err == nil {
				e.Errorf("read %d elements through a stalled connection", len(got))
			}
			cancel()
		}
		p.Resume()
		p.Resume()
		for range 20 {
			if r, err := s.Results(e.ctx(), "p"); err != nil || r.Ledger.Accepted != 3 {
				e.Errorf("results %+v (%v)", r, err)
			}
			if got, err := s.ReadQueue(e.ctx(), 0, all); err != nil || len(got) != 1 {
				e.Errorf("read %d elements (%v)", len(got), err)
			}
		}
		p.CutAll()
		if _, err := s.Results(e.ctx(), "p"); err != nil {
			e.Errorf("after all connections were cut: %v", err)
		}
	})
}

// The consumer was paused for so long that another counted in its place. Its
// commit arrives, and is refused.
func TestLateCommit(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		e.apply("p")
		for seq := range uint64(4) {
			e.send(e.batch(0, "f", seq+1, some("p", 3)...))
		}
		p := testkit.NewProxy(e.T, e.addr)
		slow := e.open(Options{URL: p.URL(), Shards: 1})
		e.must(slow.lua.commit.Load(e.ctx(), e.rdb).Err())
		c := e.plan(0, "slow", e.readQueue(0)[:2])
		held, release := p.HoldNext(func(cmd []string) bool { return runs(cmd, slow.lua.commit) })
		done := make(chan vote.CommitStatus, 1)
		go func() {
			status, _, err := slow.CommitCount(e.ctx(), c)
			if err != nil {
				e.Error(err)
			}
			done <- status
		}()
		<-held
		e.count(0)
		e.archiveAll(0)
		e.send(e.batch(0, "f", 5, some("p", 2)...))
		before := e.dump()
		release()
		release()
		if status := <-done; status != vote.CommitRefused {
			e.Errorf("the late commit: %d", status)
		}
		e.unchanged(before, "a late commit")
		e.conserved("p")
	})
}

// The api gave up waiting and sent its frame again on another connection; then
// the first copy arrives after all, from a client that is long gone, before or
// behind a later frame.
func TestLateFrame(t *testing.T) {
	for _, later := range []uint64{0, 2} {
		e := onRedis(t, 1)
		e.apply("p")
		p := testkit.NewProxy(t, e.addr)
		first := e.open(Options{URL: p.URL(), Shards: 1, NoRetry: true})
		e.must(first.lua.enqueue.Load(e.ctx(), e.rdb).Err())
		q := e.queue()
		e.must(q.Register(e.ctx(), 0, "f"))
		b := e.batch(0, "f", 1, ballot{"p", "ana", "k"}, ballot{"p", "bruno", ""})
		held, release := p.HoldNext(func(cmd []string) bool { return runs(cmd, first.lua.enqueue) })
		done := make(chan error, 1)
		go func() {
			_, err := first.Queue(time.Hour, 0, 0).Enqueue(e.ctx(), b)
			done <- err
		}()
		<-held
		e.must(first.Close())
		if err := <-done; err == nil {
			t.Error("an answer to a frame that was held back")
		}
		out, err := q.Enqueue(e.ctx(), b)
		if err != nil || out.Keys != nil || out.Polls[0] != vote.PollAccepted {
			t.Errorf("sent again: %+v, %v", out, err)
		}
		if later > 0 {
			_, err := q.Enqueue(e.ctx(), e.batch(0, "f", later, ballot{"p", "carla", ""}))
			e.must(err)
		}
		before := e.dump()
		e.must(e.rdb.ConfigResetStat(e.ctx()).Err())
		release()
		testkit.Eventually(t, "the late copy has run", func() bool {
			return strings.Contains(e.rdb.Info(e.ctx(), "commandstats").Val(), "cmdstat_evalsha:calls=1,")
		})
		e.unchanged(before, "a late copy")
		e.conserved("p")
	}
}

// ledger is what the voters know: what they sent, and what they were told.
type voters struct {
	mu    sync.Mutex
	acked map[string]int64 // by option, of votes that count
}

func (v *voters) note(ballots []ballot, out vote.BatchOutcome) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i, x := range ballots {
		if _, used := out.Keys[i]; !used {
			v.acked[x.option]++
		}
	}
}

// Replies get lost on every path, and the client repeats commands by itself.
// Whoever votes, counts and archives goes on until they know; then every vote
// was counted once and archived once.
func TestLostReplies(t *testing.T) {
	for _, c := range []struct{ drop, cut float64 }{{0.05, 0}, {0.2, 0}, {0.1, 0.1}} {
		t.Run(fmt.Sprintf("%.0f%% dropped, %.0f%% cut", 100*c.drop, 100*c.cut), func(t *testing.T) {
			onBoth(t, 2, func(e *env) {
				p := testkit.NewProxy(e.T, e.addr)
				s := e.open(Options{URL: p.URL(), Shards: 2})
				e.apply("p")
				p.DropReplies(c.drop)
				p.CutBefore(c.cut)
				v := &voters{acked: map[string]int64{}}
				var all sync.WaitGroup
				for shard := range 2 {
					all.Go(func() { e.run(s, v, shard) })
				}
				all.Wait()
				if e.Failed() {
					return
				}
				p.DropReplies(0)
				p.CutBefore(0)
				if p.Dropped() == 0 {
					e.Error("no reply was dropped")
				}
				e.conserved("p")
				r, err := e.Results(e.ctx(), "p")
				e.must(err)
				if !reflect.DeepEqual(map[string]int64(r.Tally), v.acked) {
					e.Errorf("counted are %v, acknowledged %v", r.Tally, v.acked)
				}
				if r.Ledger.Pending() != 0 || r.Ledger.Archived != r.Ledger.Accepted {
					e.Errorf("ledger %+v", r.Ledger)
				}
			})
		})
	}
}

// run is a shard with two of each worker: of those, only one may win.
func (e *env) run(s *Store, v *voters, shard int) {
	const frames = 25
	accepted, counted := make(chan struct{}, 1000), make(chan struct{}, 1000)
	var sending, draining, storing sync.WaitGroup
	for f := range 2 {
		sending.Go(func() { e.vote(s, v, shard, f, frames, accepted) })
		draining.Go(func() { e.drain(s, shard, accepted, counted) })
		storing.Go(func() { e.store(s, shard, counted) })
	}
	sending.Wait()
	close(accepted)
	draining.Wait()
	close(counted)
	storing.Wait()
}

// worker is e with a codec of its own.
func (e *env) worker() (*env, func()) {
	w := *e
	var err error
	if w.codec, err = vote.NewCodec(); err != nil {
		panic(err)
	}
	return &w, w.codec.Close
}

// insist repeats a call until it is answered.
func insist[T any](ctx context.Context, f func() (T, error)) (T, error) {
	for {
		v, err := f()
		if err == nil || ctx.Err() != nil || errors.Is(err, vote.ErrBatchGone) || errors.Is(err, vote.ErrFlusherLost) {
			return v, err
		}
	}
}

// vote sends frames with some keys that are used again and again.
func (e *env) vote(s *Store, v *voters, shard, flusher int, frames uint64, accepted chan<- struct{}) {
	w, done := e.worker()
	defer done()
	w.ids = 1_000_000 * (2*shard + flusher + 1)
	q := s.Queue(time.Hour, 0, 0)
	id := fmt.Sprintf("f%d", flusher)
	if _, err := insist(e.ctx(), func() (int, error) { return 0, q.Register(e.ctx(), shard, id) }); err != nil {
		e.Error(err)
		return
	}
	r := rand.New(rand.NewPCG(uint64(shard), uint64(flusher)))
	for seq := range frames {
		var ballots []ballot
		for range 1 + r.IntN(8) {
			x := ballot{"p", []string{"ana", "bruno", "carla"}[r.IntN(3)], ""}
			if r.IntN(3) == 0 {
				x.key = strconv.Itoa(r.IntN(30))
			}
			ballots = append(ballots, x)
		}
		b := w.batch(shard, id, seq+1, ballots...)
		out, err := insist(e.ctx(), func() (vote.BatchOutcome, error) { return q.Enqueue(e.ctx(), b) })
		if err != nil || out.Polls[0] != vote.PollAccepted {
			e.Errorf("frame %s: %+v, %v", b.ID, out, err)
			return
		}
		v.note(ballots, out)
		accepted <- struct{}{}
	}
}

// drain counts until the queue is empty and no more votes come.
func (e *env) drain(s *Store, shard int, accepted <-chan struct{}, counted chan<- struct{}) {
	w, done := e.worker()
	defer done()
	for {
		_, more := <-accepted
		elements, err := insist(e.ctx(), func() ([]string, error) {
			return s.ReadQueue(e.ctx(), shard, vote.ReadLimit{Votes: 20, Bytes: 1 << 20, Elements: 8})
		})
		if err != nil {
			e.Error(err)
			return
		}
		if len(elements) == 0 {
			if !more {
				return
			}
			continue
		}
		c := w.plan(shard, uuid.NewString(), elements)
		// One call, as a consumer makes it: what became of it shows at the head.
		if status, _, err := s.CommitCount(e.ctx(), c); err == nil && status == vote.CommitDone {
			counted <- struct{}{}
		}
	}
}

// store archives until nothing awaits it and no more votes come.
func (e *env) store(s *Store, shard int, counted <-chan struct{}) {
	for {
		_, more := <-counted
		st, err := insist(e.ctx(), func() (vote.ArchiveState, error) { return s.ArchiveState(e.ctx(), shard) })
		if err != nil {
			e.Error(err)
			return
		}
		if st.Elements == 0 {
			if !more {
				return
			}
			continue
		}
		b := st.Batch
		if b == nil {
			elements, err := insist(e.ctx(), func() ([]string, error) {
				return s.ReadArchive(e.ctx(), shard, 0, vote.ReadLimit{Votes: 50, Bytes: 1 << 20, Elements: 9})
			})
			if err != nil || len(elements) == 0 {
				continue
			}
			b, _ = planBatch(shard, st.NextSequence, elements)
			if b, err = insist(e.ctx(), func() (*vote.ArchiveBatch, error) { return s.FixBatch(e.ctx(), b, "") }); err != nil {
				continue // another was faster
			}
		}
		elements, err := insist(e.ctx(), func() ([]string, error) { return s.ReadBatch(e.ctx(), b, 0, all) })
		if err != nil {
			continue
		}
		elements = elements[:b.Elements]
		_, votes := planBatch(shard, b.Sequence, elements)
		_, err = insist(e.ctx(), func() (int, error) { return 0, s.CommitBatch(e.ctx(), b, votes) })
		if err != nil && !errors.Is(err, vote.ErrBatchGone) {
			e.Error(err)
			return
		}
	}
}
