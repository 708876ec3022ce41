package redisstore

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// sentinel starts a Redis Sentinel that watches a primary, and returns its
// address.
func sentinel(t *testing.T, primary *testkit.RedisServer) string {
	t.Helper()
	port := freePort(t)
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	text := fmt.Sprintf("port %s\nbind 127.0.0.1\nlogfile %s\nsentinel monitor main 127.0.0.1 %d 1\nsentinel down-after-milliseconds main 60000\n",
		port, conf+".log", primary.Port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("redis-server", conf, "--sentinel")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	return net.JoinHostPort("127.0.0.1", port)
}

// The store finds the primary by Sentinel, and the next one after a failover,
// without a restart.
func TestSentinel(t *testing.T) {
	e, primary := own(t, 2, "--repl-diskless-sync-delay", "0")
	replica := replicaOf(t, e, primary, "--repl-diskless-sync-delay", "0")
	addr := sentinel(t, primary)
	watcher := redis.NewClient(&redis.Options{Addr: addr})
	defer watcher.Close()
	testkit.Eventually(t, "Sentinel knows the replica", func() bool {
		info, err := watcher.Info(t.Context(), "sentinel").Result()
		return err == nil && strings.Contains(info, "status=ok,") && strings.Contains(info, "slaves=1,")
	})
	s := e.open(Options{URL: "redis-sentinel://127.0.0.1:1," + addr + "/main?db=0", Shards: 2})
	mainPath(t, s)
	e.apply("r")
	b := e.batch(0, "g", 1, some("r", 5)...)
	q := s.Queue(time.Hour, 1, 40*time.Second)
	e.must(q.Register(t.Context(), 0, "g"))
	out, err := q.Enqueue(t.Context(), b)
	if err != nil || out.Polls[0] != vote.PollAccepted {
		t.Fatalf("%+v, %v", out, err)
	}
	testkit.Eventually(t, "Sentinel agrees to a failover", func() bool {
		return watcher.Do(t.Context(), "SENTINEL", "FAILOVER", "main").Err() == nil
	})
	there := replica.Client()
	testkit.Eventually(t, "the replica is promoted", func() bool {
		return strings.Contains(there.Info(t.Context(), "replication").Val(), "role:master")
	})
	testkit.Eventually(t, "the old primary follows", func() bool {
		return strings.Contains(e.rdb.Info(t.Context(), "replication").Val(), "role:slave")
	})
	// With WAIT for a replica: the old primary, once it is one.
	testkit.Eventually(t, "the frame's repetition is answered by the new primary", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		again, err := q.Enqueue(ctx, b)
		return err == nil && again.AcceptedAt.Equal(out.AcceptedAt)
	})
	after := &env{T: t, Store: s, codec: e.codec}
	after.count(0)
	after.archiveAll(0)
	after.conserved("p", "q", "r")
	if h, err := s.Health(t.Context()); err != nil || h.Problem != "" {
		t.Errorf("health %+v (%v)", h, err)
	}
	if r, err := s.Results(t.Context(), "r"); err != nil || r.Ledger.Archived != 5 {
		t.Errorf("results %+v (%v)", r, err)
	}
}
