package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"paredao/internal/count"
	"paredao/internal/enqueue"
	"paredao/internal/httpapi"
	"paredao/internal/redisstore"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

func TestMain(m *testing.M) {
	redisstore.DiscardClientLog()
	goleak.VerifyTestMain(m,
		// fasthttp ends neither of these at once: the one lives as long as the
		// process, the other sleeps for ten seconds before it looks.
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// settings are what a test may change of a stack before it starts.
type settings struct {
	addr      string
	redisURL  func(*testkit.RedisServer) string
	redisArgs []string
	shards    int
	http      httpapi.Params
	enqueue   enqueue.Params
	keyLife   time.Duration
	// connections is the limit; 0: the server's own.
	connections int64
}

// stack is an api with a real Redis, put together as internal/service does it.
type stack struct {
	t        testing.TB
	redis    *testkit.RedisServer
	rdb      *redis.Client
	store    *redisstore.Store
	server   *httpapi.Server
	url      string
	addr     string
	log      *logBuffer
	rejected *prometheus.CounterVec
	accepted *prometheus.CounterVec
	shards   int
	// stop ends the server, then the committer, and returns what Run returned.
	stop func() error
}

func start(t testing.TB, change ...func(*settings)) *stack {
	t.Helper()
	set := settings{
		addr: "127.0.0.1:0", shards: 1, keyLife: 10 * time.Minute,
		redisURL: (*testkit.RedisServer).URL,
		http:     httpapi.Params{BodyLimit: 4 << 10, Privacy: httpapi.PrivacyHMAC},
		enqueue:  enqueue.Params{MaxInFlight: 65536, Timeout: 30 * time.Second},
	}
	s := &stack{t: t, log: &logBuffer{}}
	log := slog.New(slog.NewJSONHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s.rejected = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rejected"}, []string{"reason"})
	s.accepted = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "accepted"}, []string{"poll"})
	set.http.Rejected, set.http.Log, set.http.Outage = s.rejected, log, func(error) {}
	set.enqueue.Log, set.enqueue.Outage = log, func(error) {}
	set.enqueue.Metrics = enqueue.Metrics{
		BatchVotes: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "votes"}),
		Seconds:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "seconds"}),
		Accepted:   s.accepted,
	}
	for _, c := range change {
		c(&set)
	}
	s.redis = testkit.Redis(t, set.redisArgs...)
	s.rdb = s.redis.Client()
	s.shards = set.shards
	s.store = s.open(set.redisURL(s.redis))

	set.enqueue.Queue, set.enqueue.Shards = s.store.Queue(set.keyLife, 0, time.Second), set.shards
	committer, err := enqueue.New(set.enqueue)
	require.NoError(t, err)
	if set.http.Submit == nil {
		set.http.Submit = committer
	}
	if set.http.Polls == nil {
		set.http.Polls = s.store
	}
	if w, ok := set.http.Polls.(*wrappedPolls); ok {
		w.pollSource = s.store
	}
	s.server, err = httpapi.New(set.addr, set.http)
	require.NoError(t, err)
	if set.connections > 0 {
		s.server.SetConnectionLimit(set.connections)
	}
	s.addr = s.server.Addr().String()
	s.url = "http://" + s.addr

	serving, stopServer := context.WithCancel(context.Background())
	committing, stopCommitter := context.WithCancel(context.Background())
	served, committed := make(chan error, 1), make(chan error, 1)
	go func() { served <- s.server.Run(serving) }()
	go func() { committed <- committer.Run(committing) }()
	s.stop = sync.OnceValue(func() error {
		stopServer()
		err := <-served
		stopCommitter()
		<-committed
		return err
	})
	t.Cleanup(func() { assert.NoError(t, s.stop()) })
	return s
}

// open opens another store on the stack's Redis, as another process would.
func (s *stack) open(url string) *redisstore.Store {
	s.t.Helper()
	store, err := redisstore.Open(redisstore.Options{URL: url, Shards: s.shards})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = store.Close() })
	return store
}

type pollSource = httpapi.Polls

// wrappedPolls lets a test stand between the server and the store.
type wrappedPolls struct {
	pollSource
	results func(ctx context.Context, next httpapi.Polls, poll string) (vote.Results, error)
	shards  func(ctx context.Context, next httpapi.Polls) ([]vote.ShardPolls, error)
	now     func(ctx context.Context, next httpapi.Polls) (time.Time, error)
}

func (w *wrappedPolls) Results(ctx context.Context, poll string) (vote.Results, error) {
	if w.results != nil {
		return w.results(ctx, w.pollSource, poll)
	}
	return w.pollSource.Results(ctx, poll)
}

func (w *wrappedPolls) ShardPolls(ctx context.Context) ([]vote.ShardPolls, error) {
	if w.shards != nil {
		return w.shards(ctx, w.pollSource)
	}
	return w.pollSource.ShardPolls(ctx)
}

func (w *wrappedPolls) Now(ctx context.Context) (time.Time, error) {
	if w.now != nil {
		return w.now(ctx, w.pollSource)
	}
	return w.pollSource.Now(ctx)
}

// poll applies a poll with these options, open at once.
func (s *stack) poll(id string, options ...string) {
	s.t.Helper()
	s.apply(s.store, id, vote.Window{}, options...)
}

func (s *stack) apply(store *redisstore.Store, id string, w vote.Window, options ...string) {
	s.t.Helper()
	_, err := store.ApplyPoll(context.Background(), definition(id, options...), w)
	require.NoError(s.t, err)
}

func definition(id string, options ...string) vote.Poll {
	p := vote.Poll{ID: id, Title: "Poll " + id, Results: vote.ResultsLive}
	for _, o := range options {
		p.Options = append(p.Options, vote.Option{ID: o, Name: "Option " + o})
	}
	return p
}

// answer is a response, read to its end.
type answer struct {
	*http.Response
	body []byte
}

func (a answer) text() string { return string(a.body) }

func prefixes(nets ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, n := range nets {
		out = append(out, netip.MustParsePrefix(n))
	}
	return out
}

// client keeps connections for one test.
func (s *stack) client() *http.Client {
	tr := &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true}
	s.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// send makes one request on a connection of its own. headers are pairs.
func (s *stack) send(method, path, body string, headers ...string) answer {
	s.t.Helper()
	a, err := do(&http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}},
		method, s.url+path, body, headers...)
	require.NoError(s.t, err)
	return a
}

func do(c *http.Client, method, url, body string, headers ...string) (answer, error) {
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, url, r)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
			continue
		}
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res, b}, err
}

const asJSON = "application/json"

// vote posts a vote for an option as JSON.
func (s *stack) vote(poll, option string, headers ...string) answer {
	s.t.Helper()
	return s.send("POST", "/polls/"+poll+"/votes", `{"option":"`+option+`"}`,
		append([]string{"Content-Type", asJSON}, headers...)...)
}

// raw writes text to a new connection and returns all that is answered until
// the server closes.
func (s *stack) raw(text string) []answer {
	s.t.Helper()
	conn := s.dial()
	_, err := io.WriteString(conn, text)
	require.NoError(s.t, err)
	require.NoError(s.t, conn.(*net.TCPConn).CloseWrite())
	return readAll(s.t, conn, text)
}

func (s *stack) dial() net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// readAll reads answers until the connection ends. What is read must be
// answers and nothing else.
func readAll(t testing.TB, conn net.Conn, requests string) []answer {
	t.Helper()
	b, err := io.ReadAll(conn)
	require.NoError(t, err, "after %q", b)
	r := bufio.NewReader(bytes.NewReader(b))
	var out []answer
	for {
		if _, err := r.Peek(1); err == io.EOF {
			return out
		}
		req := &http.Request{Method: http.MethodPost}
		if strings.HasPrefix(requests, "HEAD ") {
			req.Method = http.MethodHead
		}
		res, err := http.ReadResponse(r, req)
		require.NoError(t, err, "in %q", b)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err, "in %q", b)
		out = append(out, answer{res, body})
	}
}

func statuses(all []answer) []int {
	var out []int
	for _, a := range all {
		out = append(out, a.StatusCode)
	}
	return out
}

// receipt checks a 202 to the letter.
func receipt(t testing.TB, a answer, poll, option string) (id string, acceptedAt time.Time) {
	t.Helper()
	require.Equal(t, http.StatusAccepted, a.StatusCode, a.text())
	assert.Equal(t, asJSON, a.Header.Get("Content-Type"))
	var got map[string]string
	require.NoError(t, json.Unmarshal(a.body, &got), a.text())
	require.Len(t, got, 4)
	assert.Equal(t, poll, got["poll"])
	assert.Equal(t, option, got["option"])
	u, err := uuid.Parse(got["id"])
	require.NoError(t, err)
	assert.EqualValues(t, 7, u.Version())
	assert.Regexp(t, regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`), got["accepted_at"])
	acceptedAt, err = time.Parse(time.RFC3339Nano, got["accepted_at"])
	require.NoError(t, err)
	return got["id"], acceptedAt
}

// problem checks an error to the letter.
func problem(t testing.TB, a answer, status int, code string) map[string]any {
	t.Helper()
	require.Equal(t, status, a.StatusCode, a.text())
	assert.Equal(t, "application/problem+json", a.Header.Get("Content-Type"))
	assert.NotEmpty(t, a.Header.Get("X-Request-ID"))
	assert.Equal(t, "no-store", a.Header.Get("Cache-Control"))
	if status == http.StatusServiceUnavailable {
		seconds, err := strconv.Atoi(a.Header.Get("Retry-After"))
		assert.NoError(t, err)
		assert.Positive(t, seconds)
	} else {
		assert.Empty(t, a.Header.Get("Retry-After"))
	}
	var got map[string]any
	require.NoError(t, json.Unmarshal(a.body, &got), a.text())
	assert.Len(t, got, 4)
	assert.Equal(t, code, got["code"])
	assert.EqualValues(t, status, got["status"])
	assert.Equal(t, http.StatusText(status), got["title"])
	assert.NotEmpty(t, got["detail"])
	return got
}

// stored returns every vote that waits in the queue, by id.
func (s *stack) stored() map[string]vote.Vote {
	s.t.Helper()
	codec, err := vote.NewCodec()
	require.NoError(s.t, err)
	defer codec.Close()
	out := map[string]vote.Vote{}
	for shard := range s.shards {
		frames, err := s.rdb.LRange(context.Background(), fmt.Sprintf("votes:{%d}", shard), 0, -1).Result()
		require.NoError(s.t, err)
		for _, f := range frames {
			_, err := codec.Read([]byte(f), func(r *vote.RawVote) {
				v, err := r.Vote()
				require.NoError(s.t, err)
				_, twice := out[v.ID.String()]
				require.False(s.t, twice, "%s stands twice", v.ID)
				out[v.ID.String()] = v
			})
			require.NoError(s.t, err)
		}
	}
	return out
}

// only returns the single vote that waits.
func (s *stack) only() vote.Vote {
	s.t.Helper()
	all := s.stored()
	require.Len(s.t, all, 1)
	for _, v := range all {
		return v
	}
	panic("unreachable")
}

// consume counts until the queue is empty.
func (s *stack) consume() {
	s.t.Helper()
	c := count.New(count.Params{
		Queue: s.store, Worker: uuid.NewString(), ChunkSize: 1000, Outage: func(error) {}, Log: slog.New(slog.DiscardHandler),
		Metrics: count.Metrics{
			Counted:       prometheus.NewCounterVec(prometheus.CounterOpts{Name: "c"}, []string{"poll"}),
			Dead:          prometheus.NewCounterVec(prometheus.CounterOpts{Name: "d"}, []string{"reason"}),
			Refused:       prometheus.NewCounter(prometheus.CounterOpts{Name: "r"}),
			AcceptToCount: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "s"}),
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for shard := range s.shards {
		wg.Go(func() { c.Work(ctx, shard) })
	}
	testkit.Eventually(s.t, "the queue is empty", func() bool {
		queues, err := s.store.Queues(ctx)
		require.NoError(s.t, err)
		for _, q := range queues {
			if q.Frames > 0 {
				return false
			}
		}
		return true
	})
	cancel()
	wg.Wait()
}

// logBuffer keeps a log's lines.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// lines returns those that contain a text.
func (l *logBuffer) lines(with string) []map[string]any {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []map[string]any
	for line := range strings.Lines(l.buf.String()) {
		var m map[string]any
		if strings.Contains(line, with) && json.Unmarshal([]byte(line), &m) == nil {
			out = append(out, m)
		}
	}
	return out
}

// post is a raw request for a vote.
func post(poll, body string, headers ...string) string {
	text := "POST /polls/" + poll + "/votes HTTP/1.1\r\nHost: x\r\n"
	for _, h := range headers {
		text += h + "\r\n"
	}
	return text + "\r\n" + body
}

// lengthOf is the header that says how long a body is.
func lengthOf(body string) string { return "Content-Length: " + strconv.Itoa(len(body)) }

const typeJSON = "Content-Type: application/json"
