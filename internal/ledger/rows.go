package ledger

import (
	"context"
	"errors"
	"fmt"
	"io"

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
	repeated int64 // frames that were archived again
	each     func(choice Choice, id uuid.UUID, keyless bool)
	progress func(rows int64)
	rows     int64
	buf      []archivedRow
}

func (r *archiveReader) read(ctx context.Context) error {
	r.buf = make([]archivedRow, 1024)
	for info, err := range r.blobs.List(ctx, archivefile.ManifestRoot) {
		if err != nil {
			return fmt.Errorf("list manifests: %w", err)
		}
		if err := r.batch(ctx, info.Name); err != nil {
			return fmt.Errorf("%s: %w", info.Name, err)
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
		if again[i] = !fresh; again[i] {
			r.repeated++
		}
	}
	for i := range m.Objects {
		if !r.wanted[m.Objects[i].Poll] {
			continue
		}
		if err := r.object(ctx, &m.Objects[i], again); err != nil {
			return fmt.Errorf("%s: %w", m.Objects[i].Name, err)
		}
	}
	return nil
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
