package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/archivefile"
	"paredao/internal/audit"
	"paredao/internal/blobstore"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// long is a time long past: what was accepted then is due by its age.
var long = time.Date(2026, 1, 20, 23, 59, 59, 999e6, time.UTC)

func young() time.Time { return time.Now() }

func TestBatchByVotes(t *testing.T) {
	e := newEnv(t)
	a := e.archiver()
	assert.Zero(t, a.drain(t), "nothing is there")
	e.count(young(), some("p", 4)...)
	e.count(young(), some("p", 4)...)
	assert.Zero(t, a.drain(t), "8 of 10 votes")
	for range 4 {
		e.count(young(), some("p", 4)...)
	}
	assert.Equal(t, 2, a.drain(t))
	var got [][]string
	for _, m := range e.manifests() {
		got = append(got, m.Frames)
	}
	assert.Equal(t, [][]string{{"flusher-1", "flusher-2", "flusher-3"}, {"flusher-4", "flusher-5", "flusher-6"}}, got,
		"a batch ends with the frame that reaches the votes")
	e.exact()
	assert.Equal(t, map[string]int64{"p": 24}, e.ledger())
}

func TestBatchByAge(t *testing.T) {
	e := newEnv(t)
	e.count(young(), some("p", 1)...)
	e.count(long, some("p", 1)...)
	a := e.archiver()
	assert.Zero(t, a.drain(t), "the oldest is young")
	e.restore(saved{})
	e.accepted = map[string]archived{}
	e.count(long, some("p", 1)...)
	e.count(young(), some("p", 1)...)
	assert.Equal(t, 1, a.drain(t), "the oldest is old; what waits goes with it")
	e.exact()
}

// A batch also ends at a number of frames, whatever few votes they have.
func TestBatchByFrames(t *testing.T) {
	e := newEnv(t)
	e.count(young(), some("p", 1)...)
	frame := e.rdb.LIndex(t.Context(), "archive:{1}", 0).Val()
	pipe := e.rdb.Pipeline()
	for i := range batchFrames {
		pipe.RPush(t.Context(), "archive:{1}", strings.Replace(frame, "flusher-1", fmt.Sprintf("many-%d", i), 1))
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	a := e.archiver(func(p *Params) { p.MaxVotes = 1 << 30 })
	assert.Equal(t, 1, a.drain(t))
	assert.Equal(t, 1, e.waiting())
	m := e.manifests()
	require.Len(t, m, 1)
	assert.Len(t, m[0].Frames, batchFrames)
	assert.EqualValues(t, batchFrames, m[0].Votes)
}

// What other people's engines read: INTERFACE, section 8.
func TestObjectsAreTheContract(t *testing.T) {
	e := newEnv(t)
	full := vote.Vote{
		Poll: "p", Class: "unico", Option: "ana", Client: "2001:db8::/48",
		UserAgent: "Mozilla \"5.0\" \u2028 😀", Voter: "cafe",
	}
	e.count(long, ballot{v: vote.Vote{Poll: "p", Option: "bruno"}}, ballot{v: full})
	e.count(long.Add(time.Millisecond), ballot{v: vote.Vote{Poll: "p", Option: "bruno"}})
	require.Equal(t, 1, e.archiver().drain(t))
	e.exact()

	m := e.manifests()[0]
	var names []string
	for _, o := range m.Objects {
		names = append(names, o.Name)
	}
	require.Equal(t, []string{
		"votes/poll=p/date=2026-01-20/hour=23/" + m.Batch + ".parquet",
		"votes/poll=p/date=2026-01-21/hour=00/" + m.Batch + ".parquet",
	}, names, "by UTC hour, whatever time zone the machine has")

	b := e.read(names[0])
	f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	var columns []string
	for _, c := range f.Metadata().Schema[1:] {
		columns = append(columns, strings.TrimSpace(fmt.Sprintf("%s %v %v %v", c.Name, c.RepetitionType.V, c.Type.V, &c.LogicalType)))
	}
	assert.Equal(t, []string{
		"id REQUIRED BYTE_ARRAY STRING",
		"poll REQUIRED BYTE_ARRAY STRING",
		"class OPTIONAL BYTE_ARRAY STRING",
		"option REQUIRED BYTE_ARRAY STRING",
		"accepted_at REQUIRED INT64 TIMESTAMP(isAdjustedToUTC=true,unit=MILLIS)",
		"shard REQUIRED INT32 INT(32,true)",
		"client OPTIONAL BYTE_ARRAY STRING",
		"user_agent OPTIONAL BYTE_ARRAY STRING",
		"voter OPTIONAL BYTE_ARRAY STRING",
	}, columns)
	for _, g := range f.Metadata().RowGroups {
		for _, c := range g.Columns {
			assert.Equal(t, "ZSTD", c.MetaData.Codec.String())
		}
	}
	rows := e.rows(b)
	require.Len(t, rows, 2)
	for _, p := range []*string{rows[0].Class, rows[0].Client, rows[0].UserAgent, rows[0].Voter} {
		assert.Nil(t, p)
	}
	assert.Equal(t, full.UserAgent, *rows[1].UserAgent)
	assert.Equal(t, "cafe", *rows[1].Voter)
}

func TestManifest(t *testing.T) {
	e := newEnv(t)
	classy := ballot{v: vote.Vote{Poll: "q", Class: "unico", Option: "ana"}}
	e.count(long, append(some("p", 4), classy)...)
	e.count(long, some("p", 2)...)
	e.count(long, classy, classy)
	require.Equal(t, 1, e.archiver(func(p *Params) { p.MaxVotes = 100 }).drain(t))

	names := slices.Sorted(maps.Keys(e.files()))
	require.Len(t, names, 3)
	assert.Equal(t, "manifest/1/000000000001.json", names[0])
	digest := e.manifests()[0].Digest
	assert.Len(t, digest, 32)
	batch := archivefile.BatchID(vote.ArchiveBatch{
		Shard: shard, Sequence: 1, Elements: 3, First: "flusher-1", Last: "flusher-3", Digest: digest,
	})
	sum := func(name string) string {
		s := sha256.Sum256(e.read(name))
		return hex.EncodeToString(s[:])
	}
	assert.Equal(t, &archivefile.Manifest{
		Version: 1, Batch: batch, Shard: shard, Sequence: 1, Votes: 9,
		Frames: []string{"flusher-1", "flusher-2", "flusher-3"}, Digest: digest,
		Objects: []archivefile.ManifestObject{
			{
				Name: names[1], Poll: "p", Bytes: int64(len(e.read(names[1]))), SHA256: sum(names[1]), Rows: 6,
				Votes: vote.Tally{"ana": 3, "bruno": 2, "carla": 1}, FrameRows: [][2]int64{{0, 4}, {1, 2}},
			},
			{
				Name: names[2], Poll: "q", Bytes: int64(len(e.read(names[2]))), SHA256: sum(names[2]), Rows: 3,
				Votes: vote.Tally{"unico/ana": 3}, FrameRows: [][2]int64{{0, 1}, {2, 2}},
			},
		},
	}, e.manifests()[0])
	assert.Equal(t, map[string]int64{"p": 6, "q": 3}, e.ledger())
	known, err := e.store.Batches(t.Context(), shard, []uint64{1})
	require.NoError(t, err)
	assert.Equal(t, vote.Batches{Committed: map[uint64]string{1: batch}}, known)
}

// Votes that were refused, one by one or with their whole poll, are not
// archived.
func TestRefusedVotesAreNotArchived(t *testing.T) {
	e := newEnv(t)
	for _, n := range []int{3, 30} { // readable and compressed bodies
		mixed := slices.Concat(some("p", n), some("shut", n), some("q", n))
		mixed[0].refused, mixed[2].refused, mixed[len(mixed)-1].refused = true, true, true
		e.count(long, mixed...)
	}
	require.NotZero(t, e.archiver().drain(t))
	e.exact()
	assert.Len(t, e.accepted, 2*(3+30)-6)
	assert.Equal(t, map[string]int64{"p": 29, "q": 31}, e.ledger())
	for name := range e.files() {
		assert.NotContains(t, name, "shut")
	}
}

// More objects than may be open at a time: the batch is read more than once.
func TestManyObjectsInOneBatch(t *testing.T) {
	e := newEnv(t)
	const polls, hours = 5, 7
	var mixed []ballot
	for p := range polls {
		mixed = append(mixed, some(fmt.Sprintf("poll%d", p), 3+p)...)
	}
	for h := range 3 * hours {
		// Hours come again, and polls in another order.
		slices.Reverse(mixed)
		e.count(long.Add(time.Duration(h%hours)*time.Hour), mixed...)
	}
	reads := 0
	c := &calls{before: func(what string) error {
		if what == "ReadBatch" {
			reads++
		}
		return nil
	}}
	a := e.archiver(c.through, func(p *Params) { p.MaxVotes = 1 << 20 })
	require.Equal(t, 1, a.drain(t))
	e.exact()
	m := e.manifests()
	require.Len(t, m, 1)
	assert.Len(t, m[0].Objects, polls*hours)
	assert.Equal(t, (polls*hours+openObjects-1)/openObjects, reads, "passes")
	assert.InDelta(t, polls*hours, testutil.ToFloat64(a.p.Metrics.Objects), 0)
}

// An archiver crashes at its k-th call, before or after the call did its work,
// and another one goes on. Whatever k is: each vote is archived once, and the
// archive is byte by byte what it is without a crash.
func TestCrashAtEveryStep(t *testing.T) {
	e := newEnv(t)
	for i := range 3 {
		e.count(long.Add(time.Duration(i)*20*time.Minute), slices.Concat(some("p", 3), some("q", 2))...)
	}
	begin := e.save()
	require.Equal(t, 2, e.archiver().drain(t))
	e.exact()
	want, ledger := e.files(), e.ledger()

	crash := errors.New("crash")
	for _, late := range []bool{false, true} {
		k := 0
		for ; ; k++ {
			e.restore(begin)
			e.freshArchive()
			n, where := 0, ""
			at := func(what string) error {
				if n++; n == k+1 {
					where = what
					return crash
				}
				return nil
			}
			c := &calls{before: at}
			if late {
				c = &calls{after: at}
			}
			a := e.archiver(c.through)
			var did, failed = true, false
			for did && !failed {
				var err error
				did, err = a.step(t.Context(), shard)
				if failed = err != nil; failed {
					require.ErrorIs(t, err, crash)
				}
			}
			if where == "" {
				break
			}
			e.archiver().drain(t)
			require.Equal(t, want, e.files(), "crash at call %d, %s, late %v", k, where, late)
			require.Equal(t, ledger, e.ledger(), "crash at call %d, %s, late %v", k, where, late)
			require.Zero(t, e.exact(), "crash at call %d, %s, late %v", k, where, late)
		}
		t.Logf("%d crashes, after the call did its work: %v", k, late)
		assert.Greater(t, k, 15)
	}
}

// Two archivers on one shard, which must not be but may.
func TestTwoArchivers(t *testing.T) {
	e := newEnv(t)
	for i := range 120 {
		e.count(long.Add(time.Duration(i)*time.Minute), slices.Concat(some("p", 3), some("q", 2))...)
	}
	begin := e.save()
	e.archiver().drain(t)
	e.exact()
	want := e.files()

	e.restore(begin)
	e.freshArchive()
	a, b := e.archiver(), e.archiver()
	stopA, stopB := a.start(t), b.start(t)
	testkit.Eventually(t, "all is archived", func() bool { return e.waiting() == 0 })
	stopA()
	stopB()
	assert.Empty(t, a.errors())
	assert.Empty(t, b.errors())
	assert.Equal(t, want, e.files())
	assert.Zero(t, e.exact())
	assert.Equal(t, map[string]int64{"p": 360, "q": 240}, e.ledger())
	t.Logf("%d and %d times the other one was faster", strings.Count(a.log.String(), "was faster"), strings.Count(b.log.String(), "was faster"))
}

// An archiver that was paused anywhere, while another one went on, writes
// nothing but what was written: its reads say that the batch is gone.
func TestLateArchiver(t *testing.T) {
	for _, where := range []string{"FixBatch", "ReadArchive", "ReadBatch", "Open", "Create votes/", "Create manifest/", "CommitBatch"} {
		t.Run(where, func(t *testing.T) {
			e := newEnv(t)
			for range 2 {
				e.count(long, some("p", 10)...)
			}
			var once sync.Once
			var files map[string]string
			c := &calls{before: func(what string) error {
				if strings.HasPrefix(what, where) {
					once.Do(func() {
						// Also the next batch, whose frames are where the late one's were.
						assert.Equal(t, 2, e.archiver().drain(t))
						e.count(young(), some("p", 1)...)
						files = e.files()
					})
				}
				return nil
			}}
			late := e.archiver(c.through)
			_, err := late.step(t.Context(), shard)
			require.NotNil(t, files, "it never came there")
			if err != nil {
				require.ErrorIs(t, err, vote.ErrBatchGone)
			}
			if where == "ReadBatch" {
				require.ErrorIs(t, err, vote.ErrBatchGone)
			}
			if where == "Open" {
				// It had decided nothing but that a batch was due, and found the
				// first free number: what waited went into a batch too early.
				require.NoError(t, err)
				assert.Equal(t, map[string]int64{"p": 21}, e.ledger())
			} else {
				assert.Equal(t, files, e.files())
				assert.Equal(t, 1, e.waiting())
				assert.Equal(t, map[string]int64{"p": 20}, e.ledger())
			}
			for name, content := range files {
				assert.Equal(t, content, e.files()[name])
			}
			e.archiver(func(p *Params) { p.MaxVotes = 1 }).drain(t)
			assert.Zero(t, e.exact())
		})
	}
}

// That another archiver was faster is no outage.
func TestWorkGoesOnWhenAnotherWasFaster(t *testing.T) {
	e := newEnv(t)
	for range 3 {
		e.count(long, some("p", 10)...)
	}
	var once sync.Once
	c := &calls{before: func(what string) error {
		if what == "ReadBatch" {
			once.Do(func() { _, _ = e.archiver().step(t.Context(), shard) })
		}
		return nil
	}}
	a := e.archiver(c.through)
	stop := a.start(t)
	testkit.Eventually(t, "all is archived", func() bool { return e.waiting() == 0 })
	stop()
	assert.Zero(t, e.exact())
	assert.Empty(t, a.errors())
	assert.Contains(t, a.log.String(), "another archiver was faster")
}

// Other content under the batch's name: an alarm, and nothing is overwritten,
// nothing committed. When it has gone, the archive goes on.
func TestConflictIsAnAlarm(t *testing.T) {
	e := newEnv(t)
	e.count(long, some("p", 10)...)
	begin := e.save()
	require.Equal(t, 1, e.archiver().drain(t))
	object := e.manifests()[0].Objects[0].Name

	e.restore(begin)
	e.freshArchive()
	foreign := []byte("what someone else put there")
	_, err := e.blobs.Create(t.Context(), object, bytes.NewReader(foreign), int64(len(foreign)), sha256.Sum256(foreign))
	require.NoError(t, err)
	a := e.archiver()
	stop := a.start(t)
	testkit.Eventually(t, "the alarm is given", func() bool { return len(a.errors()) > 0 })
	require.ErrorIs(t, a.errors()[0], vote.ErrObjectConflict)
	assert.Contains(t, a.log.String(), "ALARM")
	assert.Contains(t, a.log.String(), object)
	assert.Equal(t, map[string]string{object: string(foreign)}, e.files())
	assert.Equal(t, 1, e.waiting())
	assert.Zero(t, e.ledger()["p"])

	require.NoError(t, os.Remove(filepath.Join(e.dir, object)))
	testkit.Eventually(t, "it goes on", func() bool { return e.waiting() == 0 })
	stop()
	e.exact()
}

// A manifest that can't be read stops the archive rather than being passed over.
func TestDamagedManifest(t *testing.T) {
	e := newEnv(t)
	e.count(long, some("p", 10)...)
	bad := []byte("{}")
	name := archivefile.ManifestName(shard, 1)
	_, err := e.blobs.Create(t.Context(), name, bytes.NewReader(bad), 2, sha256.Sum256(bad))
	require.NoError(t, err)
	_, err = e.archiver().step(t.Context(), shard)
	require.ErrorIs(t, err, archivefile.ErrDamaged)
	assert.Equal(t, map[string]string{name: "{}"}, e.files())
	assert.Equal(t, 1, e.waiting())
}

// recount is what the archive says, as the audit counts it.
func (e *env) recount() *audit.Totals {
	e.Helper()
	got, err := audit.Recount(e.Context(), e.blobs, nil, nil)
	require.NoError(e, err)
	return got
}

// A failover takes a commit: Redis still has the frames, and numbers the next
// batch like the one that it has forgotten.
func TestFailoverTakesACommit(t *testing.T) {
	for _, before := range []string{"Fix", "CommitBatch"} {
		t.Run("state before "+before, func(t *testing.T) {
			e := newEnv(t)
			e.count(long, some("p", 10)...)
			e.count(long, some("p", 3)...)
			var old saved
			c := &calls{before: func(what string) error {
				if old == nil && strings.HasPrefix(what, before) {
					old = e.save()
				}
				return nil
			}}
			a := e.archiver(c.through)
			require.Equal(t, 2, a.drain(t))
			e.exact()
			files := e.files()

			e.restore(old)
			e.count(long, some("p", 2)...) // came after the failover
			b := e.archiver(func(p *Params) { p.MaxVotes = 100 })
			b.drain(t)
			now := e.files()
			for name, content := range files {
				assert.Equal(t, content, now[name], "%s was overwritten", name)
			}
			want := map[string]int{"Fix": 2, "CommitBatch": 1}[before] // frames that were archived twice
			assert.Equal(t, want, e.exact())
			totals := e.recount()
			assert.Equal(t, want, totals.Repeated)
			assert.Equal(t, 3, totals.Frames)
			assert.Equal(t, map[string]vote.Tally{"p": {"ana": 6, "bruno": 5, "carla": 4}}, totals.Votes)
			assert.Equal(t, map[string]int64{"p": 15}, e.ledger())
			assert.EqualValues(t, 3, e.manifests()[len(e.manifests())-1].Sequence, "the next free number")
		})
	}
}

// The same when the forgotten batch's manifest comes only after the next one
// has been fixed under its number.
func TestFixedBatchIsRenumbered(t *testing.T) {
	e := newEnv(t)
	e.count(long, some("p", 10)...)
	e.count(long, some("p", 5)...)
	begin := e.save()
	a := e.archiver()
	_, err := a.step(t.Context(), shard)
	require.NoError(t, err)
	name := archivefile.ManifestName(shard, 1)
	manifest := e.read(name)
	require.NoError(t, os.Remove(filepath.Join(e.dir, name)))

	e.restore(begin)
	c := &calls{after: func(what string) error {
		if what == "FixBatch" {
			_, err := e.blobs.Create(t.Context(), name, bytes.NewReader(manifest), int64(len(manifest)), sha256.Sum256(manifest))
			return err
		}
		return nil
	}}
	b := e.archiver(c.through, func(p *Params) { p.MaxVotes = 15 })
	require.Equal(t, 1, b.drain(t))
	assert.Contains(t, b.log.String(), "taking the next free one")
	assert.Equal(t, 1, e.exact())
	assert.Equal(t, map[string]vote.Tally{"p": {"ana": 6, "bruno": 5, "carla": 4}}, e.recount().Votes)
	known, err := e.store.Batches(t.Context(), shard, []uint64{1, 2})
	require.NoError(t, err)
	assert.Len(t, known.Committed, 1)
	assert.Contains(t, known.Committed, uint64(2))
}

// What is no frame can't be in the list; if it is, nothing is passed over.
func TestForeignElementStopsTheBatch(t *testing.T) {
	e := newEnv(t)
	e.count(long, some("p", 2)...)
	good := e.rdb.LIndex(t.Context(), "archive:{1}", 0).Val()
	for name, bad := range map[string]string{
		"no header":  "garbage",
		"cut":        strings.Replace(good[:len(good)-5], "flusher-1", "flusher-2", 1),
		"no uuid":    strings.Replace(strings.Replace(good, "flusher-1", "flusher-2", 1), `"id":"01`, `"id":"0x`, 1),
		"other poll": strings.Replace(good, "p:2", "q:2", 1),
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, e.rdb.RPush(t.Context(), "archive:{1}", bad).Err())
			_, err := e.archiver().step(t.Context(), shard)
			require.ErrorIs(t, err, vote.ErrBadFrame)
			assert.Equal(t, 2, e.waiting())
			assert.Empty(t, e.files())
			require.NoError(t, e.rdb.RPop(t.Context(), "archive:{1}").Err())
			require.NoError(t, e.rdb.Del(t.Context(), "batch:{1}").Err())
		})
	}
}

// A list that is not what was fixed is told, and nothing is committed.
func TestListIsNotWhatWasFixed(t *testing.T) {
	e := newEnv(t)
	e.count(long, some("p", 2)...)
	e.count(long, some("p", 2)...)
	begin := e.save()
	fixed := e.archiver(func(p *Params) { p.MaxVotes = 4 })
	b, err := fixed.fix(t.Context(), shard, 1, nil, time.Now())
	require.NoError(t, err)
	begin["batch:{1}"] = e.save()["batch:{1}"]

	require.NoError(t, e.rdb.RPop(t.Context(), "archive:{1}").Err())
	_, err = fixed.step(t.Context(), shard)
	require.ErrorContains(t, err, "the list ends after 1 of 2 frames")

	e.restore(begin)
	frame := e.rdb.LPop(t.Context(), "archive:{1}").Val()
	require.NoError(t, e.rdb.LPush(t.Context(), "archive:{1}", strings.Replace(frame, "flusher-1", "flusher-9", 1)).Err())
	_, err = fixed.step(t.Context(), shard)
	require.ErrorContains(t, err, b.ID)
	require.ErrorContains(t, err, "not those that were fixed")
	assert.Empty(t, e.files())
	assert.Equal(t, 2, e.waiting())
}

func TestSpoolFolder(t *testing.T) {
	e := newEnv(t)
	e.count(long, some("p", 10)...)
	spool := filepath.Join(t.TempDir(), "spool")
	a := e.archiver(func(p *Params) { p.SpoolDir = spool })
	stop := a.start(t)
	testkit.Eventually(t, "it says so", func() bool { return len(a.errors()) > 0 })
	require.ErrorIs(t, a.errors()[0], os.ErrNotExist)
	require.ErrorContains(t, a.errors()[0], "spool: ")
	assert.Equal(t, 1, e.waiting())
	assert.Empty(t, e.files())

	require.NoError(t, os.Mkdir(spool, 0o700))
	testkit.Eventually(t, "it goes on", func() bool { return e.waiting() == 0 })
	stop()
	e.exact()
	left, err := os.ReadDir(spool)
	require.NoError(t, err)
	assert.Empty(t, left, "nothing stays in the spool folder")
}

func TestMetrics(t *testing.T) {
	e := newEnv(t)
	e.count(long, slices.Concat(some("p", 10), some("q", 2))...)
	e.count(young().Add(time.Hour), some("p", 10)...) // the clock went back
	a := e.archiver()
	require.Equal(t, 2, a.drain(t))
	assert.InDelta(t, 22, testutil.ToFloat64(a.p.Metrics.Votes), 0)
	assert.InDelta(t, 3, testutil.ToFloat64(a.p.Metrics.Objects), 0, "objects, without the manifests")
	n, sum := a.observed(t)
	assert.EqualValues(t, 2, n, "one observation a frame")
	assert.InDelta(t, time.Since(long).Seconds(), sum, 3600, "and none is negative")
}

// A stop leaves the batch in hand for the next archiver, and is no outage.
func TestStopInABatch(t *testing.T) {
	e := newEnv(t)
	e.count(long, some("p", 10)...)
	ctx, cancel := context.WithCancel(t.Context())
	c := &calls{before: func(what string) error {
		if strings.HasPrefix(what, "Create manifest/") {
			cancel()
		}
		return nil
	}}
	a := e.archiver(c.through)
	a.Work(ctx, shard)
	assert.Empty(t, a.errors())
	assert.Equal(t, 1, e.waiting())
	assert.Equal(t, 1, e.archiver().drain(t))
	assert.Zero(t, e.exact())
}

func TestAzurite(t *testing.T) {
	e := newEnv(t)
	var err error
	e.blobs, err = blobstore.Open(t.Context(), "azblob://votes/archive", blobstore.AzureCredentials{ConnectionString: testkit.Azurite(t)})
	require.NoError(t, err)
	for i := range 4 {
		e.count(long.Add(time.Duration(i)*20*time.Minute), slices.Concat(some("p", 300), some("q", 200))...)
	}
	begin := e.save()
	bySize := func(p *Params) { p.MaxVotes = 1000 }
	require.Equal(t, 2, e.archiver(bySize).drain(t))
	assert.Zero(t, e.exact())

	// The frames come back, with the number of their batch: same bytes, same names.
	e.restore(begin)
	a := e.archiver(bySize)
	b, err := a.p.Queue.FixBatch(t.Context(), batchOf(e.manifests()[0]), "")
	require.NoError(t, err)
	require.NoError(t, a.archive(t.Context(), b))
	assert.Zero(t, testutil.ToFloat64(a.p.Metrics.Objects), "all were there")
	a.drain(t)
	e.exact()
	assert.Equal(t, 2, e.recount().Repeated)
}

func batchOf(m *archivefile.Manifest) *vote.ArchiveBatch {
	return &vote.ArchiveBatch{
		Shard: m.Shard, Sequence: m.Sequence, ID: m.Batch, Elements: len(m.Frames),
		First: m.Frames[0], Last: m.Frames[len(m.Frames)-1], Votes: m.Votes,
	}
}

// away is a queue that is never there, until it is told to be empty.
type away struct {
	Queue
	asked func() error
}

func (a *away) ArchiveState(context.Context, int) (vote.ArchiveState, error) {
	return vote.ArchiveState{}, a.asked()
}

// An outage is asked about ever more rarely, up to every 15 seconds, and after
// it the archiver looks every second again. The clock is the test's own.
func TestPausesInAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		begin := time.Now()
		var at []int
		q := &away{asked: func() error {
			at = append(at, int(time.Since(begin).Seconds()))
			if len(at) == 10 {
				cancel()
			}
			if len(at) <= 6 {
				return io.ErrUnexpectedEOF
			}
			return nil
		}}
		a := (&env{T: t}).archiver(func(p *Params) { p.Queue = q })
		a.Work(ctx, shard)
		assert.Equal(t, []int{0, 2, 6, 14, 29, 44, 59, 60, 61, 62}, at)
		assert.Len(t, a.errors(), 6)
	})
}

// cut is an archive whose first object can be opened but not read.
type cut struct {
	Blobs
	n atomic.Int64
}

func (c *cut) Open(ctx context.Context, name string) (vote.Object, error) {
	o, err := c.Blobs.Open(ctx, name)
	if err == nil && c.n.Add(1) == 1 {
		return &cutObject{o}, nil
	}
	return o, err
}

type cutObject struct{ vote.Object }

func (*cutObject) ReadAt([]byte, int64) (int, error) { return 0, io.ErrUnexpectedEOF }

// A manifest that could not be read is not taken for one that is not there.
func TestManifestCantBeRead(t *testing.T) {
	e := newEnv(t)
	e.count(long, some("p", 10)...)
	begin := e.save()
	require.Equal(t, 1, e.archiver().drain(t))
	files := e.files()
	e.restore(begin)
	a := e.archiver(func(p *Params) { p.Blobs = &cut{Blobs: p.Blobs} })
	_, err := a.step(t.Context(), shard)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.Equal(t, files, e.files())
	a.drain(t)
	assert.Equal(t, 1, e.exact())
}
