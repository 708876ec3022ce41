package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"paredao/internal/archive"
	"paredao/internal/archivefile"
	"paredao/internal/blobstore"
	"paredao/internal/count"
	"paredao/internal/redisstore"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

func TestMain(m *testing.M) {
	redisstore.DiscardClientLog()
	goleak.VerifyTestMain(m)
}

var (
	_ Source = (*redisstore.Store)(nil)
	_ Blobs  = blobstore.Store(nil)
)

// shards is the number of queue shards in these tests.
const shards = 2

var options = []string{"ana", "bruno", "carla"}

// rig is the whole pipeline behind the api, on a redis-server and a folder of
// its own.
type rig struct {
	*testing.T
	server *testkit.RedisServer
	store  *redisstore.Store
	queue  *redisstore.Queue
	rdb    *redis.Client
	blobs  blobstore.Store
	dir    string
	codec  *vote.Codec
	polls  []string
	// seq is the last frame of the flusher "f<shard>" by shard.
	seq [shards]uint64
	ids atomic.Int64
}

func newRig(t *testing.T, polls ...string) *rig {
	t.Helper()
	server := testkit.Redis(t)
	r := &rig{T: t, server: server, rdb: server.Client(), dir: t.TempDir(), polls: polls}
	var err error
	r.store, err = redisstore.Open(redisstore.Options{URL: server.URL(), Shards: shards})
	r.must(err)
	t.Cleanup(func() { _ = r.store.Close() })
	r.queue = r.store.Queue(1, 0, 0)
	r.blobs, err = blobstore.Open(t.Context(), "file:"+r.dir, blobstore.AzureCredentials{})
	r.must(err)
	r.codec, err = vote.NewCodec()
	r.must(err)
	t.Cleanup(r.codec.Close)
	for _, p := range polls {
		_, err := r.store.ApplyPoll(t.Context(), definition(p), vote.Window{})
		r.must(err)
	}
	for shard := range shards {
		r.must(r.queue.Register(t.Context(), shard, flusher(shard)))
	}
	return r
}

func (r *rig) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

func flusher(shard int) string { return fmt.Sprintf("f%d", shard) }

func definition(id string) vote.Poll {
	p := vote.Poll{ID: id, Title: "Who?", Results: vote.ResultsLive}
	for _, o := range options {
		p.Options = append(p.Options, vote.Option{ID: o, Name: o})
	}
	return p
}

// batch makes a frame of n votes, the polls and the options one after the
// other.
func (r *rig) batch(codec *vote.Codec, shard int, id vote.FrameID, n int, polls ...string) *vote.Batch {
	b := &vote.Batch{Shard: shard, ID: id, Votes: n}
	var body []byte
	for i := range n {
		k := r.ids.Add(1)
		v := vote.Vote{
			ID:   uuid.UUID{0: 1, 6: 0x70, 8: 0x80, 12: byte(k >> 24), 13: byte(k >> 16), 14: byte(k >> 8), 15: byte(k)},
			Poll: polls[i%len(polls)], Option: options[(i/len(polls))%len(options)],
		}
		body = vote.AppendVote(body, &v)
	}
	for i, p := range polls[:min(n, len(polls))] {
		d := definition(p)
		b.Polls = append(b.Polls, vote.BatchPoll{Poll: p, Votes: (n - i + len(polls) - 1) / len(polls), OptionsKey: d.OptionsKey()})
	}
	b.Body = codec.Compress(nil, body, n)
	return b
}

// send enqueues a frame of n votes on a shard and returns its id.
func (r *rig) send(shard, n int, polls ...string) string {
	r.Helper()
	if len(polls) == 0 {
		polls = r.polls
	}
	r.seq[shard]++
	id := vote.FrameID{Flusher: flusher(shard), Seq: r.seq[shard]}
	_, err := r.queue.Enqueue(r.Context(), r.batch(r.codec, shard, id, n, polls...))
	r.must(err)
	return id.String()
}

// start runs a stage's work on every shard until the function that it returns is
// called.
func start(work func(context.Context, int)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for shard := range shards {
		wg.Go(func() { work(ctx, shard) })
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// atRest counts as the real queue does, and waits for a stop instead of votes:
// a consumer that is stopped while it waits in Redis takes a second to end.
type atRest struct{ count.Queue }

func (atRest) AwaitVotes(ctx context.Context, _ int, _ time.Duration) error {
	<-ctx.Done()
	return nil
}

func (r *rig) consumer(queue count.Queue, chunk int) func(context.Context, int) {
	label := func(name string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name}, []string{"label"})
	}
	return count.New(count.Params{
		Queue: queue, Worker: uuid.NewString(), ChunkSize: chunk,
		Outage: func(err error) {
			if err != nil {
				r.Errorf("consumer: %v", err)
			}
		},
		Log: slog.New(slog.DiscardHandler),
		Metrics: count.Metrics{
			Counted: label("counted"), Dead: label("dead"),
			Refused:       prometheus.NewCounter(prometheus.CounterOpts{Name: "refused"}),
			AcceptToCount: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "seconds"}),
		},
	}).Work
}

func (r *rig) archiver(maxVotes int64) func(context.Context, int) {
	return archive.New(archive.Params{
		Queue: r.store, Blobs: r.blobs, MaxVotes: maxVotes, SpoolDir: r.TempDir(),
		Outage: func(err error) {
			if err != nil {
				r.Errorf("archiver: %v", err)
			}
		},
		Log: slog.New(slog.DiscardHandler),
		Metrics: archive.Metrics{
			Votes:           prometheus.NewCounter(prometheus.CounterOpts{Name: "votes"}),
			Objects:         prometheus.NewCounter(prometheus.CounterOpts{Name: "objects"}),
			AcceptToArchive: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "seconds"}),
		},
	}).Work
}

// countAll counts all that is queued.
func (r *rig) countAll() {
	r.Helper()
	stop := start(r.consumer(atRest{r.store}, 1000))
	defer stop()
	r.empty("votes")
}

// archiveAll archives all that awaits it, in batches of maxVotes.
func (r *rig) archiveAll(maxVotes int64) {
	r.Helper()
	stop := start(r.archiver(maxVotes))
	defer stop()
	r.empty("archive")
}

func (r *rig) empty(list string) {
	r.Helper()
	testkit.Eventually(r, list+" is empty", func() bool {
		var n int64
		for shard := range shards {
			n += r.rdb.LLen(r.Context(), key(list, shard)).Val()
		}
		return n == 0
	})
}

func key(list string, shard int) string { return fmt.Sprintf("%s:{%d}", list, shard) }

// params are those of an audit with recount.
func (r *rig) params() Params {
	return Params{Source: r.store, Shards: shards, Polls: r.polls, Recount: true, Blobs: r.blobs}
}

func (r *rig) audit(p Params) *Report {
	r.Helper()
	report, err := Audit(r.Context(), p)
	r.must(err)
	return report
}

// clean fails the test unless everything adds up.
func (r *rig) clean(p Params) *Report {
	r.Helper()
	report := r.audit(p)
	if !report.OK() {
		r.Errorf("a false alarm: %+v", report.Differences)
	}
	for _, poll := range report.Polls {
		if !poll.OK {
			r.Errorf("poll %s is not OK", poll.Poll)
		}
		if p.Recount && (poll.Recounted == nil || *poll.Recounted != poll.Archived) {
			r.Errorf("poll %s: recounted %v, archived %d", poll.Poll, poll.Recounted, poll.Archived)
		}
	}
	return report
}

// fill brings votes of two polls into every place of the pipeline: 40 archived
// in two batches a shard, 20 awaiting the archive, 12 queued, a shard.
func fill(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, "alpha", "beta")
	for shard := range shards {
		for range 4 {
			r.send(shard, 10)
		}
	}
	r.countAll()
	r.archiveAll(20)
	for shard := range shards {
		r.send(shard, 8)
		r.send(shard, 12)
	}
	r.countAll()
	for shard := range shards {
		r.send(shard, 7)
		r.send(shard, 5)
	}
	return r
}

// names are the archive's objects below a prefix.
func (r *rig) names(prefix string) []string {
	r.Helper()
	var names []string
	for info, err := range r.blobs.List(r.Context(), prefix) {
		r.must(err)
		names = append(names, info.Name)
	}
	return names
}

func (r *rig) path(name string) string { return filepath.Join(r.dir, filepath.FromSlash(name)) }

func (r *rig) write(name string, b []byte) {
	r.Helper()
	r.must(os.MkdirAll(filepath.Dir(r.path(name)), 0o750))
	r.must(os.WriteFile(r.path(name), b, 0o600))
}

func (r *rig) manifest(shard int, sequence uint64) *archivefile.Manifest {
	r.Helper()
	b, err := os.ReadFile(r.path(archivefile.ManifestName(shard, sequence)))
	r.must(err)
	m, err := archivefile.ParseManifest(b)
	r.must(err)
	return m
}

func (r *rig) writeManifest(m *archivefile.Manifest) {
	r.Helper()
	b, err := m.Encode()
	r.must(err)
	r.write(archivefile.ManifestName(m.Shard, m.Sequence), b)
}

// forge writes the manifest of a batch that Redis does not know, which has no
// votes.
func (r *rig) forge(shard int, sequence uint64, frames ...string) *archivefile.Manifest {
	r.Helper()
	m := &archivefile.Manifest{Shard: shard, Sequence: sequence, Frames: frames}
	m.Batch = archivefile.BatchID(vote.ArchiveBatch{
		Shard: shard, Sequence: sequence, Elements: len(frames), First: frames[0], Last: frames[len(frames)-1],
	})
	r.writeManifest(m)
	return m
}

// frames are the ids in a list.
func (r *rig) frames(list string, shard int) []string {
	r.Helper()
	elements, err := r.rdb.LRange(r.Context(), key(list, shard), 0, -1).Result()
	r.must(err)
	var ids []string
	for _, e := range elements {
		ids = append(ids, vote.ElementID([]byte(e)))
	}
	return ids
}

// save returns what puts Redis back to where it is now, as a failover to a
// replica that is behind does.
func (r *rig) save() (failover func()) {
	r.Helper()
	keys, err := r.rdb.Keys(r.Context(), "*").Result()
	r.must(err)
	values := map[string]string{}
	for _, k := range keys {
		values[k], err = r.rdb.Dump(r.Context(), k).Result()
		r.must(err)
	}
	seq := r.seq
	return func() {
		r.Helper()
		r.must(r.rdb.FlushDB(r.Context()).Err())
		for k, v := range values {
			r.must(r.rdb.Restore(r.Context(), k, 0, v).Err())
		}
		// What was enqueued since has no record any more: a new flusher.
		r.seq = seq
	}
}

// found fails the test unless the report has a difference of the poll and shard
// whose text has all the parts.
func (r *rig) found(report *Report, poll string, shard int, parts ...string) {
	r.Helper()
	if !slices.ContainsFunc(report.Differences, func(d Difference) bool {
		return d.Poll == poll && d.Shard == shard &&
			!slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(d.What, p) })
	}) {
		b, _ := json.MarshalIndent(report.Differences, "", " ")
		r.Errorf("no difference of poll %q, shard %d, that says %q; there are %s", poll, shard, parts, b)
	}
}

func (r *rig) now() time.Time {
	r.Helper()
	now, err := r.store.Now(r.Context())
	r.must(err)
	return now
}
