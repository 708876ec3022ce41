package redisstore

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestMembers(t *testing.T) {
	onBoth(t, 4, func(e *env) {
		const ttl = time.Minute
		a, b, z := e.Shares(RoleConsumer, "a", ttl), e.Shares(RoleConsumer, "b", ttl), e.Shares(RoleConsumer, "Z", ttl)
		live := func(m *Shares, want string) {
			e.Helper()
			got, err := m.Join(e.ctx())
			if err != nil || strings.Join(got, " ") != want || !slices.IsSorted(got) {
				e.Errorf("live are %q (%v), want %q", got, err, want)
			}
		}
		live(b, "b")
		live(b, "b")
		live(z, "Z b")
		live(a, "Z a b")
		live(e.Shares(RoleArchiver, "x", ttl), "x")
		if d := e.rdb.PTTL(e.ctx(), "members:{0}:consumer").Val(); d <= ttl || d > 2*ttl {
			e.Errorf("the list lives %v", d)
		}
		e.must(a.Leave(e.ctx()))
		e.must(a.Leave(e.ctx()))
		live(b, "Z b")
		// Silent for longer than ttl, by Redis's clock.
		old := float64(e.now().Add(-ttl - time.Second).UnixMilli())
		e.must(e.rdb.ZAdd(e.ctx(), "members:{0}:consumer", redis.Z{Score: old, Member: "Z"}).Err())
		live(b, "b")
		// Seen before Redis's clock went back by ten minutes, and never again. Who
		// is alive is listed as soon as it says so.
		ahead := float64(e.now().Add(10 * time.Minute).UnixMilli())
		for _, worker := range []string{"Z", "a"} {
			e.must(e.rdb.ZAdd(e.ctx(), "members:{0}:consumer", redis.Z{Score: ahead, Member: worker}).Err())
		}
		live(b, "b")
		live(a, "a b")
		// A step that the time-out covers sends no one away.
		near := float64(e.now().Add(ttl / 2).UnixMilli())
		e.must(e.rdb.ZAdd(e.ctx(), "members:{0}:consumer", redis.Z{Score: near, Member: "a"}).Err())
		live(b, "a b")
		e.must(a.Leave(e.ctx()))
		// A worker that leaves sweeps too, and the last one leaves nothing.
		e.must(b.Leave(e.ctx()))
		if n := e.rdb.Exists(e.ctx(), "members:{0}:consumer").Val(); n != 0 {
			e.Error("the list of no members is there")
		}
	})
}

func TestClaims(t *testing.T) {
	onBoth(t, 4, func(e *env) {
		const ttl = time.Minute
		a, b := e.Shares(RoleConsumer, "a", ttl), e.Shares(RoleConsumer, "b", ttl)
		claim := func(m *Shares, shard int, want bool) {
			e.Helper()
			if got, err := m.Claim(e.ctx(), shard); err != nil || got != want {
				e.Errorf("claim of shard %d by %s: %v (%v), want %v", shard, m.worker, got, err, want)
			}
		}
		claim(a, 0, true)
		claim(b, 0, false)
		claim(b, 1, true)
		claim(e.Shares(RoleArchiver, "b", ttl), 0, true) // another role is another thing
		// A claim that is repeated is renewed.
		e.must(e.rdb.PExpire(e.ctx(), "owner:{0}:consumer", time.Second).Err())
		claim(b, 0, false)
		if d := e.rdb.PTTL(e.ctx(), "owner:{0}:consumer").Val(); d > time.Second {
			e.Errorf("another's claim renewed it: %v", d)
		}
		claim(a, 0, true)
		if d := e.rdb.PTTL(e.ctx(), "owner:{0}:consumer").Val(); d <= time.Second || d > ttl {
			e.Errorf("the claim lives %v", d)
		}
		e.must(b.Release(e.ctx(), 0)) // not its own
		claim(b, 0, false)
		e.must(a.Release(e.ctx(), 0))
		e.must(a.Release(e.ctx(), 0))
		claim(b, 0, true)
		e.must(a.Release(e.ctx(), 0)) // late
		claim(a, 0, false)

		queues, err := e.Queues(e.ctx())
		e.must(err)
		for shard, want := range []string{"b", "b", "", ""} {
			if queues[shard].Consumer != want {
				e.Errorf("shard %d belongs to %q, want %q", shard, queues[shard].Consumer, want)
			}
		}
		if queues[0].Archiver != "b" {
			e.Errorf("the archiver of shard 0 is %q", queues[0].Archiver)
		}
		// Redis's clock went back by ten minutes, so the key of an owner that died
		// would live for so much longer. One that is alive renews its own.
		e.must(e.rdb.PExpire(e.ctx(), "owner:{0}:consumer", 10*time.Minute).Err())
		claim(a, 0, true)
		claim(b, 0, false)
		e.must(e.rdb.PExpire(e.ctx(), "owner:{0}:consumer", ttl+ttl/2).Err())
		claim(b, 0, false)
		e.must(a.Release(e.ctx(), 0))
		claim(b, 0, true)
		// The owner is silent: another takes over.
		e.must(e.rdb.Del(e.ctx(), "owner:{0}:consumer").Err())
		claim(a, 0, true)
	})
}
