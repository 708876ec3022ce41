package redisstore

import (
	"context"
	"io/fs"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// call is one run of one script: ready makes the data it needs and returns the
// call itself.
type call struct {
	name   string
	script func(*scripts) *redis.Script
	// keys are the call's keys, and writes says that its first run changes data.
	keys   []string
	writes bool
	ready  func(*env) func(*Store) (any, error)
	// second is what the second run answers, where that is not the answer of
	// the first.
	second any
	// another is what a call of another run answers then, where that differs too.
	another any
}

// calls has every script, in each of the ways that matter.
func calls() []call {
	const poll = "p"
	k := shardKeys(0)
	enqueue := func(ballots ...ballot) func(*env) func(*Store) (any, error) {
		return func(e *env) func(*Store) (any, error) {
			e.apply(poll)
			e.send(e.batch(0, "other", 1, ballot{poll, "ana", "used"}))
			e.must(e.queue().Register(e.ctx(), 0, "f"))
			b := e.batch(0, "f", 1, ballots...)
			return func(s *Store) (any, error) {
				q := s.Queue(time.Hour, 0, 0)
				out, err := q.Enqueue(e.ctx(), b)
				if err != nil && !isReply(err) { // the client does not repeat it: a flusher does
					return q.Enqueue(e.ctx(), b)
				}
				return out, err
			}
		}
	}
	enqueueKeys := []string{k.votes(), k.ledger(), k.flusher("f"), k.windows(), k.wake()}
	commit := func(spoil bool) func(*env) func(*Store) (any, error) {
		return func(e *env) func(*Store) (any, error) {
			e.apply(poll, "q")
			e.send(e.batch(0, "f", 1, append(some(poll, 3), some("q", 4)...)...))
			b := e.batch(0, "f", 2, some(poll, 5)...)
			if spoil {
				b.Body = []byte("x")
				e.push(0, "garbage")
			}
			e.send(b)
			e.send(e.batch(0, "f", 3, some(poll, 2)...)) // is not read
			elements := e.readQueue(0)
			c := e.plan(0, "token", elements[:len(elements)-1])
			return func(s *Store) (any, error) {
				status, _, err := s.CommitCount(e.ctx(), c)
				return status, err
			}
		}
	}
	commitKeys := []string{k.votes(), k.archive(), k.dead(), k.ledger(), k.tally(poll)}
	archived := func(then func(*env, *Store, *vote.ArchiveBatch, []vote.PollVotes) (any, error), before ...bool) func(*env) func(*Store) (any, error) {
		return func(e *env) func(*Store) (any, error) {
			e.apply(poll)
			b, votes := planBatch(0, 1, e.counted(3, 2)[:2])
			if len(before) > 0 {
				_, err := e.FixBatch(e.ctx(), b, "")
				e.must(err)
			}
			return func(s *Store) (any, error) { return then(e, s, b, votes) }
		}
	}
	restored := func(t vote.Tally) func(*env) func(*Store) (any, error) {
		return func(e *env) func(*Store) (any, error) {
			e.apply(poll)
			e.counted(3, 2)
			e.archiveAll(0)
			e.must(e.BeginRestore(e.ctx(), 0, "token"))
			b := lostBatch(7, t)
			return func(s *Store) (any, error) { return nil, s.RestoreBatch(e.ctx(), "token", "next", b) }
		}
	}
	pollOf := func(w vote.Window, options ...string) func(*env) func(*Store) (any, error) {
		return func(e *env) func(*Store) (any, error) {
			p := definition(poll, options...)
			return func(s *Store) (any, error) {
				a, err := s.ApplyPoll(e.ctx(), p, w)
				return a.Change, err
			}
		}
	}
	applied := func(then func(*env) func(*Store) (any, error), w vote.Window) func(*env) func(*Store) (any, error) {
		return func(e *env) func(*Store) (any, error) {
			e.applyIn(poll, w)
			return then(e)
		}
	}
	soon := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)
	window := func(f func(*Store, context.Context, string) error) func(*env) func(*Store) (any, error) {
		return func(e *env) func(*Store) (any, error) {
			return func(s *Store) (any, error) { return nil, f(s, e.ctx(), poll) }
		}
	}
	dead := func(requeue bool) func(*env) func(*Store) (any, error) {
		return func(e *env) func(*Store) (any, error) {
			e.apply(poll)
			d := e.deadFrames()
			return func(s *Store) (any, error) { return s.RemoveDead(e.ctx(), d[1], requeue) }
		}
	}
	deadKeys := []string{k.dead(), k.votes(), k.ledger(), k.wake()}
	shares := func(f func(*Shares, context.Context) (any, error), before ...string) func(*env) func(*Store) (any, error) {
		return func(e *env) func(*Store) (any, error) {
			for _, w := range before {
				_, err := e.Shares(RoleConsumer, w, time.Hour).Join(e.ctx())
				e.must(err)
				_, err = e.Shares(RoleConsumer, w, time.Hour).Claim(e.ctx(), 0)
				e.must(err)
			}
			return func(s *Store) (any, error) { return f(s.Shares(RoleConsumer, "w", time.Hour), e.ctx()) }
		}
	}
	busy := func(f func(*env, *Store) (any, error)) func(*env) func(*Store) (any, error) {
		return func(e *env) func(*Store) (any, error) {
			e.apply(poll)
			e.deadFrames()
			e.counted(2, 2)
			e.send(e.batch(0, "f", 1, some(poll, 2)...))
			return func(s *Store) (any, error) { return f(e, s) }
		}
	}

	return []call{
		{name: "register", script: func(s *scripts) *redis.Script { return s.register }, writes: true, ready: func(e *env) func(*Store) (any, error) {
			return func(s *Store) (any, error) { return nil, s.Queue(time.Hour, 0, 0).Register(e.ctx(), 0, "f") }
		}},
		{name: "enqueue", script: func(s *scripts) *redis.Script { return s.enqueue }, keys: enqueueKeys, writes: true,
			ready: enqueue(ballot{poll, "ana", ""}, ballot{poll, "bruno", ""})},
		{name: "enqueue keyed votes", script: func(s *scripts) *redis.Script { return s.enqueue },
			keys: append(slices.Clone(enqueueKeys), k.idem(vote.NewIdempotencyKey(poll, "new"))), writes: true,
			ready: enqueue(ballot{poll, "ana", "new"}, ballot{poll, "ana", "used"}, ballot{poll, "bruno", "used"}, ballot{poll, "ana", "new"})},
		{name: "enqueue nothing that counts", script: func(s *scripts) *redis.Script { return s.enqueue }, keys: enqueueKeys, writes: true,
			ready: enqueue(ballot{poll, "ana", "used"}, ballot{"nope", "ana", "x"})},
		{name: "count", script: func(s *scripts) *redis.Script { return s.commit }, keys: commitKeys, writes: true, ready: commit(false)},
		{name: "count dead ones", script: func(s *scripts) *redis.Script { return s.commit }, keys: commitKeys, writes: true, ready: commit(true)},
		{name: "archive fix", script: func(s *scripts) *redis.Script { return s.archiveFix }, keys: []string{k.archive(), k.ledger(), k.batch()}, writes: true,
			ready: archived(func(e *env, s *Store, b *vote.ArchiveBatch, _ []vote.PollVotes) (any, error) {
				return s.FixBatch(e.ctx(), b, "")
			})},
		{name: "archive replace", script: func(s *scripts) *redis.Script { return s.archiveFix }, keys: []string{k.archive(), k.ledger(), k.batch()}, writes: true,
			ready: archived(func(e *env, s *Store, b *vote.ArchiveBatch, _ []vote.PollVotes) (any, error) {
				other := *b
				other.Sequence, other.ID = 2, "0-00000002-x"
				return s.FixBatch(e.ctx(), &other, b.ID)
			}, true)},
		{name: "archive commit", script: func(s *scripts) *redis.Script { return s.archiveCommit },
			keys: []string{k.archive(), k.ledger(), k.batch(), k.batches()}, writes: true,
			ready: archived(func(e *env, s *Store, b *vote.ArchiveBatch, v []vote.PollVotes) (any, error) {
				return nil, s.CommitBatch(e.ctx(), b, v)
			}, true)},
		{name: "restore", script: func(s *scripts) *redis.Script { return s.restore },
			keys: []string{k.ledger(), k.batch(), k.batches(), k.tally(poll)}, writes: true,
			ready: restored(vote.Tally{"ana": 2, "bruno": 1})},
		{name: "restore nothing", script: func(s *scripts) *redis.Script { return s.restore },
			keys: []string{k.ledger(), k.batch(), k.batches()}, writes: true, ready: restored(nil)},
		{name: "restore mark", script: func(s *scripts) *redis.Script { return s.restoreMark }, keys: []string{k.ledger()}, writes: true,
			ready: busy(func(e *env, s *Store) (any, error) { return nil, s.BeginRestore(e.ctx(), 0, "token") })},
		{name: "join", script: func(s *scripts) *redis.Script { return s.member }, keys: []string{k.members(RoleConsumer)}, writes: true,
			ready: shares(func(m *Shares, ctx context.Context) (any, error) { return m.Join(ctx) }, "a")},
		{name: "leave", script: func(s *scripts) *redis.Script { return s.member }, keys: []string{k.members(RoleConsumer)}, writes: true,
			ready: shares(func(m *Shares, ctx context.Context) (any, error) { return nil, m.Leave(ctx) }, "a", "w")},
		{name: "claim", script: func(s *scripts) *redis.Script { return s.claim }, keys: []string{k.owner(RoleConsumer)}, writes: true,
			ready: shares(func(m *Shares, ctx context.Context) (any, error) { return m.Claim(ctx, 0) })},
		{name: "claim another's", script: func(s *scripts) *redis.Script { return s.claim }, keys: []string{k.owner(RoleConsumer)},
			ready: shares(func(m *Shares, ctx context.Context) (any, error) { return m.Claim(ctx, 0) }, "a")},
		{name: "release", script: func(s *scripts) *redis.Script { return s.release }, keys: []string{k.owner(RoleConsumer)}, writes: true,
			ready: shares(func(m *Shares, ctx context.Context) (any, error) { return nil, m.Release(ctx, 0) }, "w")},
		{name: "release another's", script: func(s *scripts) *redis.Script { return s.release }, keys: []string{k.owner(RoleConsumer)},
			ready: shares(func(m *Shares, ctx context.Context) (any, error) { return nil, m.Release(ctx, 0) }, "a")},
		{name: "poll create", script: func(s *scripts) *redis.Script { return s.pollApply },
			keys: []string{k.polls(), k.windows(), k.ledger(), k.pollsRev()}, writes: true, ready: pollOf(vote.Window{}), second: "same"},
		{name: "poll change", script: func(s *scripts) *redis.Script { return s.pollApply },
			keys: []string{k.polls(), k.windows(), k.ledger(), k.pollsRev()}, writes: true,
			ready: applied(pollOf(vote.Window{Closes: soon}), vote.Window{}), second: "same"},
		{name: "poll kept", script: func(s *scripts) *redis.Script { return s.pollApply },
			keys: []string{k.polls(), k.windows(), k.ledger(), k.pollsRev()}, writes: true,
			ready: applied(pollOf(vote.Window{Opens: soon, Closes: soon.Add(1e9)}), vote.Window{})},
		{name: "poll freeze", script: func(s *scripts) *redis.Script { return s.pollApply },
			keys: []string{k.polls(), k.windows(), k.ledger(), k.pollsRev()}, writes: true,
			ready: applied(func(e *env) func(*Store) (any, error) {
				return func(s *Store) (any, error) {
					a, err := s.applyPoll(e.ctx(), 0, definition(poll, "x"), vote.Window{}, []byte("{}"), "1")
					return a.Change, err
				}
			}, vote.Window{})},
		{name: "open", script: func(s *scripts) *redis.Script { return s.pollWindow }, keys: []string{k.windows(), k.pollsRev()}, writes: true,
			ready: applied(window((*Store).openPoll), vote.Window{Opens: soon})},
		{name: "close", script: func(s *scripts) *redis.Script { return s.pollWindow }, keys: []string{k.windows(), k.pollsRev()}, writes: true,
			ready: applied(window((*Store).closePoll), vote.Window{})},
		{name: "dead requeue", script: func(s *scripts) *redis.Script { return s.deadRemove }, keys: deadKeys, writes: true, ready: dead(true), another: false},
		{name: "dead drop", script: func(s *scripts) *redis.Script { return s.deadRemove }, keys: deadKeys, writes: true, ready: dead(false), another: false},
		{name: "meta", script: func(s *scripts) *redis.Script { return s.meta }, keys: []string{k.meta()}, writes: true,
			ready: func(e *env) func(*Store) (any, error) {
				return func(s *Store) (any, error) { return nil, s.CheckShards(e.ctx()) }
			}},

		{name: "read", script: func(s *scripts) *redis.Script { return s.read }, keys: []string{k.votes()},
			ready: busy(func(e *env, s *Store) (any, error) { return s.ReadQueue(e.ctx(), 0, all) })},
		{name: "read batch", script: func(s *scripts) *redis.Script { return s.read }, keys: []string{k.archive(), k.batch()},
			ready: archived(func(e *env, s *Store, b *vote.ArchiveBatch, _ []vote.PollVotes) (any, error) {
				return s.ReadBatch(e.ctx(), b, 0, all)
			}, true)},
		{name: "archive state", script: func(s *scripts) *redis.Script { return s.archiveState }, keys: []string{k.archive(), k.ledger(), k.batch()},
			ready: busy(func(e *env, s *Store) (any, error) {
				st, err := s.ArchiveState(e.ctx(), 0)
				st.Now = time.Time{}
				return st, err
			})},
		{name: "shard polls", script: func(s *scripts) *redis.Script { return s.shardPolls }, keys: []string{k.windows(), k.ledger()},
			ready: busy(func(e *env, s *Store) (any, error) {
				p, err := s.ShardPolls(e.ctx())
				for i := range p {
					p[i].Now = time.Time{}
				}
				return p, err
			})},
		{name: "results", script: func(s *scripts) *redis.Script { return s.results }, keys: []string{k.tally(poll), k.ledger(), k.windows()},
			ready: busy(func(e *env, s *Store) (any, error) {
				r, err := s.Results(e.ctx(), poll)
				r.AsOf = time.Time{}
				return r, err
			})},
		{name: "snapshot", script: func(s *scripts) *redis.Script { return s.snapshot },
			keys: []string{k.votes(), k.archive(), k.dead(), k.ledger(), k.tally(poll)},
			ready: busy(func(e *env, s *Store) (any, error) {
				p, err := s.Snapshot(e.ctx(), 0, []string{poll}, [3]int64{})
				p.Now = time.Time{}
				return p, err
			})},
		{name: "queue", script: func(s *scripts) *redis.Script { return s.queue },
			keys: []string{k.votes(), k.archive(), k.dead(), k.ledger(), k.owner(RoleConsumer), k.owner(RoleArchiver)},
			ready: busy(func(e *env, s *Store) (any, error) {
				q, err := s.Queues(e.ctx())
				for i := range q {
					q[i].Now = time.Time{}
				}
				return q, err
			})},
	}
}

// openPoll and closePoll are OpenPoll and ClosePoll as functions of one form.
func (s *Store) openPoll(ctx context.Context, poll string) error  { return s.OpenPoll(ctx, poll) }
func (s *Store) closePoll(ctx context.Context, poll string) error { return s.ClosePoll(ctx, poll) }

// Every script has a header, and stands in the table of calls.
func TestEveryScriptIsTested(t *testing.T) {
	s, err := loadScripts(false)
	if err != nil {
		t.Fatal(err)
	}
	tested := map[string]bool{}
	for _, c := range calls() {
		tested[c.script(&s).Hash()] = true
	}
	files, err := fs.Glob(luaFiles, "lua/*.lua")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files (%v)", len(files), err)
	}
	for _, f := range files {
		src, err := luaFiles.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !tested[redis.NewScript(string(src)).Hash()] {
			t.Errorf("%s has no call", f)
		}
		for _, want := range []string{"#!lua", "-- KEYS ", "-- Returns ", "-- Twice: "} {
			if !strings.Contains(string(src), want) {
				t.Errorf("%s does not say %q", f, want)
			}
		}
		// A script must not run for an unbounded time, nor take a list apart.
		for _, no := range []string{"unpack", "'KEYS'", "'SCAN'"} {
			if strings.Contains(string(src), no) {
				t.Errorf("%s uses %s", f, no)
			}
		}
	}
}

// The reply to each call is lost after the script ran, and the client's own
// retry (of enqueue, the caller's) runs it again with the same arguments: the second run changes nothing,
// and the caller gets the answer.
func TestEveryReplyMayBeLost(t *testing.T) {
	for _, c := range calls() {
		t.Run(c.name, func(t *testing.T) {
			onBoth(t, 1, func(e *env) {
				run := c.ready(e)
				want, err := run(e.Store)
				e.must(err)
				e.must(e.rdb.FlushAll(e.ctx()).Err())
				e.ids = 0

				p := testkit.NewProxy(e.T, e.addr)
				proxied := e.open(Options{URL: p.URL(), Shards: 1})
				script := c.script(&proxied.lua)
				e.must(script.Load(e.ctx(), e.rdb).Err())
				run = c.ready(e)
				before := e.dump()
				dropped := p.DropNext(func(cmd []string) bool { return runs(cmd, script) })
				first := true
				held, release := p.HoldNext(func(cmd []string) bool {
					if runs(cmd, script) && first {
						first = false
						return false
					}
					return runs(cmd, script)
				})
				type answer struct {
					got any
					err error
				}
				done := make(chan answer, 1)
				go func() {
					got, err := run(proxied)
					done <- answer{got, err}
				}()
				<-dropped
				<-held
				between := e.dump()
				if !reflect.DeepEqual(before, between) != c.writes {
					e.Errorf("the first run wrote: %v, want %v", !c.writes, c.writes)
				}
				release()
				a := <-done
				e.unchanged(between, "the second run")
				if c.second != nil {
					want = c.second
				}
				if a.err != nil || !reflect.DeepEqual(normal(a.got), normal(want)) {
					e.Errorf("answer %+v (%v)\nwant %+v", a.got, a.err, want)
				}
				// And once more, by another call.
				if c.another != nil {
					want = c.another
				}
				if got, err := run(e.Store); err != nil || !reflect.DeepEqual(normal(got), normal(want)) && c.name != "poll kept" {
					e.Errorf("once more: %+v (%v)\nwant %+v", got, err, want)
				}
				e.unchanged(between, "once more")
			})
		})
	}
}

// normal is an answer without what depends on when the data was made.
func normal(v any) any {
	switch v := v.(type) {
	case vote.BatchOutcome:
		v.AcceptedAt = time.Time{}
		keys := map[int]vote.KeyOutcome{}
		for i, k := range v.Keys {
			k.First.AcceptedAt = time.Time{}
			keys[i] = k
		}
		v.Keys = keys
		return v
	case []string: // elements: their headers have times
		var ids []string
		for _, el := range v {
			ids = append(ids, strconv.Itoa(len(el)))
		}
		return ids
	case *vote.ArchiveBatch:
		return [3]any{v.Sequence, v.Elements, v.Votes}
	case vote.ArchiveState:
		v.Oldest, v.Newest = time.Time{}, time.Time{}
		return v
	case []ShardQueue:
		out := slices.Clone(v)
		for i := range out {
			out[i].Oldest, out[i].AwaitingOldest = time.Time{}, time.Time{}
		}
		return out
	case vote.SnapshotPage:
		for _, l := range []*vote.ListPage{&v.Queue, &v.Archive, &v.Dead} {
			l.Elements = normal(l.Elements).([]string)
		}
		return v
	}
	return v
}

// runs tells whether a command runs the script.
func runs(cmd []string, script *redis.Script) bool {
	return len(cmd) > 1 && strings.EqualFold(cmd[0], "evalsha") && cmd[1] == script.Hash()
}

// A key of another type stops a script before its first write, whichever key it
// is.
func TestWrongTypes(t *testing.T) {
	for _, c := range calls() {
		for _, key := range c.keys {
			t.Run(c.name+"/"+key, func(t *testing.T) {
				onBoth(t, 1, func(e *env) {
					run := c.ready(e)
					e.must(e.rdb.Del(e.ctx(), key).Err())
					e.must(e.rdb.SAdd(e.ctx(), key, "x").Err()) // none of ours is a set
					before := e.dump()
					if got, err := run(e.Store); err == nil || !strings.Contains(err.Error(), "WRONGTYPE") {
						e.Errorf("%s is a set: %+v, %v", key, got, err)
					}
					e.unchanged(before, key+" is a set")
				})
			})
		}
	}
}

// The server forgot all scripts, as after a failover or a restart.
func TestScriptFlush(t *testing.T) {
	for _, c := range calls() {
		t.Run(c.name, func(t *testing.T) {
			onBoth(t, 1, func(e *env) {
				run := c.ready(e)
				e.must(e.rdb.ScriptFlush(e.ctx()).Err())
				first, err := run(e.Store)
				e.must(err)
				before := e.dump()
				e.must(e.rdb.ScriptFlush(e.ctx()).Err())
				second, err := run(e.Store)
				e.must(err)
				e.unchanged(before, "again without the script")
				want := first
				switch {
				case c.another != nil:
					want = c.another
				case c.second != nil:
					want = c.second
				}
				if !reflect.DeepEqual(second, want) {
					e.Errorf("again: %+v, want %+v", second, want)
				}
			})
		})
	}
}
