package redisstore

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// clockBack makes it look to a shard as if Redis's clock had gone back by an
// hour, for a poll that has closed: its close lies in the future again.
func (e *env) clockBack(poll string) {
	e.Helper()
	for shard := range e.shards {
		key := shardKeys(shard).windows()
		f := strings.Fields(e.rdb.HGet(e.ctx(), key, poll).Val())
		closes, err := strconv.ParseInt(f[1], 10, 64)
		e.must(err)
		f[1] = strconv.FormatInt(closes+time.Hour.Milliseconds(), 10)
		e.must(e.rdb.HSet(e.ctx(), key, poll, strings.Join(f, " ")).Err())
	}
}

// A poll that anyone has seen closed stays closed, and final stays final, also
// when Redis's clock goes back.
func TestSeenClosedStaysClosed(t *testing.T) {
	for name, see := range map[string]func(e *env){
		"by hand": func(e *env) { e.must(e.ClosePoll(e.ctx(), "p")) },
		"by a voter": func(e *env) {
			for shard := range e.shards {
				if out := e.send(e.batch(shard, "late", 1, ballot{"p", "ana", ""})); out.Polls[0] != vote.PollClosed {
					e.Fatalf("shard %d: %q", shard, out.Polls)
				}
			}
		},
		"by results": func(e *env) {
			if r, err := e.Results(e.ctx(), "p"); err != nil || !r.Final {
				e.Fatalf("%+v (%v)", r, err)
			}
		},
		"by the list": func(e *env) {
			shards, err := e.ShardPolls(e.ctx())
			e.must(err)
			if s := vote.StatusOf("p", shards); s != vote.StatusFinal {
				e.Fatalf("%s", s)
			}
		},
		"by apply": func(e *env) {
			_, err := e.ApplyPoll(e.ctx(), definition("p"), vote.Window{Closes: e.now().Add(time.Hour)})
			e.must(err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, 2, func(e *env) {
				if name == "by hand" {
					e.applyIn("p", vote.Window{Closes: e.now().Add(time.Hour)})
				} else {
					closes := e.now().Add(20 * time.Millisecond)
					e.applyIn("p", vote.Window{Closes: closes})
					testkit.Eventually(t, "it has closed", func() bool { return e.now().After(closes) })
				}
				see(e)
				e.clockBack("p")
				for shard := range e.shards {
					if out := e.send(e.batch(shard, "after", 1, ballot{"p", "ana", ""})); out.Polls[0] != vote.PollClosed {
						e.Errorf("shard %d takes votes again: %q", shard, out.Polls)
					}
				}
				if r, err := e.Results(e.ctx(), "p"); err != nil || !r.Final || r.Window.Status(r.AsOf) != vote.StatusClosed {
					e.Errorf("results: %+v (%v)", r, err)
				}
				if err := e.OpenPoll(e.ctx(), "p"); !errors.Is(err, vote.ErrPollClosed) {
					e.Errorf("open: %v", err)
				}
				before := e.dump()
				e.must(e.ClosePoll(e.ctx(), "p"))
				e.unchanged(before, "close, again")
				if got, err := e.ApplyPoll(e.ctx(), definition("p"), vote.Window{}); err != nil || got.Change != "kept" {
					e.Errorf("apply: %+v (%v)", got, err)
				}
				if s := e.windows("p"); !s[0].Sealed || !s[1].Sealed {
					e.Errorf("windows: %+v", s)
				}
			})
		})
	}
}

// A poll that has only looked closed to no one is open again after such a jump:
// nothing was refused and nothing was called final.
func TestUnseenCloseIsNoClose(t *testing.T) {
	onBoth(t, 1, func(e *env) {
		closes := e.now().Add(20 * time.Millisecond)
		e.applyIn("p", vote.Window{Closes: closes})
		testkit.Eventually(t, "it has closed", func() bool { return e.now().After(closes) })
		e.clockBack("p")
		if out := e.send(e.batch(0, "f", 1, ballot{"p", "ana", ""})); out.Polls[0] != vote.PollAccepted {
			e.Errorf("%q", out.Polls)
		}
		// Sealing an open poll does nothing.
		before := e.dump()
		e.must(e.lua.pollWindow.Run(e.ctx(), e.rdb, []string{shardKeys(0).windows(), shardKeys(0).pollsRev()}, "p", "seal", "x").Err())
		e.unchanged(before, "seal")
	})
}

// Where Redis can't be written to, a poll that has closed is not called final.
func TestFinalWaitsForTheSeal(t *testing.T) {
	e, server := own(t, 1)
	closes := e.now().Add(20 * time.Millisecond)
	e.applyIn("p", vote.Window{Closes: closes})
	testkit.Eventually(t, "it has closed", func() bool { return e.now().After(closes) })
	client := server.Client()
	e.must(client.Do(e.ctx(), "REPLICAOF", "127.0.0.1", "1").Err())
	if r, err := e.Results(e.ctx(), "p"); err != nil || r.Final || r.Window.Status(r.AsOf) != vote.StatusClosed {
		t.Errorf("on a replica: %+v (%v)", r, err)
	}
	e.must(client.Do(e.ctx(), "REPLICAOF", "NO", "ONE").Err())
	if r, err := e.Results(e.ctx(), "p"); err != nil || !r.Final {
		t.Errorf("on a primary: %+v (%v)", r, err)
	}
}
