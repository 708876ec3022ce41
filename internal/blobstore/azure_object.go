package blobstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"

	"paredao/internal/vote"
)

const (
	// readBlock is the unit of the cache and of requests. A Parquet reader asks
	// for some kilobytes at a time, in as many places as there are columns.
	readBlock = 1 << 20
	// cachedBlocks bounds the memory of an open object, and is above the number
	// of columns, so that they don't push out each other's.
	cachedBlocks = 16
	// blocksAtOnce bounds one request, for reads that are larger than a block.
	blocksAtOnce = 4
	// blocksAhead is the least that is fetched where reads go on from one block
	// to the next.
	blocksAhead = 2
)

// Open implements Store.
func (a *Azure) Open(ctx context.Context, name string) (vote.Object, error) {
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	client := a.client.NewBlobClient(a.key(name))
	props, err := client.GetProperties(ctx, nil)
	if notFound(err) {
		err = vote.ErrObjectNotFound
	}
	if err != nil {
		return nil, a.failed("open", name, err)
	}
	o := &azureObject{
		client: client,
		fail:   func(err error) error { return a.failed("read", name, err) },
		etag:   value(props.ETag),
		size:   value(props.ContentLength),
		blocks: map[int64]*cachedBlock{},
	}
	o.ctx, o.cancel = context.WithCancelCause(ctx)
	return o, nil
}

// azureObject reads one version of a blob through a small cache of blocks.
// Concurrent reads wait for each other; open it twice to read it in parallel.
type azureObject struct {
	ctx    context.Context //nolint:containedctx // io.ReaderAt has none; Close ends it
	cancel context.CancelCauseFunc
	client *blob.Client
	fail   func(error) error
	etag   azcore.ETag
	size   int64

	mu     sync.Mutex
	blocks map[int64]*cachedBlock // by number
	uses   uint64
}

type cachedBlock struct {
	data []byte
	used uint64 // the higher, the later
}

var _ vote.Object = (*azureObject)(nil)

// Size implements vote.Object.
func (o *azureObject) Size() int64 { return o.size }

// Close ends reads that are under way, and all later ones.
func (o *azureObject) Close() error {
	o.cancel(fs.ErrClosed)
	return nil
}

// ReadAt implements io.ReaderAt.
func (o *azureObject) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, o.fail(fmt.Errorf("negative offset %d", off))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	end := min(o.size, off+int64(len(p)))
	n := 0
	for at := off; at < end; at = off + int64(n) {
		data, err := o.block(at/readBlock, (end-1)/readBlock)
		if ended := o.ended(); ended != nil {
			err = ended
		}
		if err != nil {
			return n, o.fail(err)
		}
		n += copy(p[n:], data[at%readBlock:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// ended says why reading is over, if it is.
func (o *azureObject) ended() error {
	if cause := context.Cause(o.ctx); errors.Is(cause, fs.ErrClosed) {
		return cause
	}
	return o.ctx.Err()
}

// block returns one block. If it has to be fetched, then together with those
// that follow it up to last, which the reader is going to want next.
func (o *azureObject) block(number, last int64) ([]byte, error) {
	if _, ok := o.blocks[number]; !ok {
		count := last - number + 1
		if _, ok := o.blocks[number-1]; ok {
			count = max(count, blocksAhead)
		}
		if err := o.fetch(number, min(count, blocksAtOnce)); err != nil {
			return nil, err
		}
	}
	b := o.blocks[number]
	o.touch(b)
	return b.data, nil
}

// fetch downloads count blocks in one request, or fewer at the end of the object
// and before a block that is there already.
func (o *azureObject) fetch(first, count int64) error {
	next := first + 1
	for ; next < first+count && next*readBlock < o.size; next++ {
		if _, ok := o.blocks[next]; ok {
			break
		}
	}
	start, end := first*readBlock, min(next*readBlock, o.size)
	reader, err := download(o.ctx, o.client, o.etag, blob.HTTPRange{Offset: start, Count: end - start})
	if err != nil {
		return err
	}
	defer reader.Close()
	for number := first; number < next; number++ {
		b := o.room()
		b.data = b.data[:min(readBlock, o.size-number*readBlock)]
		if _, err := io.ReadFull(reader, b.data); err != nil {
			return fmt.Errorf("block %d: %w", number, err)
		}
		o.touch(b)
		o.blocks[number] = b
	}
	return nil
}

// room gives a block to fill: a new one, or the one that is longest unused.
func (o *azureObject) room() *cachedBlock {
	if len(o.blocks) < cachedBlocks {
		return &cachedBlock{data: make([]byte, min(readBlock, o.size))}
	}
	oldest := int64(-1)
	for number, b := range o.blocks {
		if oldest < 0 || b.used < o.blocks[oldest].used {
			oldest = number
		}
	}
	b := o.blocks[oldest]
	delete(o.blocks, oldest)
	return b
}

func (o *azureObject) touch(b *cachedBlock) {
	o.uses++
	b.used = o.uses
}

// errReplaced: the blob is not the version any more that was opened.
var errReplaced = errors.New("the object was replaced while it was being read")

// download reads a range of one version of the blob, or all of it, and goes on
// where it was when the connection breaks.
func download(ctx context.Context, client *blob.Client, etag azcore.ETag, part blob.HTTPRange) (io.ReadCloser, error) {
	resp, err := client.DownloadStream(ctx, &blob.DownloadStreamOptions{
		Range:            part,
		AccessConditions: ifUnchanged(etag),
	})
	switch {
	case bloberror.HasCode(err, bloberror.ConditionNotMet):
		return nil, errReplaced
	case notFound(err):
		return nil, vote.ErrObjectNotFound
	case err != nil:
		return nil, err
	}
	return resp.NewRetryReader(ctx, &blob.RetryReaderOptions{}), nil
}
