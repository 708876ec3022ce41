package e2e

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
)

// The apis are restarted one after the other, while connections are kept alive.
func TestRollingRestart(t *testing.T) {
	s := newStack(t, 2)
	s.start("consumer", "")
	s.start("archiver", "")
	// No vote is to be given up because the machine is slow.
	const patient = "--enqueue-timeout=30s"
	apis := []*testkit.Process{s.start("api", "", patient), s.start("api", "", patient)}
	l := s.load(steady, apis...)
	restarts := 0
	for end := time.Now().Add(faultTime()); time.Now().Before(end) || restarts < 4; {
		for _, api := range apis {
			s.grow(l, 500)
			addr := api.Addr()
			require.Equal(t, 0, api.Term(), "exit code")
			require.True(t, api.Logged(`"msg":"stopped"`))
			api.Restart("--listen=" + addr)
			api.Ready()
			restarts++
		}
	}
	t.Logf("%d restarts", restarts)
	r := s.judge(l)
	// Whoever's vote was taken got its answer: SIGTERM cut no live request.
	require.Zero(t, r.Replayed)
}

// The apis are killed, one after the other. Votes that were taken, and whose
// voters heard nothing, are sent again with their keys.
func TestKilledApi(t *testing.T) {
	s := newStack(t, 2)
	s.start("consumer", "")
	s.start("archiver", "")
	apis := []*testkit.Process{s.start("api", ""), s.start("api", "")}
	l := s.load(fullSpeed, apis...)
	kills := 0
	for end := time.Now().Add(faultTime()); time.Now().Before(end) || l.replayed() == 0; {
		for _, api := range apis {
			s.grow(l, 500)
			addr := api.Addr()
			api.Kill()
			api.Restart("--listen=" + addr)
			api.Ready()
			kills++
		}
	}
	t.Logf("%d kills", kills)
	s.judge(l)
}

// replayed is how many answers said that an earlier attempt had been taken.
func (l *load) replayed() int64 {
	var n int64
	for i := range l.Choices() {
		n += l.Sums(i).Replayed
	}
	return n
}

// Daemons with nothing to do cost next to nothing, and wake up for a vote.
func TestIdle(t *testing.T) {
	s := newStack(t, 1)
	consumer, archiver := s.start("consumer", "").Ready(), s.start("archiver", "").Ready()
	api := s.start("api", "").Ready()
	voteOnce(t, api)
	testkit.Eventually(t, "the first vote is archived", func() bool {
		queued, awaiting := s.pending()
		return queued+awaiting == 0 && archiver.MetricOrZero("paredao_votes_archived_total") == 1
	})

	idle := time.Duration(*idleSeconds) * time.Second
	begin, consumed, archived, asked := time.Now(), consumer.CPU(), archiver.CPU(), s.commands()
	after(idle)
	consumed, archived, asked = consumer.CPU()-consumed, archiver.CPU()-archived, s.commands()-asked
	took := time.Since(begin)
	t.Logf("in %s idle: consumer %s, archiver %s of processor time; Redis had %d commands", took.Round(time.Millisecond), consumed, archived, asked)
	// What they do is bounded by what they ask of Redis. Who turns round without
	// asking takes a processor; what little idleness takes is the machine's.
	require.Less(t, float64(asked), mostIdleCommands*took.Seconds())
	require.Less(t, consumed, took/10, "consumer")
	require.Less(t, archived, took/10, "archiver")

	const sum, n = "paredao_accept_to_count_seconds_sum", "paredao_accept_to_count_seconds_count"
	before := consumer.Metric(sum)
	require.Equal(t, 1.0, consumer.Metric(n))
	voteOnce(t, api)
	testkit.Eventually(t, "the vote is counted", func() bool { return consumer.MetricOrZero(n) == 2 })
	seconds := consumer.Metric(sum) - before
	t.Logf("counted %.1f ms after it was accepted", seconds*1000)
	if *idleSeconds >= 1000 {
		require.Less(t, seconds, 0.1)
	}
}

// mostIdleCommands is how many commands a second an api, a consumer and an
// archiver may have for Redis that have nothing to do.
const mostIdleCommands = 200

// commands is how many commands Redis has had.
func (s *stack) commands() int64 {
	s.t.Helper()
	info, err := s.redis.Client().InfoMap(s.t.Context(), "stats").Result()
	require.NoError(s.t, err)
	n, err := strconv.ParseInt(info["Stats"]["total_commands_processed"], 10, 64)
	require.NoError(s.t, err)
	return n
}

func voteOnce(t *testing.T, api *testkit.Process) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api.URL()+"/polls/"+openPoll+"/votes",
		strings.NewReader(`{"option":"ana"}`))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, http.StatusAccepted, resp.StatusCode)
}
