package count

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/redisstore"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// behind returns a store whose every command goes through a proxy.
func (e *env) behind() (*redisstore.Store, *testkit.Proxy) {
	e.Helper()
	proxy := testkit.NewProxy(e, e.server.Addr())
	store, err := redisstore.Open(redisstore.Options{URL: proxy.URL(), Shards: 1})
	require.NoError(e, err)
	e.Cleanup(func() { _ = store.Close() })
	return store, proxy
}

// Replies are lost and connections cut, on every command of the consumers.
func TestLostReplies(t *testing.T) {
	e := newEnv(t, []string{"p", "q"})
	store, proxy := e.behind()
	a, b := newConsumer(store, "a", 50), newConsumer(store, "b", 50)
	stopA, stopB := a.start(t), b.start(t)
	proxy.DropReplies(0.2)
	proxy.CutBefore(0.1)
	f := e.flusher()
	for range 300 {
		require.NoError(t, f.send(t.Context(), some("p", 3)...))
		require.NoError(t, f.send(t.Context(), ballot{"q", "", "ana"}))
	}
	testkit.Eventually(t, "all is counted", func() bool { return e.counted("p") == 900 && e.counted("q") == 300 })
	stopA()
	stopB()
	assert.Positive(t, proxy.Dropped())
	assert.Positive(t, proxy.Cut())
	e.exact("p", vote.Tally{"ana": 300, "bruno": 300, "carla": 300})
	e.exact("q", vote.Tally{"ana": 300})
	assert.Empty(t, e.list("dead:{0}"))
}

// isCommit tells the command that counts a chunk of one poll.
func isCommit(cmd []string) bool {
	return strings.HasPrefix(strings.ToUpper(cmd[0]), "EVAL") && len(cmd) > 7 &&
		strings.HasPrefix(cmd[3], "votes:") && strings.HasPrefix(cmd[4], "archive:") && strings.HasPrefix(cmd[7], "tally:")
}

// A commit that the network held back, while another consumer went on, comes
// too late, also when it comes long after.
func TestLateCommitOnTheWire(t *testing.T) {
	e := newEnv(t, []string{"p"})
	store, proxy := e.behind()
	e.enqueue(some("p", 9)...)
	e.enqueue(some("p", 3)...)
	paused := newConsumer(store, "paused", 100)
	held, release := proxy.HoldNext(isCommit)
	stop := paused.start(t)
	<-held
	other := newConsumer(e.store, "other", 100)
	other.drain(t)
	e.enqueue(some("p", 6)...)
	other.drain(t)
	release()
	testkit.Eventually(t, "the late commit is refused", func() bool { return testutil.ToFloat64(paused.p.Metrics.Refused) > 0 })
	stop()
	e.exact("p", vote.Tally{"ana": 6, "bruno": 6, "carla": 6})
	assert.Contains(t, paused.log.String(), "commit refused")
}

// A foreign value under one of the keys stops the shard, loses nothing and says
// so; it goes on when that has been put right.
func TestWrongTypeStopsTheShard(t *testing.T) {
	e := newEnv(t, []string{"p", "q"})
	e.enqueue(ballot{"p", "", "ana"}, ballot{"q", "", "ana"})
	require.NoError(t, e.rdb.Set(t.Context(), "tally:{0}:q", "x", 0).Err())
	c := newConsumer(e.store, "w", 100)
	c.start(t)
	testkit.Eventually(t, "it is reported", func() bool { return c.failures() > 2 })
	assert.Len(t, e.list("votes:{0}"), 1)
	assert.Zero(t, e.counted("p"), "nothing is half done")
	require.NoError(t, e.rdb.Del(t.Context(), "tally:{0}:q").Err())
	testkit.Eventually(t, "it goes on", func() bool { return e.counted("p") == 1 && e.counted("q") == 1 })
}

// Elements of every shape, first, in the middle and last of a chunk: the two
// sides must name them alike, or the consumer would try the same commit for
// ever.
func TestUnreadableElementsOfEveryShape(t *testing.T) {
	codec := newConsumer(nil, "w", 1).worker(t).codec
	good := frame(codec, 1, "-", "p:3", some("p", 3)...)
	for name, element := range map[string]string{
		"empty": "", "a space": " ", "a line feed": "\n", "only the magic": "P1 ", "the magic and spaces": "P1   ",
		"an id without end":      "P1 " + strings.Repeat("x", 5000),
		"an id of 100":           "P1 " + strings.Repeat("x", 100) + " y\nz",
		"an id of 101":           "P1 " + strings.Repeat("x", 101) + " y\nz",
		"an id with NUL":         "P1 x\x00y-1 1768953601234 1 - p:1\nz",
		"an id with a line feed": "P1 x\ny-1 1768953601234 1 - p:1\nz",
		"an id of bytes":         "P1 \xff\xfe\x80-1 1768953601234 1 - p:1\nz",
		"a pattern":              "P1 %d+[^ ]*-1 1 1 - p:1\n",
		"NUL":                    "\x00", "bytes": "\xff\xfe\x00P1 x-1 ",
		"the prototype's JSON": `{"option":"ana"}`,
		"megabytes":            strings.Repeat("x", 3<<20),
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, []string{"p"})
			e.push(element, good, element, element)
			newConsumer(e.store, "w", 1000).drain(t)
			assert.Equal(t, []string{element, element, element}, e.list("dead:{0}"))
			e.exact("p", vote.Tally{"ana": 1, "bruno": 1, "carla": 1})
		})
	}
}
