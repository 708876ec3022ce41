package blobstore

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"

	"paredao/internal/vote"
)

// copyBuffer is the unit of local copies, after which the context is looked at.
const copyBuffer = 256 << 10

// contextReader ends a copy when the context does.
type contextReader struct {
	ctx context.Context //nolint:containedctx // lives as long as the one copy
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// copyBody copies body from its start and checks that it is what the caller
// said it is. On an error dst holds something that must be thrown away.
func copyBody(ctx context.Context, dst io.Writer, body io.ReadSeeker, size int64, sum [32]byte) error {
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("rewind the body: %w", err)
	}
	hash := sha256.New()
	// One byte more, to notice a body that is too long.
	src := io.LimitReader(contextReader{ctx, body}, size+1)
	n, err := io.CopyBuffer(io.MultiWriter(dst, hash), src, make([]byte, copyBuffer))
	if err != nil {
		return err
	}
	return checkBody(n, size, [32]byte(hash.Sum(nil)), sum)
}

func checkBody(n, size int64, got, sum [32]byte) error {
	switch {
	case n > size:
		return fmt.Errorf("the body is longer than the %d bytes announced", size)
	case n < size:
		return fmt.Errorf("the body has %d bytes, not the %d announced", n, size)
	case got != sum:
		return fmt.Errorf("the body's SHA-256 is %x, not the %x announced", got, sum)
	}
	return nil
}

// checkStored compares a stored object with what was to be stored: the sizes,
// then the sums.
func checkStored(n, size int64, got, sum [32]byte) error {
	switch {
	case n != size:
		return fmt.Errorf("%w: it has %d bytes, not %d", vote.ErrObjectConflict, n, size)
	case got != sum:
		return fmt.Errorf("%w: its SHA-256 is %x, not %x", vote.ErrObjectConflict, got, sum)
	}
	return nil
}

// hashOf reads r to its end.
func hashOf(ctx context.Context, r io.Reader) (n int64, sum [32]byte, err error) {
	hash := sha256.New()
	n, err = io.CopyBuffer(hash, contextReader{ctx, r}, make([]byte, copyBuffer))
	return n, [32]byte(hash.Sum(nil)), err
}
