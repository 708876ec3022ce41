package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/parquet-go/parquet-go"

	"paredao/internal/archivefile"
	"paredao/internal/audit"
	"paredao/internal/vote"
)

// archivedRow is what the judge reads of a vote in the archive.
type archivedRow struct {
	ID     string  `parquet:"id"`
	Poll   string  `parquet:"poll"`
	Class  *string `parquet:"class,optional"`
	Option string  `parquet:"option"`
	// Agent tells votes without a key from all others.
	Agent string `parquet:"user_agent,optional"`
}

// archiveReader reads the rows of the archive, those of a frame once.
type archiveReader struct {
	blobs    audit.Blobs
	wanted   map[string]bool // polls
	seen     frames
	repeated int64           // frames with votes of wanted polls that were archived again
	listed   map[string]bool // objects of wanted polls that manifests list
	each     func(choice Choice, id uuid.UUID, keyless bool)
	progress func(rows int64)
	rows     int64
	buf      []archivedRow
}

func (r *archiveReader) read(ctx context.Context) error {
	r.buf, r.listed = make([]archivedRow, 1024), map[string]bool{}
	var names []string
	for info, err := range r.blobs.List(ctx, archivefile.ManifestRoot) {
		if err != nil {
			return fmt.Errorf("list manifests: %w", err)
		}
		names = append(names, info.Name)
	}
	// As the audit does: of a frame that was archived twice the newest copy counts.
	for _, name := range slices.Backward(names) {
		if err := r.batch(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (r *archiveReader) batch(ctx context.Context, name string) error {
	o, err := r.blobs.Open(ctx, name)
	if err != nil {
		return err
	}
	m, err := archivefile.ReadManifest(o)
	if err := errors.Join(err, o.Close()); err != nil {
		return err
	}
	again := make([]bool, len(m.Frames))
	for i, frame := range m.Frames {
		fresh, err := r.seen.add(frame)
		if err != nil {
			return err
		}
		again[i] = !fresh
	}
	mine := make([]bool, len(m.Frames)) // a frame may be in many objects
	for i := range m.Objects {
		o := &m.Objects[i]
		if !r.wanted[o.Poll] {
			continue
		}
		r.listed[o.Name] = true
		for _, run := range o.FrameRows {
			mine[run[0]] = true
		}
		if err := r.object(ctx, o, again); err != nil {
			return fmt.Errorf("%s: %w", o.Name, err)
		}
	}
	for i := range mine {
		if mine[i] && again[i] {
			r.repeated++
		}
	}
	return nil
}

// unlisted are the objects of the wanted polls that no manifest lists. It is
// valid after read.
func (r *archiveReader) unlisted(ctx context.Context) ([]string, error) {
	var names []string
	for _, poll := range slices.Sorted(maps.Keys(r.wanted)) {
		for info, err := range r.blobs.List(ctx, archivefile.VotesRoot+"poll="+poll+"/") {
			if err != nil {
				return nil, fmt.Errorf("list objects: %w", err)
			}
			if !r.listed[info.Name] {
				names = append(names, info.Name)
			}
		}
	}
	return names, nil
}

func (r *archiveReader) object(ctx context.Context, m *archivefile.ManifestObject, again []bool) (err error) {
	o, err := r.blobs.Open(ctx, m.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Close()) }()
	f, err := parquet.OpenFile(o, o.Size())
	if err != nil {
		return fmt.Errorf("open Parquet: %w", err)
	}
	if f.NumRows() != m.Rows {
		return fmt.Errorf("it has %d rows, its manifest says %d", f.NumRows(), m.Rows)
	}
	rows := parquet.NewGenericReader[archivedRow](f)
	defer func() { err = errors.Join(err, rows.Close()) }()
	for _, run := range m.FrameRows {
		if err := r.run(rows, m.Poll, run[1], again[run[0]]); err != nil {
			return err
		}
	}
	return nil
}

// run reads the rows of one frame.
func (r *archiveReader) run(rows *parquet.GenericReader[archivedRow], poll string, left int64, skip bool) error {
	for left > 0 {
		n, err := rows.Read(r.buf[:min(left, int64(len(r.buf)))])
		if err != nil && (!errors.Is(err, io.EOF) || int64(n) < left) {
			return fmt.Errorf("read rows: %w", err)
		}
		left -= int64(n)
		for i := range r.buf[:n] {
			row := &r.buf[i]
			if row.Poll != poll {
				return fmt.Errorf("a row of poll %q", row.Poll)
			}
			if skip {
				continue
			}
			id, err := uuid.Parse(row.ID)
			if err != nil {
				return fmt.Errorf("a row with id %.80q", row.ID)
			}
			class := ""
			if row.Class != nil {
				class = *row.Class
			}
			r.each(Choice{row.Poll, vote.TallyField(class, row.Option)}, id, row.Agent == keylessAgent)
		}
		r.rows += int64(n)
	}
	if r.progress != nil {
		r.progress(r.rows)
	}
	return nil
}

// frames is a set of frame ids. A flusher numbers its frames one by one, so it
// takes a bit for each: there may be as many frames as votes.
type frames map[string]map[uint64]uint64

// add tells whether the id is new.
func (f frames) add(id string) (bool, error) {
	parsed, err := vote.ParseFrameID(id)
	if err != nil {
		return false, err
	}
	words := f[parsed.Flusher]
	if words == nil {
		words = map[uint64]uint64{}
		f[parsed.Flusher] = words
	}
	bit := uint64(1) << (parsed.Seq % 64)
	old := words[parsed.Seq/64]
	words[parsed.Seq/64] = old | bit
	return old&bit == 0, nil
}
