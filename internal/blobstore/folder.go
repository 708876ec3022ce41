package blobstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"paredao/internal/vote"
)

const (
	folderMode = 0o750
	fileMode   = 0o640

	// tempDir holds files that are being written. It lies in the archive's own
	// tree, so that a link from it never crosses file systems.
	tempDir = ".tmp"
	// tempAge is when a file in tempDir is taken for the leftover of a crash. A
	// writer that is slower than that loses its file, fails, and is repeated.
	tempAge = time.Hour
	// lostAndFound belongs to the file system where DIR is the top of one.
	lostAndFound = "lost+found"
)

// Folder is a Store in a local folder. It holds nothing open between calls, so
// the folder may be deleted and come back at any time.
type Folder struct {
	dir   string
	sweep sync.Once

	// wrap stands before the file that is written; tests break it.
	wrap func(io.Writer) io.Writer
}

func newFolder(dir string) *Folder {
	return &Folder{dir: dir, wrap: func(w io.Writer) io.Writer { return w }}
}

// String implements Store.
func (f *Folder) String() string { return "file:" + f.dir }

func (f *Folder) path(name string) string {
	return filepath.Join(f.dir, filepath.FromSlash(name))
}

// Create implements Store: the content is written and fsynced under a hidden
// name, then linked to its own. A link fails where a rename would overwrite.
func (f *Folder) Create(ctx context.Context, name string, body io.ReadSeeker, size int64, sum [32]byte) (bool, error) {
	if err := checkName(name); err != nil {
		return false, fmt.Errorf("create: %w", err)
	}
	created, err := f.create(ctx, name, body, size, sum)
	if err != nil {
		return false, fmt.Errorf("create %s: %w", f.path(name), err)
	}
	return created, nil
}

func (f *Folder) create(ctx context.Context, name string, body io.ReadSeeker, size int64, sum [32]byte) (bool, error) {
	root, err := f.openOrMake()
	if err != nil {
		return false, err
	}
	defer root.Close() //nolint:errcheck // a directory that was only read

	if err := compareFile(ctx, root, name, size, sum); !notThere(err) {
		return false, err
	}
	temp, err := f.writeTemp(ctx, root, body, size, sum)
	if err != nil {
		return false, err
	}
	defer root.Remove(temp) //nolint:errcheck // what stays is swept later
	if err := root.MkdirAll(path.Dir(name), folderMode); err != nil {
		if errors.Is(err, fs.ErrExist) {
			err = fmt.Errorf("%w: %w", err, syscall.ENOTDIR)
		}
		return false, err
	}
	if err := root.Link(temp, name); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return false, compareFile(ctx, root, name, size, sum)
		}
		return false, err
	}
	return true, syncParents(root, name)
}

// openOrMake opens the folder for writing and makes it if it is missing.
func (f *Folder) openOrMake() (*os.Root, error) {
	root, err := os.OpenRoot(f.dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return root, err
	}
	if err := makeFolder(f.dir); err != nil {
		return nil, err
	}
	return os.OpenRoot(f.dir)
}

// makeFolder is os.MkdirAll that makes the new folders durable.
func makeFolder(dir string) error {
	err := os.Mkdir(dir, folderMode)
	parent := filepath.Dir(dir)
	if errors.Is(err, fs.ErrNotExist) && parent != dir {
		if err := makeFolder(parent); err != nil {
			return err
		}
		err = os.Mkdir(dir, folderMode)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	handle, err := os.Open(parent)
	if err != nil {
		return err
	}
	return syncAndClose(handle)
}

// writeTemp writes the body to a hidden file, makes it durable, and returns its
// name. After an error there is no such file.
func (f *Folder) writeTemp(ctx context.Context, root *os.Root, body io.ReadSeeker, size int64, sum [32]byte) (string, error) {
	if err := root.Mkdir(tempDir, folderMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	f.sweep.Do(func() { sweepTemp(root) })

	name := path.Join(tempDir, rand.Text())
	file, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return "", err
	}
	err = copyBody(ctx, f.wrap(file), body, size, sum)
	if err == nil {
		err = file.Sync()
	}
	// A full disk may show as late as here.
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		_ = root.Remove(name)
		return "", err
	}
	return name, nil
}

// sweepTemp removes what crashed writers left. It may fail: that costs space
// only, and the next process tries again.
func sweepTemp(root *os.Root) {
	entries, err := readDir(root, tempDir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		name := path.Join(tempDir, entry.Name())
		info, err := root.Lstat(name)
		if err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > tempAge {
			_ = root.Remove(name)
		}
	}
}

// compareFile returns nil if the object is there with that content. Then it is
// durable as well, even if its writer died before it had fsynced the folder.
func compareFile(ctx context.Context, root *os.Root, name string, size int64, sum [32]byte) error {
	file, info, err := openRegular(root, name)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // only read
	n, got := info.Size(), sum
	if n == size { // else there is no need to read it
		if n, got, err = hashOf(ctx, file); err != nil {
			return err
		}
	}
	if err := checkStored(n, size, got, sum); err != nil {
		return err
	}
	if err := file.Sync(); err != nil {
		return err
	}
	return syncParents(root, name)
}

// openRegular opens a file, and nothing that only looks like one: a link may
// lead elsewhere, and opening a pipe would wait for its other end.
func openRegular(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, irregular(info.Mode())
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, nil, err
	}
	info, err = file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = irregular(info.Mode())
	}
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

func irregular(mode fs.FileMode) error {
	kind := "a special file"
	switch {
	case mode.IsDir():
		kind = "a folder"
	case mode&fs.ModeSymlink != 0:
		kind = "a symbolic link"
	}
	return fmt.Errorf("there is %s, and an object can only be a regular file", kind)
}

// syncParents makes the way to the object durable. All of it: another process
// may have made a folder a moment ago and not have synced it yet.
func syncParents(root *os.Root, name string) error {
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		handle, err := root.Open(dir)
		if err != nil {
			return err
		}
		if err := syncAndClose(handle); err != nil {
			return err
		}
		if dir == "." {
			return nil
		}
	}
}

func syncAndClose(dir *os.File) error {
	err := dir.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, errors.ErrUnsupported) {
		err = nil // some network file systems know no fsync of a folder
	}
	return errors.Join(err, dir.Close())
}

// notThere is true if the object is missing. A file where a folder should be on
// the way to it is no object either.
func notThere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}

// Open implements Store.
func (f *Folder) Open(ctx context.Context, name string) (vote.Object, error) {
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	object, err := f.open(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", f.path(name), err)
	}
	return object, nil
}

func (f *Folder) open(ctx context.Context, name string) (vote.Object, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, vote.ErrObjectNotFound
	}
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only read
	file, info, err := openRegular(root, name)
	if notThere(err) {
		return nil, vote.ErrObjectNotFound
	}
	if err != nil {
		return nil, err
	}
	return &fileObject{file: file, size: info.Size()}, nil
}

type fileObject struct {
	file *os.File
	size int64
}

var _ vote.Object = (*fileObject)(nil)

func (o *fileObject) ReadAt(p []byte, off int64) (int, error) { return o.file.ReadAt(p, off) }
func (o *fileObject) Size() int64                             { return o.size }
func (o *fileObject) Close() error                            { return o.file.Close() }

// List implements Store. It goes folder by folder and holds the entries of the
// folders on the way, not of the whole tree. Anything but files and folders
// ends it with an error: a count must not silently leave out what a link hides.
func (f *Folder) List(ctx context.Context, prefix string) iter.Seq2[vote.ObjectInfo, error] {
	return func(yield func(vote.ObjectInfo, error) bool) {
		fail := func(err error) { yield(vote.ObjectInfo{}, fmt.Errorf("list %s: %w", f.path(prefix), err)) }
		if err := checkPrefix(prefix); err != nil {
			fail(err)
			return
		}
		root, err := os.OpenRoot(f.dir)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil {
			fail(err)
			return
		}
		defer root.Close() //nolint:errcheck // only read
		// The prefix names a folder, and how names in it begin.
		w := walker{ctx: ctx, root: root, prefix: prefix, yield: yield}
		if err := w.walk(path.Dir(prefix + "x")); err != nil && !errors.Is(err, errStopped) {
			fail(err)
		}
	}
}

// errStopped ends a walk whose consumer wants no more.
var errStopped = errors.New("stopped")

type walker struct {
	ctx    context.Context //nolint:containedctx // lives as long as the one walk
	root   *os.Root
	prefix string
	yield  func(vote.ObjectInfo, error) bool
}

func (w *walker) walk(dir string) error {
	entries, err := readDir(w.root, dir)
	if notThere(err) {
		return nil // or deleted since its parent was read
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		name := path.Join(dir, entry.Name())
		switch {
		case strings.HasPrefix(entry.Name(), "."), name == lostAndFound:
			continue
		case !strings.HasPrefix(sortKey(name, entry), w.prefix):
			continue
		case entry.IsDir():
			err = w.walk(name)
		default:
			err = w.file(name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) file(name string) error {
	info, err := w.root.Lstat(name)
	if notThere(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: %w", name, irregular(info.Mode()))
	}
	if !w.yield(vote.ObjectInfo{Name: name, Size: info.Size()}, nil) {
		return errStopped
	}
	return nil
}

// readDir reads a folder so that a walk meets whole names in bytewise order:
// the names below a folder all begin with its own and a slash, so it takes the
// place of that.
func readDir(root *os.Root, dir string) ([]fs.DirEntry, error) {
	handle, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer handle.Close() //nolint:errcheck // only read
	entries, err := handle.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int {
		return cmp.Compare(sortKey(a.Name(), a), sortKey(b.Name(), b))
	})
	return entries, nil
}

func sortKey(name string, entry fs.DirEntry) string {
	if entry.IsDir() {
		return name + "/"
	}
	return name
}

// Check implements Store: the folder, or the one that it would be made in, must
// be open to this process and have room.
func (f *Folder) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for dir := f.dir; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			continue
		}
		if err == nil && !info.IsDir() {
			err = fmt.Errorf("%s: %w", dir, syscall.ENOTDIR)
		}
		if err == nil {
			err = usable(dir)
		}
		if err != nil {
			return fmt.Errorf("archive folder %s: %w", f.dir, err)
		}
		return nil
	}
}
