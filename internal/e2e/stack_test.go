package e2e

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"paredao/internal/blobstore"
	"paredao/internal/ledger"
	"paredao/internal/redisstore"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// The polls of every stack: open takes votes, shut is closed.
const (
	openPoll = "open"
	shutPoll = "shut"
)

// ownerTTL is short, so that shards change hands while a test runs.
const ownerTTL = time.Second

// stack is a Redis, an archive, and the daemons that a test starts on them.
type stack struct {
	t          *testing.T
	redis      *testkit.RedisServer
	shards     int
	store      *redisstore.Store
	blobs      blobstore.Store
	archiveURL string
	env        []string
	// mayRepeat is the judge's: Redis may have forgotten a committed batch.
	mayRepeat bool
}

// newStack starts a redis-server with the given settings; the archive is a
// folder.
func newStack(t *testing.T, shards int, redisArgs ...string) *stack {
	t.Helper()
	s := &stack{t: t, redis: testkit.Redis(t, redisArgs...), shards: shards, archiveURL: "file:" + t.TempDir()}
	s.prepare(s.redis.URL())
	return s
}

// prepare opens the store and a folder for the archive, and defines the polls.
func (s *stack) prepare(url string) {
	t := s.t
	t.Helper()
	s.openArchive(blobstore.AzureCredentials{})
	store, err := redisstore.Open(redisstore.Options{URL: url, Shards: s.shards})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	s.store = store
	require.NoError(t, store.CheckShards(t.Context()))
	for _, poll := range []string{openPoll, shutPoll} {
		_, err := store.ApplyPoll(t.Context(), vote.Poll{
			ID: poll, Title: poll, Results: vote.ResultsLive,
			Options: []vote.Option{{ID: "ana", Name: "Ana"}, {ID: "bruno", Name: "Bruno"}, {ID: "carla", Name: "Carla"}},
		}, vote.Window{})
		require.NoError(t, err)
	}
	require.NoError(t, store.ClosePoll(t.Context(), shutPoll))
}

func (s *stack) openArchive(creds blobstore.AzureCredentials) {
	s.t.Helper()
	blobs, err := blobstore.Open(s.t.Context(), s.archiveURL, creds)
	require.NoError(s.t, err)
	s.blobs = blobs
}

// start starts a daemon on the Redis at redisURL, or on the stack's own if that
// is empty.
func (s *stack) start(name, redisURL string, args ...string) *testkit.Process {
	s.t.Helper()
	if redisURL == "" {
		redisURL = s.redis.URL()
	}
	all := []string{"--redis-url=" + redisURL, "--queue-shards=" + strconv.Itoa(s.shards)}
	switch name {
	case "consumer":
		// Small chunks, so that there are many commits to be hit.
		all = append(all, "--owner-ttl="+ownerTTL.String(), "--chunk-size=100")
	case "archiver":
		all = append(all, "--owner-ttl="+ownerTTL.String(), "--archive-url="+s.archiveURL, "--archive-max-age=500ms")
	}
	return testkit.StartProcessEnv(s.t, s.env, name, append(all, args...)...)
}

// load is a ledger client at work.
type load struct {
	*ledger.Record

	client *ledger.Client
	stop   context.CancelFunc
	ended  chan struct{}
}

// Rates of a load, in votes a second. A steady one always leaves work in hand,
// in small frames, and does not take the machine from what it tests. At full
// speed the frames are large, and compressed.
const (
	steady    = 2500
	fullSpeed = 0
)

// load starts to post votes to the apis, among them some that must be refused,
// and many without an Idempotency-Key, which would hide what is enqueued twice.
func (s *stack) load(rate float64, apis ...*testkit.Process) *load {
	s.t.Helper()
	choices := []ledger.Choice{
		{Poll: openPoll, Option: "ana"}, {Poll: openPoll, Option: "bruno"}, {Poll: openPoll, Option: "carla"},
		{Poll: openPoll, Option: "nobody"}, {Poll: shutPoll, Option: "ana"},
	}
	refuse := choices[3:]
	source, err := ledger.Draw([]int{50, 30, 16, 2, 2}, 0, 1)
	require.NoError(s.t, err)
	var urls []string
	for _, api := range apis {
		urls = append(urls, api.Ready().URL())
	}
	client, err := ledger.NewClient(ledger.Params{
		URLs: urls, Choices: choices, Refuse: refuse, Source: source, Connections: 64, Rate: rate, Keyless: 0.4,
		Timeout: time.Minute, Patience: 2 * time.Minute,
	})
	require.NoError(s.t, err)
	ctx, stop := context.WithCancel(context.Background())
	l := &load{Record: client.Record(), client: client, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		client.Run(ctx)
	}()
	s.t.Cleanup(l.end)
	return l
}

// end stops posting and waits until every vote is settled.
func (l *load) end() {
	l.stop()
	<-l.ended
}

// grow waits until n more votes have been acknowledged.
func (s *stack) grow(l *load, n int64) {
	s.t.Helper()
	target := l.Acked() + n
	testkit.Eventually(s.t, strconv.FormatInt(n, 10)+" more votes are acknowledged", func() bool { return l.Acked() >= target })
}

// judge ends the load and has the ledger judged. It wants acknowledged and
// refused votes, since without any a judgement says nothing. (That only those
// were refused which had to be, the judge sees itself.)
func (s *stack) judge(l *load) *ledger.Result {
	s.t.Helper()
	l.end()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	r, err := ledger.Judge(ctx, ledger.JudgeParams{
		Store: s.store, Blobs: s.blobs, Record: l.Record, Timeout: 2 * time.Minute, MayRepeat: s.mayRepeat,
		Progress: func(what string) { s.t.Log(what) },
	})
	require.NoError(s.t, err)
	s.t.Logf("posted for %s:\n%s", l.client.Took().Round(time.Millisecond), r)
	require.True(s.t, r.OK(), "the ledger does not hold")
	require.Greater(s.t, r.Acked, int64(1000))
	require.Positive(s.t, r.Refused)
	return r
}

// pending is the number of votes in the queue and of those that await the
// archive.
func (s *stack) pending() (queued, awaiting int64) {
	s.t.Helper()
	queues, err := s.store.Queues(s.t.Context())
	require.NoError(s.t, err)
	for _, q := range queues {
		queued += q.Votes
		awaiting += q.AwaitingVotes
	}
	return queued, awaiting
}

// after lets a fault go on for a while; it does not wait for anything.
func after(d time.Duration) { <-time.After(d) }
