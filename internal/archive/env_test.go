package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/parquet-go/parquet-go"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"paredao/internal/archivefile"
	"paredao/internal/blobstore"
	"paredao/internal/redisstore"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

func TestMain(m *testing.M) {
	redisstore.DiscardClientLog()
	goleak.VerifyTestMain(m)
}

// env is a redis-server with counted votes, and an archive in a folder.
type env struct {
	*testing.T
	rdb   *redis.Client
	store *redisstore.Store
	codec *vote.Codec
	dir   string
	blobs blobstore.Store
	seq   int
	// accepted are the votes that must be archived, by id.
	accepted map[string]archived
}

// archived is a row as a reader sees it, in the order of the columns.
type archived struct {
	ID         string  `parquet:"id"`
	Poll       string  `parquet:"poll"`
	Class      *string `parquet:"class,optional"`
	Option     string  `parquet:"option"`
	AcceptedAt int64   `parquet:"accepted_at,timestamp(millisecond)"`
	Shard      int32   `parquet:"shard"`
	Client     *string `parquet:"client,optional"`
	UserAgent  *string `parquet:"user_agent,optional"`
	Voter      *string `parquet:"voter,optional"`
}

// shard is the one that the tests work on: not 0, which could be a default.
const shard = 1

func newEnv(t *testing.T) *env {
	t.Helper()
	server := testkit.Redis(t)
	store, err := redisstore.Open(redisstore.Options{URL: server.URL(), Shards: 2, Timeout: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	e := &env{T: t, rdb: server.Client(), store: store, accepted: map[string]archived{}}
	e.codec, err = vote.NewCodec()
	require.NoError(t, err)
	t.Cleanup(e.codec.Close)
	e.freshArchive()
	return e
}

// freshArchive goes on with an empty archive.
func (e *env) freshArchive() {
	e.Helper()
	e.dir = e.TempDir()
	var err error
	e.blobs, err = blobstore.Open(e.Context(), "file:"+e.dir, blobstore.AzureCredentials{})
	require.NoError(e, err)
}

// ballot is a vote in a test. A refused one stands in the body only.
type ballot struct {
	v       vote.Vote
	refused bool
}

func some(poll string, n int) []ballot {
	out := make([]ballot, n)
	for i := range out {
		out[i].v = vote.Vote{Poll: poll, Option: []string{"ana", "bruno", "carla"}[i%3], Client: "10.0.0.0/24", UserAgent: "Mozilla/5.0"}
	}
	return out
}

// count makes a frame that was accepted at a time, and puts it and its votes
// where the consumer puts what it has counted. Votes for the poll "shut" are
// refused as a whole.
func (e *env) count(at time.Time, ballots ...ballot) (id string) {
	e.Helper()
	e.seq++
	id = fmt.Sprintf("flusher-%d", e.seq)
	var body []byte
	var refused []string
	polls := map[string]int64{}
	for i, b := range ballots {
		b.v.ID = uuid.UUID{0: 1, 6: 0x70, 8: 0x80, 10: byte(e.seq >> 16), 11: byte(e.seq >> 8), 12: byte(e.seq), 14: byte(i >> 8), 15: byte(i)}
		body = vote.AppendVote(body, &b.v)
		if b.refused {
			refused = append(refused, strconv.Itoa(i))
		}
		if b.refused || b.v.Poll == "shut" {
			continue
		}
		polls[b.v.Poll]++
		e.accepted[b.v.ID.String()] = archived{
			ID: b.v.ID.String(), Poll: b.v.Poll, Class: orNull(b.v.Class), Option: b.v.Option, AcceptedAt: at.UnixMilli(),
			Shard: shard, Client: orNull(b.v.Client), UserAgent: orNull(b.v.UserAgent), Voter: orNull(b.v.Voter),
		}
	}
	head := make([]string, 0, len(polls))
	for _, p := range slices.Sorted(maps.Keys(polls)) {
		head = append(head, fmt.Sprintf("%s:%d", p, polls[p]))
	}
	flags := "-"
	if len(refused) > 0 {
		flags = strings.Join(refused, ",")
	}
	frame := fmt.Sprintf("P1 %s %d %d %s %s\n", id, at.UnixMilli(), len(ballots), flags, strings.Join(head, ",")) +
		string(e.codec.Compress(nil, body, len(ballots)))
	pipe := e.rdb.Pipeline()
	pipe.RPush(e.Context(), "archive:{1}", frame)
	for p, n := range polls {
		pipe.HIncrBy(e.Context(), "ledger:{1}", "counted:"+p, n)
		pipe.HIncrBy(e.Context(), "ledger:{1}", "accepted:"+p, n)
	}
	_, err := pipe.Exec(e.Context())
	require.NoError(e, err)
	return id
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// archiver is an Archiver with what it reports.
type archiver struct {
	*Archiver
	log     *logText
	seconds prometheus.Histogram

	mu      sync.Mutex
	outages []error
}

// archiver makes an archiver of batches of 10 votes or of an hour.
func (e *env) archiver(change ...func(*Params)) *archiver {
	a := &archiver{log: &logText{}}
	a.seconds = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "seconds"})
	p := Params{
		Queue: e.store, Blobs: e.blobs, MaxVotes: 10, MaxAge: time.Hour,
		Outage: func(err error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if err != nil {
				a.outages = append(a.outages, err)
			}
		},
		Log: slog.New(slog.NewTextHandler(a.log, nil)),
		Metrics: Metrics{
			Votes:           prometheus.NewCounter(prometheus.CounterOpts{Name: "votes"}),
			Objects:         prometheus.NewCounter(prometheus.CounterOpts{Name: "objects"}),
			AcceptToArchive: a.seconds,
		},
	}
	for _, f := range change {
		f(&p)
	}
	a.Archiver = New(p)
	return a
}

func (a *archiver) errors() []error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.outages)
}

func (a *archiver) observed(t *testing.T) (n uint64, sum float64) {
	t.Helper()
	var m dto.Metric
	require.NoError(t, a.seconds.Write(&m))
	return m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
}

// drain archives until nothing is due, and says how many batches that were.
func (a *archiver) drain(t *testing.T) (batches int) {
	t.Helper()
	for {
		did, err := a.step(t.Context(), shard)
		require.NoError(t, err)
		if !did {
			return batches
		}
		batches++
	}
}

// start runs Work until stop is called, which waits for its end.
func (a *archiver) start(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Work(ctx, shard)
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

// waiting is how many frames stand in the archive list.
func (e *env) waiting() int {
	e.Helper()
	n, err := e.rdb.LLen(e.Context(), "archive:{1}").Result()
	require.NoError(e, err)
	return int(n)
}

// ledger is the ledger's archived votes by poll.
func (e *env) ledger() map[string]int64 {
	e.Helper()
	polls, err := e.store.ShardPolls(e.Context())
	require.NoError(e, err)
	out := map[string]int64{}
	for p, l := range polls[shard].Ledgers {
		out[p] = l.Archived
	}
	return out
}

// files are all objects of the folder by name: the short ones themselves, of
// others their digest.
func (e *env) files() map[string]string {
	e.Helper()
	out := map[string]string{}
	require.NoError(e, filepath.WalkDir(e.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		name, _ := filepath.Rel(e.dir, path)
		if len(b) > 100 {
			b = fmt.Appendf(nil, "%d bytes, %x", len(b), sha256.Sum256(b))
		}
		out[filepath.ToSlash(name)] = string(b)
		return err
	}))
	return out
}

func (e *env) read(name string) []byte {
	e.Helper()
	o, err := e.blobs.Open(e.Context(), name)
	require.NoError(e, err)
	defer o.Close()
	b := make([]byte, o.Size())
	_, err = io.ReadFull(io.NewSectionReader(o, 0, o.Size()), b)
	require.NoError(e, err)
	return b
}

func (e *env) rows(object []byte) []archived {
	e.Helper()
	rows, err := parquet.Read[archived](bytes.NewReader(object), int64(len(object)))
	require.NoError(e, err)
	return rows
}

// manifests are all manifests of the archive, by name.
func (e *env) manifests() (out []*archivefile.Manifest) {
	e.Helper()
	for info, err := range e.blobs.List(e.Context(), archivefile.ManifestRoot) {
		require.NoError(e, err)
		m, err := archivefile.ParseManifest(e.read(info.Name))
		require.NoError(e, err)
		require.Equal(e, info.Name, archivefile.ManifestName(m.Shard, m.Sequence))
		out = append(out, m)
	}
	return out
}

// exact checks that every accepted vote is archived, whole and once, where rows
// of a frame that an earlier batch has are passed over, and no other; and that
// the list is empty. It returns how many frames were repeated.
func (e *env) exact() (repeated int) {
	e.Helper()
	require.Zero(e, e.waiting(), "frames wait")
	got := map[string]archived{}
	seen := map[string]bool{}
	for _, m := range e.manifests() {
		again := make([]bool, len(m.Frames))
		for i, id := range m.Frames {
			if again[i] = seen[id]; again[i] {
				repeated++
			}
			seen[id] = true
		}
		for _, o := range m.Objects {
			rows := e.rows(e.read(o.Name))
			require.Len(e, rows, int(o.Rows), o.Name)
			for _, fr := range o.FrameRows {
				for _, r := range rows[:fr[1]] {
					if again[fr[0]] {
						continue
					}
					_, twice := got[r.ID]
					require.False(e, twice, "vote %s is archived twice", r.ID)
					got[r.ID] = r
				}
				rows = rows[fr[1]:]
			}
		}
	}
	require.Len(e, got, len(e.accepted))
	for id, want := range e.accepted {
		require.Equal(e, want, got[id])
	}
	return repeated
}

// saved is what a Redis holds, by key, as DUMP gives it.
type saved map[string]string

func (e *env) save() saved {
	e.Helper()
	keys, err := e.rdb.Keys(e.Context(), "*").Result()
	require.NoError(e, err)
	out := saved{}
	for _, k := range keys {
		out[k], err = e.rdb.Dump(e.Context(), k).Result()
		require.NoError(e, err)
	}
	return out
}

// restore gives Redis an earlier state, as a failover does.
func (e *env) restore(s saved) {
	e.Helper()
	require.NoError(e, e.rdb.FlushDB(e.Context()).Err())
	for k, v := range s {
		require.NoError(e, e.rdb.Restore(e.Context(), k, 0, v).Err())
	}
}

// calls stands between an archiver and its queue and archive: before is asked
// before each call, and after told of each.
type calls struct {
	Queue
	Blobs
	before func(what string) error
	after  func(what string) error
}

func (c *calls) ask(what string) error {
	if c.before == nil {
		return nil
	}
	return c.before(what)
}

func (c *calls) tell(what string, err error) error {
	if err != nil || c.after == nil {
		return err
	}
	return c.after(what)
}

func (c *calls) through(p *Params) {
	c.Queue, c.Blobs = p.Queue, p.Blobs
	p.Queue, p.Blobs = c, c
}

func (c *calls) ArchiveState(ctx context.Context, shard int) (vote.ArchiveState, error) {
	if err := c.ask("ArchiveState"); err != nil {
		return vote.ArchiveState{}, err
	}
	st, err := c.Queue.ArchiveState(ctx, shard)
	return st, c.tell("ArchiveState", err)
}

func (c *calls) ReadArchive(ctx context.Context, shard, from int, limit vote.ReadLimit) ([]string, error) {
	if err := c.ask("ReadArchive"); err != nil {
		return nil, err
	}
	out, err := c.Queue.ReadArchive(ctx, shard, from, limit)
	return out, c.tell("ReadArchive", err)
}

func (c *calls) FixBatch(ctx context.Context, b *vote.ArchiveBatch, replace string) (*vote.ArchiveBatch, error) {
	if err := c.ask("FixBatch"); err != nil {
		return nil, err
	}
	out, err := c.Queue.FixBatch(ctx, b, replace)
	return out, c.tell("FixBatch", err)
}

func (c *calls) ReadBatch(ctx context.Context, b *vote.ArchiveBatch, from int, limit vote.ReadLimit) ([]string, error) {
	if err := c.ask("ReadBatch"); err != nil {
		return nil, err
	}
	out, err := c.Queue.ReadBatch(ctx, b, from, limit)
	return out, c.tell("ReadBatch", err)
}

func (c *calls) CommitBatch(ctx context.Context, b *vote.ArchiveBatch, votes []vote.PollVotes) error {
	if err := c.ask("CommitBatch"); err != nil {
		return err
	}
	return c.tell("CommitBatch", c.Queue.CommitBatch(ctx, b, votes))
}

func (c *calls) Create(ctx context.Context, name string, body io.ReadSeeker, size int64, sum [32]byte) (bool, error) {
	if err := c.ask("Create " + name); err != nil {
		return false, err
	}
	created, err := c.Blobs.Create(ctx, name, body, size, sum)
	return created, c.tell("Create "+name, err)
}

func (c *calls) Open(ctx context.Context, name string) (vote.Object, error) {
	if err := c.ask("Open " + name); err != nil {
		return nil, err
	}
	o, err := c.Blobs.Open(ctx, name)
	if err := c.tell("Open "+name, err); err != nil {
		if o != nil {
			err = errors.Join(err, o.Close())
		}
		return nil, err
	}
	return o, nil
}
