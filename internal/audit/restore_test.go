package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"paredao/internal/archivefile"
	"paredao/internal/redisstore"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

var _ Restorer = (*redisstore.Store)(nil)

// restoring are the params of a restore that does not give up.
func (r *rig) restoring() RestoreParams {
	p := RestoreParams{
		Redis: r.store, Shards: shards, Blobs: r.blobs, Options: map[string][]string{},
		Timeout: time.Minute, Every: 5 * time.Millisecond, Waiting: func(text string) { r.Log(text) },
	}
	for _, poll := range r.polls {
		p.Options[poll] = options
	}
	return p
}

func (r *rig) restore(p RestoreParams) *Restored {
	r.Helper()
	out, err := Restore(r.Context(), p)
	r.must(err)
	return out
}

// refuses wants an error with all the parts, and a Redis that is as it was.
func (r *rig) refuses(p RestoreParams, parts ...string) {
	r.Helper()
	before := r.dump()
	out, err := Restore(r.Context(), p)
	if err == nil {
		r.Fatalf("no error, but %+v; want one that says %q", out, parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			r.Errorf("%v, want %q", err, part)
		}
	}
	if !reflect.DeepEqual(before, r.dump()) {
		r.Errorf("it wrote, and then said %v", err)
	}
}

// dump is what Redis holds, but for the mark that a restore leaves and the
// flushers' records.
func (r *rig) dump() map[string]any {
	r.Helper()
	keys, err := r.rdb.Keys(r.Context(), "*").Result()
	r.must(err)
	out := map[string]any{}
	for _, k := range keys {
		switch r.rdb.Type(r.Context(), k).Val() {
		case "hash":
			h := r.rdb.HGetAll(r.Context(), k).Val()
			delete(h, "restore")
			if len(h) > 0 {
				out[k] = h
			}
		case "list":
			out[k] = r.rdb.LRange(r.Context(), k, 0, -1).Val()
		}
	}
	return out
}

// back puts Redis back to an earlier state. The flushers go on where they were.
func (r *rig) back(failover func()) {
	r.Helper()
	seq := r.seq
	failover()
	r.seq = seq
}

// wipe makes an empty Redis, with the polls again.
func (r *rig) wipe() {
	r.Helper()
	r.must(r.rdb.FlushDB(r.Context()).Err())
	r.define()
}

func (r *rig) define() {
	r.Helper()
	for _, p := range r.polls {
		_, err := r.store.ApplyPoll(r.Context(), definition(p), vote.Window{})
		r.must(err)
	}
	for shard := range shards {
		r.must(r.queue.Register(r.Context(), shard, flusher(shard)))
	}
}

// drain counts and archives all there is.
func (r *rig) drain() {
	r.Helper()
	r.countAll()
	r.archiveAll(25)
}

// agree fails the test unless the audit is clean, and Redis, where nothing waits
// any more, has what the archive has.
func (r *rig) agree() {
	r.Helper()
	p := r.params()
	p.All, p.Options = true, r.restoring().Options
	r.clean(p)
	totals, err := Recount(r.Context(), r.blobs, nil, nil)
	r.must(err)
	for _, poll := range r.polls {
		got, err := r.store.Results(r.Context(), poll)
		r.must(err)
		if !maps.Equal(got.Tally, totals.Votes[poll]) {
			r.Errorf("poll %s: Redis has %v, the archive has %v", poll, got.Tally, totals.Votes[poll])
		}
		if n := sum(got.Tally); got.Ledger.Counted != n || got.Ledger.Archived != n || got.Ledger.Accepted-got.Ledger.Dropped != n || got.Ledger.Pending() != 0 {
			r.Errorf("poll %s: %+v, %d votes", poll, got.Ledger, n)
		}
	}
}

// again fails the test if another restore finds anything to do.
func (r *rig) again() {
	r.Helper()
	before := r.dump()
	if out := r.restore(r.restoring()); len(out.Batches) != 0 || len(out.Polls) != 0 {
		r.Errorf("restored again: %+v", out)
	}
	if !reflect.DeepEqual(before, r.dump()) {
		r.Error("nothing to restore, but Redis was changed")
	}
}

// restoredVotes adds up what was restored.
func restoredVotes(t *testing.T, out *Restored) (frames, known int, votes int64) {
	t.Helper()
	var polls int64
	for _, b := range out.Batches {
		frames, known, votes = frames+b.Frames, known+b.Known, votes+b.Votes
	}
	for _, p := range out.Polls {
		polls += p.Total
		var options int64
		for _, o := range p.Options {
			options += o.Votes
		}
		if options != p.Total || p.Frames == 0 {
			t.Errorf("%+v", p)
		}
	}
	if polls != votes {
		t.Errorf("%d votes by poll, %d by batch", polls, votes)
	}
	return frames, known, votes
}

// Redis goes back to an earlier state, in which what the archive has by now was
// at different places.
func TestRestoreAfterFailover(t *testing.T) {
	for name, c := range map[string]struct {
		// save brings votes on their way and returns the state that comes back.
		save func(*rig) func()
		// frames are lost, votes in all.
		frames int
		votes  int64
	}{
		"lost": {func(r *rig) func() {
			r.drain()
			return r.save()
		}, 12, 12 * 10},
		"in the queue again": {func(r *rig) func() {
			for shard := range shards {
				r.send(shard, 11)
				r.send(shard, 12)
				r.send(shard, 13)
			}
			return r.save()
		}, 12, 12 * 10},
		"in the list that awaits archiving again": {func(r *rig) func() {
			for shard := range shards {
				r.send(shard, 11)
				r.send(shard, 12)
				r.send(shard, 13)
			}
			r.countAll()
			return r.save()
		}, 12, 12 * 10},
		"everywhere": {func(r *rig) func() {
			for shard := range shards {
				r.send(shard, 11)
			}
			r.countAll()
			for shard := range shards {
				r.send(shard, 12)
			}
			return r.save()
		}, 12, 12 * 10},
		"all but what is queued": {func(r *rig) func() {
			r.must(r.rdb.FlushDB(r.Context()).Err())
			r.define()
			for shard := range shards {
				r.send(shard, 9)
			}
			return r.save()
		}, 16, 12*10 + 4*10},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "alpha", "beta")
			for shard := range shards {
				r.send(shard, 10)
				r.send(shard, 10)
			}
			r.drain()
			failover := c.save(r)
			for range 6 {
				for shard := range shards {
					r.send(shard, 10)
				}
			}
			r.drain()
			r.back(failover)
			if r.audit(r.params()).OK() {
				t.Fatal("nothing is lost")
			}
			// Votes come in again, and the stages go on meanwhile.
			for shard := range shards {
				r.send(shard, 21)
			}
			stopConsumer, stopArchiver := start(r.consumer(atRest{r.store}, 20)), start(r.archiver(25))
			out := r.restore(r.restoring())
			r.empty("votes")
			r.empty("archive")
			stopConsumer()
			stopArchiver()
			frames, known, votes := restoredVotes(t, out)
			if frames != c.frames || votes != c.votes {
				t.Errorf("%d frames and %d votes were lost, restored are %d and %d (%d known)", c.frames, c.votes, frames, votes, known)
			}
			r.agree()
			r.again()
			r.send(0, 30)
			r.drain()
			r.agree()
		})
	}
}

// The files of a real server are put back, as from a backup.
func TestRestoreAfterAnOldDump(t *testing.T) {
	r := newRig(t, "alpha", "beta")
	dump := filepath.Join(r.server.Dir, "dump.rdb")
	for shard := range shards {
		r.send(shard, 10)
	}
	r.drain()
	for shard := range shards {
		r.send(shard, 20)
	}
	r.must(r.rdb.Save(t.Context()).Err())
	old, err := os.ReadFile(dump)
	r.must(err)
	r.drain()
	for range 3 {
		r.send(0, 15)
		r.drain()
	}
	r.server.Kill()
	r.must(os.WriteFile(dump, old, 0o600))
	r.server.Start()

	// Without consumers and archivers it does not wait for ever.
	p := r.restoring()
	p.Timeout = 1
	r.refusesAfterSome(p, "(--timeout)", "wait to be counted (a consumer must run)", "consumers and archivers must run")
	r.countAll()
	r.refusesAfterSome(p, "await archiving (an archiver must run)")
	r.archiveAll(25)
	r.restore(p)
	r.agree()
	r.again()
}

// refusesAfterSome is refuses, but that some batches may be restored.
func (r *rig) refusesAfterSome(p RestoreParams, parts ...string) {
	r.Helper()
	_, err := Restore(r.Context(), p)
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			r.Errorf("%v, want %q", err, part)
		}
	}
}

// A Redis that was lost whole, and a restore that is ended after each of its
// batches in turn, or whose answers are lost.
func TestRestoreWipedRedis(t *testing.T) {
	r := newRig(t, "alpha", "beta")
	for range 5 {
		for shard := range shards {
			r.send(shard, 30)
		}
		r.drain()
	}
	want := r.dump()
	r.must(r.rdb.FlushDB(t.Context()).Err())
	p := r.restoring()
	p.Options = nil
	r.refuses(p, "alpha, beta", "tally polls apply -f FILE", "tally polls close")
	if n := r.rdb.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were made", n)
	}
	r.define()

	p = r.restoring()
	p.DryRun = true
	before := r.dump()
	dry := r.restore(p)
	if !reflect.DeepEqual(before, r.dump()) {
		t.Error("a dry run wrote")
	}
	frames, known, votes := restoredVotes(t, dry)
	if !dry.DryRun || len(dry.Batches) != 10 || frames != 10 || known != 0 || votes != 300 || dry.Archived != 10 {
		t.Errorf("%+v", dry)
	}

	for i := range 10 {
		ctx, cancel := context.WithCancel(t.Context())
		p := r.restoring()
		p.Redis = hookedRestorer{Restorer: r.store, after: func(error) error {
			cancel()
			if i%2 == 0 {
				return errors.New("the answer is lost")
			}
			return nil
		}}
		out, err := Restore(ctx, p)
		cancel()
		switch {
		case i == 9 && i%2 != 0: // the last one leaves nothing to be ended
		case err == nil:
			t.Errorf("run %d was not ended: %+v", i, out)
		}
		if done := int(r.rdb.HLen(t.Context(), "batches:{0}").Val() + r.rdb.HLen(t.Context(), "batches:{1}").Val()); done != i+1 {
			t.Fatalf("%d batches after %d runs", done, i+1)
		}
		// At each instant all that Redis knows adds up, and only the rest is missed.
		for _, d := range r.audit(r.params()).Differences {
			if !strings.Contains(d.What, "Redis does not know it") {
				t.Errorf("after %d runs: %+v", i+1, d)
			}
		}
	}
	r.again()
	r.agree()
	got := r.dump()
	for k, v := range want {
		if strings.HasPrefix(k, "tally:") || strings.HasPrefix(k, "batches:") {
			if !reflect.DeepEqual(got[k], v) {
				t.Errorf("%s is %v, was %v", k, got[k], v)
			}
		}
	}
	r.send(0, 30)
	r.drain()
	r.agree()
}

type hookedRestorer struct {
	Restorer

	before func(*vote.RestoredBatch)
	after  func(error) error
}

func (h hookedRestorer) RestoreBatch(ctx context.Context, token, next string, b *vote.RestoredBatch) error {
	if h.before != nil {
		h.before(b)
	}
	// A command that was sent is not taken back.
	err := h.Restorer.RestoreBatch(context.WithoutCancel(ctx), token, next, b)
	if h.after != nil {
		if lost := h.after(err); lost != nil {
			return lost
		}
	}
	return err
}

// Votes come in, are counted and archived at full speed while what was lost is
// restored, and audits look on: they miss what is not restored yet, and nothing
// else.
func TestRestoreWhileVotesComeIn(t *testing.T) {
	r := newRig(t, "alpha", "beta")
	for range 10 {
		for shard := range shards {
			r.send(shard, 10)
			r.send(shard, 15)
		}
		r.drain()
	}
	r.wipe()
	ctx, cancel := context.WithCancel(t.Context())
	var producers sync.WaitGroup
	for shard := range shards {
		codec, err := vote.NewCodec()
		r.must(err)
		t.Cleanup(codec.Close)
		producers.Go(func() {
			for ctx.Err() == nil {
				r.seq[shard]++
				id := vote.FrameID{Flusher: flusher(shard), Seq: r.seq[shard]}
				if _, err := r.queue.Enqueue(t.Context(), r.batch(codec, shard, id, 1+int(id.Seq%40), r.polls...)); err != nil {
					t.Errorf("enqueue: %v", err)
					return
				}
			}
		})
	}
	stopConsumer, stopArchiver := start(r.consumer(r.store, 100)), start(r.archiver(1000))
	testkit.Eventually(t, "new batches are archived", func() bool {
		return r.rdb.HLen(t.Context(), "batches:{0}").Val() > 1 && r.rdb.HLen(t.Context(), "batches:{1}").Val() > 1
	})
	p := r.restoring()
	p.Redis = hookedRestorer{Restorer: r.store, before: func(b *vote.RestoredBatch) {
		if b.Sequence%5 != 0 {
			return
		}
		for _, d := range r.audit(r.params()).Differences {
			if !strings.Contains(d.What, "Redis does not know it") {
				t.Errorf("before batch %s: %+v", b.ID, d)
			}
		}
	}}
	out := r.restore(p)
	cancel()
	producers.Wait()
	r.empty("votes")
	stopConsumer()
	stopArchiver()
	r.archiveAll(100_000)
	if _, _, votes := restoredVotes(t, out); votes != 500 {
		t.Errorf("%d votes restored, want 500", votes)
	}
	r.agree()
	r.again()
}

// An audit whose snapshot is older than a batch that is restored below the last
// one looks again.
func TestAuditDuringRestore(t *testing.T) {
	r := newRig(t, "alpha")
	r.send(0, 10)
	r.drain()
	r.wipe()
	r.send(0, 11)
	r.drain() // batch 2; the first one is unknown
	looks := 0
	p := r.params()
	p.Source = hooked{Source: r.store, batches: func(shard int) {
		if shard != 0 {
			return
		}
		if looks++; looks == 1 {
			r.restore(r.restoring())
		}
	}}
	r.clean(p)
	if looks != 2 {
		t.Errorf("it looked %d times", looks)
	}
	p.Source = hooked{Source: r.store, batches: func(int) {
		r.must(r.rdb.HIncrBy(t.Context(), "ledger:{0}", "late_batches", 1).Err())
	}}
	if report, err := Audit(t.Context(), p); !errors.Is(err, errRestored) {
		t.Errorf("%+v, %v", report, err)
	}
}

// What was looked at is not so any more: nothing is changed, and another run
// does it.
func TestRestoreOvertaken(t *testing.T) {
	for name, overtake := range map[string]func(*rig, func()){
		"by another restore": func(r *rig, _ func()) {
			for shard := range shards {
				r.must(r.store.BeginRestore(r.Context(), shard, "another"))
			}
		},
		"by a failover": func(r *rig, failover func()) { r.back(failover) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "alpha", "beta")
			r.send(0, 10)
			r.drain()
			r.wipe()
			r.must(r.store.CheckShards(t.Context()))
			failover := r.save()
			p := r.restoring()
			p.Redis = hookedRestorer{Restorer: r.store, before: func(*vote.RestoredBatch) { overtake(r, failover) }}
			before := r.dump()
			if out, err := Restore(t.Context(), p); !errors.Is(err, vote.ErrRestoreLost) || !strings.Contains(err.Error(), "restore again") || len(out.Batches) != 0 {
				t.Errorf("%+v, %v", out, err)
			}
			if !reflect.DeepEqual(before, r.dump()) {
				t.Error("it wrote")
			}
			r.restore(r.restoring())
			r.agree()
		})
	}
}

// A failover takes back a batch that was restored, and keeps the token under
// which the shard was looked at. The restore ends, whether it goes on with
// another batch, looks again, or is done; the next one does the rest.
func TestRestoredAndLostAgain(t *testing.T) {
	for name, c := range map[string]struct {
		// archived are the votes of the batches in the archive, all of which are
		// lost but the first if it is queued again.
		queued bool
		frames []int
	}{
		"before another batch": {false, []int{5, 7, 3}},
		"while one waits":      {true, []int{5, 7}},
		"at the end":           {false, []int{7}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "alpha")
			lose := r.save()
			for i, n := range c.frames {
				r.send(0, n)
				if i == 0 && c.queued {
					lose = r.save()
				}
				r.drain()
			}
			r.back(lose)
			p := r.restoring()
			hook := hookedRestorer{Restorer: r.store}
			var back func()
			done := 0
			hook.before = func(*vote.RestoredBatch) { back = r.save() }
			hook.after = func(err error) error {
				if done++; done == 1 {
					r.back(back)
				}
				return err
			}
			p.Redis = hook
			p.Waiting = func(string) { r.drain() }
			_, err := Restore(t.Context(), p)
			if !errors.Is(err, vote.ErrRestoreLost) || !strings.Contains(err.Error(), "Redis has lost it again") ||
				!strings.Contains(err.Error(), "run tally restore again") {
				t.Errorf("%v", err)
			}
			r.drain()
			r.restore(r.restoring())
			r.agree()
			r.again()
		})
	}
}

// looker is told of a restore's reads of the lists.
type looker struct {
	*redisstore.Store
	before, after func()
}

func (l *looker) RestoreSnapshot(ctx context.Context, shard int, token string, from [3]int64) (vote.SnapshotPage, string, error) {
	l.before()
	defer l.after()
	return l.Store.RestoreSnapshot(ctx, shard, token, from)
}

// A frame leaves the lists for a batch, and a failover takes that back between
// the two reads: it is in neither, and is not lost.
func TestLookThatAFailoverCrosses(t *testing.T) {
	r := newRig(t, "alpha")
	r.send(0, 5)
	queued := r.save()
	r.drain()
	r.back(queued)
	p := r.restoring()
	p.Redis = &looker{r.store, func() {
		queued = r.save()
		r.drain()
	}, func() { r.back(queued) }}
	if out, err := Restore(t.Context(), p); !errors.Is(err, vote.ErrRestoreLost) || len(out.Batches) != 0 {
		t.Errorf("%+v, %v", out, err)
	}
	r.drain()
	r.restore(r.restoring())
	r.agree()
	r.again()
}

// meddler is a Redis that goes back to an earlier state between any two steps of
// a restore, while votes come in and are counted and archived.
type meddler struct {
	*redisstore.Store
	r     *rig
	rand  *rand.Rand
	saved []func()
	// backs are how many failovers may still come.
	backs int
}

func (m *meddler) keep() { m.saved = append(m.saved, m.r.save()) }

func (m *meddler) meddle() {
	m.keep()
	switch n := m.rand.IntN(12); {
	case n < 2 && m.backs > 0:
		m.backs--
		// The last ones are the likely ones.
		to := max(0, len(m.saved)-1-m.rand.IntN(1+m.rand.IntN(len(m.saved))))
		m.r.back(m.saved[to])
		m.saved = m.saved[:to+1]
	case n == 2:
		m.r.send(m.rand.IntN(shards), 1+m.rand.IntN(9))
	case n == 3:
		m.r.countAll()
	case n == 4:
		m.r.archiveAll(1 + m.rand.Int64N(20))
	case n == 5:
		m.r.countAll()
		m.keep()
		m.r.archiveAll(1 + m.rand.Int64N(20))
	default:
		return
	}
	m.keep()
}

func (m *meddler) BeginRestore(ctx context.Context, shard int, token string) error {
	defer m.meddle()
	return m.Store.BeginRestore(ctx, shard, token)
}

func (m *meddler) CountBatches(ctx context.Context, shard int) (int64, error) {
	defer m.meddle()
	return m.Store.CountBatches(ctx, shard)
}

func (m *meddler) RestoreSnapshot(ctx context.Context, shard int, token string, from [3]int64) (vote.SnapshotPage, string, error) {
	defer m.meddle()
	return m.Store.RestoreSnapshot(ctx, shard, token, from)
}

func (m *meddler) RestoreBatches(ctx context.Context, shard int, token string, sequences []uint64) (vote.Batches, string, error) {
	defer m.meddle()
	return m.Store.RestoreBatches(ctx, shard, token, sequences)
}

func (m *meddler) RestoreBatch(ctx context.Context, token, next string, b *vote.RestoredBatch) error {
	defer m.meddle()
	err := m.Store.RestoreBatch(ctx, token, next, b)
	if err != nil || m.rand.IntN(4) > 0 {
		return err
	}
	// The reply is lost, and the client asks again.
	m.meddle()
	if m.rand.IntN(4) == 0 {
		m.r.must(m.Store.BeginRestore(ctx, b.Shard, "another"))
	}
	return m.Store.RestoreBatch(ctx, token, next, b)
}

// Whatever a restore met with, one more makes Redis and the archive agree.
func TestRestoreAnyFailover(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := newRig(t, "alpha", "beta")
			m := &meddler{Store: r.store, r: r, rand: rand.New(rand.NewPCG(seed, 0)), backs: 4} //nolint:gosec // the same again
			m.keep()
			for range 5 {
				for shard := range shards {
					r.send(shard, 1+m.rand.IntN(9))
				}
				m.keep()
				r.countAll()
				m.keep()
				r.archiveAll(1 + m.rand.Int64N(12))
				m.keep()
			}
			to := m.rand.IntN(len(m.saved) / 2)
			r.back(m.saved[to])
			m.saved = m.saved[:to+1]
			for range 2 {
				p := r.restoring()
				p.Redis = m
				out, err := Restore(t.Context(), p)
				t.Logf("%d batches, %v", len(out.Batches), err)
			}
			r.drain()
			r.restore(r.restoring())
			r.agree()
			r.again()
		})
	}
}

// An api may send a frame again while it is young.
func TestRestoreWaitsUntilVotesSettle(t *testing.T) {
	r := newRig(t, "alpha")
	r.send(0, 10)
	sent := r.now()
	r.drain()
	r.wipe()
	p := r.restoring()
	p.Settle, p.Timeout = time.Hour, 1
	r.refuses(p, "an api may still send some of its 1 frames again, until ", "(--settle)")
	p.Settle, p.Timeout = 200*time.Millisecond, time.Minute
	r.restore(p)
	if age := r.now().Sub(sent); age < p.Settle {
		t.Errorf("restored at an age of %s", age)
	}
	r.agree()
}

// A frame that was sent again, after a failover that took it, with fewer votes:
// what Redis took the second time is what its voters were told, and counts.
func TestRestoreOfAResentFrame(t *testing.T) {
	r := newRig(t, "alpha")
	r.drain()
	failover := r.save()
	r.send(0, 30)
	r.send(0, 10)
	r.drain()
	failover() // the flusher's number too
	if id := r.send(0, 20); id != r.manifest(0, 1).Frames[0] {
		t.Fatalf("sent %s again", id)
	}
	r.drain()
	out := r.restore(r.restoring())
	if frames, known, votes := restoredVotes(t, out); frames != 1 || known != 1 || votes != 10 {
		t.Errorf("%+v", out)
	}
	// Another failover takes all of that: both copies are lost now.
	for range 2 {
		r.agree()
		if got := sum(r.tally("alpha")); got != 30 {
			t.Errorf("%d votes, want 30", got)
		}
		failover()
		r.restore(r.restoring())
	}
}

func (r *rig) tally(poll string) vote.Tally {
	r.Helper()
	got, err := r.store.Results(r.Context(), poll)
	r.must(err)
	return got.Tally
}

// A frame that came back and died is waited for; dropped, it is lost again, and
// restored.
func TestRestoreOfADeadFrame(t *testing.T) {
	r := newRig(t, "alpha")
	r.send(0, 10)
	failover := r.save()
	r.drain()
	r.back(failover)
	whole := r.rdb.LIndex(t.Context(), "votes:{0}", 0).Val()
	header, _, _ := strings.Cut(whole, "\n")
	r.must(r.rdb.LSet(t.Context(), "votes:{0}", 0, header+"\nunreadable").Err())
	p := r.restoring()
	p.Timeout = 1
	r.refuses(p, "1 wait to be counted")
	r.countAll()
	r.refuses(p, "1 are dead (see tally dead list")
	r.clean(r.params()) // Redis has them
	dry := p
	dry.DryRun = true
	if out := r.restore(dry); len(out.Batches) != 0 || len(out.Waiting) != 1 || !strings.Contains(out.Waiting[0], "dead") {
		t.Errorf("%+v", out)
	}
	dead, err := r.store.Dead(t.Context(), 0, 0, 1)
	r.must(err)
	_, err = r.store.RemoveDead(t.Context(), dead[0], false)
	r.must(err)
	r.restore(p)
	r.agree()
	if got, err := r.store.Results(t.Context(), "alpha"); err != nil || got.Ledger.Dropped != 10 || got.Ledger.Counted != 10 {
		t.Errorf("%+v, %v", got, err)
	}
}

// What can't be right is refused before anything is written.
func TestRestoreRefuses(t *testing.T) {
	// lost has a batch of each shard that Redis does not know, and one that it
	// does.
	lost := func(t *testing.T) *rig {
		r := newRig(t, "alpha", "beta")
		for shard := range shards {
			r.send(shard, 10)
		}
		r.drain()
		failover := r.save()
		for shard := range shards {
			r.send(shard, 12)
		}
		r.drain()
		r.back(failover)
		return r
	}
	for name, c := range map[string]struct {
		spoil func(*rig, *RestoreParams)
		want  []string
	}{
		"a poll that Redis does not have": {func(_ *rig, p *RestoreParams) { delete(p.Options, "beta") },
			[]string{"polls that Redis does not have, or not on every shard: beta: define them"}},
		"an option that its poll does not have": {func(_ *rig, p *RestoreParams) { p.Options["alpha"] = []string{"ana", "bruno", "zoe"} },
			[]string{`"carla" of poll alpha`, "apply the definitions under which"}},
		"both": {func(_ *rig, p *RestoreParams) {
			p.Options = map[string][]string{"alpha": {"ana"}}
		}, []string{"beta: define", `"bruno" of poll alpha, "carla" of poll alpha`}},
		"more shards": {func(_ *rig, p *RestoreParams) { p.Shards = 1 }, []string{"manifest/1/000000000001.json", "is of shard 1, but queue-shards is 1"}},
		"another archive": {func(r *rig, p *RestoreParams) {
			other := newRig(r.T, "alpha")
			other.send(0, 3)
			other.drain()
			p.Blobs = other.blobs
		}, []string{"not the archive of this Redis", "--archive-url"}},
		"a manifest is missing": {func(r *rig, _ *RestoreParams) { r.must(os.Remove(r.path(archivefile.ManifestName(1, 1)))) },
			[]string{"the archive has only 0 of the 1 batches of shard 1 that Redis knows", "--archive-url"}},
		"a damaged manifest": {func(r *rig, _ *RestoreParams) { r.must(os.Truncate(r.path(archivefile.ManifestName(0, 1)), 30)) },
			[]string{"manifest/0/000000000001.json", "damaged"}},
		"a damaged object": {func(r *rig, _ *RestoreParams) {
			o := r.manifest(0, 2).Objects[0]
			b, err := os.ReadFile(r.path(o.Name))
			r.must(err)
			b[len(b)/2] ^= 1
			r.write(o.Name, b)
		}, []string{"batch 0-000000000002-", "can't be restored", "votes/poll=alpha/", "damaged"}},
		"an object is missing": {func(r *rig, p *RestoreParams) {
			r.must(os.Remove(r.path(r.manifest(0, 2).Objects[0].Name)))
			p.Settle = time.Millisecond
		}, []string{"batch 0-000000000002-", "can't be restored", "not found"}},
		"the archive is away": {func(_ *rig, p *RestoreParams) { p.Blobs = broken{errors.New("the archive is away")} }, []string{"the archive is away"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := lost(t)
			p := r.restoring()
			c.spoil(r, &p)
			r.refuses(p, c.want...)
		})
	}
	t.Run("Redis is away", func(t *testing.T) {
		r := lost(t)
		p := r.restoring()
		p.Redis = hookedRestorer{Restorer: r.store, before: func(*vote.RestoredBatch) { r.server.Kill() }}
		if out, err := Restore(t.Context(), p); err == nil || len(out.Batches) != 0 {
			t.Errorf("%+v, %v", out, err)
		}
	})
	t.Run("an archive without batches", func(t *testing.T) {
		r := newRig(t, "alpha")
		if out := r.restore(r.restoring()); out.Archived != 0 || len(out.Batches) != 0 || out.Polls == nil {
			t.Errorf("%+v", out)
		}
	})
}

// Many names are not all named.
func TestSome(t *testing.T) {
	set := map[string]bool{}
	for i := range 12 {
		set[fmt.Sprintf("p%02d", i)] = true
	}
	if got := some(set); !strings.HasSuffix(got, "p08, p09 and 2 more") || strings.Contains(got, "p10") {
		t.Error(got)
	}
}

// Votes for options that a poll does not have are named, in the tally and in the
// archive.
func TestOptionsThatThePollDoesNotHave(t *testing.T) {
	r := newRig(t, "alpha", "beta")
	r.send(1, 12)
	r.drain()
	p := r.params()
	p.Options = map[string][]string{"alpha": {"ana", "bruno"}, "beta": options}
	report := r.audit(p)
	r.found(report, "alpha", 1, "the tally has 2 votes for \"carla\", which is no option of it")
	r.found(report, "alpha", 1, "the archive has 2 votes for \"carla\"")
	if len(report.Differences) != 2 || report.Polls[0].OK || !report.Polls[1].OK {
		t.Errorf("%+v", report)
	}
	p.Recount = false
	if report := r.audit(p); len(report.Differences) != 1 {
		t.Errorf("%+v", report)
	}
	p.Options = map[string][]string{"beta": slices.Clone(options)}
	r.clean(p)
}
