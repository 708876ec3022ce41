package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// leftovers are what a run has on the machine while it lasts. clear may be
// called at any time, also while the run is at work: after a second Ctrl-C.
type leftovers struct {
	mu     sync.Mutex
	dir    string // the run's own folder
	owner  *os.File
	mounts []string
	kept   bool
}

const (
	runFolders = "paredao-chaos-*"
	// ownerFile stands in a run's folder, locked for as long as the run lives:
	// the kernel unlocks it however that ends, and process ids may be another
	// container's.
	ownerFile = "owner"
)

// folder makes the run's own folder.
func (l *leftovers) folder() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	dir, err := os.MkdirTemp("", runFolders)
	if err != nil {
		return "", err
	}
	l.dir = dir
	// It gets its name when it is locked.
	file := filepath.Join(dir, ownerFile)
	if l.owner, err = os.Create(file + ".new"); err != nil {
		return "", err
	}
	if err := unix.Flock(int(l.owner.Fd()), unix.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", file, err)
	}
	return dir, os.Rename(file+".new", file)
}

// mount makes a folder a small file system of its own.
func (l *leftovers) mount(dir string) (*disk, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d, err := mountDisk(dir)
	if err == nil {
		l.mounts = append(l.mounts, dir)
	}
	return d, err
}

// keep leaves the folder to the user: nothing removes it later.
func (l *leftovers) keep() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept = true
	return os.Remove(filepath.Join(l.dir, ownerFile))
}

// clear removes all of it.
func (l *leftovers) clear() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range l.mounts {
		_ = unix.Unmount(at, unix.MNT_DETACH) // it is no mount any more if the run has ended
	}
	l.mounts = nil
	if l.dir == "" || l.kept {
		return nil
	}
	err := os.RemoveAll(l.dir)
	if l.owner != nil {
		err = errors.Join(err, l.owner.Close())
		l.owner = nil
	}
	return err
}

// clearDead removes what runs have left that were killed, and returns the
// folders, and what could not be removed.
func clearDead() (cleared []string, err error) {
	files, err := filepath.Glob(filepath.Join(os.TempDir(), runFolders, ownerFile))
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, file := range files {
		owner, err := os.Open(file)
		if err != nil {
			continue // it ended just now, or is another user's
		}
		if unix.Flock(int(owner.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			_ = owner.Close() // it lives
			continue
		}
		dead := &leftovers{dir: filepath.Dir(file), owner: owner}
		if mounts, err := mountsUnder(dead.dir); err == nil {
			dead.mounts = mounts
		}
		if err := dead.clear(); err != nil {
			errs = append(errs, fmt.Errorf("%s is left of an earlier run: %w", dead.dir, err))
			continue
		}
		cleared = append(cleared, dead.dir)
	}
	return cleared, errors.Join(errs...)
}

// mountsUnder are the mounts in a folder.
func mountsUnder(dir string) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			all = append(all, f[1])
		}
	}
	return all, nil
}
