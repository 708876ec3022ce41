//go:build linux || darwin

package blobstore

import (
	"io/fs"
	"syscall"
)

// usable asks the kernel, without writing, whether files can be made in dir.
func usable(dir string) error {
	const readWriteSearch = 4 | 2 | 1
	if err := syscall.Access(dir, readWriteSearch); err != nil {
		return &fs.PathError{Op: "access", Path: dir, Err: err}
	}
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	// A file system without a table of inodes says that it has 0 in all.
	if stat.Bavail == 0 || (stat.Files > 0 && stat.Ffree == 0) {
		return &fs.PathError{Op: "write", Path: dir, Err: syscall.ENOSPC}
	}
	return nil
}
