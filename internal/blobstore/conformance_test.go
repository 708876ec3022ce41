package blobstore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/vote"
)

// place is an empty archive of one test.
type place struct {
	// open makes a store there, as another process would.
	open func() Store
	// drop deletes the container or folder with all that is in it.
	drop func()
}

// testStore is what every Store must do.
func testStore(t *testing.T, newPlace func(t *testing.T) place) {
	t.Helper()
	tests := map[string]func(t *testing.T, p place){
		"create, again, conflict":            testCreate,
		"sizes":                              testSizes,
		"a wrong body is never visible":      testWrongBody,
		"a failing body":                     testFailingBody,
		"a cancelled context":                testCancelled,
		"concurrent creators, same content":  testSameContent,
		"concurrent creators, other content": testOtherContent,
		"complete or not there":              testCompleteOrAbsent,
		"deleted between writes":             testDeleted,
		"reading creates nothing":            testReadingCreatesNothing,
		"list":                               testList,
		"read at":                            testReadAt,
		"read when closed":                   testReadClosed,
		"names refused":                      testNamesRefused,
		"check":                              testCheck,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, newPlace(t)) })
	}
}

const megabyte = 1 << 20

// content is random, the same for the same seed.
func content(seed byte, size int) []byte {
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(data)
	return data
}

func create(s Store, name string, data []byte) (bool, error) {
	return s.Create(context.Background(), name, bytes.NewReader(data), int64(len(data)), sha256.Sum256(data))
}

func mustCreate(t *testing.T, s Store, name string, data []byte) {
	t.Helper()
	created, err := create(s, name, data)
	require.NoError(t, err)
	require.True(t, created, "%s was there already", name)
}

func mustOpen(t *testing.T, s Store, name string) vote.Object {
	t.Helper()
	object, err := s.Open(t.Context(), name)
	require.NoError(t, err)
	t.Cleanup(func() { _ = object.Close() })
	return object
}

func read(t *testing.T, s Store, name string) []byte {
	t.Helper()
	object := mustOpen(t, s, name)
	data, err := io.ReadAll(io.NewSectionReader(object, 0, object.Size()))
	require.NoError(t, err)
	require.NoError(t, object.Close())
	return data
}

// same is assert.Equal for large contents, whose difference nobody wants to see.
func same(t *testing.T, want, got []byte) {
	t.Helper()
	assert.True(t, bytes.Equal(want, got), "%d bytes, not the %d that were stored", len(got), len(want))
}

func list(t *testing.T, s Store, prefix string) []string {
	t.Helper()
	names := []string{}
	for info, err := range s.List(t.Context(), prefix) {
		require.NoError(t, err)
		names = append(names, info.Name)
	}
	return names
}

func assertAbsent(t *testing.T, s Store, name string) {
	t.Helper()
	_, err := s.Open(t.Context(), name)
	require.ErrorIs(t, err, vote.ErrObjectNotFound)
	assert.Contains(t, err.Error(), name)
	assert.Empty(t, list(t, s, ""))
}

func testCreate(t *testing.T, p place) {
	s := p.open()
	const name = "votes/poll=a/date=2026-01-20/hour=22/0-1.parquet"
	data := content(1, 1000)
	mustCreate(t, s, name, data)
	same(t, data, read(t, s, name))

	for _, s := range []Store{s, p.open()} {
		created, err := create(s, name, data)
		require.NoError(t, err)
		assert.False(t, created)
	}
	for _, other := range [][]byte{content(2, 1000), content(1, 999), content(1, 1001), {}, content(1, 5*megabyte)} {
		created, err := create(p.open(), name, other)
		require.ErrorIs(t, err, vote.ErrObjectConflict)
		assert.Contains(t, err.Error(), name)
		assert.False(t, created)
	}
	same(t, data, read(t, s, name))
	assert.Equal(t, []string{name}, list(t, s, ""))
}

func testSizes(t *testing.T, p place) {
	s := p.open()
	for i, size := range []int{0, 1, uploadBlock - 1, uploadBlock, uploadBlock + 1, 20*megabyte + 7} {
		name, data := fmt.Sprintf("sizes/%d", size), content(byte(i), size)
		mustCreate(t, s, name, data)
		same(t, data, read(t, p.open(), name))

		created, err := create(p.open(), name, data)
		require.NoError(t, err)
		assert.False(t, created)
		if size > 0 {
			data[size-1] ^= 1
			_, err = create(p.open(), name, data)
			require.ErrorIs(t, err, vote.ErrObjectConflict)
		}
	}
}

func testWrongBody(t *testing.T, p place) {
	s := p.open()
	for _, size := range []int{1000, 9 * megabyte} {
		data := content(1, size)
		sum := sha256.Sum256(data)
		attempt := func(body []byte, announced int64, sum [32]byte) {
			t.Helper()
			created, err := s.Create(t.Context(), "a/b", bytes.NewReader(body), announced, sum)
			require.Error(t, err)
			require.NotErrorIs(t, err, vote.ErrObjectConflict)
			assert.Contains(t, err.Error(), "a/b")
			assert.Contains(t, err.Error(), "body")
			assert.False(t, created)
			assertAbsent(t, s, "a/b")
		}
		attempt(data, int64(size)+1, sum)
		attempt(data, int64(size)-1, sum)
		attempt(data[:size-1], int64(size), sum)
		attempt(data, int64(size), sha256.Sum256(nil))
		attempt(content(2, size), int64(size), sum)
	}
	_, err := s.Create(t.Context(), "a/b", bytes.NewReader(nil), -1, sha256.Sum256(nil))
	require.Error(t, err)
	assertAbsent(t, s, "a/b")

	// A body that was read before is read from its start.
	data := content(1, 1000)
	body := bytes.NewReader(data)
	_, err = body.Seek(500, io.SeekStart)
	require.NoError(t, err)
	created, err := s.Create(t.Context(), "a/b", body, 1000, sha256.Sum256(data))
	require.NoError(t, err)
	assert.True(t, created)
	same(t, data, read(t, s, "a/b"))
}

// brokenBody fails after some of it.
type brokenBody struct {
	*bytes.Reader
	after int64
	fail  func() error
}

func (b *brokenBody) Read(p []byte) (int, error) {
	if b.Size()-int64(b.Len()) >= b.after {
		if err := b.fail(); err != nil {
			return 0, err
		}
	}
	return b.Reader.Read(p)
}

func testFailingBody(t *testing.T, p place) {
	s := p.open()
	broken := errors.New("broken disk")
	data := content(1, 9*megabyte)
	for _, after := range []int64{0, 1, 5 * megabyte} {
		body := &brokenBody{bytes.NewReader(data), after, func() error { return broken }}
		_, err := s.Create(t.Context(), "a", body, int64(len(data)), sha256.Sum256(data))
		require.ErrorIs(t, err, broken)
		assertAbsent(t, s, "a")
	}
	mustCreate(t, s, "a", data)
	same(t, data, read(t, s, "a"))
}

func testCancelled(t *testing.T, p place) {
	s := p.open()
	data := content(1, 9*megabyte)
	ctx, cancel := context.WithCancelCause(t.Context())
	body := &brokenBody{bytes.NewReader(data), 5 * megabyte, func() error { cancel(errors.New("some reason")); return nil }}
	_, err := s.Create(ctx, "a", body, int64(len(data)), sha256.Sum256(data))
	require.ErrorIs(t, err, context.Canceled)
	assertAbsent(t, s, "a")

	_, err = s.Create(ctx, "a", bytes.NewReader(nil), 0, sha256.Sum256(nil))
	require.ErrorIs(t, err, context.Canceled)
	mustCreate(t, s, "a", data)
	_, err = s.Open(ctx, "a")
	require.ErrorIs(t, err, context.Canceled)
	for _, err := range s.List(ctx, "") {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.ErrorIs(t, s.Check(ctx), context.Canceled)
}

// race lets n stores create the same name at once.
func race(p place, n int, data func(i int) []byte) (created []bool, errs []error) {
	created, errs = make([]bool, n), make([]error, n)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		s, data := p.open(), data(i)
		wg.Go(func() {
			<-start
			created[i], errs[i] = create(s, "race/object", data)
		})
	}
	close(start)
	wg.Wait()
	return created, errs
}

func testSameContent(t *testing.T, p place) {
	for _, size := range []int{1000, 9*megabyte + 1} {
		data := content(1, size)
		created, errs := race(p, 4, func(int) []byte { return data })
		winners := 0
		for i := range created {
			require.NoError(t, errs[i])
			if created[i] {
				winners++
			}
		}
		assert.Equal(t, 1, winners)
		same(t, data, read(t, p.open(), "race/object"))
		p.drop()
	}
}

func testOtherContent(t *testing.T, p place) {
	for _, size := range []int{1000, 9*megabyte + 1} {
		// All begin with the same blocks, and differ at the end.
		data := func(i int) []byte { return append(content(1, size-1), byte(i)) }
		created, errs := race(p, 4, data)
		winners := 0
		for i := range created {
			if !created[i] {
				require.ErrorIs(t, errs[i], vote.ErrObjectConflict)
				continue
			}
			require.NoError(t, errs[i])
			winners++
			same(t, data(i), read(t, p.open(), "race/object"))
		}
		assert.Equal(t, 1, winners)
		p.drop()
	}
}

func testCompleteOrAbsent(t *testing.T, p place) {
	data := content(1, 9*megabyte)
	reader := p.open()
	looks := 0
	// Look from time to time while it is being written.
	body := &brokenBody{bytes.NewReader(data), 1, func() error {
		if looks++; looks%4 == 0 {
			assertAbsent(t, reader, "a")
		}
		return nil
	}}
	created, err := p.open().Create(t.Context(), "a", body, int64(len(data)), sha256.Sum256(data))
	require.NoError(t, err)
	assert.True(t, created)
	assert.Greater(t, looks, 4)
	same(t, data, read(t, reader, "a"))
}

func testDeleted(t *testing.T, p place) {
	s := p.open()
	small, large := content(1, 1000), content(2, 9*megabyte)
	mustCreate(t, s, "a/small", small)
	for range 2 {
		p.drop()
		mustCreate(t, s, "a/small", small)
		p.drop()
		mustCreate(t, s, "a/large", large)
	}
	same(t, large, read(t, s, "a/large"))
}

func testReadingCreatesNothing(t *testing.T, p place) {
	s := p.open()
	p.drop()
	for range 2 { // the second time shows whether the first has made something
		assertAbsent(t, s, "a/b")
		assert.Empty(t, list(t, s, "a/"))
		require.NoError(t, s.Check(t.Context()))
	}
}

func testList(t *testing.T, p place) {
	s := p.open()
	assert.Empty(t, list(t, s, ""))
	// In bytewise order of whole names: - . / 0 are neighbours.
	names := []string{
		"a-b", "a.b", "a/b-c/x", "a/b.c", "a/b/c", "a/b/d", "a/b0", "a0",
		"manifest/0/1.json", "manifest/0/10.json", "manifest/0/2.json", "manifest/1/1.json",
		"votes/poll=a/date=2026-01-20/hour=22/x.parquet", "votes/poll=é/x", "votes/with space+%25?#&:/x",
	}
	for _, i := range rand.Perm(len(names)) {
		mustCreate(t, s, names[i], content(1, i))
	}
	for prefix, want := range map[string][]string{
		"":              names,
		"a":             names[:8],
		"a/":            names[2:7],
		"a/b":           names[2:7],
		"a/b/":          names[4:6],
		"a/b/c":         names[4:5],
		"a/b/c/":        {},
		"a.b/c":         {},
		"manifest/0/1":  names[8:10],
		"manifest/0/":   names[8:11],
		"manifest/1":    names[11:12],
		"none/at/all":   {},
		"votes/poll=é":  names[13:14],
		"votes/with sp": names[14:],
	} {
		assert.Equal(t, want, list(t, p.open(), prefix), "prefix %q", prefix)
	}
	i := 0
	for info, err := range s.List(t.Context(), "") {
		require.NoError(t, err)
		assert.Equal(t, vote.ObjectInfo{Name: names[i], Size: int64(i)}, info)
		if i++; i == 5 {
			break // the iterator must stand that
		}
	}
	for _, prefix := range []string{"/", "/a", "a//", "../", "a/../", ".tmp", "a\\"} {
		for _, err := range s.List(t.Context(), prefix) {
			require.Error(t, err, "prefix %q", prefix)
		}
	}
	for _, name := range names {
		_ = read(t, s, name)
	}
}

func testReadAt(t *testing.T, p place) {
	s := p.open()
	const size = 20*megabyte + 5
	data := content(1, size)
	mustCreate(t, s, "a", data)
	object := mustOpen(t, s, "a")
	assert.Equal(t, int64(size), object.Size())

	at := func(off int64, length int) {
		t.Helper()
		got := make([]byte, length)
		n, err := object.ReadAt(got, off)
		want := data[min(off, size):min(off+int64(length), size)]
		assert.Equal(t, len(want), n, "at %d", off)
		same(t, want, got[:n])
		if n < length {
			assert.Equal(t, io.EOF, err, "at %d", off)
		} else if off+int64(length) < size {
			require.NoError(t, err, "at %d", off)
		}
	}
	for _, off := range []int64{0, 1, readBlock - 1, readBlock, readBlock + 1, 5 * readBlock, size - 9, size - 1, size, size + 1, size + 5*readBlock} {
		for _, length := range []int{0, 1, 8, 4096, readBlock, 3*readBlock + 1} {
			at(off, length)
		}
	}
	at(0, size)
	at(0, size+1)
	_, err := object.ReadAt(make([]byte, 1), -1)
	require.Error(t, err)

	// Many readers of one object, as of the columns of a Parquet file.
	var wg sync.WaitGroup
	for column := range int64(12) {
		wg.Go(func() {
			section := io.NewSectionReader(object, column*megabyte, 3*megabyte/2)
			got, err := io.ReadAll(section)
			assert.NoError(t, err)
			same(t, data[column*megabyte:][:3*megabyte/2], got)
		})
	}
	wg.Wait()
}

func testReadClosed(t *testing.T, p place) {
	s := p.open()
	mustCreate(t, s, "a", content(1, 100))
	object := mustOpen(t, s, "a")
	require.NoError(t, object.Close())
	_, err := object.ReadAt(make([]byte, 1), 0)
	require.Error(t, err)
	assert.NotEqual(t, io.EOF, err)
}

func testNamesRefused(t *testing.T, p place) {
	s := p.open()
	for _, name := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/..", "a/../b", "a/./b", ".tmp/a", ".hidden", "a/.hidden",
		"a.", "a./b", "a\x00b", "a\nb", "a\\b", "a\xffb", "a\u2028b", strings.Repeat("a", 256), strings.Repeat("a/", 400) + "a",
	} {
		_, err := create(s, name, nil)
		require.Error(t, err, "name %q", name)
		_, err = s.Open(t.Context(), name)
		require.Error(t, err, "name %q", name)
		require.NotErrorIs(t, err, vote.ErrObjectNotFound, "name %q", name)
	}
	assert.Empty(t, list(t, s, ""))
	longest := strings.Repeat("a", 255) + "/" + strings.Repeat("b", 255) + "/" + strings.Repeat("c", 188)
	mustCreate(t, s, longest, nil)
	assert.Equal(t, []string{longest}, list(t, s, longest))
}

func testCheck(t *testing.T, p place) {
	s := p.open()
	require.NoError(t, s.Check(t.Context()))
	mustCreate(t, s, "a", nil)
	require.NoError(t, s.Check(t.Context()))
}
