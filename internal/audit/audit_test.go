package audit

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"paredao/internal/archivefile"
	"paredao/internal/vote"
)

func TestEverythingAddsUp(t *testing.T) {
	r := fill(t)
	report := r.clean(r.params())
	for i, want := range []PollAudit{
		{Poll: "alpha", Accepted: 74, Counted: 60, Queued: 14, Archived: 40, Awaiting: 20},
		{Poll: "beta", Accepted: 70, Counted: 60, Queued: 10, Archived: 40, Awaiting: 20},
	} {
		// Of 7 and 5 votes, one after the other for two polls, the first has
		// 4 and 3.
		want.OK = true
		got := report.Polls[i]
		got.Recounted = nil
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if now, err := r.store.Now(t.Context()); err != nil || report.AsOf.IsZero() || report.AsOf.After(now) {
		t.Errorf("as of %s, at %s, %v", report.AsOf, now, err)
	}

	p := r.params()
	p.Recount, p.Blobs = false, nil
	if report := r.clean(p); report.Polls[0].Recounted != nil {
		t.Error("a recount that was not asked for")
	}

	totals, err := Recount(t.Context(), r.blobs, nil, nil)
	r.must(err)
	if totals.Batches != 4 || totals.Frames != 8 || totals.Repeated != 0 || totals.Objects != len(r.names("votes/")) {
		t.Errorf("%+v", totals)
	}
	for _, poll := range r.polls {
		if got := sum(totals.Votes[poll]); got != 40 {
			t.Errorf("poll %s: %d votes in the archive", poll, got)
		}
	}
}

func sum(t vote.Tally) (n int64) {
	for _, v := range t {
		n += v
	}
	return n
}

// Each kind of damage, and what the audit says of it.
func TestDifferencesAreNamed(t *testing.T) {
	type want struct {
		poll  string
		shard int
		parts []string
	}
	ledger := func(what string) func(*rig) {
		return func(r *rig) { r.must(r.rdb.HIncrBy(r.Context(), "ledger:{1}", what+":beta", 1).Err()) }
	}
	// object is the object of a poll in the first batch of shard 0.
	object := func(r *rig, poll string) archivefile.ManifestObject {
		m := r.manifest(0, 1)
		return m.Objects[slices.IndexFunc(m.Objects, func(o archivefile.ManifestObject) bool { return o.Poll == poll })]
	}
	// rewrite replaces that object by one of other votes, and returns its size.
	rewrite := func(r *rig, o archivefile.ManifestObject, poll, option string) int64 {
		f, err := os.Create(r.path(o.Name))
		r.must(err)
		w := archivefile.NewWriter(f)
		for range o.Rows {
			r.must(w.Add(vote.Vote{Poll: poll, Option: option}, r.now(), 0))
		}
		r.must(errors.Join(w.Close(), f.Close()))
		info, err := os.Stat(r.path(o.Name))
		r.must(err)
		return info.Size()
	}
	// resize makes the first manifest of shard 0 say that the object is that
	// large, of the bytes that it has now, and what its votes are.
	resize := func(r *rig, name string, size int64, votes vote.Tally) {
		m := r.manifest(0, 1)
		b, err := os.ReadFile(r.path(name))
		r.must(err)
		for i := range m.Objects {
			if o := &m.Objects[i]; o.Name == name {
				o.Bytes, o.SHA256 = size, fmt.Sprintf("%x", sha256.Sum256(b))
				if votes != nil {
					o.Votes = votes
				}
			}
		}
		r.writeManifest(m)
	}
	for name, c := range map[string]struct {
		tamper func(*rig)
		want   []want
		// conserved: only a recount finds it.
		conserved bool
	}{
		"tally edited": {
			tamper: func(r *rig) { r.must(r.rdb.HIncrBy(r.Context(), "tally:{0}:alpha", "ana", 1).Err()) },
			want: []want{
				{"alpha", 0, []string{"counted is 30, but the tally adds up to 31"}},
				{"alpha", 0, []string{"option ana: the tally is"}},
			},
		},
		"votes moved to another option": {
			tamper: func(r *rig) {
				r.must(r.rdb.HIncrBy(r.Context(), "tally:{1}:beta", "ana", -2).Err())
				r.must(r.rdb.HIncrBy(r.Context(), "tally:{1}:beta", "zoe", 2).Err())
			},
			want: []want{
				{"beta", 1, []string{"option ana: the tally is"}},
				{"beta", 1, []string{"option zoe: the tally is 2, but the archive has 0 and 0 await it"}},
			},
			conserved: true,
		},
		"accepted edited": {tamper: ledger("accepted"), want: []want{{"beta", 1, []string{"accepted is 36, but counted 30 + queued 5 + dead 0 + dropped 0 is 35"}}}},
		"dropped edited":  {tamper: ledger("dropped"), want: []want{{"beta", 1, []string{"accepted is 35, but", "dropped 1 is 36"}}}},
		"counted edited": {tamper: ledger("counted"), want: []want{
			{"beta", 1, []string{"accepted is 35"}},
			{"beta", 1, []string{"counted is 31, but archived 20 + awaiting archive 10 is 30"}},
			{"beta", 1, []string{"counted is 31, but the tally adds up to 30"}},
		}},
		"archived edited": {tamper: ledger("archived"), want: []want{
			{"beta", 1, []string{"counted is 30, but archived 21 + awaiting archive 10 is 31"}},
			{"beta", 1, []string{"archived is 21, but the archive has 20"}},
		}},
		"frame dropped from the queue": {
			tamper: func(r *rig) { r.must(r.rdb.RPop(r.Context(), "votes:{1}").Err()) },
			want:   []want{{"alpha", 1, []string{"accepted is 37", "queued 4"}}, {"beta", 1, []string{"accepted is 35", "queued 3"}}},
		},
		"frame dropped from the archive list": {
			tamper: func(r *rig) { r.must(r.rdb.RPop(r.Context(), "archive:{0}").Err()) },
			want: []want{
				{"alpha", 0, []string{"counted is 30, but archived 20 + awaiting archive 4 is 24"}},
				{"beta", 0, []string{"option ana: the tally is"}},
			},
		},
		"frame duplicated in the queue": {
			tamper: func(r *rig) {
				r.must(r.rdb.RPush(r.Context(), "votes:{0}", r.rdb.LIndex(r.Context(), "votes:{0}", 0).Val()).Err())
			},
			want: []want{{"alpha", 0, []string{"accepted is 37, but counted 30 + queued 11 + dead 0"}}},
		},
		"frame duplicated in the archive list": {
			tamper: func(r *rig) {
				r.must(r.rdb.RPush(r.Context(), "archive:{0}", r.rdb.LIndex(r.Context(), "archive:{0}", 0).Val()).Err())
			},
			want: []want{{"beta", 0, []string{"counted is 30, but archived 20 + awaiting archive 14 is 34"}}},
		},
		"queued frame made unreadable": {
			tamper: func(r *rig) { r.must(r.rdb.LSet(r.Context(), "votes:{1}", 1, "garbage").Err()) },
			want:   []want{{"alpha", 1, []string{"accepted is 37", "queued 4"}}},
		},
		"object deleted": {
			tamper: func(r *rig) { r.must(os.Remove(r.path(object(r, "alpha").Name))) },
			want: []want{
				{"", 0, []string{"archive: votes/poll=alpha/", "not found"}},
				{"alpha", 0, []string{"archived is 20, but the archive has 10"}},
			},
			conserved: true,
		},
		"object truncated": {
			tamper: func(r *rig) { o := object(r, "beta"); r.must(os.Truncate(r.path(o.Name), o.Bytes-10)) },
			want: []want{
				{"", 0, []string{"archive: votes/poll=beta/", "damaged", "bytes, its manifest says"}},
				{"beta", 0, []string{"archived is 20, but the archive has 10"}},
			},
			conserved: true,
		},
		"object overwritten with zeros": {
			tamper:    func(r *rig) { o := object(r, "beta"); r.write(o.Name, make([]byte, o.Bytes)) },
			want:      []want{{"", 0, []string{"archive: votes/poll=beta/", "damaged"}}},
			conserved: true,
		},
		"object of other votes": {
			tamper: func(r *rig) {
				o := object(r, "alpha")
				resize(r, o.Name, rewrite(r, o, "alpha", "bruno"), nil)
			},
			want:      []want{{"", 0, []string{"archive: votes/poll=alpha/", "damaged", "not the votes that its manifest lists"}}},
			conserved: true,
		},
		"object of another poll": {
			tamper: func(r *rig) {
				o := object(r, "alpha")
				resize(r, o.Name, rewrite(r, o, "beta", "bruno"), nil)
			},
			want:      []want{{"", 0, []string{"archive: votes/poll=alpha/", "damaged", `are of poll "beta"`}}},
			conserved: true,
		},
		"object and its manifest altered alike": {
			tamper: func(r *rig) {
				o := object(r, "alpha")
				resize(r, o.Name, rewrite(r, o, "alpha", "bruno"), vote.Tally{"bruno": o.Rows})
			},
			want: []want{
				{"alpha", 0, []string{"option ana: the tally is"}},
				{"alpha", 0, []string{"option bruno: the tally is"}},
			},
			conserved: true,
		},
		"manifest deleted": {
			tamper: func(r *rig) { r.must(os.Remove(r.path(archivefile.ManifestName(1, 2)))) },
			want: []want{
				{"alpha", 1, []string{"archived is 20, but the archive has 10"}},
				{"beta", 1, []string{"archived is 20, but the archive has 10"}},
			},
			conserved: true,
		},
		"manifest truncated": {
			tamper: func(r *rig) { r.must(os.Truncate(r.path(archivefile.ManifestName(1, 2)), 100)) },
			want: []want{
				{"", 1, []string{"archive: manifest/1/000000000002.json", "damaged"}},
				{"alpha", 1, []string{"archived is 20, but the archive has 10"}},
			},
			conserved: true,
		},
		"manifest under a wrong name": {
			tamper: func(r *rig) {
				b, err := os.ReadFile(r.path(archivefile.ManifestName(1, 2)))
				r.must(err)
				r.write(archivefile.ManifestName(0, 7), b)
			},
			want:      []want{{"", 0, []string{"archive: manifest/0/000000000007.json", "damaged", "it is the manifest of batch 1-000000000002-"}}},
			conserved: true,
		},
		"batches swapped": {
			tamper: func(r *rig) {
				first, second := r.path(archivefile.ManifestName(0, 1)), r.path(archivefile.ManifestName(0, 2))
				r.must(errors.Join(os.Rename(first, first+"x"), os.Rename(second, first), os.Rename(first+"x", second)))
			},
			want: []want{
				{"", 0, []string{"manifest/0/000000000001.json", "it is the manifest of batch 0-000000000002-"}},
				{"", 0, []string{"manifest/0/000000000002.json", "it is the manifest of batch 0-000000000001-"}},
			},
			conserved: true,
		},
		"a file that is no manifest": {
			tamper:    func(r *rig) { r.write("manifest/0/notes.txt", nil) },
			want:      []want{{"", 0, []string{"archive: manifest/0/notes.txt is no manifest"}}},
			conserved: true,
		},
		"a byte of an object altered": {
			tamper: func(r *rig) {
				o := object(r, "beta")
				b, err := os.ReadFile(r.path(o.Name))
				r.must(err)
				b[len(b)-9] ^= 1 // in the length of the file's end, or before: wherever, its hash tells
				r.write(o.Name, b)
			},
			want:      []want{{"", 0, []string{"archive: votes/poll=beta/", "damaged"}}},
			conserved: true,
		},
		"an element that awaits archiving altered": {
			tamper: func(r *rig) {
				head, _, _ := strings.Cut(r.rdb.LIndex(r.Context(), key("archive", 1), 0).Val(), "\n")
				r.must(r.rdb.LSet(r.Context(), key("archive", 1), 0, head+"\nnothing").Err())
			},
			want: []want{{"", 1, []string{"1 elements of the list that awaits archiving can't be read"}}},
		},
		"Redis holds another batch of that number": {
			tamper: func(r *rig) {
				r.must(r.rdb.HSet(r.Context(), "batches:{0}", "1", "0-000000000001-0123456789ab").Err())
			},
			want: []want{
				{"", 0, []string{"batch " + "0-000000000001-", "Redis does not know it: 2 of its 2 frames are nowhere in Redis"}},
				{"alpha", 0, []string{"archived is 20, but the archive has 10"}},
			},
			conserved: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := fill(t)
			c.tamper(r)
			report := r.audit(r.params())
			if report.OK() {
				t.Fatal("found nothing")
			}
			for _, w := range c.want {
				r.found(report, w.poll, w.shard, w.parts...)
			}
			for _, p := range report.Polls {
				blamed := slices.ContainsFunc(report.Differences, func(d Difference) bool { return d.Poll == "" || d.Poll == p.Poll })
				if p.OK == blamed {
					t.Errorf("poll %s: ok is %v", p.Poll, p.OK)
				}
			}
			p := r.params()
			p.Recount = false
			if ok := r.audit(p).OK(); ok != c.conserved {
				t.Errorf("without a recount OK is %v", ok)
			}
		})
	}
}

// The frames that Redis has lost are named, those that it has are not.
func TestFramesThatRedisLost(t *testing.T) {
	r := fill(t)
	queued, awaiting := r.frames("votes", 0), r.frames("archive", 0)
	archived := r.manifest(0, 2).Frames
	r.forge(0, 8, "lost-1", queued[0], "lost-2", awaiting[1], archived[0], "lost-3")
	r.forge(1, 9, "gone-64")
	report := r.audit(r.params())
	if len(report.Differences) != 2 || report.Polls[0].OK || report.Polls[1].OK {
		t.Fatalf("%+v", report)
	}
	for i, want := range [][]string{{"lost-1", "lost-2", "lost-3"}, {"gone-64"}} {
		d := report.Differences[i]
		if d.Shard != i || !slices.Equal(d.Frames, want) || !strings.Contains(d.What, "nowhere in Redis") {
			t.Errorf("%+v, want frames %v", d, want)
		}
	}
	b, err := json.Marshal(report.Differences[1])
	r.must(err)
	if !strings.Contains(string(b), `"frames":["gone-64"]`) || strings.Contains(string(b), `"poll"`) {
		t.Error(string(b))
	}
}

// A batch of which Redis knows nothing, but whose frames it has, is no loss: a
// failover took the commit back.
func TestUnknownBatchWhoseFramesAreInRedis(t *testing.T) {
	r := fill(t)
	r.forge(0, 8, append(r.frames("archive", 0), r.frames("votes", 0)...)...)
	r.forge(1, 8, r.manifest(1, 1).Frames...)
	r.clean(r.params())
}

// A Redis that has lost even the polls must not pass for one that never had
// any.
func TestRedisLostEverything(t *testing.T) {
	r := fill(t)
	want := append(r.manifest(0, 1).Frames, r.manifest(0, 2).Frames...)
	r.must(r.rdb.FlushDB(t.Context()).Err())
	p := r.params()
	p.Polls = nil
	report := r.audit(p)
	var got []string
	for _, d := range report.Differences {
		if d.Shard == 0 {
			got = append(got, d.Frames...)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("named %v, want %v", got, want)
	}

	p.Blobs, p.Shards = newRig(t).blobs, 1
	if report := r.audit(p); !report.OK() || report.Polls == nil {
		t.Errorf("nothing anywhere: %+v", report)
	}
}

// A failover takes the archive's commits back: first their frames are in Redis
// again, then the archiver writes them under the next free number, and they are
// counted once.
func TestFailoverTakesCommitsBack(t *testing.T) {
	r := newRig(t, "alpha", "beta")
	for shard := range shards {
		r.send(shard, 10)
		r.send(shard, 11)
	}
	r.countAll()
	failover := r.save()
	r.archiveAll(1000)
	failover()
	r.clean(r.params())

	for shard := range shards {
		r.send(shard, 9)
	}
	r.countAll()
	r.archiveAll(1000)
	if got := len(r.names("manifest/")); got != 4 {
		t.Fatalf("%d manifests, want two a shard", got)
	}
	report := r.clean(r.params())
	if got := *report.Polls[0].Recounted + *report.Polls[1].Recounted; got != 60 {
		t.Errorf("recounted %d, want 60", got)
	}
	recounted := func() {
		t.Helper()
		totals, err := Recount(t.Context(), r.blobs, nil, nil)
		r.must(err)
		if totals.Repeated != 4 || totals.Frames != 6 || sum(totals.Votes["alpha"])+sum(totals.Votes["beta"]) != 60 {
			t.Errorf("%+v", totals)
		}
	}
	recounted()

	// And if Redis knew both batches, the audit would count them once as well.
	for shard := range shards {
		r.must(r.rdb.HSet(t.Context(), key("batches", shard), "1", r.manifest(shard, 1).Batch).Err())
	}
	if report := r.clean(r.params()); report.Repeated != 4 {
		t.Errorf("%d repeated frames, want 4", report.Repeated)
	}
	recounted()
}

// A failover takes votes back that were archived already.
func TestFailoverLosesVotes(t *testing.T) {
	r := newRig(t, "alpha")
	r.send(0, 10)
	failover := r.save()
	lost := []string{r.send(0, 5), r.send(0, 3), r.send(1, 4)}
	r.countAll()
	r.archiveAll(1000)
	failover()
	report := r.audit(r.params())
	var got []string
	for _, d := range report.Differences {
		got = append(got, d.Frames...)
	}
	if !slices.Equal(got, lost) || report.Polls[0].OK {
		t.Errorf("%+v, want frames %v", report, lost)
	}
}

// hooked runs before what it is named after.
type hooked struct {
	Source
	snapshot func(shard int, from [3]int64)
	batches  func(shard int)
}

func (h hooked) Snapshot(ctx context.Context, shard int, polls []string, from [3]int64) (vote.SnapshotPage, error) {
	if h.snapshot != nil {
		h.snapshot(shard, from)
	}
	return h.Source.Snapshot(ctx, shard, polls, from)
}

func (h hooked) Batches(ctx context.Context, shard int, sequences []uint64) (vote.Batches, error) {
	if h.batches != nil {
		h.batches(shard)
	}
	return h.Source.Batches(ctx, shard, sequences)
}

type hookedBlobs struct {
	Blobs
	list func()
	open func(name string) error
}

func (h hookedBlobs) List(ctx context.Context, prefix string) iter.Seq2[vote.ObjectInfo, error] {
	if h.list != nil {
		h.list()
	}
	return h.Blobs.List(ctx, prefix)
}

func (h hookedBlobs) Open(ctx context.Context, name string) (vote.Object, error) {
	if h.open != nil {
		if err := h.open(name); err != nil {
			return nil, err
		}
	}
	return h.Blobs.Open(ctx, name)
}

// inFlight fixes all that awaits the archive of shard 0 as a batch, and writes
// its manifest; commit ends it.
func (r *rig) inFlight() (commit func()) {
	r.Helper()
	st, err := r.store.ArchiveState(r.Context(), 0)
	r.must(err)
	frames := r.frames("archive", 0)
	b := &vote.ArchiveBatch{
		Sequence: st.NextSequence, Elements: len(frames), First: frames[0], Last: frames[len(frames)-1], Votes: st.Votes,
	}
	b.ID = archivefile.BatchID(*b)
	_, err = r.store.FixBatch(r.Context(), b, "")
	r.must(err)
	if got := r.forge(0, b.Sequence, frames...); got.Batch != b.ID {
		r.Fatalf("%s is not %s", got.Batch, b.ID)
	}
	var votes []vote.PollVotes
	for _, p := range r.polls {
		votes = append(votes, vote.PollVotes{Poll: p, Votes: st.Votes / int64(len(r.polls))})
	}
	return func() { r.must(r.store.CommitBatch(r.Context(), b, votes)) }
}

// A batch that is fixed and whose manifest is written, but that is not
// committed, is no difference, wherever the audit stands when it is committed.
func TestBatchInTheWorks(t *testing.T) {
	t.Run("not committed", func(t *testing.T) {
		r := fill(t)
		r.inFlight()
		r.clean(r.params())
	})
	t.Run("of frames that came after the snapshot", func(t *testing.T) {
		r := fill(t)
		p := r.params()
		p.Blobs = hookedBlobs{Blobs: r.blobs, list: func() {
			r.send(0, 9)
			r.countAll()
			r.inFlight()
		}}
		r.clean(p)
	})
	t.Run("before the listing", func(t *testing.T) {
		r := fill(t)
		commit := r.inFlight()
		p := r.params()
		p.Blobs = hookedBlobs{Blobs: r.blobs, list: commit}
		r.clean(p)
	})
	t.Run("after the listing", func(t *testing.T) {
		r := fill(t)
		commit := r.inFlight()
		p := r.params()
		p.Source = hooked{Source: r.store, batches: func(shard int) {
			if shard == 0 {
				commit()
			}
		}}
		r.clean(p)
	})
	t.Run("by the archiver, after the snapshot", func(t *testing.T) {
		r := fill(t)
		p := r.params()
		p.Blobs = hookedBlobs{Blobs: r.blobs, list: func() {
			r.send(0, 9)
			r.countAll()
			r.archiveAll(10)
		}}
		if report := r.clean(p); report.Polls[0].Archived != 40 {
			t.Errorf("%+v is not of the snapshot's instant", report.Polls[0])
		}
		r.clean(r.params())
	})
}

// A queue that is many pages deep, whose head moves while it is read, and
// whose elements move on to the other lists.
func TestDeepQueueWhileItsHeadMoves(t *testing.T) {
	r := newRig(t, "alpha", "beta")
	const frames = 3000
	for range frames {
		r.send(0, 2)
	}
	pages := 0
	p := r.params()
	p.Source = hooked{Source: r.store, snapshot: func(shard int, _ [3]int64) {
		if shard != 0 {
			return
		}
		pages++
		r.step(0, 100)
		r.send(0, 2)
		if pages == 5 {
			r.archiveAll(1000)
		}
	}}
	report := r.clean(p)
	if pages < 5 {
		t.Errorf("only %d pages", pages)
	}
	total := report.Polls[0].Accepted + report.Polls[1].Accepted
	if want := int64(2 * (frames + pages)); total != want {
		t.Errorf("accepted are %d, want %d", total, want)
	}
	if report.Polls[0].Queued == 0 || report.Polls[0].Archived == 0 || report.Polls[0].Awaiting == 0 {
		t.Errorf("%+v", report.Polls[0])
	}

	// All at once: what was read is gone, and so is what was not.
	pages = 0
	p.Source = hooked{Source: r.store, snapshot: func(shard int, from [3]int64) {
		if shard == 0 && from[0] > 0 {
			if pages++; pages == 1 {
				r.countAll()
				r.archiveAll(100_000)
			}
		}
	}}
	if report := r.clean(p); pages == 0 || report.Polls[0].Archived != report.Polls[0].Accepted {
		t.Errorf("%d pages, %+v", pages, report.Polls[0])
	}
}

// step counts the first n frames of a shard.
func (r *rig) step(shard, n int) {
	r.Helper()
	elements, err := r.store.ReadQueue(r.Context(), shard, vote.ReadLimit{Votes: 1 << 30, Bytes: 1 << 30, Elements: n})
	r.must(err)
	c := &vote.CountCommit{
		Shard: shard, Token: r.Name() + elements[0], Elements: len(elements), Digest: vote.ElementsDigest(elements),
		First: vote.ElementID([]byte(elements[0])), Last: vote.ElementID([]byte(elements[len(elements)-1])),
		Counts: map[string]vote.Tally{},
	}
	for _, e := range elements {
		_, err := r.codec.Read([]byte(e), func(v *vote.RawVote) {
			if c.Counts[string(v.Poll)] == nil {
				c.Counts[string(v.Poll)] = vote.Tally{}
			}
			c.Counts[string(v.Poll)][string(v.Option)]++
		})
		r.must(err)
	}
	status, _, err := r.store.CommitCount(r.Context(), c)
	r.must(err)
	if status != vote.CommitDone {
		r.Fatal("the commit was refused")
	}
}

// The lists change under the audit in a way that only an operator or a failover
// can bring about: it begins again, and gives up if that does not end.
func TestListsChangedMeanwhile(t *testing.T) {
	r := newRig(t, "alpha")
	for range 700 {
		r.send(0, 1)
	}
	kill := func() { // the first frame can't be read, and is given up
		e := r.rdb.LIndex(r.Context(), "votes:{0}", 0).Val()
		head, _, _ := strings.Cut(e, "\n")
		r.must(r.rdb.LSet(r.Context(), "votes:{0}", 0, head+"\nbroken").Err())
		r.must(r.rdb.RPush(r.Context(), "dead:{0}", r.rdb.LPop(r.Context(), "votes:{0}").Val()).Err())
		r.must(r.rdb.HIncrBy(r.Context(), "ledger:{0}", "taken_elements", 1).Err())
		r.must(r.rdb.HIncrBy(r.Context(), "ledger:{0}", "dead:alpha", 1).Err())
	}
	drop := func() {
		dead, err := r.store.Dead(r.Context(), 0, 0, 1)
		r.must(err)
		gone, err := r.store.RemoveDead(r.Context(), dead[0], false)
		r.must(err)
		if !gone {
			r.Fatal("the dead element is not there")
		}
	}
	for range 10 {
		kill()
	}
	second := func(do func()) Params {
		p := r.params()
		p.Source = hooked{Source: r.store, snapshot: func(shard int, from [3]int64) {
			if shard == 0 && from[0] > 0 {
				do()
			}
		}}
		return p
	}
	once := 0
	report := r.clean(second(func() {
		if once++; once == 1 {
			drop()
		}
	}))
	if report.Polls[0].Dead != 9 || report.Polls[0].Dropped != 1 || report.Polls[0].Queued != 690 {
		t.Errorf("%+v", report.Polls[0])
	}

	_, err := Audit(t.Context(), second(drop))
	if !errors.Is(err, errRestart) || !strings.Contains(err.Error(), "shard 0") {
		t.Errorf("got %v", err)
	}
	// A failover takes the head back.
	_, err = Audit(t.Context(), second(func() {
		r.must(r.rdb.HIncrBy(t.Context(), "ledger:{0}", "taken_elements", -1).Err())
	}))
	if !errors.Is(err, errRestart) {
		t.Errorf("got %v", err)
	}
	// A source that leaves places out.
	_, err = takeSnapshot(t.Context(), gap{r.store}, 0, r.polls, keepVotes)
	if !errors.Is(err, errRestart) {
		t.Errorf("got %v", err)
	}
}

type gap struct{ Source }

func (g gap) Snapshot(ctx context.Context, shard int, polls []string, from [3]int64) (vote.SnapshotPage, error) {
	page, err := g.Source.Snapshot(ctx, shard, polls, from)
	page.Queue.From++
	return page, err
}

// Votes that no consumer can read stay in the equations on their whole way.
func TestDeadVotes(t *testing.T) {
	r := newRig(t, "alpha", "beta")
	for range 3 {
		r.send(0, 10)
	}
	e := r.rdb.LIndex(t.Context(), "votes:{0}", 1).Val()
	r.must(r.rdb.LSet(t.Context(), "votes:{0}", 1, e[:len(e)-3]).Err())
	r.must(r.rdb.RPush(t.Context(), "votes:{1}", "garbage", "P1 x", "").Err())

	report := r.clean(r.params())
	if got := report.Polls[0]; report.Unreadable != 3 || got.Queued != 15 || got.Dead != 0 {
		t.Errorf("before: %+v", report)
	}
	r.countAll()
	report = r.clean(r.params())
	if got := report.Polls[0]; report.Unreadable != 0 || got.Queued != 0 || got.Dead != 5 || got.Counted != 10 {
		t.Errorf("dead: %+v", report)
	}
	r.archiveAll(1000)
	remove := func(requeue bool) {
		t.Helper()
		for shard := range shards {
			dead, err := r.store.Dead(t.Context(), shard, 0, 10)
			r.must(err)
			for _, d := range slices.Backward(dead) {
				_, err := r.store.RemoveDead(t.Context(), d, requeue)
				r.must(err)
			}
		}
	}
	remove(true)
	if got := r.clean(r.params()).Polls[0]; got.Queued != 5 || got.Dead != 0 {
		t.Errorf("requeued: %+v", got)
	}
	r.countAll()
	remove(false)
	if got := r.clean(r.params()).Polls[0]; got.Queued != 0 || got.Dead != 0 || got.Dropped != 5 || got.Accepted != 15 {
		t.Errorf("dropped: %+v", got)
	}

	// An unreadable element in the archive list: its votes are there by the
	// header, but not option by option.
	r.send(0, 4)
	r.countAll()
	e = r.rdb.LIndex(t.Context(), "archive:{0}", 0).Val()
	r.must(r.rdb.LSet(t.Context(), "archive:{0}", 0, e[:len(e)-3]).Err())
	report = r.audit(r.params())
	r.found(report, "alpha", 0, "option ana")
}

// More polls than one snapshot covers; what is wrong with the archive is met in
// each group, and named once.
func TestManyPolls(t *testing.T) {
	var polls []string
	for i := range 120 {
		polls = append(polls, "poll-"+string(rune('a'+i/26))+string(rune('a'+i%26)))
	}
	r := newRig(t, polls...)
	for shard := range shards {
		r.send(shard, 240)
		r.send(shard, 120)
	}
	r.countAll()
	r.archiveAll(240)
	for shard := range shards {
		r.send(shard, 121)
	}
	var done, total int64
	p := r.params()
	p.Progress = func(d, t int64) {
		if d <= done || d > t {
			r.Errorf("progress goes from %d to %d of %d", done, d, t)
		}
		done, total = d, t
	}
	report := r.clean(p)
	if len(report.Polls) != 120 || report.Repeated != 0 {
		t.Fatalf("%d polls, %d repeated", len(report.Polls), report.Repeated)
	}
	if done != 720 || total != 720 {
		t.Errorf("progress ended at %d of %d, want 720", done, total)
	}
	for i, got := range report.Polls {
		if want := int64(8); got.Poll != polls[i] || got.Accepted < want || got.Counted != 6 || *got.Recounted != 6 {
			t.Errorf("%+v", got)
		}
	}

	r.must(os.Truncate(r.path(archivefile.ManifestName(1, 1)), 9))
	r.forge(0, 50, "lost-1")
	m := r.manifest(0, 1)
	r.must(os.Remove(r.path(m.Objects[100].Name)))
	report = r.audit(r.params())
	n := 0
	for _, d := range report.Differences {
		if d.Poll == "" {
			n++
		}
	}
	if n != 3 {
		t.Errorf("%d differences of the archive, want 3: %+v", n, report.Differences)
	}
}

// An audit of some of the polls reads only those.
func TestSomePolls(t *testing.T) {
	r := fill(t)
	var done, total int64
	p := r.params()
	p.Polls = []string{"beta"}
	p.Progress = func(d, t int64) { done, total = d, t }
	p.Blobs = hookedBlobs{Blobs: r.blobs, open: func(name string) error {
		if strings.Contains(name, "poll=alpha") {
			t.Errorf("read %s", name)
		}
		return nil
	}}
	if report := r.clean(p); len(report.Polls) != 1 || done != 40 || total != 40 {
		t.Errorf("%d of %d, %+v", done, total, report)
	}
	done, total = 0, 0
	totals, err := Recount(t.Context(), p.Blobs, p.Polls, p.Progress)
	r.must(err)
	if len(totals.Votes) != 1 || sum(totals.Votes["beta"]) != 40 || done != 40 || total != 40 {
		t.Errorf("%d of %d, %+v", done, total, totals)
	}
	p.Polls = []string{"nobody"}
	if got := r.clean(p).Polls[0]; got.Accepted != 0 || got.Recounted == nil {
		t.Errorf("%+v", got)
	}
}

// Where all polls of Redis are audited, votes of any other are a difference,
// wherever they lie.
func TestStrangers(t *testing.T) {
	r := fill(t)
	p := r.params()
	p.All = true
	r.clean(p)

	r.must(r.rdb.RPush(t.Context(), key("dead", 1), "P1 x-1 1 1 - gamma:1\n").Err())
	p.Polls = []string{"alpha"}
	p.Undefined = []string{"delta"}
	report := r.audit(p)
	for shard := range shards {
		for _, where := range []string{"the queue", "the list that awaits archiving", "the archive"} {
			r.found(report, "beta", shard, where+" has votes of it")
		}
	}
	r.found(report, "gamma", 1, "the dead list has votes of it")
	r.found(report, "delta", 0, "no definition")
	if !report.Polls[0].OK {
		t.Error("alpha is blamed for the others")
	}
	// Who names the polls asks about no other.
	p.All, p.Undefined = false, nil
	r.clean(p)
}

// What says nothing about the votes is an error, and no difference.
func TestWhatCouldNotBeRead(t *testing.T) {
	away := errors.New("the archive is away")
	for name, c := range map[string]struct {
		spoil func(r *rig, p *Params)
		want  string
	}{
		"more shards in the archive":  {func(r *rig, _ *Params) { r.forge(5, 1, "x-1") }, "manifest/5/000000000001.json: there are 2 shards (queue-shards)"},
		"the archive can't be listed": {func(_ *rig, p *Params) { p.Blobs = broken{away} }, "list manifests: the archive is away"},
		"an object can't be read": {func(r *rig, p *Params) {
			p.Blobs = hookedBlobs{Blobs: r.blobs, open: func(name string) error {
				if strings.HasPrefix(name, "votes/") {
					return away
				}
				return nil
			}}
		}, "the archive is away"},
		"a manifest can't be read": {func(r *rig, p *Params) {
			p.Blobs = hookedBlobs{Blobs: r.blobs, open: func(string) error { return away }}
		}, "manifest/0/000000000001.json: the archive is away"},
		"a manifest goes away while it is read": {func(r *rig, p *Params) {
			seen := map[string]bool{}
			p.Blobs = hookedBlobs{Blobs: r.blobs, open: func(name string) error {
				if seen[name] {
					return away
				}
				seen[name] = true
				return nil
			}}
		}, "manifest/0/000000000002.json: the archive is away"},
		"an unknown manifest goes away": {func(r *rig, p *Params) {
			r.forge(1, 9, "x-1")
			n := 0
			p.Blobs = hookedBlobs{Blobs: r.blobs, open: func(name string) error {
				if name == archivefile.ManifestName(1, 9) {
					if n++; n > 1 {
						return away
					}
				}
				return nil
			}}
		}, "manifest/1/000000000009.json: the archive is away"},
		"Redis goes away at once": {func(r *rig, _ *Params) {
			r.must(r.store.Close())
		}, redis.ErrClosed.Error()},
		"Redis goes away later": {func(r *rig, p *Params) {
			p.Source = hooked{Source: r.store, batches: func(int) { _ = r.store.Close() }}
		}, redis.ErrClosed.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			r := fill(t)
			p := r.params()
			c.spoil(r, &p)
			if report, err := Audit(t.Context(), p); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %+v, %v, want %q", report, err, c.want)
			}
		})
	}
}

type broken struct{ err error }

func (b broken) Open(context.Context, string) (vote.Object, error) { return nil, b.err }

func (b broken) List(context.Context, string) iter.Seq2[vote.ObjectInfo, error] {
	return func(yield func(vote.ObjectInfo, error) bool) { yield(vote.ObjectInfo{}, b.err) }
}

// A recount has no second side to compare with, so it ends where something is
// wrong.
func TestRecountOfADamagedArchive(t *testing.T) {
	for name, c := range map[string]struct {
		tamper func(r *rig)
		want   error
	}{
		"object deleted":     {func(r *rig) { r.must(os.Remove(r.path(r.manifest(0, 1).Objects[0].Name))) }, vote.ErrObjectNotFound},
		"object truncated":   {func(r *rig) { r.must(os.Truncate(r.path(r.manifest(0, 1).Objects[0].Name), 20)) }, archivefile.ErrDamaged},
		"manifest truncated": {func(r *rig) { r.must(os.Truncate(r.path(archivefile.ManifestName(0, 1)), 20)) }, archivefile.ErrDamaged},
		"manifest misplaced": {func(r *rig) {
			r.must(os.Rename(r.path(archivefile.ManifestName(0, 1)), r.path(archivefile.ManifestName(0, 9))))
		}, archivefile.ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			r := fill(t)
			c.tamper(r)
			if _, err := Recount(t.Context(), r.blobs, nil, nil); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	notes := fill(t)
	notes.write("manifest/0/notes.txt", nil)
	if totals, err := Recount(t.Context(), notes.blobs, nil, nil); err != nil || !slices.Equal(totals.Foreign, []string{"manifest/0/notes.txt"}) {
		t.Errorf("got %+v, %v", totals, err)
	}
	away := errors.New("the archive is away")
	if _, err := Recount(t.Context(), broken{away}, nil, nil); !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
	r := fill(t)
	seen := map[string]bool{}
	later := hookedBlobs{Blobs: r.blobs, open: func(name string) error {
		if seen[name] {
			return away
		}
		seen[name] = true
		return nil
	}}
	if _, err := Recount(t.Context(), later, nil, nil); !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
}
