package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"paredao/internal/archivefile"
	"paredao/internal/vote"
)

// Restorer is what a restore looks at and adds to.
type Restorer interface {
	Source
	// CountBatches is how many committed batches of a shard Redis knows.
	CountBatches(ctx context.Context, shard int) (int64, error)
	// BeginRestore marks a shard with a restore's first token.
	BeginRestore(ctx context.Context, shard int, token string) error
	// RestoreSnapshot and RestoreBatches are Snapshot and Batches, and put a new
	// token in place of the last one at the same instant. RestoreBatch adds a
	// batch's lost votes, marks it as known, and puts the next token in place of
	// the last one. They return vote.ErrRestoreLost, and change nothing, if the
	// shard's token is another one.
	// CheckShards fixes the number of shards, in a Redis that has none yet.
	CheckShards(ctx context.Context) error
	RestoreSnapshot(ctx context.Context, shard int, token string, from [3]int64) (vote.SnapshotPage, string, error)
	RestoreBatches(ctx context.Context, shard int, token string, sequences []uint64) (vote.Batches, string, error)
	RestoreBatch(ctx context.Context, token, next string, b *vote.RestoredBatch) error
}

// RestoreParams configure a restore.
type RestoreParams struct {
	Redis  Restorer
	Shards int
	Blobs  Blobs
	// Options by id of each poll that every shard has a window of. Votes of any
	// other poll or option are refused.
	Options map[string][]string
	// DryRun says what would be restored, and waits for nothing.
	DryRun bool
	// Settle is the age that a lost frame must have, so that its flusher does
	// not send it again.
	Settle time.Duration
	// Timeout bounds each wait. Every is the time between two looks.
	Timeout, Every time.Duration
	// Waiting is told what the restore waits for, once for each change.
	Waiting func(text string)
}

// Restored is what a restore did.
type Restored struct {
	DryRun bool `json:"dry_run"`
	// Batches that were restored, the last of each shard first.
	Batches []RestoredBatch `json:"batches"`
	Polls   []RestoredPoll  `json:"polls"`
	// Waiting says what a dry run has found that can't be restored yet.
	Waiting []string `json:"waiting"`
	// Archived is how many batches the archive has.
	Archived int `json:"archived_batches"`
}

// RestoredBatch is a batch that Redis knows again.
type RestoredBatch struct {
	Batch string `json:"batch"`
	Shard int    `json:"shard"`
	// Frames that Redis had lost, and their votes. Known frames are in other
	// batches, by which Redis has them.
	Frames int   `json:"frames"`
	Known  int   `json:"known_frames"`
	Votes  int64 `json:"votes"`
}

// RestoredPoll is what came back of a poll.
type RestoredPoll struct {
	Poll    string           `json:"poll"`
	Frames  int              `json:"frames"`
	Total   int64            `json:"total"`
	Options []RestoredOption `json:"options"`
}

// RestoredOption is what came back of an option (or class/option).
type RestoredOption struct {
	ID    string `json:"id"`
	Votes int64  `json:"votes"`
}

// Restore adds to Redis what the archive has and Redis has lost. It can be run
// again at any time, and while votes come in. What was restored before an error
// is returned with it.
//
// A frame is lost if no list has it and no batch that Redis knows. The lists are
// read first, then the batches, so a frame under way is found in one of them.
//
// A failover, or a power cut, takes back what was written last. What was taken
// back while it is looked at, or thereafter, would make a frame lost that stands
// in a list again, or known that is lost. So every read and every batch leaves a
// new token in the shard, at the same instant, and asks for the one before it:
// that is there only if all that was read and written until then is. A second
// restore, which may have added the frame by another batch, has put its own in
// its place.
//
// The last batch comes first, as in a recount: so of two copies of a frame the
// same one counts, also when a restore ends half-way.
func Restore(ctx context.Context, p RestoreParams) (*Restored, error) {
	r := &restore{
		p: p, polls: map[string]*restoredPoll{},
		undefined: map[string]bool{}, strange: map[string]bool{},
		out: &Restored{DryRun: p.DryRun, Batches: []RestoredBatch{}, Waiting: []string{}},
	}
	err := r.run(ctx)
	r.out.Polls = r.sums()
	return r.out, err
}

type restore struct {
	p      RestoreParams
	shards []*shardRestore
	// undefined polls, and options that are none of their poll's, of which the
	// lost batches have votes.
	undefined, strange map[string]bool
	polls              map[string]*restoredPoll
	out                *Restored
}

type restoredPoll struct {
	frames int
	votes  vote.Tally
}

// shardRestore is a shard in the works.
type shardRestore struct {
	shard int
	// token is the last one; empty before it is begun.
	token string
	done  bool
	snap  *shardSnapshot
	// lost are the sequences of batches that Redis does not know, ascending.
	lost []uint64
	// ids of the batches in the archive, and when the archive was first seen to
	// have them.
	ids map[uint64]string
	met map[uint64]time.Time
	// frames of batches that Redis knew at any look. seen are those of the batches
	// that it knew at the last look, or that were restored since.
	frames map[uint64]frameSet
	seen   frameSet
	newest map[uint64]time.Time
	// restored are the sequences of the batches that this run has added.
	restored []uint64
	waits    string
}

func (r *restore) run(ctx context.Context) error {
	names, _, err := manifestNames(ctx, r.p.Blobs)
	if err != nil {
		return err
	}
	r.out.Archived = len(names)
	if len(names) == 0 {
		return nil
	}
	for _, name := range names {
		shard, _, err := archivefile.ParseManifestName(name)
		if err != nil {
			return err
		}
		if shard >= r.p.Shards {
			return fmt.Errorf("%s is of shard %d, but queue-shards is %d: it must be what the archive was written with",
				name, shard, r.p.Shards)
		}
	}
	for shard := range r.p.Shards {
		s := &shardRestore{
			shard: shard, ids: map[uint64]string{}, met: map[uint64]time.Time{},
			frames: map[uint64]frameSet{}, newest: map[uint64]time.Time{},
		}
		r.shards = append(r.shards, s)
		if err := r.look(ctx, s); err != nil {
			return err
		}
	}
	// All is looked at before anything is written.
	if err := r.refused(); err != nil {
		return err
	}
	since := time.Now()
	for {
		did, left := false, false
		for _, s := range r.shards {
			if s.done {
				continue
			}
			some, err := r.step(ctx, s)
			if err != nil {
				return r.overtaken(ctx, s, err)
			}
			did, left = did || some, left || !s.done
		}
		if !left {
			return r.verify(ctx)
		}
		if did {
			since = time.Now()
		}
		if time.Since(since) >= r.p.Timeout {
			return r.timeout()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(r.p.Every):
		}
	}
}

func (r *restore) timeout() error {
	var waits []string
	for _, s := range r.shards {
		if !s.done {
			waits = append(waits, s.waits)
		}
	}
	return fmt.Errorf("nothing has moved for %s (--timeout): %s; consumers and archivers must run: start them, then restore again",
		r.p.Timeout, strings.Join(waits, "; "))
}

// marked is the Source of a shard that a restore has begun with.
type marked struct {
	Restorer
	token *string
}

func (m marked) Snapshot(ctx context.Context, shard int, _ []string, from [3]int64) (vote.SnapshotPage, error) {
	page, token, err := m.RestoreSnapshot(ctx, shard, *m.token, from)
	if err == nil {
		*m.token = token
	}
	return page, err
}

func (m marked) Batches(ctx context.Context, shard int, sequences []uint64) (vote.Batches, error) {
	batches, token, err := m.RestoreBatches(ctx, shard, *m.token, sequences)
	if err == nil {
		*m.token = token
	}
	return batches, err
}

// overtaken says more of an error, if what this restore had added is gone again.
func (r *restore) overtaken(ctx context.Context, s *shardRestore, err error) error {
	if !errors.Is(err, vote.ErrRestoreLost) {
		return err
	}
	if again := r.gone(ctx, s); again != nil {
		return again
	}
	return fmt.Errorf("%w: run tally restore again", err)
}

// gone is an error if Redis does not know a batch any more that was restored.
func (r *restore) gone(ctx context.Context, s *shardRestore) error {
	if len(s.restored) == 0 {
		return nil
	}
	batches, err := r.p.Redis.Batches(ctx, s.shard, s.restored)
	if err != nil {
		return err
	}
	return s.stillKnown(batches)
}

func (s *shardRestore) stillKnown(batches vote.Batches) error {
	for _, sequence := range s.restored {
		if id := s.ids[sequence]; batches.Committed[sequence] != id {
			return fmt.Errorf("batch %s had been restored, and Redis has lost it again: %w: run tally restore again",
				id, vote.ErrRestoreLost)
		}
	}
	return nil
}

// verify finds what was lost again on a shard while others were waited for.
func (r *restore) verify(ctx context.Context) error {
	for _, s := range r.shards {
		if err := r.gone(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// look finds the batches of a shard that Redis does not know.
func (r *restore) look(ctx context.Context, s *shardRestore) error {
	var src Source = r.p.Redis
	if s.token != "" {
		src = marked{r.p.Redis, &s.token}
	}
	var err error
	if s.snap, err = takeSnapshot(ctx, src, s.shard, nil, keepIDs); err != nil {
		return err
	}
	// The number, then the names, then the batches: each may only grow.
	count, err := r.p.Redis.CountBatches(ctx, s.shard)
	if err != nil {
		return err
	}
	sequences, err := r.sequences(ctx, s.shard)
	if err != nil {
		return err
	}
	batches, err := src.Batches(ctx, s.shard, sequences)
	if err != nil {
		return err
	}
	if err := s.stillKnown(batches); err != nil {
		return err
	}
	s.lost, s.seen = s.lost[:0], frameSet{}
	var known int64
	for _, sequence := range sequences {
		var m *archivefile.Manifest
		if s.ids[sequence] == "" {
			if m, err = r.manifest(ctx, s, sequence); err != nil {
				return err
			}
			s.ids[sequence], s.met[sequence] = m.Batch, s.snap.now
		}
		id, committed := s.ids[sequence], batches.Committed[sequence]
		switch {
		case committed == id:
			known++
			if s.frames[sequence] == nil {
				if m == nil {
					if m, err = r.manifest(ctx, s, sequence); err != nil {
						return err
					}
				}
				frames := frameSet{}
				for _, frame := range m.Frames {
					if _, err := frames.add(frame); err != nil {
						return err
					}
				}
				s.frames[sequence] = frames
			}
			s.seen.join(s.frames[sequence])
		case committed != "":
			return fmt.Errorf("the archive's batch %s is not the one that Redis knows under its number, %s: "+
				"this is not the archive of this Redis (--archive-url, --redis-url)", id, committed)
		case id == batches.Fixed: // an archiver will commit it
		default:
			s.lost = append(s.lost, sequence)
			if m != nil {
				r.check(m)
			}
		}
	}
	if known < count {
		return fmt.Errorf("the archive has only %d of the %d batches of shard %d that Redis knows, so what Redis has lost can't be told: "+
			"this is not its archive (--archive-url), or manifests are missing", known, count, s.shard)
	}
	return nil
}

// sequences are those of a shard's manifests, ascending.
func (r *restore) sequences(ctx context.Context, shard int) ([]uint64, error) {
	var out []uint64
	for info, err := range r.p.Blobs.List(ctx, fmt.Sprintf("%s%d/", archivefile.ManifestRoot, shard)) {
		if err != nil {
			return nil, fmt.Errorf("list manifests: %w", err)
		}
		if n, sequence, err := archivefile.ParseManifestName(info.Name); err == nil && n == shard {
			out = append(out, sequence)
		}
	}
	slices.Sort(out)
	return out, nil
}

func (r *restore) manifest(ctx context.Context, s *shardRestore, sequence uint64) (*archivefile.Manifest, error) {
	return readManifest(ctx, r.p.Blobs, archivefile.ManifestName(s.shard, sequence))
}

// check notes the polls and options of a lost batch that Redis does not have.
func (r *restore) check(m *archivefile.Manifest) {
	for _, o := range m.Objects {
		r.checkVotes(o.Poll, o.Votes)
	}
}

func (r *restore) checkVotes(poll string, votes vote.Tally) {
	options, ok := r.p.Options[poll]
	if !ok {
		r.undefined[poll] = true
		return
	}
	for field := range votes {
		if !slices.Contains(options, field) {
			r.strange[fmt.Sprintf("%.80q of poll %s", field, poll)] = true
		}
	}
}

// refused says why the lost batches can't be restored as Redis is set up.
func (r *restore) refused() error {
	var errs []error
	if len(r.undefined) > 0 {
		errs = append(errs, fmt.Errorf("the archive has votes of polls that Redis does not have, or not on every shard: %s: "+
			"define them (tally polls apply -f FILE), close those that were closed by hand (tally polls close POLL), then restore again",
			some(r.undefined)))
	}
	if len(r.strange) > 0 {
		// Restored, they would be in no result, and the options could not be
		// mended any more, since the poll would have votes.
		errs = append(errs, fmt.Errorf("the archive has votes for options that Redis's definitions do not have: %s: "+
			"apply the definitions under which these votes were cast (tally polls apply -f FILE), or name their archive (--archive-url)",
			some(r.strange)))
	}
	return joinLine(errs)
}

// joinLine is errors.Join on one line.
func joinLine(errs []error) error {
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	return fmt.Errorf("%w; %w", errs[0], errs[1])
}

// some names a few of a set.
func some(set map[string]bool) string {
	const few = 10
	names := slices.Sorted(maps.Keys(set))
	if len(names) > few {
		return strings.Join(names[:few], ", ") + fmt.Sprintf(" and %d more", len(names)-few)
	}
	return strings.Join(names, ", ")
}

// step restores what can be restored on a shard now, and tells whether that was
// anything.
func (r *restore) step(ctx context.Context, s *shardRestore) (did bool, err error) {
	if len(s.lost) > 0 && !r.p.DryRun {
		if s.token == "" {
			token := uuid.NewString()
			if err := r.p.Redis.BeginRestore(ctx, s.shard, token); err != nil {
				return false, err
			}
			s.token = token
		}
		if err := r.look(ctx, s); err != nil {
			return false, err
		}
		if err := r.refused(); err != nil {
			return false, err
		}
	}
	for _, sequence := range slices.Backward(s.lost) {
		m, err := r.manifest(ctx, s, sequence)
		if err != nil {
			return did, err
		}
		waits, err := r.waits(ctx, s, m)
		if err != nil {
			return did, err
		}
		if waits == "" {
			if err := r.batch(ctx, s, m); err != nil {
				return did, fmt.Errorf("batch %s can't be restored: %w", m.Batch, err)
			}
			did = true
			continue
		}
		if r.p.DryRun {
			r.out.Waiting = append(r.out.Waiting, waits)
			continue
		}
		if waits != s.waits {
			s.waits = waits
			r.p.Waiting(waits)
		}
		return did, nil
	}
	s.done = true
	return did, nil
}

// waits says why a batch can't be restored yet; empty if it can.
func (r *restore) waits(ctx context.Context, s *shardRestore, m *archivefile.Manifest) (string, error) {
	var queued, awaiting, dead, lost int
	for _, id := range m.Frames {
		switch {
		case s.seen.has(id):
		case s.snap.queue.frames.has(id):
			queued++
		case s.snap.awaiting.frames.has(id):
			awaiting++
		case s.snap.dead.frames.has(id):
			dead++
		default:
			lost++
		}
	}
	var parts []string
	for _, p := range []struct {
		n    int
		text string
	}{
		{queued, "wait to be counted (a consumer must run)"},
		{awaiting, "await archiving (an archiver must run)"},
		{dead, "are dead (see tally dead list; requeue or drop them)"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.text))
		}
	}
	if len(parts) > 0 {
		return fmt.Sprintf("batch %s: of its %d frames, which Redis has again, %s", m.Batch, len(m.Frames), strings.Join(parts, ", ")), nil
	}
	if lost == 0 || r.p.DryRun {
		return "", nil
	}
	// Whatever the clocks say: what the archive had at a look had been sent before
	// it.
	from, err := r.newest(ctx, s, m)
	if err != nil {
		return "", fmt.Errorf("batch %s can't be restored: %w", m.Batch, err)
	}
	if met := s.met[m.Sequence]; met.Before(from) {
		from = met
	}
	if until := from.Add(r.p.Settle); s.snap.now.Before(until) {
		return fmt.Sprintf("batch %s: an api may still send some of its %d frames again, until %s (--settle)",
			m.Batch, len(m.Frames), until.Format(time.RFC3339)), nil
	}
	return "", nil
}

// newest is when the newest vote of a batch was accepted.
func (r *restore) newest(ctx context.Context, s *shardRestore, m *archivefile.Manifest) (time.Time, error) {
	if at, ok := s.newest[m.Sequence]; ok {
		return at, nil
	}
	var newest time.Time
	for _, o := range m.Objects {
		f, err := r.p.Blobs.Open(ctx, o.Name)
		if err != nil {
			return newest, fmt.Errorf("%s: %w", o.Name, err)
		}
		at, err := archivefile.Newest(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return newest, fmt.Errorf("%s: %w", o.Name, err)
		}
		if at.After(newest) {
			newest = at
		}
	}
	s.newest[m.Sequence] = newest
	return newest, nil
}

// batch restores the lost frames of a batch. All others are in batches that
// Redis knows.
func (r *restore) batch(ctx context.Context, s *shardRestore, m *archivefile.Manifest) error {
	done := RestoredBatch{Batch: m.Batch, Shard: s.shard}
	lost := make([]bool, len(m.Frames))
	for i, id := range m.Frames {
		if lost[i] = !s.seen.has(id); lost[i] {
			done.Frames++
		} else {
			done.Known++
		}
	}
	// Only objects with lost votes are read.
	part, frames := *m, map[string]int{}
	part.Objects = nil
	for _, o := range m.Objects {
		n := 0
		for _, fr := range o.FrameRows {
			if lost[fr[0]] {
				n++
			}
		}
		if n > 0 {
			part.Objects = append(part.Objects, o)
			frames[o.Poll] += n
		}
	}
	totals := newTotals()
	c := &recounter{blobs: r.p.Blobs, seen: s.seen, hashes: true}
	if err := c.batch(ctx, &part, totals); err != nil {
		return err
	}
	for poll, votes := range totals.Votes {
		r.checkVotes(poll, votes)
		for _, n := range votes {
			done.Votes += n
		}
	}
	// The manifest may not have named all options of a part.
	if err := r.refused(); err != nil {
		return err
	}
	if !r.p.DryRun {
		// Not before the first write: what is fixed once can't be changed.
		if err := r.p.Redis.CheckShards(ctx); err != nil {
			return err
		}
		next := uuid.NewString()
		err := r.p.Redis.RestoreBatch(ctx, s.token, next, &vote.RestoredBatch{
			Shard: s.shard, Sequence: m.Sequence, ID: m.Batch, Votes: totals.Votes,
		})
		if errors.Is(err, vote.ErrBatchGone) {
			err = fmt.Errorf("%w: run tally restore again", err)
		}
		if err != nil {
			return err
		}
		s.token, s.restored = next, append(s.restored, m.Sequence)
	}
	r.out.Batches = append(r.out.Batches, done)
	for poll, votes := range totals.Votes {
		p := r.polls[poll]
		if p == nil {
			p = &restoredPoll{votes: vote.Tally{}}
			r.polls[poll] = p
		}
		p.frames += frames[poll]
		for field, n := range votes {
			p.votes[field] += n
		}
	}
	return nil
}

// sums is what was restored by poll.
func (r *restore) sums() []RestoredPoll {
	out := []RestoredPoll{}
	for _, id := range slices.Sorted(maps.Keys(r.polls)) {
		p := RestoredPoll{Poll: id, Frames: r.polls[id].frames}
		votes := r.polls[id].votes
		for _, field := range slices.Sorted(maps.Keys(votes)) {
			p.Total += votes[field]
			p.Options = append(p.Options, RestoredOption{field, votes[field]})
		}
		out = append(out, p)
	}
	return out
}
