package archivefile

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"paredao/internal/vote"
)

// row is a vote in the archive. Null stands for what there is not.
type row struct {
	ID         string  `parquet:"id"`
	Poll       string  `parquet:"poll,dict"`
	Class      *string `parquet:"class,optional,dict"`
	Option     string  `parquet:"option,dict"`
	AcceptedAt int64   `parquet:"accepted_at,timestamp(millisecond)"`
	Shard      int32   `parquet:"shard"`
	Client     *string `parquet:"client,optional,dict"`
	UserAgent  *string `parquet:"user_agent,optional,dict"`
	Voter      *string `parquet:"voter,optional"`
}

// Bounds of a writer's memory: rows of a row group, and bytes of a column's
// dictionary, above which a column is written plainly.
const (
	groupRows       = 64 << 10
	dictionaryBytes = 1 << 20
)

// Writer writes the rows of one object. Its bytes follow from the rows alone.
type Writer struct {
	w   *parquet.GenericWriter[row]
	buf []row
}

// NewWriter returns a writer to out.
func NewWriter(out io.Writer) *Writer {
	return &Writer{
		w: parquet.NewGenericWriter[row](out,
			parquet.Compression(&zstd.Codec{Level: zstd.SpeedFastest, Concurrency: 1}),
			parquet.CreatedBy("paredao", "1", ""),
			parquet.MaxRowsPerRowGroup(groupRows),
			parquet.DictionaryMaxBytes(dictionaryBytes)),
		buf: make([]row, 0, 256),
	}
}

// Add writes a vote that was accepted at a time on a shard.
func (w *Writer) Add(v vote.Vote, acceptedAt time.Time, shard int) error {
	w.buf = append(w.buf, row{
		ID: v.ID.String(), Poll: v.Poll, Class: orNull(v.Class), Option: v.Option,
		AcceptedAt: acceptedAt.UnixMilli(), Shard: int32(shard),
		Client: orNull(v.Client), UserAgent: orNull(v.UserAgent), Voter: orNull(v.Voter),
	})
	if len(w.buf) == cap(w.buf) {
		return w.flush()
	}
	return nil
}

func (w *Writer) flush() error {
	_, err := w.w.Write(w.buf)
	w.buf = w.buf[:0]
	if err != nil {
		return fmt.Errorf("write rows: %w", err)
	}
	return nil
}

// Close writes what is left and the end of the file.
func (w *Writer) Close() error {
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.w.Close(); err != nil {
		return fmt.Errorf("write rows: %w", err)
	}
	return nil
}

func orNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// Run is a number of rows, to be counted or passed over.
type Run struct {
	Rows int64
	Skip bool
}

// guard is deferred by who reads Parquet: it tells a damaged object from one that
// could not be read.
func (s *source) guard(err *error) {
	// The Parquet reader may panic on bytes that no writer wrote.
	if r := recover(); r != nil {
		*err = fmt.Errorf("%v", r)
	}
	switch {
	case *err == nil:
	case s.failed != nil:
		*err = fmt.Errorf("read: %w", s.failed)
	default:
		*err = fmt.Errorf("%w: %w", ErrDamaged, *err)
	}
}

// Count adds up the rows of an object by poll and option, reading only the
// columns it needs. runs say which rows to pass over; they must cover all rows.
// ErrDamaged says that the object is not what was written; another error, that
// it could not be read.
func Count(o vote.Object, runs []Run, add func(poll, field string, votes int64)) (err error) {
	src := &source{Object: o}
	defer src.guard(&err)
	f, err := parquet.OpenFile(src, o.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return fmt.Errorf("open Parquet: %w", err)
	}
	var want int64
	for _, r := range runs {
		want += r.Rows
	}
	if f.NumRows() != want {
		return fmt.Errorf("the object has %d rows, its manifest says %d", f.NumRows(), want)
	}
	c := counter{counts: map[string]map[string]int64{}, runs: runs}
	for _, g := range f.RowGroups() {
		if err := c.group(f.Schema(), g); err != nil {
			return err
		}
	}
	for poll, fields := range c.counts {
		for field, n := range fields {
			add(poll, field, n)
		}
	}
	return nil
}

// source remembers that a read failed, so that a store which is away does not
// pass for a damaged object.
type source struct {
	vote.Object
	failed error
}

// ReadAt implements io.ReaderAt.
func (s *source) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > s.Size() {
		return 0, fmt.Errorf("the object names its own byte %d of %d", off, s.Size())
	}
	n, err := s.Object.ReadAt(p, off)
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed = err
	}
	return n, err
}

// counter counts the rows of an object, row group by row group.
type counter struct {
	counts map[string]map[string]int64
	runs   []Run
	key    []byte
}

const batchRows = 1024

func (c *counter) group(schema *parquet.Schema, g parquet.RowGroup) (err error) {
	var cols [3]*column
	for i, name := range []string{"poll", "class", "option"} {
		leaf, ok := schema.Lookup(name)
		if !ok {
			return fmt.Errorf("the object has no column %q", name)
		}
		cols[i] = &column{pages: g.ColumnChunks()[leaf.ColumnIndex].Pages(), buf: make([]parquet.Value, batchRows)}
		defer func() { err = errors.Join(err, cols[i].pages.Close()) }()
	}
	for left := g.NumRows(); left > 0; {
		n := int(min(left, batchRows))
		for _, col := range cols {
			if err := col.fill(n); err != nil {
				return err
			}
		}
		for i := range n {
			c.row(cols[0].buf[i], cols[1].buf[i], cols[2].buf[i])
		}
		left -= int64(n)
	}
	return nil
}

func (c *counter) row(poll, class, option parquet.Value) {
	for c.runs[0].Rows == 0 {
		c.runs = c.runs[1:]
	}
	c.runs[0].Rows--
	if c.runs[0].Skip {
		return
	}
	c.key = c.key[:0]
	if !class.IsNull() {
		c.key = append(append(c.key, class.ByteArray()...), '/')
	}
	c.key = append(c.key, option.ByteArray()...)
	fields := c.counts[string(poll.ByteArray())]
	if fields == nil {
		fields = map[string]int64{}
		c.counts[string(poll.ByteArray())] = fields
	}
	fields[string(c.key)]++
}

// column reads the values of a column, whatever its pages are.
type column struct {
	pages  parquet.Pages
	values parquet.ValueReader
	buf    []parquet.Value
}

// fill reads the next n values into buf.
func (c *column) fill(n int) error {
	for got := 0; got < n; {
		if c.values == nil {
			page, err := c.pages.ReadPage()
			if err != nil {
				return fmt.Errorf("read page: %w", err)
			}
			c.values = page.Values()
		}
		m, err := c.values.ReadValues(c.buf[got:n])
		got += m
		if errors.Is(err, io.EOF) {
			// Values in buf may lie in the page's memory: leave the page to the
			// collector instead of releasing it.
			c.values = nil
			continue
		}
		if err != nil {
			return fmt.Errorf("read values: %w", err)
		}
	}
	return nil
}
