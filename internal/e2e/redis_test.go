package e2e

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
)

// Every twentieth reply of Redis is lost, for each daemon: the command ran, and
// the connection is cut.
func TestLostReplies(t *testing.T) {
	s := newStack(t, 2)
	const lost = 0.05
	proxies := map[string]*testkit.Proxy{}
	processes := map[string]*testkit.Process{}
	for _, name := range []string{"api", "consumer", "archiver"} {
		proxies[name] = testkit.NewProxy(t, s.redis.Addr())
		proxies[name].DropReplies(lost)
		processes[name] = s.start(name, proxies[name].URL())
	}
	l := s.load(steady, processes["api"])
	after(faultTime())
	for name, p := range proxies {
		testkit.Eventually(t, "replies to "+name+" are lost", func() bool { return p.Dropped() >= 5 })
	}
	for name, p := range proxies {
		t.Logf("%s: %d replies lost", name, p.Dropped())
	}
	s.judge(l)
}

// Redis is killed three times under load. With appendfsync always it must have
// every vote that it acknowledged.
func TestKilledRedis(t *testing.T) {
	s := newStack(t, 1, "--appendonly", "yes", "--appendfsync", "always")
	s.start("consumer", "")
	s.start("archiver", "")
	api := s.start("api", "")
	l := s.load(fullSpeed, api)
	for range 3 {
		after(faultTime() / 4)
		s.grow(l, 500)
		pid := s.redis.Pid()
		s.redis.Kill()
		s.redis.Start()
		require.NotEqual(t, pid, s.redis.Pid())
	}
	s.grow(l, 500)
	require.True(t, api.Logged("Redis does not take votes"), "votes were under way when Redis was killed")
	s.judge(l)
}

// Elements that no consumer can read go to the dead list, and the line goes on.
func TestPoison(t *testing.T) {
	s := newStack(t, 2)
	consumer := s.start("consumer", "")
	s.start("archiver", "")
	l := s.load(steady, s.start("api", ""))
	s.grow(l, 500)

	// (A readable header would say how many votes are lost with the element, and
	// the audit would rightly miss their acceptance.)
	poison := []string{
		"x", "P1 ", `{"option":"ana"}`, "P1 a-1 0 99999999999999999999 - open:1\n",
		"\x00\xff\xfe", strings.Repeat("y", 1<<20),
	}
	client := s.redis.Client()
	for _, p := range poison {
		for _, list := range []string{"votes:{0}", "votes:{1}"} {
			require.NoError(t, client.RPush(t.Context(), list, p).Err())
		}
		s.grow(l, 100)
	}
	n := 2 * len(poison)
	testkit.Eventually(t, "all poison is in the dead lists", func() bool {
		return client.LLen(t.Context(), "dead:{0}").Val()+client.LLen(t.Context(), "dead:{1}").Val() == int64(n)
	})
	require.GreaterOrEqual(t, consumer.Metric("paredao_dead_votes_total", `reason="unreadable"`), float64(n))
	require.True(t, consumer.Logged("unreadable element"))
	s.grow(l, 500)
	l.end()
	testkit.Eventually(t, "the line has gone on", func() bool {
		queued, _ := s.pending()
		return queued == 0
	})

	// The operator looks at it, and drops it.
	for shard := range s.shards {
		dropped := 0
		for {
			// A page may hold less than asked for, but not nothing.
			dead, err := s.store.Dead(t.Context(), shard, 0, 100)
			require.NoError(t, err)
			if len(dead) == 0 {
				break
			}
			require.Contains(t, poison, dead[0].Element)
			gone, err := s.store.RemoveDead(t.Context(), dead[0], false)
			require.NoError(t, err)
			require.True(t, gone)
			dropped++
		}
		require.Equal(t, len(poison), dropped)
	}
	s.judge(l)
}
