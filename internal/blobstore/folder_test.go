package blobstore

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/vote"
)

func TestFolder(t *testing.T) {
	testStore(t, func(t *testing.T) place {
		dir := filepath.Join(t.TempDir(), "data", "archive")
		return place{
			open: func() Store { return newFolder(dir) },
			drop: func() { require.NoError(t, os.RemoveAll(filepath.Dir(dir))) },
		}
	})
}

func TestFolderRelative(t *testing.T) {
	t.Chdir(t.TempDir())
	s, err := Open(t.Context(), "file:./data/archive", AzureCredentials{})
	require.NoError(t, err)
	require.NoError(t, s.Check(t.Context()))
	assert.NoFileExists(t, "data")
	mustCreate(t, s, "a/b", []byte("x"))
	assert.FileExists(t, "data/archive/a/b")
	assert.Equal(t, "file:data/archive", s.String())
}

// temps are the hidden files of the folder.
func temps(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, tempDir, "*"))
	require.NoError(t, err)
	return names
}

func TestFolderLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s := newFolder(dir)
	data := content(1, 1000)
	mustCreate(t, s, "a/b", data)
	_, err := create(s, "a/b", data)
	require.NoError(t, err)
	_, err = create(s, "a/b", nil)
	require.Error(t, err)
	_, err = s.Create(t.Context(), "a/c", bytes.NewReader(data), 1, sha256.Sum256(data))
	require.Error(t, err)
	assert.Empty(t, temps(t, dir))

	info, err := os.Stat(filepath.Join(dir, "a", "b"))
	require.NoError(t, err)
	assert.Zero(t, info.Mode().Perm()&^fileMode)
	info, err = os.Stat(filepath.Join(dir, "a"))
	require.NoError(t, err)
	assert.Zero(t, info.Mode().Perm()&^folderMode)
}

// limitedWriter takes so many bytes and then answers as a full disk does.
type limitedWriter struct {
	w    io.Writer
	left int
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if len(p) > l.left {
		n, _ := l.w.Write(p[:l.left])
		l.left = 0
		return n, &fs.PathError{Op: "write", Path: "temp", Err: syscall.ENOSPC}
	}
	l.left -= len(p)
	return l.w.Write(p)
}

func TestFolderFullDisk(t *testing.T) {
	dir := t.TempDir()
	s := newFolder(dir)
	s.wrap = func(w io.Writer) io.Writer { return &limitedWriter{w, 3 * copyBuffer / 2} }
	_, err := create(s, "a/b", content(1, megabyte))
	require.ErrorIs(t, err, syscall.ENOSPC)
	assert.Contains(t, err.Error(), filepath.Join(dir, "a", "b"))
	assertAbsent(t, s, "a/b")
	assert.Empty(t, temps(t, dir))

	mustCreate(t, s, "a/b", content(1, copyBuffer))
}

func TestFolderBelowFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, dir := range []string{file, filepath.Join(file, "archive"), filepath.Join(file, "data", "archive")} {
		s := newFolder(dir)
		_, err := create(s, "a", nil)
		require.ErrorContains(t, err, "not a directory")
		assert.Contains(t, err.Error(), dir)
		_, err = s.Open(t.Context(), "a")
		require.ErrorContains(t, err, "not a directory")
		require.NotErrorIs(t, err, vote.ErrObjectNotFound)
		err = s.Check(t.Context())
		require.ErrorIs(t, err, syscall.ENOTDIR)
		assert.Contains(t, err.Error(), dir)
		for _, err := range s.List(t.Context(), "") {
			require.ErrorContains(t, err, "not a directory")
		}
	}
}

func TestFolderForeignThingsInTheWay(t *testing.T) {
	dir := t.TempDir()
	s := newFolder(dir)
	mustCreate(t, s, "file", nil)
	_, err := create(s, "file/object", nil)
	require.ErrorIs(t, err, syscall.ENOTDIR)
	assert.Contains(t, err.Error(), filepath.Join(dir, "file", "object"))
	_, err = s.Open(t.Context(), "file/object")
	require.ErrorIs(t, err, vote.ErrObjectNotFound)
	assert.Empty(t, list(t, s, "file/"))

	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o700))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	for _, name := range []string{"folder", "pipe"} {
		_, err = create(s, name, nil)
		require.ErrorContains(t, err, "an object can only be a regular file")
		require.NotErrorIs(t, err, vote.ErrObjectConflict)
		_, err = s.Open(t.Context(), name)
		require.ErrorContains(t, err, "an object can only be a regular file")
	}
	assert.Empty(t, temps(t, dir))
}

func TestFolderSymlinks(t *testing.T) {
	outside := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "secret"), []byte("x"), 0o600))
	dir := t.TempDir()
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "out")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "secret")))
	s := newFolder(dir)
	for _, name := range []string{"out/new", "out/secret", "secret"} {
		_, err := create(s, name, []byte("x"))
		require.Error(t, err, name)
		_, err = s.Open(t.Context(), name)
		require.Error(t, err, name)
	}
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	// A listing must not leave out what a link hides.
	var last error
	for _, err := range s.List(t.Context(), "") {
		last = err
	}
	require.ErrorContains(t, last, "symbolic link")

	// The folder itself may be one.
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(t.TempDir(), link))
	mustCreate(t, newFolder(link), "a/b", []byte("x"))
}

func TestFolderSweepsLeftovers(t *testing.T) {
	dir := t.TempDir()
	hidden := filepath.Join(dir, tempDir)
	require.NoError(t, os.MkdirAll(hidden, 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, lostAndFound), 0o000))
	old, young := filepath.Join(hidden, "old"), filepath.Join(hidden, "young")
	for _, name := range []string{old, young} {
		require.NoError(t, os.WriteFile(name, []byte("half"), 0o600))
	}
	past := time.Now().Add(-tempAge - time.Minute)
	require.NoError(t, os.Chtimes(old, past, past))

	s := newFolder(dir)
	assert.Empty(t, list(t, s, ""))
	assert.Len(t, temps(t, dir), 2) // reading changes nothing
	mustCreate(t, s, "a", nil)
	assert.Equal(t, []string{young}, temps(t, dir))
	assert.Equal(t, []string{"a"}, list(t, s, ""))
}

// A second process is killed while it writes.
func TestFolderSurvivesKill(t *testing.T) {
	const variable = "BLOBSTORE_TEST_WRITE_HALF_TO"
	data := content(1, megabyte)
	if dir := os.Getenv(variable); dir != "" {
		body := &brokenBody{bytes.NewReader(data), megabyte / 2, func() error {
			fmt.Println("half")
			select {}
		}}
		_, err := newFolder(dir).Create(t.Context(), "a/b", body, megabyte, sha256.Sum256(data))
		t.Fatal("not killed", err)
	}
	dir := t.TempDir()
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	child.Env = append(os.Environ(), variable+"="+dir)
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	_, err = io.ReadFull(stdout, make([]byte, len("half")))
	require.NoError(t, err)
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())

	assert.Len(t, temps(t, dir), 1)
	s := newFolder(dir)
	assertAbsent(t, s, "a/b")
	mustCreate(t, s, "a/b", data)
	same(t, data, read(t, s, "a/b"))
}

// Creators make and meet the same folders, while the whole archive goes away
// and comes back: a Create that says so has made its object, and others fail.
func TestFolderConcurrentFolders(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 8 {
		s := newFolder(dir)
		wg.Go(func() {
			for j := range 20 {
				created, err := create(s, fmt.Sprintf("a/%d/b/%d", j, i), []byte{byte(i)})
				assert.NoError(t, err)
				assert.True(t, created)
			}
		})
	}
	wg.Wait()
	assert.Len(t, list(t, newFolder(dir), "a/"), 160)
}
