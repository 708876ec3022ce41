package count

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
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

// env is a redis-server with one shard and open polls.
type env struct {
	*testing.T
	server *testkit.RedisServer
	rdb    *redis.Client
	store  *redisstore.Store
	polls  map[string]vote.Poll
}

func newEnv(t *testing.T, polls []string, serverArgs ...string) *env {
	t.Helper()
	server := testkit.Redis(t, serverArgs...)
	store, err := redisstore.Open(redisstore.Options{URL: server.URL(), Shards: 1, Timeout: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	e := &env{T: t, server: server, rdb: server.Client(), store: store, polls: map[string]vote.Poll{}}
	for _, id := range polls {
		p := vote.Poll{ID: id, Title: "Who?", Results: vote.ResultsLive}
		for _, o := range []string{"ana", "bruno", "carla"} {
			p.Options = append(p.Options, vote.Option{ID: o, Name: o})
		}
		_, err := store.ApplyPoll(t.Context(), p, vote.Window{})
		require.NoError(t, err)
		e.polls[id] = p
	}
	return e
}

// ballot is a vote in a test.
type ballot struct{ poll, class, option string }

// some is n votes for a poll, one option after the other.
func some(poll string, n int) []ballot {
	out := make([]ballot, n)
	for i := range out {
		out[i] = ballot{poll, "", []string{"ana", "bruno", "carla"}[i%3]}
	}
	return out
}

// flusher sends batches as an api does: again and again until it has an answer.
type flusher struct {
	e     *env
	id    string
	seq   uint64
	codec *vote.Codec
	// failed is how many calls had no good answer.
	failed atomic.Int64
}

func (e *env) flusher() *flusher {
	codec, err := vote.NewCodec()
	require.NoError(e, err)
	e.Cleanup(codec.Close)
	return &flusher{e: e, id: vote.NewFlusherID(), codec: codec}
}

func (f *flusher) send(ctx context.Context, ballots ...ballot) error {
	f.seq++
	b := &vote.Batch{ID: vote.FrameID{Flusher: f.id, Seq: f.seq}, Votes: len(ballots)}
	var body []byte
	for _, x := range ballots {
		body = vote.AppendVote(body, &vote.Vote{
			ID: uuid.Must(uuid.NewV7()), Poll: x.poll, Class: x.class, Option: x.option, UserAgent: "Mozilla/5.0",
		})
		i := slices.IndexFunc(b.Polls, func(p vote.BatchPoll) bool { return p.Poll == x.poll })
		if i < 0 {
			i = len(b.Polls)
			p := f.e.polls[x.poll]
			b.Polls = append(b.Polls, vote.BatchPoll{Poll: x.poll, OptionsKey: p.OptionsKey()})
		}
		b.Polls[i].Votes++
	}
	b.Body = f.codec.Compress(nil, body, len(ballots))
	q := f.e.store.Queue(time.Hour, 0, 0)
	for {
		var err error
		if f.seq == 1 {
			err = q.Register(ctx, 0, f.id)
		}
		if err == nil {
			_, err = q.Enqueue(ctx, b)
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		f.failed.Add(1)
	}
}

// enqueue sends one frame.
func (e *env) enqueue(ballots ...ballot) {
	e.Helper()
	require.NoError(e, e.flusher().send(e.Context(), ballots...))
}

// consumer is a Consumer with what it reports.
type consumer struct {
	*Consumer
	log      *logText
	registry *prometheus.Registry
	accepted prometheus.Histogram

	mu      sync.Mutex
	outages []error
}

func newConsumer(queue Queue, worker string, chunk int) *consumer {
	c := &consumer{log: &logText{}, registry: prometheus.NewRegistry()}
	c.accepted = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "accept_to_count_seconds"})
	m := Metrics{
		Counted:       prometheus.NewCounterVec(prometheus.CounterOpts{Name: "counted"}, []string{"poll"}),
		Dead:          prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dead"}, []string{"reason"}),
		Refused:       prometheus.NewCounter(prometheus.CounterOpts{Name: "refused"}),
		AcceptToCount: c.accepted,
	}
	c.Consumer = New(Params{
		Queue: queue, Worker: worker, ChunkSize: chunk, Metrics: m,
		Log: slog.New(slog.NewTextHandler(c.log, nil)),
		Outage: func(err error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil {
				c.outages = append(c.outages, err)
			}
		},
	})
	return c
}

func (c *consumer) failures() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.outages)
}

func (c *consumer) observed(t *testing.T) (n uint64, sum float64) {
	t.Helper()
	var m dto.Metric
	require.NoError(t, c.accepted.Write(&m))
	return m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
}

// worker returns a worker for shard 0, closed with the test.
func (c *consumer) worker(tb testing.TB) *worker {
	tb.Helper()
	codec, err := vote.NewCodec()
	require.NoError(tb, err)
	tb.Cleanup(codec.Close)
	return &worker{c: c.Consumer, codec: codec}
}

// drain counts chunk by chunk until the queue is empty, and says how many
// chunks there were.
func (c *consumer) drain(t *testing.T) (chunks int) {
	t.Helper()
	w := c.worker(t)
	for {
		empty, err := w.chunk(t.Context())
		require.NoError(t, err)
		if empty {
			return chunks
		}
		chunks++
	}
}

// start runs Work until stop is called, which waits for its end.
func (c *consumer) start(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Work(ctx, 0)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

// logText keeps what was logged.
type logText struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (e *env) list(key string) []string {
	e.Helper()
	out, err := e.rdb.LRange(e.Context(), key, 0, -1).Result()
	require.NoError(e, err)
	return out
}

// push puts elements on the queue past the script, as a stranger might.
func (e *env) push(elements ...string) {
	e.Helper()
	for _, el := range elements {
		require.NoError(e, e.rdb.RPush(e.Context(), "votes:{0}", el).Err())
	}
}

// counted is how many votes of a poll the ledger says are counted; -1 if the
// server does not answer.
func (e *env) counted(poll string) int64 {
	r, err := e.store.Results(e.Context(), poll)
	if err != nil {
		return -1
	}
	return r.Ledger.Counted
}

// exact checks a poll's tally, its ledger, and the frames behind them: each
// stands once in the archive list and their votes are those of the tally.
func (e *env) exact(poll string, want vote.Tally) {
	e.Helper()
	var sum int64
	for _, n := range want {
		sum += n
	}
	r, err := e.store.Results(e.Context(), poll)
	require.NoError(e, err)
	require.Equal(e, want, r.Tally)
	require.Equal(e, sum, r.Ledger.Counted)

	codec, err := vote.NewCodec()
	require.NoError(e, err)
	defer codec.Close()
	got, seen := vote.Tally{}, map[string]bool{}
	for _, el := range e.list("archive:{0}") {
		h, err := codec.Read([]byte(el), func(v *vote.RawVote) {
			if string(v.Poll) == poll {
				got[vote.TallyField(string(v.Class), string(v.Option))]++
			}
		})
		require.NoError(e, err)
		require.False(e, seen[h.ID], "frame %s stands twice", h.ID)
		seen[h.ID] = true
	}
	require.Equal(e, want, got, "the frames in the archive list")
}

// hooked is a queue that calls back before a call goes on.
type hooked struct {
	Queue
	beforeCommit func(*vote.CountCommit)
	afterRead    func([]string)
	await        func(context.Context, time.Duration) time.Duration
}

func (h *hooked) ReadQueue(ctx context.Context, shard int, limit vote.ReadLimit) ([]string, error) {
	out, err := h.Queue.ReadQueue(ctx, shard, limit)
	if h.afterRead != nil {
		h.afterRead(out)
	}
	return out, err
}

func (h *hooked) CommitCount(ctx context.Context, c *vote.CountCommit) (vote.CommitStatus, time.Time, error) {
	if h.beforeCommit != nil {
		h.beforeCommit(c)
	}
	return h.Queue.CommitCount(ctx, c)
}

func (h *hooked) AwaitVotes(ctx context.Context, shard int, timeout time.Duration) error {
	if h.await != nil {
		timeout = h.await(ctx, timeout)
	}
	return h.Queue.AwaitVotes(ctx, shard, timeout)
}

// frame makes a frame as enqueue.lua does.
func frame(codec *vote.Codec, seq int, refused, polls string, ballots ...ballot) string {
	var body []byte
	for i, x := range ballots {
		body = vote.AppendVote(body, &vote.Vote{
			ID:   uuid.UUID{0: 1, 6: 0x70, 8: 0x80, 12: byte(seq >> 8), 13: byte(seq), 14: byte(i >> 8), 15: byte(i)},
			Poll: x.poll, Class: x.class, Option: x.option, Client: "10.0.0.0/24", UserAgent: "Mozilla/5.0",
		})
	}
	head := fmt.Sprintf("P1 flusher-%d %d %d %s %s\n", seq, time.Now().UnixMilli(), len(ballots), refused, polls)
	return head + string(codec.Compress(nil, body, len(ballots)))
}
