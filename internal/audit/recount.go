package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
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
	// Foreign are objects beside the manifests that are none, and were passed
	// over.
	Foreign []string
}

func newTotals() *Totals { return &Totals{Votes: map[string]vote.Tally{}} }

// Recount counts the votes of the polls in the archive (all polls, if none is
// named), reading every row.
func Recount(ctx context.Context, blobs Blobs, polls []string, progress Progress) (*Totals, error) {
	names, foreign, err := manifestNames(ctx, blobs)
	if err != nil {
		return nil, err
	}
	total, err := votesIn(ctx, blobs, names, polls)
	if err != nil {
		return nil, err
	}
	c := &recounter{blobs: blobs, polls: polls, seen: frameSet{}, progress: progress, total: total}
	out := newTotals()
	out.Foreign = foreign
	for _, name := range slices.Backward(names) {
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
		total += votesOf(m, polls)
	}
	return total, nil
}

// votesOf is what a manifest says of the polls.
func votesOf(m *archivefile.Manifest, polls []string) int64 {
	var votes int64
	for _, o := range m.Objects {
		if wanted(polls, o.Poll) {
			votes += o.Rows
		}
	}
	return votes
}

func wanted(polls []string, poll string) bool {
	return len(polls) == 0 || slices.Contains(polls, poll)
}

// manifestNames lists the manifests, and what else lies beside them.
func manifestNames(ctx context.Context, blobs Blobs) (names, foreign []string, err error) {
	for info, err := range blobs.List(ctx, archivefile.ManifestRoot) {
		if err != nil {
			return nil, nil, fmt.Errorf("list manifests: %w", err)
		}
		if _, _, err := archivefile.ParseManifestName(info.Name); err != nil {
			foreign = append(foreign, info.Name)
			continue
		}
		names = append(names, info.Name)
	}
	return names, foreign, nil
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
		return nil, fmt.Errorf("%s: %w: it is the manifest of batch %s", name, archivefile.ErrDamaged, m.Batch)
	}
	return m, nil
}

// recounter counts batch by batch, the last one of a shard first, and remembers
// the frames it has seen. Of a frame that was archived twice the later copy
// counts: its flusher may have sent it again, after a failover, and have got
// another decision, and that is the one which Redis holds and voters were told.
type recounter struct {
	blobs    Blobs
	polls    []string
	seen     frameSet
	progress Progress
	done     int64
	total    int64
	// damaged is told of an object that is missing or damaged, and the count
	// goes on; without it the count ends there.
	damaged func(shard int, err error)
	// hashes says to read each object whole and compare its SHA-256, besides
	// the columns that count.
	hashes bool
}

// isDamage tells whether the archive is not what was written, and not just out
// of reach.
func isDamage(err error) bool {
	return errors.Is(err, archivefile.ErrDamaged) || errors.Is(err, vote.ErrObjectNotFound)
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
		err := r.object(ctx, o, repeated, out)
		if err == nil {
			continue
		}
		if err = fmt.Errorf("%s: %w", o.Name, err); r.damaged == nil || !isDamage(err) {
			return err
		}
		r.damaged(m.Shard, err)
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
		return fmt.Errorf("%w: the object has %d bytes, its manifest says %d", archivefile.ErrDamaged, f.Size(), o.Bytes)
	}
	if r.hashes {
		sum := sha256.New()
		if _, err := io.Copy(sum, io.NewSectionReader(f, 0, f.Size())); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if hex.EncodeToString(sum.Sum(nil)) != o.SHA256 {
			return fmt.Errorf("%w: its SHA-256 is not the one in its manifest", archivefile.ErrDamaged)
		}
	}
	runs := make([]archivefile.Run, len(o.FrameRows))
	whole := true
	for i, fr := range o.FrameRows {
		runs[i] = archivefile.Run{Rows: fr[1], Skip: repeated[fr[0]]}
		whole = whole && !repeated[fr[0]]
	}
	got := vote.Tally{}
	var foreign error
	err = archivefile.Count(f, runs, func(poll, field string, n int64) {
		if poll != o.Poll {
			foreign = fmt.Errorf("%w: %d votes are of poll %q", archivefile.ErrDamaged, n, poll)
		}
		got[field] += n
	})
	if err := errors.Join(err, foreign); err != nil {
		return err
	}
	if whole && !maps.Equal(got, o.Votes) {
		return fmt.Errorf("%w: its rows are not the votes that its manifest lists", archivefile.ErrDamaged)
	}
	if out.Votes[o.Poll] == nil {
		out.Votes[o.Poll] = vote.Tally{}
	}
	for field, n := range got {
		out.Votes[o.Poll][field] += n
	}
	out.Objects++
	r.done += o.Rows
	if r.progress != nil {
		r.progress(r.done, r.total)
	}
	return nil
}
