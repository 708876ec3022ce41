package archive

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"paredao/internal/archivefile"
	"paredao/internal/vote"
)

// openObjects is how many Parquet writers are open at one time. A batch with
// more objects is read more than once.
const openObjects = 8

// archive writes a fixed batch and commits it.
func (a *Archiver) archive(ctx context.Context, b *vote.ArchiveBatch) error {
	codec, err := vote.NewCodec()
	if err != nil {
		return err
	}
	defer codec.Close()
	w := &batchWriter{a: a, b: b, codec: codec, digest: archivefile.NewDigest(), written: map[partition]bool{}}
	for pass := 0; pass == 0 || w.more; pass++ {
		if err := w.pass(ctx, pass == 0); err != nil {
			return err
		}
	}
	votes, created, err := w.manifest(ctx)
	if err != nil {
		return err
	}
	if err := a.p.Queue.CommitBatch(ctx, b, votes); err != nil {
		return err
	}
	now := w.lastSeen
	if st, err := a.p.Queue.ArchiveState(ctx, b.Shard); err == nil {
		now = st.Now
	}
	for _, at := range w.acceptedAt {
		a.p.Metrics.AcceptToArchive.Observe(max(0, now.Sub(at).Seconds()))
	}
	a.p.Metrics.Votes.Add(float64(b.Votes))
	a.p.Metrics.Objects.Add(float64(created))
	a.p.Log.Info("batch archived", "batch", b.ID, "frames", b.Elements, "votes", b.Votes, "objects", len(w.objects))
	return nil
}

// batchWriter writes the objects of one batch.
type batchWriter struct {
	a     *Archiver
	b     *vote.ArchiveBatch
	codec *vote.Codec

	frames     []string
	digest     archivefile.Digest
	acceptedAt []time.Time
	lastSeen   time.Time
	votes      int64
	written    map[partition]bool // by earlier passes
	more       bool               // some are left for another pass
	open       map[partition]*object
	inFrame    []vote.Vote
	objects    []archivefile.ManifestObject
	created    int
}

// partition is what an object holds: one poll's votes of one hour.
type partition struct {
	poll string
	hour int64 // hours since 1970 UTC
}

// object is an object in the making.
type object struct {
	meta archivefile.ManifestObject
	file *os.File
	sum  hash.Hash
	rows *archivefile.Writer
}

// pass reads the whole batch and writes as many objects as may be open.
func (w *batchWriter) pass(ctx context.Context, first bool) (err error) {
	w.more, w.open = false, map[partition]*object{}
	defer func() {
		for _, o := range w.open {
			err = errors.Join(err, o.file.Close())
		}
	}()
	for n := 0; n < w.b.Elements; {
		frames, err := w.a.p.Queue.ReadBatch(ctx, w.b, n, vote.ReadLimit{
			Votes: pageFrames * vote.MaxFrameVotes, Bytes: pageBytes, Elements: min(pageFrames, w.b.Elements-n),
		})
		if err != nil {
			return err
		}
		if len(frames) == 0 {
			return fmt.Errorf("batch %s: the list ends after %d of %d frames", w.b.ID, n, w.b.Elements)
		}
		for _, f := range frames {
			if err := w.frame(n, []byte(f), first); err != nil {
				return fmt.Errorf("batch %s: frame %d: %w", w.b.ID, n, err)
			}
			n++
		}
	}
	if first {
		read := *w.b
		read.First, read.Last, read.Digest = w.frames[0], w.frames[len(w.frames)-1], w.digest.String()
		if w.votes != w.b.Votes || archivefile.BatchID(read) != w.b.ID {
			return fmt.Errorf("batch %s: its frames are not those that were fixed", w.b.ID)
		}
	}
	for part := range w.open {
		if err := w.finish(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// frame writes the votes of a frame to the objects that are open.
func (w *batchWriter) frame(place int, frame []byte, first bool) error {
	var bad error
	w.inFrame = w.inFrame[:0]
	h, err := w.codec.Read(frame, func(r *vote.RawVote) {
		v, err := r.Vote()
		bad = errors.Join(bad, err)
		w.inFrame = append(w.inFrame, v)
	})
	if err := errors.Join(err, bad); err != nil {
		return err
	}
	if first {
		w.frames = append(w.frames, h.ID)
		w.digest.Add(frame)
		w.acceptedAt = append(w.acceptedAt, h.AcceptedAt)
		w.lastSeen = h.AcceptedAt
		w.votes += int64(len(w.inFrame))
	}
	hour := h.AcceptedAt.Unix() / 3600
	for _, v := range w.inFrame {
		o, err := w.object(partition{v.Poll, hour})
		if err != nil {
			return err
		}
		if o == nil {
			continue
		}
		if err := o.rows.Add(v, h.AcceptedAt, w.b.Shard); err != nil {
			return err
		}
		o.meta.Rows++
		o.meta.Votes[vote.TallyField(v.Class, v.Option)]++
		if n := len(o.meta.FrameRows); n > 0 && o.meta.FrameRows[n-1][0] == int64(place) {
			o.meta.FrameRows[n-1][1]++
		} else {
			o.meta.FrameRows = append(o.meta.FrameRows, [2]int64{int64(place), 1})
		}
	}
	return nil
}

// object returns the open object for a partition; nil if an earlier pass wrote
// it or a later one will.
func (w *batchWriter) object(part partition) (*object, error) {
	if o, ok := w.open[part]; ok {
		return o, nil
	}
	if w.written[part] {
		return nil, nil
	}
	if len(w.open) >= openObjects {
		w.more = true
		return nil, nil
	}
	file, err := os.CreateTemp(w.a.p.SpoolDir, "paredao-*.parquet")
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	// Without a name the file goes with the process, however that ends.
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("spool: %w", err), file.Close())
	}
	o := &object{file: file, sum: sha256.New()}
	o.meta = archivefile.ManifestObject{
		Name: archivefile.ObjectName(w.b.ID, part.poll, time.Unix(part.hour*3600, 0)),
		Poll: part.poll, Votes: vote.Tally{},
	}
	o.rows = archivefile.NewWriter(io.MultiWriter(file, o.sum))
	w.open[part] = o
	return o, nil
}

// finish ends an object and puts it into the archive.
func (w *batchWriter) finish(ctx context.Context, part partition) error {
	o := w.open[part]
	if err := o.rows.Close(); err != nil {
		return err
	}
	size, err := o.file.Seek(0, io.SeekCurrent)
	if err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	if _, err := o.file.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("spool: %w", err)
	}
	sum := [32]byte(o.sum.Sum(nil))
	created, err := w.a.p.Blobs.Create(ctx, o.meta.Name, o.file, size, sum)
	if err != nil {
		return err
	}
	if created {
		w.created++
	}
	o.meta.Bytes, o.meta.SHA256 = size, hex.EncodeToString(sum[:])
	w.objects = append(w.objects, o.meta)
	w.written[part] = true
	delete(w.open, part)
	return o.file.Close()
}

// manifest writes the batch's manifest and returns its votes by poll, and how
// many objects were new.
func (w *batchWriter) manifest(ctx context.Context) ([]vote.PollVotes, int, error) {
	slices.SortFunc(w.objects, func(a, b archivefile.ManifestObject) int {
		return strings.Compare(a.Name, b.Name)
	})
	m := &archivefile.Manifest{
		Batch: w.b.ID, Shard: w.b.Shard, Sequence: w.b.Sequence,
		Votes: w.votes, Frames: w.frames, Digest: w.digest.String(), Objects: w.objects,
	}
	body, err := m.Encode()
	if err != nil {
		return nil, 0, err
	}
	name := archivefile.ManifestName(w.b.Shard, w.b.Sequence)
	if _, err := w.a.p.Blobs.Create(ctx, name, bytes.NewReader(body), int64(len(body)), sha256.Sum256(body)); err != nil {
		return nil, 0, err
	}
	byPoll := map[string]int64{}
	for _, o := range w.objects {
		byPoll[o.Poll] += o.Rows
	}
	var votes []vote.PollVotes
	for _, poll := range slices.Sorted(maps.Keys(byPoll)) {
		votes = append(votes, vote.PollVotes{Poll: poll, Votes: byPoll[poll]})
	}
	return votes, w.created, nil
}
