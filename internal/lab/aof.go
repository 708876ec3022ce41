package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// AOF watches how the append-only file of a Redis grows, so that what was
// written last can be taken away again, as a power cut takes what had not
// reached the disk.
type AOF struct {
	dir  string
	done chan struct{}
	over chan struct{}

	mu      sync.Mutex
	samples []aofSample // of the last seconds, oldest first
}

// aofSample is the newest incremental file and its size at a time.
type aofSample struct {
	at   time.Time
	file string
	size int64
}

const (
	aofFolder   = "appendonlydir" // Redis's default
	aofSampled  = 20 * time.Millisecond
	aofRemember = 10 * time.Second
)

// WatchAOF begins to watch the Redis whose files are in dir. Close ends it.
func WatchAOF(dir string) *AOF {
	a := &AOF{dir: filepath.Join(dir, aofFolder), done: make(chan struct{}), over: make(chan struct{})}
	go a.watch()
	return a
}

// Close ends the watch.
func (a *AOF) Close() {
	close(a.done)
	<-a.over
}

func (a *AOF) watch() {
	defer close(a.over)
	tick := time.NewTicker(aofSampled)
	defer tick.Stop()
	for {
		select {
		case <-a.done:
			return
		case <-tick.C:
			a.look(time.Now())
		}
	}
}

// look takes a sample, all of it between two changes of the files.
func (a *AOF) look(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	file, size, err := newestIncrement(a.dir)
	if err != nil {
		return // between two files, or before the first
	}
	a.samples = append(a.samples, aofSample{now, file, size})
	for len(a.samples) > 1 && now.Sub(a.samples[1].at) > aofRemember {
		a.samples = a.samples[1:] // one older one stays
	}
}

// newestIncrement finds the incremental file that Redis writes to.
func newestIncrement(dir string) (file string, size int64, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.incr.aof"))
	if err != nil {
		return "", 0, err
	}
	newest := -1
	for _, name := range names { // appendonly.aof.<sequence>.incr.aof
		part := strings.Split(filepath.Base(name), ".")
		if n, err := strconv.Atoi(part[len(part)-3]); err == nil && n > newest {
			newest, file = n, name
		}
	}
	if file == "" {
		return "", 0, fmt.Errorf("%s: %w", dir, fs.ErrNotExist)
	}
	info, err := os.Stat(file)
	if err != nil {
		return "", 0, err
	}
	return file, info.Size(), nil
}

// Grown is the last moment by which the file has all that had been answered:
// when it was first seen as long as it is now. (While the disk is busy Redis
// answers writes that it has yet to write.)
func (a *AOF) Grown() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.samples) == 0 {
		return time.Now().Add(-aofRemember)
	}
	return a.since(len(a.samples) - 1)
}

// since is when the file was first seen as long as in a sample. The lock is the
// caller's.
func (a *AOF) since(i int) time.Time {
	for i > 0 && a.samples[i-1].file == a.samples[i].file && a.samples[i-1].size == a.samples[i].size {
		i--
	}
	return a.samples[i].at
}

// CutBack takes away what was written after a time, as near as the samples
// tell, of a Redis that does not run. It returns from when on writes are gone:
// when the file was first seen as long as it is afterwards; and how many bytes.
// Without a sample of that time it cuts nothing.
func (a *AOF) CutBack(after time.Time) (from time.Time, gone int64, err error) {
	file, size, err := newestIncrement(a.dir)
	if err != nil {
		return time.Time{}, 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.samples) == 0 || a.samples[0].at.After(after) {
		return time.Time{}, 0, fmt.Errorf("nobody looked at %s until %s", a.dir, after.Format(time.StampMilli))
	}
	// A file that is younger than that was empty then.
	from = after
	var keep int64
	for i, s := range a.samples {
		if s.file == file && !s.at.After(after) {
			from, keep = a.since(i), s.size
		}
	}
	a.samples = nil
	if keep > size {
		return time.Time{}, 0, fmt.Errorf("%s has shrunk from %d to %d bytes", filepath.Base(file), keep, size)
	}
	return from, size - keep, os.Truncate(file, keep)
}

// CopyAOF copies the append-only files of the Redis in dir to a folder. No
// rewrite may be under way meanwhile.
func CopyAOF(dir, to string) error {
	return os.CopyFS(to, os.DirFS(filepath.Join(dir, aofFolder)))
}

// Restore puts a copy back, of a Redis that does not run. What the files were
// like before says nothing about them any more.
func (a *AOF) Restore(from string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.samples = nil
	return errors.Join(os.RemoveAll(a.dir), os.CopyFS(a.dir, os.DirFS(from)))
}
