package blobstore

import (
	"bytes"
	"context"
	"crypto/md5" //nolint:gosec // what Azure checks uploads by; SHA-256 decides
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"paredao/internal/vote"
)

const (
	// uploadBlock is the size of a staged block, and the largest object that
	// goes up in one request.
	uploadBlock = 4 << 20
	// uploadsAtOnce bounds the blocks in memory, for one object.
	uploadsAtOnce = 2
	// maxBlocks is Azure's.
	maxBlocks = 50_000
	// createAttempts bounds the repetition of whole uploads: for a container
	// that was missing, then for one upload that was damaged on its way.
	createAttempts = 3
	// probe is no valid name, so that Check meets no object.
	probe = ".check"
)

// Azure is a Store in a container of Azure Blob storage.
type Azure struct {
	client    *container.Client
	transport *http.Transport
	container string
	prefix    string

	pageSize *int32 // of a listing; nil leaves it to the service
}

// String implements Store.
func (a *Azure) String() string {
	return strings.TrimSuffix("azblob://"+a.container+"/"+a.prefix, "/")
}

// Close gives the idle connections back. The store remains usable.
func (a *Azure) Close() error {
	a.transport.CloseIdleConnections()
	return nil
}

// key is the full name of the blob.
func (a *Azure) key(name string) string {
	if a.prefix == "" {
		return name
	}
	return a.prefix + "/" + name
}

// failed wraps an error with what was done. All errors leave through here, so
// that none takes a secret along.
func (a *Azure) failed(op, name string, err error) error {
	return fmt.Errorf("%s %s in %s: %w", op, name, a, tidy(err))
}

// Create implements Store. A small object is one request; a larger one is
// staged in blocks and appears when their list is committed.
func (a *Azure) Create(ctx context.Context, name string, body io.ReadSeeker, size int64, sum [32]byte) (bool, error) {
	if err := checkName(name); err != nil {
		return false, fmt.Errorf("create: %w", err)
	}
	created, err := a.create(ctx, name, body, size, sum)
	if err != nil {
		return false, a.failed("create", name, err)
	}
	return created, nil
}

func (a *Azure) create(ctx context.Context, name string, body io.ReadSeeker, size int64, sum [32]byte) (bool, error) {
	if size < 0 || size > maxBlocks*uploadBlock {
		return false, fmt.Errorf("an object has 0 to %d bytes, not %d", int64(maxBlocks*uploadBlock), size)
	}
	target := upload{blob: a.client.NewBlockBlobClient(a.key(name)), contentType: contentType(name)}
	send := func() (azcore.ETag, error) { return target.blocks(ctx, body, size, sum) }
	if size <= uploadBlock {
		content := bytes.NewBuffer(make([]byte, 0, size))
		if err := copyBody(ctx, content, body, size, sum); err != nil {
			return false, err
		}
		send = func() (azcore.ETag, error) { return target.whole(ctx, content.Bytes()) }
	} else if found, err := target.compare(ctx, size, sum); found || err != nil {
		// Asked first, to spare a repeated batch the upload. Nothing depends on
		// the answer: the commit is conditional.
		return false, err
	}

	for attempt := 1; ; attempt++ {
		etag, err := send()
		if err == nil {
			err = target.verify(ctx, etag, size)
		}
		switch {
		case err == nil:
			return true, nil
		case bloberror.HasCode(err, bloberror.ContainerNotFound):
			if err := a.makeContainer(ctx); err != nil {
				return false, fmt.Errorf("create the container: %w", tidy(err))
			}
		case nameTaken(err):
			// By another writer, or by our own request whose reply got lost.
			found, err := target.compare(ctx, size, sum)
			if found || err != nil {
				return false, err
			}
			// Or by blocks that a writer has staged and not committed. Only a
			// commit gets past them.
			send = func() (azcore.ETag, error) { return target.blocks(ctx, body, size, sum) }
		case bloberror.HasCode(err, bloberror.MD5Mismatch), errors.Is(err, errCutShort):
		default:
			return false, err
		}
		if attempt == createAttempts {
			return false, err
		}
	}
}

// nameTaken is true for the answers to a conditional write that mean, or may
// mean, that the blob exists.
func nameTaken(err error) bool {
	return bloberror.HasCode(err,
		bloberror.BlobAlreadyExists,
		bloberror.ConditionNotMet,
		bloberror.UnauthorizedBlobOverwrite, // a signature that may create, but not write
		bloberror.BlobImmutableDueToPolicy,
		bloberror.LeaseIDMissing,
		// The commit of another writer, or our own, has used up the blocks.
		bloberror.InvalidBlockList,
	)
}

func (a *Azure) makeContainer(ctx context.Context) error {
	_, err := a.client.Create(ctx, nil)
	if bloberror.HasCode(err, bloberror.ContainerAlreadyExists) {
		return nil
	}
	return err
}

// upload writes one blob.
type upload struct {
	blob        *blockblob.Client
	contentType string
}

func ifAbsent() *blob.AccessConditions {
	every := azcore.ETagAny
	return &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfNoneMatch: &every}}
}

func ifUnchanged(etag azcore.ETag) *blob.AccessConditions {
	return &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: &etag}}
}

func (u upload) headers() *blob.HTTPHeaders {
	return &blob.HTTPHeaders{BlobContentType: &u.contentType}
}

// whole sends the content in one request.
func (u upload) whole(ctx context.Context, content []byte) (azcore.ETag, error) {
	resp, err := u.blob.Upload(ctx, streaming.NopCloser(bytes.NewReader(content)), &blockblob.UploadOptions{
		AccessConditions:        ifAbsent(),
		HTTPHeaders:             u.headers(),
		TransactionalValidation: validation(content),
	})
	return value(resp.ETag), err
}

// blocks stages the body and commits it, once it has proved to be what the
// caller announced.
func (u upload) blocks(ctx context.Context, body io.ReadSeeker, size int64, sum [32]byte) (azcore.ETag, error) {
	staging, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := stager{ctx: staging, cancel: cancel, blob: u.blob, slots: make(chan struct{}, uploadsAtOnce)}
	err := copyBody(staging, &s, body, size, sum)
	if err == nil {
		err = s.flush()
	}
	s.running.Wait()
	if ctx.Err() != nil {
		err = ctx.Err()
	} else if cause := context.Cause(staging); cause != nil {
		err = cause // what ended the copy, rather than that it was ended
	}
	if err != nil {
		return "", err
	}
	resp, err := u.blob.CommitBlockList(ctx, s.ids, &blockblob.CommitBlockListOptions{
		AccessConditions: ifAbsent(),
		HTTPHeaders:      u.headers(),
	})
	return value(resp.ETag), err
}

// stager cuts what is written to it into blocks and stages them.
type stager struct {
	ctx     context.Context //nolint:containedctx // lives as long as the one upload
	cancel  context.CancelCauseFunc
	blob    *blockblob.Client
	slots   chan struct{}
	running sync.WaitGroup
	block   []byte
	ids     []string
}

func (s *stager) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		if s.block == nil {
			// Never one that was sent before: a connection that has been given
			// up may still be reading from it.
			s.block = make([]byte, 0, uploadBlock)
		}
		n := min(len(p), uploadBlock-len(s.block))
		s.block, p = append(s.block, p[:n]...), p[n:]
		if len(s.block) == uploadBlock {
			if err := s.flush(); err != nil {
				return total - len(p), err
			}
		}
	}
	return total, nil
}

// flush begins to stage the block in hand, when one of the slots is free.
func (s *stager) flush() error {
	if len(s.block) == 0 {
		return nil
	}
	block, id := s.block, blockID(len(s.ids), s.block)
	s.block, s.ids = nil, append(s.ids, id)
	select {
	case s.slots <- struct{}{}:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	s.running.Go(func() {
		defer func() { <-s.slots }()
		_, err := s.blob.StageBlock(s.ctx, id, streaming.NopCloser(bytes.NewReader(block)),
			&blockblob.StageBlockOptions{TransactionalValidation: validation(block)})
		if err != nil {
			s.cancel(err)
		}
	})
	return nil
}

// blockID follows from the place and the content of the block. So two writers of
// the same bytes stage the same blocks, and one of other bytes can't slip its
// block under the id of another. All ids of a blob must have one length.
func blockID(number int, block []byte) string {
	sum := sha256.Sum256(block)
	id := binary.BigEndian.AppendUint32(nil, uint32(number)) //nolint:gosec // at most maxBlocks
	return base64.StdEncoding.EncodeToString(append(id, sum[:]...))
}

// validation makes the service refuse what was cut or changed on its way.
func validation(content []byte) blob.TransferValidationType {
	sum := md5.Sum(content) //nolint:gosec // against accidents, as above
	return blob.TransferValidationTypeMD5(sum[:])
}

var errCutShort = errors.New("the blob service has stored another length than was sent")

// verify asks for the stored length, since success was seen reported for less.
// The version that is wrong is removed, by its ETag.
func (u upload) verify(ctx context.Context, etag azcore.ETag, size int64) error {
	props, err := u.blob.GetProperties(ctx, nil)
	if err != nil {
		return fmt.Errorf("verify the upload: %w", tidy(err))
	}
	stored := value(props.ContentLength)
	if stored == size {
		return nil
	}
	if value(props.ETag) == etag {
		if _, err := u.blob.Delete(ctx, &blob.DeleteOptions{AccessConditions: ifUnchanged(etag)}); err != nil {
			return fmt.Errorf("%w (%d for %d), and can't remove it: %w", errCutShort, stored, size, tidy(err))
		}
	}
	return fmt.Errorf("%w (%d for %d)", errCutShort, stored, size)
}

// compare looks whether the blob exists and has that content; other content is
// an error.
func (u upload) compare(ctx context.Context, size int64, sum [32]byte) (found bool, err error) {
	props, err := u.blob.GetProperties(ctx, nil)
	if notFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("compare with what is stored: %w", tidy(err))
	}
	stored, got := value(props.ContentLength), sum
	if stored == size { // else there is no need to read it
		if got, err = hashBlob(ctx, u.blob.BlobClient(), value(props.ETag), size); err != nil {
			return false, fmt.Errorf("compare with what is stored: %w", tidy(err))
		}
	}
	return true, checkStored(stored, size, got, sum)
}

func hashBlob(ctx context.Context, client *blob.Client, etag azcore.ETag, size int64) ([32]byte, error) {
	reader, err := download(ctx, client, etag, blob.HTTPRange{})
	if err != nil {
		return [32]byte{}, err
	}
	defer reader.Close()
	n, sum, err := hashOf(ctx, reader)
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF // a bad line, and no reason for a false alarm
	}
	return sum, err
}

// notFound is true if the service says that the blob is missing. A bare 404 may
// come from anything that answers at a wrong endpoint, and is an error.
func notFound(err error) bool {
	return bloberror.HasCode(err, bloberror.BlobNotFound, bloberror.ContainerNotFound)
}

// List implements Store, a page at a time.
func (a *Azure) List(ctx context.Context, prefix string) iter.Seq2[vote.ObjectInfo, error] {
	return func(yield func(vote.ObjectInfo, error) bool) {
		if err := checkPrefix(prefix); err != nil {
			yield(vote.ObjectInfo{}, fmt.Errorf("list: %w", err))
			return
		}
		base := a.key("")
		full := base + prefix
		pager := a.client.NewListBlobsFlatPager(&container.ListBlobsFlatOptions{Prefix: &full, MaxResults: a.pageSize})
		for pager.More() {
			page, err := pager.NextPage(ctx)
			if bloberror.HasCode(err, bloberror.ContainerNotFound) {
				return
			}
			if err != nil {
				yield(vote.ObjectInfo{}, a.failed("list", prefix+"*", err))
				return
			}
			for _, item := range page.Segment.BlobItems {
				info, ok := objectInfo(item, base)
				if ok && !yield(info, nil) {
					return
				}
			}
		}
	}
}

// objectInfo is false for what is no object: the folders that accounts with a
// hierarchical namespace list along, and hidden names.
func objectInfo(item *container.BlobItem, base string) (vote.ObjectInfo, bool) {
	if item == nil || item.Properties == nil || value(item.Properties.ResourceType) == "directory" {
		return vote.ObjectInfo{}, false
	}
	name := strings.TrimPrefix(value(item.Name), base)
	if strings.HasPrefix(name, ".") || strings.Contains(name, "/.") {
		return vote.ObjectInfo{}, false
	}
	return vote.ObjectInfo{Name: name, Size: value(item.Properties.ContentLength)}, true
}

// Check implements Store: it asks for a blob that is never there. So it finds
// out about the network, the account and the right to read; the right to write
// shows at the first write only, since nothing harmless needs it.
func (a *Azure) Check(ctx context.Context) error {
	ctx = policy.WithRetryOptions(ctx, noRetries())
	_, err := a.client.NewBlobClient(a.key(probe)).GetProperties(ctx, nil)
	if err == nil || notFound(err) {
		return nil
	}
	return fmt.Errorf("archive %s: %w", a, tidy(err))
}

// contentType is for those who look at the container with other tools.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".parquet":
		return "application/vnd.apache.parquet"
	case ".json":
		return "application/json"
	default:
		return "application/octet-stream"
	}
}

// value is *p, or the zero value: the service may leave out what it likes.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
