package archivefile

import (
	"errors"
	"fmt"
	"time"

	"github.com/parquet-go/parquet-go"

	"paredao/internal/vote"
)

// Newest is when the newest vote of an object was accepted, reading only that
// column. Its errors are those of Count.
func Newest(o vote.Object) (newest time.Time, err error) {
	src := &source{Object: o}
	defer src.guard(&err)
	f, err := parquet.OpenFile(src, o.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return newest, fmt.Errorf("open Parquet: %w", err)
	}
	leaf, ok := f.Schema().Lookup("accepted_at")
	if !ok {
		return newest, errors.New(`the object has no column "accepted_at"`)
	}
	var ms int64
	for _, g := range f.RowGroups() {
		if ms, err = latest(g, leaf.ColumnIndex, ms); err != nil {
			return newest, err
		}
	}
	return time.UnixMilli(ms).UTC(), nil
}

// latest is the highest value of a column of a row group, or ms if that is
// higher.
func latest(g parquet.RowGroup, index int, ms int64) (_ int64, err error) {
	col := &column{pages: g.ColumnChunks()[index].Pages(), buf: make([]parquet.Value, batchRows)}
	defer func() { err = errors.Join(err, col.pages.Close()) }()
	for left := g.NumRows(); left > 0; {
		n := int(min(left, batchRows))
		if err := col.fill(n); err != nil {
			return ms, err
		}
		for _, v := range col.buf[:n] {
			ms = max(ms, v.Int64())
		}
		left -= int64(n)
	}
	return ms, nil
}
