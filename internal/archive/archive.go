package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"paredao/internal/archivefile"
	"paredao/internal/vote"
)

// Queue is where counted votes wait.
type Queue interface {
	ArchiveState(ctx context.Context, shard int) (vote.ArchiveState, error)
	// ReadArchive returns frames of the list, from a place on.
	ReadArchive(ctx context.Context, shard, from int, limit vote.ReadLimit) ([]string, error)
	// FixBatch fixes a batch, in place of the one whose id is given, and returns
	// the one that is fixed now; vote.ErrBatchGone if the list is another one.
	FixBatch(ctx context.Context, b *vote.ArchiveBatch, replace string) (*vote.ArchiveBatch, error)
	// ReadBatch reads the batch's frames while it is the current one, else it
	// returns vote.ErrBatchGone.
	ReadBatch(ctx context.Context, b *vote.ArchiveBatch, from int, limit vote.ReadLimit) ([]string, error)
	// CommitBatch ends a batch.
	CommitBatch(ctx context.Context, b *vote.ArchiveBatch, votes []vote.PollVotes) error
}

// Blobs is where objects go.
type Blobs interface {
	// Create makes an object, complete or not at all. created is false if it is
	// there already with this content; with other content it returns
	// vote.ErrObjectConflict.
	Create(ctx context.Context, name string, body io.ReadSeeker, size int64, sha256 [32]byte) (created bool, err error)
	// Open returns vote.ErrObjectNotFound if there is none.
	Open(ctx context.Context, name string) (vote.Object, error)
}

// Metrics are what an archiver reports. All must be set.
type Metrics struct {
	// Votes and Objects count what has been archived.
	Votes, Objects prometheus.Counter
	// AcceptToArchive observes each frame's seconds from enqueue to the commit
	// of its batch.
	AcceptToArchive prometheus.Observer
}

// Params configure an Archiver.
type Params struct {
	Queue Queue
	Blobs Blobs
	// A batch is written when it has MaxVotes, or when its oldest vote was
	// accepted MaxAge ago.
	MaxVotes int64
	MaxAge   time.Duration
	// Settle is how long ago a vote must have been accepted to be archived. A
	// Redis that crashes under appendfsync everysec loses the last second or two.
	// What it loses must not stand in the archive already: the voter who had no
	// answer sends the vote again, and the key that would tell is lost too.
	Settle time.Duration
	// SpoolDir is where objects are put together; empty: the system's folder
	// for temporary files.
	SpoolDir string
	// Outage gets each failed step (an error) and each good one (nil).
	Outage  func(error)
	Log     *slog.Logger
	Metrics Metrics
}

// Bounds of a batch besides its votes, and of a page of frames.
const (
	batchFrames = 50_000
	pageBytes   = 4 << 20
	pageFrames  = 1024
)

// idleWait is how often an archiver looks whether there is something to do.
const idleWait = time.Second

// stepTimeout bounds the writing of a batch, also during a shutdown.
const stepTimeout = 10 * time.Minute

// Archiver archives counted votes.
type Archiver struct{ p Params }

// New returns an archiver.
func New(p Params) *Archiver { return &Archiver{p} }

// Work archives the votes of a shard until ctx is done. A batch in hand is left
// as it is then: the next archiver writes it to the same names.
func (a *Archiver) Work(ctx context.Context, shard int) {
	wait := idleWait
	for ctx.Err() == nil {
		did, err := a.step(ctx, shard)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, vote.ErrBatchGone):
			a.p.Log.Warn("another archiver was faster; nothing was changed", "shard", shard, "err", err)
			err, did = nil, true
		case errors.Is(err, vote.ErrObjectConflict):
			a.p.Log.Error("ALARM: the archive holds other content under this batch's name; nothing was overwritten",
				"shard", shard, "err", err)
		}
		a.p.Outage(err)
		if err != nil {
			wait = min(2*wait, 15*time.Second)
		} else {
			wait = idleWait
			if did {
				continue
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// step archives one batch, if one is due.
func (a *Archiver) step(ctx context.Context, shard int) (did bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	st, err := a.p.Queue.ArchiveState(ctx, shard)
	if err != nil {
		return false, err
	}
	b := st.Batch
	if b == nil {
		if !a.due(st) {
			return false, nil
		}
		if b, err = a.fix(ctx, shard, st.NextSequence, nil, st.Now); err != nil {
			return false, err
		}
	}
	if b, err = a.renumber(ctx, b); err != nil {
		return false, err
	}
	return true, a.archive(ctx, b)
}

func (a *Archiver) due(st vote.ArchiveState) bool {
	if st.Elements == 0 || a.young(st.Now, st.Oldest) {
		return false
	}
	age := st.Now.Sub(st.Oldest)
	if age < 0 || age >= a.p.MaxAge {
		return true // (below 0: Redis's clock has gone back)
	}
	if st.Votes < a.p.MaxVotes && st.Elements < batchFrames {
		return false
	}
	if !a.young(st.Now, st.Newest) {
		return true
	}
	// Votes still come in. At a steady rate this share of them has settled; a
	// batch of fewer than it may hold would be followed by many small ones.
	settled := float64(age-a.p.Settle) / float64(age)
	return settled*float64(st.Votes) >= float64(a.p.MaxVotes) || settled*float64(st.Elements) >= batchFrames
}

// young tells whether a frame has not settled. One from the future, accepted
// before Redis's clock went back, has.
func (a *Archiver) young(now, accepted time.Time) bool {
	age := now.Sub(accepted)
	return age >= 0 && age < a.p.Settle
}

// fix fixes the next batch under the first free sequence number, in place of
// old if that is given.
func (a *Archiver) fix(ctx context.Context, shard int, sequence uint64, old *vote.ArchiveBatch, now time.Time) (*vote.ArchiveBatch, error) {
	for {
		m, err := a.manifest(ctx, shard, sequence)
		if err != nil {
			return nil, err
		}
		if m == nil {
			break
		}
		sequence++
	}
	if old != nil {
		b := *old
		b.Sequence, b.ID = sequence, archivefile.Renumber(*old, sequence)
		return a.p.Queue.FixBatch(ctx, &b, old.ID)
	}
	b := &vote.ArchiveBatch{Shard: shard, Sequence: sequence}
	if err := a.measure(ctx, b, now); err != nil {
		return nil, err
	}
	b.ID = archivefile.BatchID(*b)
	return a.p.Queue.FixBatch(ctx, b, "")
}

// measure finds how many frames from the head make a batch, as of now.
func (a *Archiver) measure(ctx context.Context, b *vote.ArchiveBatch, now time.Time) error {
	digest := archivefile.NewDigest()
page:
	for b.Votes < a.p.MaxVotes && b.Elements < batchFrames {
		frames, err := a.p.Queue.ReadArchive(ctx, b.Shard, b.Elements, vote.ReadLimit{
			Votes: int(a.p.MaxVotes - b.Votes), Bytes: pageBytes, Elements: min(pageFrames, batchFrames-b.Elements),
		})
		if err != nil {
			return err
		}
		if len(frames) == 0 {
			break
		}
		for _, f := range frames {
			h, _, err := vote.ParseHeader([]byte(f))
			if err != nil {
				return fmt.Errorf("archive:{%d}: %w", b.Shard, err)
			}
			if a.young(now, h.AcceptedAt) && b.Elements > 0 {
				break page
			}
			if b.Elements == 0 {
				b.First = h.ID
			}
			b.Last = h.ID
			digest.Add([]byte(f))
			b.Elements++
			b.Votes += h.Accepted()
		}
	}
	if b.Elements == 0 {
		return fmt.Errorf("archive:{%d}: %w", b.Shard, vote.ErrBatchGone)
	}
	b.Digest = digest.String()
	return nil
}

// renumber gives a fixed batch the next free number, if its own has gone to
// another batch that Redis does not know any more.
func (a *Archiver) renumber(ctx context.Context, b *vote.ArchiveBatch) (*vote.ArchiveBatch, error) {
	m, err := a.manifest(ctx, b.Shard, b.Sequence)
	if err != nil || m == nil || m.Batch == b.ID {
		return b, err
	}
	a.p.Log.Warn("the archive has another batch of this number, which Redis has forgotten; taking the next free one",
		"shard", b.Shard, "sequence", b.Sequence, "archived", m.Batch, "fixed", b.ID)
	return a.fix(ctx, b.Shard, b.Sequence+1, b, time.Time{})
}

// manifest returns a manifest, or nil if there is none.
func (a *Archiver) manifest(ctx context.Context, shard int, sequence uint64) (*archivefile.Manifest, error) {
	o, err := a.p.Blobs.Open(ctx, archivefile.ManifestName(shard, sequence))
	if errors.Is(err, vote.ErrObjectNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	m, err := archivefile.ReadManifest(o)
	return m, errors.Join(err, o.Close())
}
