package redisstore

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"paredao/internal/vote"
)

// env is an empty server and a store on it.
type env struct {
	*testing.T
	addr     string
	embedded bool
	// rdb goes by the store.
	rdb *redis.Client
	*Store
	codec *vote.Codec
	ids   int
}

// onBoth runs a test against redis-server and against the server that allinone
// embeds: one suite for both.
func onBoth(t *testing.T, shards int, test func(*env)) {
	t.Helper()
	t.Run("redis", func(t *testing.T) {
		test(newEnv(t, shared.Addr(), false, shards))
	})
	t.Run("embedded", func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		if err := m.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		test(newEnv(t, m.Addr(), true, shards))
	})
}

// onRedis runs a test against redis-server alone.
func onRedis(t *testing.T, shards int) *env {
	t.Helper()
	return newEnv(t, shared.Addr(), false, shards)
}

func newEnv(t *testing.T, addr string, embedded bool, shards int) *env {
	t.Helper()
	e := &env{T: t, addr: addr, embedded: embedded, rdb: redis.NewClient(&redis.Options{Addr: addr})}
	t.Cleanup(func() { _ = e.rdb.Close() })
	if err := e.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	e.Store = e.open(Options{URL: "redis://" + addr + "/0", Shards: shards})
	var err error
	if e.codec, err = vote.NewCodec(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.codec.Close)
	return e
}

// open opens another store, closed with the test. Its time-out is far beyond
// what a busy machine takes; tests don't wait for it.
func (e *env) open(o Options) *Store {
	e.Helper()
	o.Embedded = e.embedded
	if o.Timeout == 0 {
		o.Timeout = time.Minute
	}
	s, err := Open(o)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { _ = s.Close() })
	return s
}

func (e *env) ctx() context.Context { return e.Context() }

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// queue is the store's side for votes, with keys that live an hour.
func (e *env) queue() *Queue { return e.Queue(time.Hour, 0, 0) }

func definition(id string, options ...string) vote.Poll {
	p := vote.Poll{ID: id, Title: "Who?", Results: vote.ResultsLive}
	if len(options) == 0 {
		options = []string{"ana", "bruno", "carla"}
	}
	for _, o := range options {
		p.Options = append(p.Options, vote.Option{ID: o, Name: o})
	}
	return p
}

// apply applies polls that take votes now.
func (e *env) apply(polls ...string) {
	e.Helper()
	for _, id := range polls {
		e.applyIn(id, vote.Window{})
	}
}

func (e *env) applyIn(poll string, w vote.Window) {
	e.Helper()
	if _, err := e.ApplyPoll(e.ctx(), definition(poll), w); err != nil {
		e.Fatal(err)
	}
}

// now is the server's time.
func (e *env) now() time.Time {
	e.Helper()
	now, err := e.Now(e.ctx())
	e.must(err)
	return now
}

// ballot is a vote in a test: for option of poll, with a key or none.
type ballot struct{ poll, option, key string }

// batch makes a batch of the votes, checked against definition.
func (e *env) batch(shard int, flusher string, seq uint64, ballots ...ballot) *vote.Batch {
	b := &vote.Batch{Shard: shard, ID: vote.FrameID{Flusher: flusher, Seq: seq}, Votes: len(ballots)}
	var body []byte
	for i, x := range ballots {
		e.ids++
		v := vote.Vote{
			ID:   uuid.MustParse(fmt.Sprintf("019be000-0000-7000-8000-%012x", e.ids)),
			Poll: x.poll, Option: x.option, Client: "10.0.0.1", UserAgent: "Mozilla/5.0",
		}
		body = vote.AppendVote(body, &v)
		p := slices.IndexFunc(b.Polls, func(p vote.BatchPoll) bool { return p.Poll == x.poll })
		if p < 0 {
			p = len(b.Polls)
			d := definition(x.poll)
			b.Polls = append(b.Polls, vote.BatchPoll{Poll: x.poll, OptionsKey: d.OptionsKey()})
		}
		b.Polls[p].Votes++
		if x.key != "" {
			b.Keyed = append(b.Keyed, vote.KeyedVote{
				Index: i, PollIndex: p, Key: vote.NewIdempotencyKey(x.poll, x.key), Option: x.option, ID: v.ID,
			})
		}
	}
	b.Body = e.codec.Compress(nil, body, len(ballots))
	return b
}

// some is n votes for a poll, one option after the other.
func some(poll string, n int) []ballot {
	out := make([]ballot, n)
	for i := range out {
		out[i] = ballot{poll, []string{"ana", "bruno", "carla"}[i%3], ""}
	}
	return out
}

// send registers the flusher and enqueues the batch.
func (e *env) send(b *vote.Batch) vote.BatchOutcome {
	e.Helper()
	q := e.queue()
	e.must(q.Register(e.ctx(), b.Shard, b.ID.Flusher))
	out, err := q.Enqueue(e.ctx(), b)
	e.must(err)
	return out
}

// all is a limit that no test reaches.
var all = vote.ReadLimit{Votes: 1 << 30, Bytes: 1 << 30, Elements: 1 << 20}

// plan adds up elements as a consumer does.
func (e *env) plan(shard int, token string, elements []string) *vote.CountCommit {
	c := &vote.CountCommit{
		Shard: shard, Token: token, Elements: len(elements),
		First: vote.ElementID([]byte(elements[0])), Last: vote.ElementID([]byte(elements[len(elements)-1])),
		Digest: vote.ElementsDigest(elements),
		Counts: map[string]vote.Tally{},
	}
	for i, el := range elements {
		sums := map[string]vote.Tally{}
		h, err := e.codec.Read([]byte(el), func(v *vote.RawVote) {
			t := sums[string(v.Poll)]
			if t == nil {
				t = vote.Tally{}
				sums[string(v.Poll)] = t
			}
			t[vote.TallyField(string(v.Class), string(v.Option))]++
		})
		if err != nil {
			c.Dead = append(c.Dead, i)
			c.DeadVotes = append(c.DeadVotes, h.Polls...)
			continue
		}
		for p, t := range sums {
			if c.Counts[p] == nil {
				c.Counts[p] = vote.Tally{}
			}
			for o, n := range t {
				c.Counts[p][o] += n
			}
		}
	}
	return c
}

// read reads a shard's whole queue.
func (e *env) readQueue(shard int) []string {
	e.Helper()
	elements, err := e.ReadQueue(e.ctx(), shard, all)
	e.must(err)
	return elements
}

// count counts all that waits on a shard.
func (e *env) count(shard int) {
	e.Helper()
	elements := e.readQueue(shard)
	if len(elements) == 0 {
		return
	}
	status, _, err := e.CommitCount(e.ctx(), e.plan(shard, uuid.NewString(), elements))
	e.must(err)
	if status != vote.CommitDone {
		e.Fatal("the commit was refused")
	}
}

// planBatch makes a batch of the elements, which begin the archive list, and
// says what its votes are.
func planBatch(shard int, sequence uint64, elements []string) (*vote.ArchiveBatch, []vote.PollVotes) {
	b := &vote.ArchiveBatch{
		Shard: shard, Sequence: sequence, Elements: len(elements),
		First: vote.ElementID([]byte(elements[0])), Last: vote.ElementID([]byte(elements[len(elements)-1])),
	}
	b.ID = fmt.Sprintf("%d-%08d-%s", shard, sequence, b.First)
	sums := map[string]int64{}
	for _, el := range elements {
		h, _, err := vote.ParseHeader([]byte(el))
		if err != nil {
			panic(err)
		}
		for _, p := range h.Polls {
			sums[p.Poll] += p.Votes
			b.Votes += p.Votes
		}
	}
	var votes []vote.PollVotes
	for _, p := range slices.Sorted(maps.Keys(sums)) {
		votes = append(votes, vote.PollVotes{Poll: p, Votes: sums[p]})
	}
	return b, votes
}

// archiveAll archives all that awaits it on a shard, as one batch.
func (e *env) archiveAll(shard int) {
	e.Helper()
	st, err := e.ArchiveState(e.ctx(), shard)
	e.must(err)
	if st.Elements == 0 {
		return
	}
	elements, err := e.ReadArchive(e.ctx(), shard, 0, all)
	e.must(err)
	b, votes := planBatch(shard, st.NextSequence, elements)
	fixed, err := e.FixBatch(e.ctx(), b, "")
	e.must(err)
	e.must(e.CommitBatch(e.ctx(), fixed, votes))
}

// dump is every key with its type and value, and whether it expires.
func (e *env) dump() map[string]string {
	e.Helper()
	out := map[string]string{}
	keys, err := e.rdb.Keys(e.ctx(), "*").Result()
	e.must(err)
	for _, k := range keys {
		var v any
		kind, err := e.rdb.Type(e.ctx(), k).Result()
		e.must(err)
		switch kind {
		case "string":
			v, err = e.rdb.Get(e.ctx(), k).Result()
		case "list":
			v, err = e.rdb.LRange(e.ctx(), k, 0, -1).Result()
		case "hash":
			v, err = e.rdb.HGetAll(e.ctx(), k).Result()
		case "zset": // without the scores, which are times
			v, err = e.rdb.ZRange(e.ctx(), k, 0, -1).Result()
		case "set":
			v, err = e.rdb.SMembers(e.ctx(), k).Result()
		default:
			e.Fatalf("key %s is a %s", k, kind)
		}
		e.must(err)
		ttl, err := e.rdb.PTTL(e.ctx(), k).Result()
		e.must(err)
		out[k] = fmt.Sprintf("%s, expires %v: %q", kind, ttl > 0, v)
	}
	return out
}

// unchanged fails the test if the server holds anything else than before.
func (e *env) unchanged(before map[string]string, when string) {
	e.Helper()
	after := e.dump()
	if reflect.DeepEqual(before, after) {
		return
	}
	var diff strings.Builder
	for _, k := range slices.Sorted(maps.Keys(before)) {
		if before[k] != after[k] {
			fmt.Fprintf(&diff, "\n- %s: %.400s", k, before[k])
		}
	}
	for _, k := range slices.Sorted(maps.Keys(after)) {
		if before[k] != after[k] {
			fmt.Fprintf(&diff, "\n+ %s: %.400s", k, after[k])
		}
	}
	e.Errorf("%s: the server's data changed:%s", when, diff.String())
}

// snapshot reads a whole shard as the audit does, and returns the elements of
// queue, archive and dead list at the instant of the last page, and that page.
func snapshot(ctx context.Context, s *Store, shard int, polls []string) ([3][]string, vote.SnapshotPage, error) {
	var lists [3][]string
	var from, head [3]int64
	for {
		page, err := s.Snapshot(ctx, shard, polls, from)
		if err != nil {
			return lists, page, err
		}
		for i, l := range []vote.ListPage{page.Queue, page.Archive, page.Dead} {
			gone := min(l.Head-head[i], int64(len(lists[i])))
			if gone < 0 || l.From < from[i] {
				return lists, page, fmt.Errorf("list %d: head %d, from %d, after head %d, from %d", i, l.Head, l.From, head[i], from[i])
			}
			lists[i] = append(lists[i][gone:], l.Elements...)
			head[i], from[i] = l.Head, l.From+int64(len(l.Elements))
			if l.Head+int64(len(lists[i])) != from[i] {
				return lists, page, fmt.Errorf("list %d: %d elements from %d to %d", i, len(lists[i]), l.Head, from[i])
			}
		}
		if page.Complete {
			return lists, page, nil
		}
	}
}

// conserved checks the equations of every shard, in the frames themselves:
// accepted = counted + queued + dead + dropped, counted = archived + awaiting,
// and the tally adds up to counted.
func conserved(ctx context.Context, s *Store, polls ...string) error {
	for shard := range s.Shards() {
		lists, page, err := snapshot(ctx, s, shard, polls)
		if err != nil {
			return err
		}
		var sums [3]map[string]int64
		seen := map[string]bool{}
		for i, list := range lists {
			sums[i] = map[string]int64{}
			for _, el := range list {
				h, _, err := vote.ParseHeader([]byte(el))
				if err != nil {
					continue
				}
				if seen[h.ID] {
					return fmt.Errorf("shard %d: frame %s stands twice", shard, h.ID)
				}
				seen[h.ID] = true
				for _, p := range h.Polls {
					sums[i][p.Poll] += p.Votes
				}
			}
		}
		for i, p := range polls {
			l := page.Ledgers[p]
			queued, awaiting, dead := sums[0][p], sums[1][p], sums[2][p]
			var tally int64
			for _, n := range page.Tallies[i] {
				tally += n
			}
			if l.Dead != dead || l.Accepted != l.Counted+queued+dead+l.Dropped ||
				l.Counted != l.Archived+awaiting || tally != l.Counted {
				return fmt.Errorf("shard %d, poll %s: %+v, but queued are %d, awaiting %d, dead %d, the tally %d",
					shard, p, l, queued, awaiting, dead, tally)
			}
		}
	}
	return nil
}

func (e *env) conserved(polls ...string) {
	e.Helper()
	if err := conserved(e.ctx(), e.Store, polls...); err != nil {
		e.Error(err)
	}
}
