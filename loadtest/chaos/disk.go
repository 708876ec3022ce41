package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// disk is a small file system of its own, in memory, that can run full.
type disk struct{ dir string }

const (
	diskSize = "size=4g"
	diskRoom = 48 << 10 // what is left of a full one
)

// mountDisk needs a privilege that not everyone has.
func mountDisk(dir string) (*disk, error) {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, diskSize); err != nil {
		return nil, fmt.Errorf("mount: %w", err)
	}
	return &disk{dir}, nil
}

func (d *disk) close() error {
	if err := unix.Unmount(d.dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	return nil
}

// fill makes the file system hardly larger than what is in it.
func (d *disk) fill(ctx context.Context) error {
	return again(ctx, unix.EINVAL, func() error { // it has grown meanwhile
		var st unix.Statfs_t
		if err := unix.Statfs(d.dir, &st); err != nil {
			return fmt.Errorf("statfs: %w", err)
		}
		used := int64(st.Blocks-st.Bfree) * st.Bsize
		return d.remount(0, fmt.Sprintf("size=%d", used+diskRoom))
	})
}

// readOnly waits for a moment in which no file is being written.
func (d *disk) readOnly(ctx context.Context) error {
	return again(ctx, unix.EBUSY, func() error { return d.remount(unix.MS_RDONLY, diskSize) })
}

// again repeats what fails with an error that passes.
func again(ctx context.Context, passes error, do func() error) error {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if err := do(); !errors.Is(err, passes) || !wait(ctx, time.Millisecond) {
			return err
		}
	}
}

// mend makes it large and writable again.
func (d *disk) mend() error { return d.remount(0, diskSize) }

func (d *disk) remount(flags uintptr, data string) error {
	if err := unix.Mount("tmpfs", d.dir, "tmpfs", unix.MS_REMOUNT|flags, data); err != nil {
		return fmt.Errorf("remount: %w", err)
	}
	return nil
}
