package enqueue

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"paredao/internal/redisstore"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

func TestMain(m *testing.M) {
	redisstore.DiscardClientLog()
	goleak.VerifyTestMain(m)
}

var _ Queue = (*redisstore.Queue)(nil)

// wrapped stands between a committer and its queue.
type wrapped struct {
	next     Queue
	register func(shard int, flusher string) error
	enqueue  func(ctx context.Context, b *vote.Batch) (vote.BatchOutcome, error)
	hasRoom  func() (bool, error)

	mu     sync.Mutex
	frames []frame
}

// frame is what the test keeps of a batch that was sent.
type frame struct {
	shard, votes int
	id           vote.FrameID
	body         []byte
}

func (w *wrapped) Register(ctx context.Context, shard int, flusher string) error {
	if w.register != nil {
		return w.register(shard, flusher)
	}
	return w.next.Register(ctx, shard, flusher)
}

func (w *wrapped) Enqueue(ctx context.Context, b *vote.Batch) (vote.BatchOutcome, error) {
	w.mu.Lock()
	w.frames = append(w.frames, frame{b.Shard, b.Votes, b.ID, bytes.Clone(b.Body)})
	w.mu.Unlock()
	if w.enqueue != nil {
		return w.enqueue(ctx, b)
	}
	return w.next.Enqueue(ctx, b)
}

func (w *wrapped) HasRoom(ctx context.Context) (bool, error) {
	if w.hasRoom != nil {
		return w.hasRoom()
	}
	return w.next.HasRoom(ctx)
}

func (w *wrapped) sent() []frame {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.frames
}

// accept is a queue that takes all votes and keeps none.
func accept(_ context.Context, b *vote.Batch) (vote.BatchOutcome, error) {
	out := vote.BatchOutcome{AcceptedAt: time.Unix(1, 0)}
	for range b.Polls {
		out.Polls = append(out.Polls, vote.PollAccepted)
	}
	return out, nil
}

// memory returns a queue without Redis.
func memory() *wrapped {
	return &wrapped{
		register: func(int, string) error { return nil },
		enqueue:  accept,
		hasRoom:  func() (bool, error) { return true, nil },
	}
}

// run starts a committer over a queue and ends it with the test.
func run(t testing.TB, q Queue, change ...func(*Params)) (c *Committer, stop func()) {
	t.Helper()
	p := Params{
		Queue: q, Shards: 1, MaxInFlight: 1 << 20, Timeout: 30 * time.Second,
		Outage: func(error) {}, Log: slog.New(slog.DiscardHandler),
		Metrics: Metrics{
			BatchVotes: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "votes"}),
			Seconds:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "seconds"}),
			Accepted:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "accepted"}, []string{"poll"}),
		},
	}
	for _, f := range change {
		f(&p)
	}
	c, err := New(p)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	t.Cleanup(stop)
	return c, stop
}

// onRedis is a real queue with what a test looks at.
type onRedis struct {
	t      testing.TB
	server *testkit.RedisServer
	rdb    *redis.Client
	store  *redisstore.Store
	shards int
}

func newRedis(t testing.TB, shards int) *onRedis {
	t.Helper()
	r := &onRedis{t: t, server: testkit.Redis(t), shards: shards}
	r.rdb = r.server.Client()
	r.store = r.open(r.server.URL())
	r.polls()
	return r
}

func (r *onRedis) open(url string) *redisstore.Store {
	r.t.Helper()
	s, err := redisstore.Open(redisstore.Options{URL: url, Shards: r.shards})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = s.Close() })
	return s
}

// poll is the definition that all tests vote in.
func poll(id string) vote.Poll {
	return vote.Poll{ID: id, Title: id, Results: vote.ResultsLive, Options: []vote.Option{{ID: "a", Name: "A"}, {ID: "b", Name: "B"}}}
}

// polls applies the polls p and q, and over, which is closed.
func (r *onRedis) polls() {
	r.t.Helper()
	ctx := context.Background()
	for _, id := range []string{"p", "q", "over"} {
		_, err := r.store.ApplyPoll(ctx, poll(id), vote.Window{})
		require.NoError(r.t, err)
	}
	require.NoError(r.t, r.store.ClosePoll(ctx, "over"))
}

func (r *onRedis) queue() *redisstore.Queue { return r.store.Queue(10*time.Minute, 0, time.Second) }

// stored returns every vote on the queue, by id. None may stand there twice.
func (r *onRedis) stored() map[uuid.UUID]vote.Vote {
	r.t.Helper()
	out := map[uuid.UUID]vote.Vote{}
	for _, v := range r.inOrder() {
		_, twice := out[v.ID]
		require.False(r.t, twice, "%s stands twice", v.ID)
		out[v.ID] = v
	}
	return out
}

func (r *onRedis) inOrder() []vote.Vote {
	r.t.Helper()
	codec, err := vote.NewCodec()
	require.NoError(r.t, err)
	defer codec.Close()
	var out []vote.Vote
	for shard := range r.shards {
		for _, f := range r.elements(shard) {
			h, err := codec.Read([]byte(f), func(raw *vote.RawVote) {
				v, err := raw.Vote()
				require.NoError(r.t, err)
				out = append(out, v)
			})
			require.NoError(r.t, err)
			require.LessOrEqual(r.t, h.Votes, vote.MaxFrameVotes)
		}
	}
	return out
}

func (r *onRedis) elements(shard int) []string {
	r.t.Helper()
	all, err := r.rdb.LRange(context.Background(), fmt.Sprintf("votes:{%d}", shard), 0, -1).Result()
	require.NoError(r.t, err)
	return all
}

// ballot makes a new vote.
func ballot(p, option string) *vote.Vote {
	return &vote.Vote{ID: uuid.Must(uuid.NewV7()), Poll: p, Option: option, Client: "c", UserAgent: "ua"}
}

var optionsKey = func() string { p := poll("p"); return p.OptionsKey() }()

func key(s string) *vote.IdempotencyKey {
	k := vote.NewIdempotencyKey("p", s)
	return &k
}

// waiting is how many votes wait in a flusher's open batches.
func (f *flusher) waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, b := range f.pending {
		n += b.votes
	}
	return n
}
