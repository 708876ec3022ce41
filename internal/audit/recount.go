package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"paredao/internal/archivefile"
	"paredao/internal/vote"
)

// Blobs is where the archive is read.
type Blobs interface {
	Open(ctx context.Context, name string) (vote.Object, error)
	// List returns the objects below a prefix, in order of name.
	List(ctx context.Context, prefix string) iter.Seq2[vote.ObjectInfo, error]
}

// Progress is told how many of how many archived votes have been read.
type Progress func(done, total int64)

// Totals are what the archive holds.
type Totals struct {
	// Votes by poll and option (or class/option).
	Votes map[string]vote.Tally
	// Batches, objects and frames read; Repeated frames were archived more than
	// once and counted once.
	Batches, Objects, Frames, Repeated int
}

func newTotals() *Totals { return &Totals{Votes: map[string]vote.Tally{}} }

// Recount counts the votes of the polls in the archive (all polls, if none is
// named), reading every row.
func Recount(ctx context.Context, blobs Blobs, polls []string, progress Progress) (*Totals, error) {
	names, err := manifestNames(ctx, blobs)
	if err != nil {
		return nil, err
	}
	total, err := votesIn(ctx, blobs, names, polls)
	if err != nil {
		return nil, err
	}
	c := &recounter{blobs: blobs, polls: polls, seen: frameSet{}, progress: progress, total: total}
	out := newTotals()
	for _, name := range names {
		m, err := readManifest(ctx, blobs, name)
		if err != nil {
			return nil, err
		}
		if err := c.batch(ctx, m, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// votesIn adds up what the manifests say, for the progress alone.
func votesIn(ctx context.Context, blobs Blobs, names, polls []string) (int64, error) {
	var total int64
	for _, name := range names {
		m, err := readManifest(ctx, blobs, name)
		if err != nil {
			return 0, err
		}
		for _, o := range m.Objects {
			if wanted(polls, o.Poll) {
				total += o.Rows
			}
		}
	}
	return total, nil
}

func wanted(polls []string, poll string) bool {
	return len(polls) == 0 || slices.Contains(polls, poll)
}

func manifestNames(ctx context.Context, blobs Blobs) ([]string, error) {
	var names []string
	for info, err := range blobs.List(ctx, archivefile.ManifestRoot) {
		if err != nil {
			return nil, fmt.Errorf("list manifests: %w", err)
		}
		names = append(names, info.Name)
	}
	return names, nil
}

func readManifest(ctx context.Context, blobs Blobs, name string) (*archivefile.Manifest, error) {
	shard, sequence, err := archivefile.ParseManifestName(name)
	if err != nil {
		return nil, err
	}
	o, err := blobs.Open(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	m, err := archivefile.ReadManifest(o)
	if err := errors.Join(err, o.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if m.Shard != shard || m.Sequence != sequence {
		return nil, fmt.Errorf("%s: it is the manifest of batch %s", name, m.Batch)
	}
	return m, nil
}

// recounter counts batch by batch and remembers the frames it has seen.
type recounter struct {
	blobs    Blobs
	polls    []string
	seen     frameSet
	progress Progress
	done     int64
	total    int64
}

// batch counts the objects of a batch into out.
func (r *recounter) batch(ctx context.Context, m *archivefile.Manifest, out *Totals) error {
	out.Batches++
	repeated := make([]bool, len(m.Frames))
	for i, id := range m.Frames {
		fresh, err := r.seen.add(id)
		if err != nil {
			return err
		}
		if repeated[i] = !fresh; fresh {
			out.Frames++
		} else {
			out.Repeated++
		}
	}
	for _, o := range m.Objects {
		if !wanted(r.polls, o.Poll) {
			continue
		}
		if err := r.object(ctx, o, repeated, out); err != nil {
			return fmt.Errorf("%s: %w", o.Name, err)
		}
	}
	return nil
}

func (r *recounter) object(ctx context.Context, o archivefile.ManifestObject, repeated []bool, out *Totals) (err error) {
	f, err := r.blobs.Open(ctx, o.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if f.Size() != o.Bytes {
		return fmt.Errorf("the object has %d bytes, its manifest says %d: %w", f.Size(), o.Bytes, io.ErrUnexpectedEOF)
	}
	runs := make([]archivefile.Run, len(o.FrameRows))
	for i, fr := range o.FrameRows {
		runs[i] = archivefile.Run{Rows: fr[1], Skip: repeated[fr[0]]}
	}
	var foreign error
	err = archivefile.Count(f, runs, func(poll, field string, n int64) {
		if poll != o.Poll {
			foreign = fmt.Errorf("%d votes are of poll %q", n, poll)
			return
		}
		if out.Votes[poll] == nil {
			out.Votes[poll] = vote.Tally{}
		}
		out.Votes[poll][field] += n
	})
	out.Objects++
	r.done += o.Rows
	if r.progress != nil {
		r.progress(r.done, r.total)
	}
	return errors.Join(err, foreign)
}
