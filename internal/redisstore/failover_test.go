package redisstore

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"paredao/internal/lab"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// A sentinel that does not answer is given up for another, also while all is
// well with the primary.
func TestSilentSentinel(t *testing.T) {
	l, err := lab.StartSentinel(context.Background(), lab.SentinelParams{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.End)
	s, err := Open(Options{URL: l.OneURL(0), Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.SignalSentinel(0, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	master, err := l.Master(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Addr: master.Addr()})
	defer c.Close()
	if err := c.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "another sentinel is asked", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := s.Now(ctx)
		return err == nil
	})
}

// A master that dies says MOVED to nobody: the store must ask the others who
// took its place. Meanwhile they are watched, and say when they are full.
func TestDeadMaster(t *testing.T) {
	l, err := lab.StartCluster(context.Background(), lab.ClusterParams{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.End)
	s, err := Open(Options{URL: l.URL(), Shards: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	q := s.Queue(time.Hour, 0, 0)
	if ok, err := q.HasRoom(t.Context()); err != nil || !ok {
		t.Fatalf("has room: %v (%v)", ok, err)
	}
	slot, err := l.Slot(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := l.KillMaster(t.Context(), slot)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Health(t.Context()); err == nil || !strings.Contains(err.Error(), "cluster") {
		t.Errorf("health without a master: %v", err)
	}
	masters, err := l.Masters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	other := masters[0]
	if other == dead {
		other = masters[1]
	}
	c := redis.NewClient(&redis.Options{Addr: other.Addr()})
	defer c.Close()
	if err := c.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if ok, err := q.HasRoom(t.Context()); err != nil || ok {
		t.Errorf("one away and one full: has room: %v (%v)", ok, err)
	}
	if err := c.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	// Who is away keeps no gate shut: with no replica it may be for ever.
	if ok, err := q.HasRoom(t.Context()); err != nil || !ok {
		t.Errorf("one away and the others have room: has room: %v (%v)", ok, err)
	}
	if _, err := l.Promoted(t.Context(), slot, dead); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the new master answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := s.ReadQueue(ctx, 0, vote.ReadLimit{Votes: 1, Bytes: 1, Elements: 1})
		return err == nil
	})
}

// The wait for votes ends in time also when Redis does not answer.
func TestAwaitVotesOfASilentRedis(t *testing.T) {
	_, r := own(t, 1)
	s, err := Open(Options{URL: r.URL(), Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
	defer cancel()
	if err := s.AwaitVotes(ctx, 0, 100*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "timeout") {
		t.Errorf("a silent Redis: %v", err)
	}
	if ctx.Err() != nil {
		t.Error("the wait did not end by itself")
	}
}
