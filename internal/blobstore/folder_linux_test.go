package blobstore

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// mountTmpfs gives a small file system of its own, where the kernel allows it.
func mountTmpfs(t *testing.T) (dir string, remount func(flags uintptr)) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("can't mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	return dir, func(flags uintptr) {
		require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|flags, "size=1m"))
	}
}

func TestFolderFullFileSystem(t *testing.T) {
	dir, _ := mountTmpfs(t)
	s := newFolder(filepath.Join(dir, "archive"))
	require.NoError(t, s.Check(t.Context()))
	_, err := create(s, "a/b", content(1, 2*megabyte))
	require.ErrorIs(t, err, syscall.ENOSPC)
	assertAbsent(t, s, "a/b")
	assert.Empty(t, temps(t, s.dir))

	filler, err := os.Create(filepath.Join(dir, "filler"))
	require.NoError(t, err)
	_, err = filler.Write(content(1, 2*megabyte))
	require.ErrorIs(t, err, syscall.ENOSPC)
	require.NoError(t, filler.Close())
	err = s.Check(t.Context())
	require.ErrorIs(t, err, syscall.ENOSPC)
	assert.Contains(t, err.Error(), dir)

	require.NoError(t, os.Remove(filler.Name()))
	require.NoError(t, s.Check(t.Context()))
	mustCreate(t, s, "a/b", content(1, 1000))
}

func TestFolderReadOnly(t *testing.T) {
	dir, remount := mountTmpfs(t)
	s := newFolder(dir)
	mustCreate(t, s, "a/b", content(1, 1000))
	remount(syscall.MS_RDONLY)
	_, err := create(s, "a/c", content(1, 1000))
	require.ErrorIs(t, err, syscall.EROFS)
	assert.Contains(t, err.Error(), filepath.Join(dir, "a", "c"))
	require.ErrorIs(t, s.Check(t.Context()), syscall.EROFS)
	same(t, content(1, 1000), read(t, s, "a/b"))

	remount(0)
	require.NoError(t, s.Check(t.Context()))
	mustCreate(t, s, "a/c", content(1, 1000))
}
