package ledger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/archive"
	"paredao/internal/archivefile"
	"paredao/internal/blobstore"
	"paredao/internal/count"
	"paredao/internal/redisstore"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// pipeline is a whole one in this process: its store, its archive in a folder,
// and a record of the votes that went through it.
type pipeline struct {
	t      *testing.T
	rdb    *redis.Client
	store  *redisstore.Store
	blobs  blobstore.Store
	folder string
	record *Record
	// windows are handed to the judge.
	windows   []LossWindow
	mayRepeat bool
}

var (
	choices = []Choice{{"p", "ana"}, {"p", "bruno"}, {"p", "nobody"}}
	agents  = []string{keylessAgent, keyedAgent}
)

// run puts so many votes for ana, without keys, and for bruno, with keys, in
// frames of 10, through a pipeline on a database of its own, and records them as
// acknowledged at its start. Votes for nobody must be refused.
func run(t *testing.T, server *testkit.RedisServer, db, ana, bruno int) *pipeline {
	t.Helper()
	p := &pipeline{
		t: t, rdb: redis.NewClient(&redis.Options{Addr: server.Addr(), DB: db}), folder: t.TempDir(), record: NewRecord(choices),
	}
	require.True(t, p.record.expect(choices[2], mustRefuse))
	t.Cleanup(func() { require.NoError(t, p.rdb.Close()) })
	var err error
	p.store, err = redisstore.Open(redisstore.Options{URL: fmt.Sprintf("redis://%s/%d", server.Addr(), db), Shards: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.store.Close()) })
	p.blobs, err = blobstore.Open(t.Context(), "file:"+p.folder, blobstore.AzureCredentials{})
	require.NoError(t, err)
	def := vote.Poll{ID: "p", Title: "p", Results: vote.ResultsLive, Options: []vote.Option{{ID: "ana"}, {ID: "bruno"}}}
	_, err = p.store.ApplyPoll(t.Context(), def, vote.Window{})
	require.NoError(t, err)

	codec, err := vote.NewCodec()
	require.NoError(t, err)
	defer codec.Close()
	flusher := vote.FrameID{Flusher: vote.NewFlusherID()}
	queue := p.store.Queue(time.Minute, 0, time.Second)
	require.NoError(t, queue.Register(t.Context(), 0, flusher.Flusher))
	left := []int{ana, bruno}
	for left[0]+left[1] > 0 {
		var lines []byte
		votes := 0
		for choice := range left {
			for ; left[choice] > 0 && votes < 10; left[choice]-- {
				v := vote.Vote{ID: uuid.Must(uuid.NewV7()), Poll: "p", Option: choices[choice].Option, UserAgent: agents[choice]}
				lines = vote.AppendVote(lines, &v)
				p.record.addSent(choice)
				p.record.addAcked(choice, v.ID, false, p.record.began)
				votes++
			}
		}
		flusher.Seq++
		out, err := queue.Enqueue(t.Context(), &vote.Batch{
			ID: flusher, Votes: votes, Polls: []vote.BatchPoll{{Poll: "p", Votes: votes, OptionsKey: def.OptionsKey()}},
			Body: codec.Compress(nil, lines, votes),
		})
		require.NoError(t, err)
		require.Equal(t, vote.PollAccepted, out.Polls[0])
	}
	p.work()
	p.record.addSent(2)
	p.record.addRefused(2)
	return p
}

// work counts and archives all there is.
func (p *pipeline) work() {
	p.t.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	fail := func(err error) { assert.NoError(p.t, err) }
	histogram := func() prometheus.Observer {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "seconds"})
	}
	counter := func() prometheus.Counter { return prometheus.NewCounter(prometheus.CounterOpts{Name: "n"}) }
	vector := func() *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "n"}, []string{"x"})
	}
	consumer := count.New(count.Params{
		Queue: p.store, Worker: "w", ChunkSize: 1000, Outage: fail, Log: log,
		Metrics: count.Metrics{Counted: vector(), Dead: vector(), Refused: counter(), AcceptToCount: histogram()},
	})
	archiver := archive.New(archive.Params{
		Queue: p.store, Blobs: p.blobs, MaxVotes: 40, MaxAge: time.Millisecond, SpoolDir: p.t.TempDir(), Outage: fail, Log: log,
		Metrics: archive.Metrics{Votes: counter(), Objects: counter(), AcceptToArchive: histogram()},
	})
	// One after the other, so that none finds nothing to do and waits.
	p.until(consumer.Work, func(q redisstore.ShardQueue) bool { return q.Frames == 0 })
	p.until(archiver.Work, func(q redisstore.ShardQueue) bool { return q.AwaitingFrames == 0 })
}

// until runs work until the queue is so.
func (p *pipeline) until(work func(context.Context, int), done func(redisstore.ShardQueue) bool) {
	p.t.Helper()
	ctx, stop := context.WithCancel(p.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		work(ctx, 0)
	}()
	testkit.Eventually(p.t, "the work is done", func() bool {
		queues, err := p.store.Queues(p.t.Context())
		return err == nil && done(queues[0])
	})
	stop()
	require.NoError(p.t, p.rdb.RPush(p.t.Context(), "wake:{0}", "1").Err()) // a consumer that waits need not wait on
	<-ended
}

func (p *pipeline) judge() *Result {
	p.t.Helper()
	r, err := Judge(p.t.Context(), JudgeParams{
		Store: p.store, Blobs: p.blobs, Record: p.record, Timeout: 100 * time.Millisecond, Progress: func(string) {},
		LossWindows: p.windows, MayRepeat: p.mayRepeat,
	})
	require.NoError(p.t, err)
	require.NotEmpty(p.t, r.String())
	return r
}

// manifest writes one more batch, of the votes ids for ana, as if frame had
// held them.
func (p *pipeline) manifest(sequence uint64, frame string, ids ...uuid.UUID) {
	p.t.Helper()
	var rows bytes.Buffer
	w := archivefile.NewWriter(&rows)
	at := time.UnixMilli(1_800_000_000_000)
	for _, id := range ids {
		require.NoError(p.t, w.Add(vote.Vote{ID: id, Poll: "p", Option: "ana", UserAgent: keylessAgent}, at, 0))
	}
	require.NoError(p.t, w.Close())
	n := int64(len(ids))
	sum := sha256.Sum256(rows.Bytes())
	batch := archivefile.BatchID(vote.ArchiveBatch{Sequence: sequence, First: frame, Last: frame, Elements: 1})
	m := archivefile.Manifest{
		Batch: batch, Sequence: sequence, Votes: n, Frames: []string{frame},
		Objects: []archivefile.ManifestObject{{
			Name: archivefile.ObjectName(batch, "p", at), Poll: "p", Bytes: int64(rows.Len()), SHA256: hex.EncodeToString(sum[:]),
			Rows: n, Votes: vote.Tally{"ana": n}, FrameRows: [][2]int64{{0, n}},
		}},
	}
	body, err := m.Encode()
	require.NoError(p.t, err)
	for name, b := range map[string][]byte{m.Objects[0].Name: rows.Bytes(), archivefile.ManifestName(0, sequence): body} {
		_, err := p.blobs.Create(p.t.Context(), name, bytes.NewReader(b), int64(len(b)), sha256.Sum256(b))
		require.NoError(p.t, err)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	server := testkit.Redis(t, "--databases", "100")
	const lateBatch = 1000
	db := 0
	for name, c := range map[string]struct {
		// damage does the damage; want is what the judge must say of it.
		damage func(p *pipeline)
		want   func(r *Result) bool
		holds  bool
	}{
		"nothing": {
			damage: func(*pipeline) {},
			want: func(r *Result) bool {
				return r.Acked == 95 && r.Counted == 95 && r.Archived == 95 && r.Refused == 1 && r.Options[1].Archived == 30
			},
			holds: true,
		},
		"an acked vote that never was": {
			damage: func(p *pipeline) { p.lose(0) },
			want:   func(r *Result) bool { return r.Lost == 1 && r.Undercounted == 1 && r.LossCoverage == 0 },
		},
		"a vote lost in a window": {
			damage: func(p *pipeline) { p.lose(11 * time.Second); p.allow(11*time.Second, 12*time.Second) },
			want: func(r *Result) bool {
				// From 10.75 s, of 11.
				return r.LostInWindow == 1 && r.Options[0].LostInWindow == 1 && r.Lost+r.Undercounted+r.Overcounted == 0 &&
					math.Abs(r.LossCoverage-0.25/11) < 1e-6
			},
			holds: true,
		},
		"votes lost at the edges of a window": {
			damage: func(p *pipeline) {
				p.allow(10*time.Second, 15*time.Second)
				p.lose(10*time.Second - lossMargin)
				p.lose(15*time.Second + lossMargin)
			},
			want:  func(r *Result) bool { return r.LostInWindow == 2 && r.Lost == 0 },
			holds: true,
		},
		"votes lost just before a window and just after the fault": {
			damage: func(p *pipeline) {
				p.allow(10*time.Second, 15*time.Second)
				p.lose(10*time.Second - lossMargin - time.Millisecond)
				p.lose(15*time.Second + lossMargin + time.Millisecond)
			},
			want: func(r *Result) bool {
				examples := strings.Join(r.Examples, "\n")
				return r.LostInWindow == 0 && r.Lost == 2 && r.Undercounted == 2 &&
					strings.Contains(examples, "9.749 s") && strings.Contains(examples, "15.251 s")
			},
		},
		"a vote made in a window and acknowledged after it": {
			damage: func(p *pipeline) { p.lose(time.Minute); p.allow(0, time.Second) },
			want:   func(r *Result) bool { return r.LostInWindow == 0 && r.Lost == 1 },
		},
		"lost in a window, and counted all the same": {
			damage: func(p *pipeline) {
				p.lose(11 * time.Second)
				p.allow(0, time.Minute)
				require.NoError(p.t, p.rdb.HIncrBy(p.t.Context(), "tally:{0}:p", "ana", 1).Err())
			},
			want: func(r *Result) bool { return r.LostInWindow == 1 && r.Overcounted == 1 },
		},
		"doubled and invented in a window": {
			damage: func(p *pipeline) {
				p.allow(-time.Minute, time.Minute)
				p.manifest(lateBatch, "zzzz-1", p.record.sorted(0)[3].id, uuid.Must(uuid.NewV7()))
			},
			want: func(r *Result) bool { return r.Doubled == 1 && r.Invented == 1 },
		},
		"one receipt for two votes": {
			damage: func(p *pipeline) {
				p.record.addSent(0)
				p.record.addAcked(0, p.record.sorted(0)[7].id, true, time.Now())
			},
			want: func(r *Result) bool { return r.Lost == 1 && r.SharedIDs == 1 && r.Doubled == 0 },
		},
		"a counted vote that was never acked": {
			damage: func(p *pipeline) { p.forget(0) },
			want:   func(r *Result) bool { return r.Invented == 1 && r.Overcounted == 1 && r.Lost == 0 },
		},
		"a vote without an answer that was taken": {
			damage: func(p *pipeline) { p.forget(0); p.record.addSent(0); p.record.addUnknown(0) },
			want:   func(r *Result) bool { return r.Taken == 1 && r.Unknown == 1 && r.Invented+r.Overcounted == 0 },
			holds:  true,
		},
		"a vote without an answer that was not taken": {
			damage: func(p *pipeline) { p.record.addSent(0); p.record.addUnknown(0) },
			want:   func(r *Result) bool { return r.Taken == 0 && r.Unknown == 1 && r.Lost+r.Undercounted == 0 },
			holds:  true,
		},
		"a vote without an answer that was taken twice": {
			damage: func(p *pipeline) {
				id := p.forget(0)
				for range 2 {
					p.record.addSent(0)
					p.record.addUnknown(0)
				}
				p.manifest(lateBatch, "zzzz-1", id)
			},
			want: func(r *Result) bool { return r.Taken == 1 && r.Doubled == 1 && r.Invented == 0 },
		},
		// What was never sent can't be what was taken.
		"a vote that found no api": {
			damage: func(p *pipeline) { p.record.addSent(0); p.record.addUnsent(0) },
			want:   func(r *Result) bool { return r.Unsent == 1 && r.Unknown+r.Taken == 0 },
			holds:  true,
		},
		"a vote that found no api, and another that was doubled": {
			damage: func(p *pipeline) { p.forget(0); p.record.addSent(0); p.record.addUnsent(0) },
			want:   func(r *Result) bool { return r.Taken == 0 && r.Invented == 1 && r.Overcounted == 1 },
		},
		"more taken than had no answer": {
			damage: func(p *pipeline) { p.forget(0); p.forget(0); p.record.addSent(0); p.record.addUnknown(0) },
			want:   func(r *Result) bool { return r.Taken == 1 && r.Invented == 1 && r.Overcounted == 1 },
		},
		// One of the two rows was acknowledged; nothing else would tell of the
		// other, since a vote without a key had no answer, and was not taken.
		"a vote with a key under two ids": {
			damage: func(p *pipeline) { p.forget(1); p.record.addSent(1); p.record.addUnknown(1) },
			want:   func(r *Result) bool { return r.Invented == 1 && r.Overcounted == 1 && r.Taken == 0 },
		},
		"a vote with a key that had no answer and was taken": {
			damage: func(p *pipeline) { p.forget(1); p.record.addSent(1); p.record.addUnsettled(1) },
			want: func(r *Result) bool {
				return r.Invented+r.Overcounted == 0 && r.Taken == 1 && r.Options[1].Taken == 1
			},
		},
		"a vote without a key while one with a key had no answer": {
			damage: func(p *pipeline) { p.forget(0); p.record.addSent(0); p.record.addUnsettled(0) },
			want:   func(r *Result) bool { return r.Invented == 1 && r.Taken == 0 },
		},
		"a good vote refused": {
			damage: func(p *pipeline) { p.record.addSent(0); p.record.addRefused(0) },
			want:   func(r *Result) bool { return r.WronglyRefused == 1 && r.Lost+r.Undercounted == 0 },
		},
		"a vote taken that must be refused": {
			damage: func(p *pipeline) { p.record.entries[0].expect = mustRefuse },
			want:   func(r *Result) bool { return r.WronglyTaken == 65 && r.WronglyRefused+r.Overcounted == 0 },
		},
		"votes taken and refused, as they may be": {
			damage: func(p *pipeline) {
				p.record.entries[0].expect = mayRefuse
				p.record.addSent(0)
				p.record.addRefused(0)
			},
			want:  func(r *Result) bool { return r.WronglyTaken+r.WronglyRefused == 0 && r.Refused == 2 },
			holds: true,
		},
		"another option": {
			damage: func(p *pipeline) { p.record.addAcked(1, p.forget(0), false, time.Now()) },
			want: func(r *Result) bool {
				return r.WrongOption == 1 && r.Lost == 0 && r.Invented == 0 && r.Undercounted == 1 && r.Overcounted == 1
			},
		},
		"a tally too high": {
			damage: func(p *pipeline) { require.NoError(p.t, p.rdb.HIncrBy(p.t.Context(), "tally:{0}:p", "ana", 1).Err()) },
			want:   func(r *Result) bool { return r.Overcounted == 1 && r.Lost+r.Doubled+r.Invented == 0 },
		},
		"a tally of an option that no one sent": {
			damage: func(p *pipeline) { require.NoError(p.t, p.rdb.HIncrBy(p.t.Context(), "tally:{0}:p", "zoe", 2).Err()) },
			want:   func(r *Result) bool { return r.Overcounted == 2 },
		},
		"a refused vote counted": {
			damage: func(p *pipeline) {
				require.NoError(p.t, p.rdb.HIncrBy(p.t.Context(), "tally:{0}:p", "nobody", 1).Err())
			},
			want: func(r *Result) bool { return r.Overcounted == 1 && r.Options[2].Counted == 1 && r.WronglyTaken == 1 },
		},
		"a row twice": {
			damage: func(p *pipeline) { p.manifest(lateBatch, "zzzz-1", p.record.sorted(0)[3].id) },
			want:   func(r *Result) bool { return r.Doubled == 1 && r.Archived == 96 },
		},
		"a frame archived twice": {
			damage: func(p *pipeline) { p.again(lateBatch, 10) },
			want: func(r *Result) bool {
				return r.RepeatedFrames == 1 && r.Doubled+r.Lost+r.Invented == 0 && r.Archived == 95 && len(r.Problems) == 1
			},
		},
		"a frame archived twice, as it may be": {
			damage: func(p *pipeline) { p.mayRepeat = true; p.again(lateBatch, 10) },
			want: func(r *Result) bool {
				return r.RepeatedFrames == 1 && r.Doubled+r.Lost+r.Invented == 0 && r.Archived == 95
			},
			holds: true,
		},
		"a frame archived twice, with a vote less": {
			damage: func(p *pipeline) { p.mayRepeat = true; p.again(lateBatch, 9) },
			// The newer copy counts.
			want: func(r *Result) bool { return r.RepeatedFrames == 1 && r.Lost == 1 && r.Archived == 94 },
		},
		"an object that no manifest lists": {
			damage: func(p *pipeline) { p.object("votes/poll=p/date=2026-01-20/hour=22/0-000000000009-x.parquet") },
			want:   func(r *Result) bool { return r.UnlistedObjects == 1 && len(r.Problems) == 1 },
		},
		"an object that no manifest lists, as it may be": {
			damage: func(p *pipeline) {
				p.mayRepeat = true
				p.object("votes/poll=p/date=2026-01-20/hour=22/0-000000000009-x.parquet")
			},
			want:  func(r *Result) bool { return r.UnlistedObjects == 1 },
			holds: true,
		},
		"an object of another poll": {
			damage: func(p *pipeline) { p.object("votes/poll=pp/date=2026-01-20/hour=22/0-000000000009-x.parquet") },
			want:   func(r *Result) bool { return r.UnlistedObjects == 0 },
			holds:  true,
		},
		"an object gone": {
			damage: func(p *pipeline) {
				m := p.first()
				name := filepath.Join(p.folder, filepath.FromSlash(archivefile.ManifestName(0, m.Sequence)))
				require.NoError(p.t, os.Remove(name))
			},
			want: func(r *Result) bool { return r.Lost >= 10 && r.Undercounted == 0 },
		},
		"a dead element": {
			damage: func(p *pipeline) { require.NoError(p.t, p.rdb.RPush(p.t.Context(), "dead:{0}", "x").Err()) },
			want:   func(r *Result) bool { return r.Lost+r.Doubled+r.Invented == 0 },
		},
		"a queue that no one counts": {
			damage: func(p *pipeline) { require.NoError(p.t, p.rdb.RPush(p.t.Context(), "votes:{0}", "x").Err()) },
			want:   func(r *Result) bool { return r.Lost+r.Doubled+r.Invented == 0 },
		},
		"a vote of unknown fate": {
			damage: func(p *pipeline) { p.record.addSent(0); p.record.addUnsettled(0) },
			want:   func(r *Result) bool { return r.Unsettled == 1 },
		},
		"a wrong acknowledgement": {
			damage: func(p *pipeline) { p.record.addWrong("x") },
			want:   func(r *Result) bool { return r.WrongAcks == 1 },
		},
		"a client that still runs": {
			damage: func(p *pipeline) { p.record.addSent(0) },
			want:   func(r *Result) bool { return r.Sent == r.Acked+r.Refused+1 },
		},
	} {
		db++
		mine := db
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := run(t, server, mine, 65, 30)
			c.damage(p)
			r := p.judge()
			assert.True(t, c.want(r), r.String())
			assert.Equal(t, c.holds, r.OK(), r.String())
			for _, o := range []int64{r.Lost, r.Doubled, r.Invented, r.WrongOption, r.SharedIDs} {
				if o > 0 {
					assert.NotEmpty(t, r.Examples)
				}
			}
		})
	}
}

// again archives the first frame once more, with its first n votes: all ten are
// for ana.
func (p *pipeline) again(sequence uint64, n int) {
	p.t.Helper()
	var ids []uuid.UUID
	for _, receipt := range p.record.sorted(0)[:n] {
		ids = append(ids, receipt.id)
	}
	p.manifest(sequence, p.first().Frames[0], ids...)
}

// object writes an object that is none.
func (p *pipeline) object(name string) {
	p.t.Helper()
	_, err := p.blobs.Create(p.t.Context(), name, strings.NewReader("x"), 1, sha256.Sum256([]byte("x")))
	require.NoError(p.t, err)
}

// lose records a vote that is nowhere, acked so long after the start.
func (p *pipeline) lose(acked time.Duration) {
	p.record.addSent(0)
	p.record.addAcked(0, uuid.Must(uuid.NewV7()), false, p.record.began.Add(acked))
}

// allow lets votes be lost in a time, given from the start.
func (p *pipeline) allow(from, to time.Duration) {
	p.windows = append(p.windows, LossWindow{From: p.record.began.Add(from), To: p.record.began.Add(to)})
}

// forget removes an acked vote from the record and returns its id.
func (p *pipeline) forget(choice int) uuid.UUID {
	e := &p.record.entries[choice]
	last := &e.receipts[len(e.receipts)-1]
	id := (*last)[len(*last)-1].id
	*last = (*last)[:len(*last)-1]
	e.acked--
	e.sent--
	return id
}

// first is the manifest of the first batch.
func (p *pipeline) first() *archivefile.Manifest {
	p.t.Helper()
	o, err := p.blobs.Open(p.t.Context(), archivefile.ManifestName(0, 1))
	require.NoError(p.t, err)
	defer o.Close()
	m, err := archivefile.ReadManifest(o)
	require.NoError(p.t, err)
	return m
}

func TestJudgeCannot(t *testing.T) {
	server := testkit.Redis(t)
	p := run(t, server, 0, 20, 10)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Judge(ctx, JudgeParams{Store: p.store, Blobs: p.blobs, Record: p.record, Timeout: time.Minute})
	require.ErrorIs(t, err, context.Canceled)

	now := time.Now()
	for _, w := range []LossWindow{{From: now, To: now.Add(-time.Second)}, {To: now}, {From: now}} {
		_, err = Judge(t.Context(), JudgeParams{
			Store: p.store, Blobs: p.blobs, Record: p.record, Timeout: time.Minute, LossWindows: []LossWindow{w},
		})
		require.ErrorContains(t, err, "loss window")
	}

	m := p.first()
	require.NoError(t, os.Remove(filepath.Join(p.folder, filepath.FromSlash(m.Objects[0].Name))))
	_, err = Judge(t.Context(), JudgeParams{Store: p.store, Blobs: p.blobs, Record: p.record, Timeout: time.Minute})
	require.ErrorIs(t, err, vote.ErrObjectNotFound)
}
