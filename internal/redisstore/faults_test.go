package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// Commands time out at random, on connections that go on living: by the client's
// own time-out and by the caller's. No answer may be that of an earlier question
// (go-redis#1113). Each poll has its own number of votes, so that any answer
// tells which question it belongs to.
func TestNoAnswerOfAnother(t *testing.T) {
	e := onRedis(t, 1)
	const polls = 16
	for i := range polls {
		id := fmt.Sprintf("p%d", i)
		e.apply(id)
		e.send(e.batch(0, "f", uint64(i+1), some(id, i+1)...))
	}
	p := testkit.NewProxy(t, e.addr)
	s := e.open(Options{URL: p.URL(), Shards: 1, Timeout: 40 * time.Millisecond})
	var answered, failed atomic.Int64
	ctx, stop := context.WithCancel(e.ctx())
	defer stop()
	var asking sync.WaitGroup
	for i := range polls {
		asking.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for ctx.Err() == nil {
				within, cancel := context.WithTimeout(ctx, time.Duration(1+r.IntN(80))*time.Millisecond)
				got, err := s.Results(within, fmt.Sprintf("p%d", i))
				cancel()
				switch {
				case err != nil:
					failed.Add(1)
				case got.Ledger.Accepted != int64(i+1):
					t.Errorf("poll p%d has %d votes, want %d", i, got.Ledger.Accepted, i+1)
					return
				default:
					answered.Add(1)
				}
			}
		})
	}
	for range 40 {
		before := failed.Load()
		p.Stall()
		testkit.Eventually(t, "questions time out", func() bool { return failed.Load() > before+polls })
		good := answered.Load()
		p.Resume()
		testkit.Eventually(t, "questions are answered", func() bool { return answered.Load() > good+polls || t.Failed() })
	}
	stop()
	asking.Wait()
	t.Logf("%d answers, %d time-outs", answered.Load(), failed.Load())
}

// Idle consumers of many shards block in Redis, each on a connection of its own.
// What else the process has to say to Redis does not wait behind them
// (go-redis#1798).
func TestBlockedWaitsLeaveRoom(t *testing.T) {
	const shards = 100
	e := onRedis(t, shards)
	s := e.open(Options{URL: "redis://" + e.addr, Shards: shards})
	var waiting sync.WaitGroup
	for shard := range shards {
		waiting.Go(func() { _ = s.AwaitVotes(e.ctx(), shard, time.Hour) })
	}
	testkit.Eventually(t, "all are blocked", func() bool {
		info, err := e.rdb.Info(e.ctx(), "clients").Result()
		return err == nil && strings.Contains(info, "blocked_clients:"+strconv.Itoa(shards)+"\r\n")
	})
	busy := &env{T: t, Store: s, codec: e.codec}
	busy.apply("p")
	busy.send(busy.batch(0, "f", 1, some("p", 3)...))
	busy.count(0)
	busy.conserved("p")
	e.must(s.Close()) // which ends them
	waiting.Wait()
}

// IPv6, a database number, and a password with all of the odd characters, on a
// real server.
func TestIPv6AndDatabase(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	_ = l.Close()
	e, r := own(t, 1, "--bind", "127.0.0.1 ::1")
	e.config("requirepass", "@ / : # % ?")
	s := e.open(Options{URL: "redis://:%40%20%2F%20%3A%20%23%20%25%20%3F@[::1]:" + strconv.Itoa(r.Port) + "/7", Shards: 1})
	mainPath(t, s)
	seven := redis.NewClient(&redis.Options{Addr: r.Addr(), DB: 7, Password: "@ / : # % ?"})
	defer seven.Close()
	if n, err := seven.DBSize(t.Context()).Result(); err != nil || n == 0 {
		t.Errorf("database 7 has %d keys (%v)", n, err)
	}
	if n, err := e.rdb.DBSize(t.Context()).Result(); err != nil || n != 0 {
		t.Errorf("database 0 has %d keys (%v)", n, err)
	}
}

// A server whose role changes and changes back, with one and the same store: it
// says READONLY to whoever is connected, and then takes votes again over the same
// connections (go-redis#790).
func TestRoleChangesAndBack(t *testing.T) {
	e, _ := own(t, 1)
	e.apply("p")
	q := e.queue()
	e.must(q.Register(e.ctx(), 0, "f"))
	seq := uint64(0)
	for range 3 {
		seq++
		b := e.batch(0, "f", seq, some("p", 2)...)
		e.must(e.rdb.Do(e.ctx(), "REPLICAOF", "127.0.0.1", "1").Err())
		ctx, cancel := context.WithTimeout(e.ctx(), 300*time.Millisecond)
		out, err := q.Enqueue(ctx, b)
		cancel()
		if err == nil {
			t.Errorf("a replica took votes: %+v", out)
		}
		connections := connectionsMade(t, e)
		e.must(e.rdb.Do(e.ctx(), "REPLICAOF", "NO", "ONE").Err())
		if out, err = q.Enqueue(e.ctx(), b); err != nil || out.Polls[0] != vote.PollAccepted {
			t.Errorf("a primary again: %+v, %v", out, err)
		}
		if n := connectionsMade(t, e); n > connections+3 {
			t.Errorf("%d new connections", n-connections)
		}
	}
	e.count(0)
	e.conserved("p")
}

func connectionsMade(t *testing.T, e *env) int {
	t.Helper()
	info, err := e.rdb.Info(t.Context(), "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(info, "total_connections_received:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
