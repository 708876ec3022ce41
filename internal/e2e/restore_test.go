package e2e

import (
	"os/exec"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// Redis loses everything after all votes were archived. It is restored while new
// votes come in, and the ledger of all of them holds.
func TestRestoreLostRedis(t *testing.T) {
	s := newStack(t, 2)
	api := s.start("api", "")
	s.start("consumer", "")
	s.start("archiver", "")
	l := s.load(steady, api)
	s.grow(l, 2000)
	s.judge(l) // and waits until all is archived

	require.NoError(t, s.redis.Client().FlushAll(t.Context()).Err())
	require.NoError(t, s.store.CheckShards(t.Context()))
	s.definePolls()
	fresh := s.load(steady, api)
	s.grow(fresh, 500)
	out := s.tally("restore", "--settle=3s")
	t.Log(out)
	require.Contains(t, out, "Restored ")
	s.grow(fresh, 500)
	fresh.end()
	testkit.Eventually(t, "all is counted and archived", func() bool {
		queued, awaiting := s.pending()
		return queued+awaiting == 0
	})
	s.tally("audit", "--recount")
	got, err := s.store.Results(t.Context(), openPoll)
	require.NoError(t, err)
	require.Equal(t, l.Acked()+fresh.Acked(), got.Tally["ana"]+got.Tally["bruno"]+got.Tally["carla"])
}

// definePolls defines the stack's polls again.
func (s *stack) definePolls() {
	s.t.Helper()
	for _, poll := range []string{openPoll, shutPoll} {
		_, err := s.store.ApplyPoll(s.t.Context(), vote.Poll{
			ID: poll, Title: poll, Results: vote.ResultsLive,
			Options: []vote.Option{{ID: "ana", Name: "Ana"}, {ID: "bruno", Name: "Bruno"}, {ID: "carla", Name: "Carla"}},
		}, vote.Window{})
		require.NoError(s.t, err)
	}
	require.NoError(s.t, s.store.ClosePoll(s.t.Context(), shutPoll))
}

// tally runs the real binary and returns what it says.
func (s *stack) tally(args ...string) string {
	s.t.Helper()
	args = append(args, "--redis-url="+s.redis.URL(), "--queue-shards="+strconv.Itoa(s.shards), "--archive-url="+s.archiveURL)
	out, err := exec.Command(testkit.Binary(s.t, "tally"), args...).CombinedOutput()
	require.NoError(s.t, err, "%s", out)
	return string(out)
}
