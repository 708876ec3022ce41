package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"paredao/internal/redisstore"
)

// redisServer is the Redis that allinone brings along: a redis-server child or
// an embedded one.
type redisServer struct {
	url      string
	embedded bool
	// ended is closed when the server has ended, err says how.
	ended chan struct{}
	err   error
	// end asks the server to end, kill makes it; clean removes its traces.
	end, kill func()
	clean     []func() error
	once      sync.Once
	// announce logs what serves. log is redis-server's own log.
	announce func()
	log      string
}

// run waits until ctx is done, then ends the server. A server that ends by
// itself is an error.
func (r *redisServer) run(ctx context.Context) error {
	r.announce()
	select {
	case <-r.ended:
		return errors.Join(fmt.Errorf("redis-server ended by itself: %s (see %s)", r.how(), r.log), r.stop())
	case <-ctx.Done():
		return r.stop()
	}
}

// how tells how the server ended. It is no error, since that of package exec
// has an exit code, which would become this program's.
func (r *redisServer) how() string {
	if r.err == nil {
		return "exit status 0"
	}
	return r.err.Error()
}

// stopWait is how long the server may take to end when it is asked to.
const stopWait = 5 * time.Second

// stop ends the server and removes its traces, once.
func (r *redisServer) stop() (err error) {
	r.once.Do(func() {
		if r.end != nil {
			r.end()
			select {
			case <-r.ended:
			case <-time.After(stopWait):
				r.kill() // every vote that was acknowledged is in the file
				<-r.ended
			}
		}
		for _, f := range r.clean {
			err = errors.Join(err, f())
		}
	})
	return err
}

// urlFile in the data folder says how the Redis is reached.
const urlFile = "redis.url"

// startRedis starts redis-server with its append-only file below dir, or, where
// there is no redis-server, an embedded Redis that keeps nothing on disk. It
// writes the server's URL to dir/redis.url, where tally looks for it.
func startRedis(ctx context.Context, dir string, log *slog.Logger) (*redisServer, error) {
	if err := os.MkdirAll(filepath.Join(dir, "redis"), 0o750); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	lock, err := lockDir(ctx, dir, log)
	if err != nil {
		return nil, err
	}
	r := &redisServer{ended: make(chan struct{})}
	file := filepath.Join(dir, urlFile)
	removeSocket(file)
	bin, err := exec.LookPath("redis-server")
	if err == nil {
		err = r.child(ctx, bin, dir, lock, log)
	} else {
		r.announce = func() {
			log.Warn("there is no redis-server on PATH: an embedded Redis serves, and votes live only in memory until they are archived")
		}
		err = r.embed()
	}
	if err == nil {
		r.clean = append(r.clean, func() error { return os.Remove(file) })
		err = r.writeURL(file)
	}
	// The folder is free only when all else is gone.
	r.clean = append(r.clean, lock.Close)
	if err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r, nil
}

// writeURL puts the URL, which may hold a password, into a file that no one
// else can read and no one ever sees half written.
func (r *redisServer) writeURL(file string) error {
	text := r.url + "\n"
	if r.embedded {
		text += "embedded\n" // it takes scripts in another form, see redisstore.Options
	}
	fresh, err := os.CreateTemp(filepath.Dir(file), urlFile+".") // with mode 0600
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	_, err = fresh.WriteString(text)
	if err = errors.Join(err, fresh.Close()); err == nil {
		err = os.Rename(fresh.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("data: %w", errors.Join(err, os.Remove(fresh.Name())))
	}
	return nil
}

// removeSocket removes the socket's folder that an allinone has left behind
// when it was killed. The caller holds the lock, so that one has ended.
func removeSocket(file string) {
	b, err := os.ReadFile(file)
	if err != nil {
		return // the usual case: there is none
	}
	line, _, _ := strings.Cut(string(b), "\n")
	u, err := url.Parse(line)
	if err != nil || u.Scheme != "unix" || !strings.HasPrefix(filepath.Base(filepath.Dir(u.Path)), socketDir) {
		return
	}
	// What does not work is left in the folder for temporary files. A folder
	// with anything else in it stays.
	_ = os.Remove(u.Path)
	_ = os.Remove(filepath.Dir(u.Path))
}

// lockWait is how long the Redis of an allinone that was killed may take to
// end.
const lockWait = 10 * time.Second

// lockDir takes the folder. The child inherits the lock, so a folder is free
// only when both have ended: two servers on one append-only file would ruin it.
func lockDir(ctx context.Context, dir string, log *slog.Logger) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	deadline := time.NewTimer(lockWait)
	defer deadline.Stop()
	for waiting := false; ; waiting = true {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("data: lock %s: %w", path, err), f.Close())
		}
		if !waiting {
			log.Warn("the data folder is in use; waiting for it", "lock", path, "at_most", lockWait)
		}
		select {
		case <-deadline.C:
			return nil, errors.Join(fmt.Errorf("data %q is in use by another allinone, or by the Redis of one (%s is locked)", dir, path), f.Close())
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// socketDir begins the name of the folder of a socket.
const socketDir = "paredao-"

// newSocketDir makes a private folder with a short path: a socket's may have
// about 100 bytes.
func newSocketDir() (string, error) {
	parent := os.TempDir()
	const longest = 80
	if len(parent) > longest {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, socketDir)
	if err != nil {
		return "", fmt.Errorf("socket: %w", err)
	}
	return dir, nil
}

// child starts redis-server on a private socket.
func (r *redisServer) child(ctx context.Context, bin, dir string, lock *os.File, log *slog.Logger) error {
	private, err := newSocketDir()
	if err != nil {
		return err
	}
	r.clean = append(r.clean, func() error { return os.RemoveAll(private) })
	socket := filepath.Join(private, "redis.sock")
	files, err := filepath.Abs(filepath.Join(dir, "redis"))
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	r.log = filepath.Join(files, "redis.log")
	cmd := exec.Command(bin,
		"--port", "0", "--unixsocket", socket, "--unixsocketperm", "700",
		"--dir", files, "--appendonly", "yes", "--appendfsync", "always", "--save", "",
		"--maxmemory-policy", "noeviction", "--daemonize", "no", "--logfile", r.log)
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = childAttributes()
	started := make(chan error)
	go func() {
		// The death signal comes when the thread ends that started the child, so
		// this one stays as long as the child does.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			r.err = cmd.Wait()
		}
		close(r.ended)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start redis-server: %w", err)
	}
	// It may have ended.
	r.end = func() { _ = cmd.Process.Signal(syscall.SIGTERM) }
	r.kill = func() { _ = cmd.Process.Kill() }
	r.url = "unix://" + (&url.URL{Path: socket}).EscapedPath()
	r.announce = func() { log.Info("redis-server started", "pid", cmd.Process.Pid, "dir", files) }
	return r.ready(ctx, log)
}

// ready waits until the child has loaded its file.
func (r *redisServer) ready(ctx context.Context, log *slog.Logger) (err error) {
	s, err := redisstore.Open(redisstore.Options{URL: r.url, Shards: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	slow := time.NewTimer(2 * time.Second)
	defer slow.Stop()
	for {
		h, err := s.Health(ctx)
		switch {
		case err == nil && h.Problem != "":
			return errors.New(h.Problem)
		case err == nil:
			return nil
		}
		select {
		case <-r.ended:
			return fmt.Errorf("redis-server ended at once: %s (see %s)", r.how(), r.log)
		case <-ctx.Done():
			return ctx.Err()
		case <-slow.C:
			log.Info("redis-server is still loading its file", "log", r.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// embed starts an embedded Redis on a loopback port, behind a password.
func (r *redisServer) embed() error {
	m := miniredis.NewMiniRedis()
	password := rand.Text()
	m.RequireAuth(password)
	if err := m.StartAddr("127.0.0.1:0"); err != nil {
		return fmt.Errorf("start the embedded Redis: %w", err)
	}
	// It does not know the first line of the scripts, which only its own api
	// leaves out: tally may have been given the URL alone.
	m.Server().SetPreHook(func(_ *server.Peer, cmd string, args ...string) bool {
		if cmd == "EVAL" && len(args) > 0 && strings.HasPrefix(args[0], "#!") {
			_, args[0], _ = strings.Cut(args[0], "\n")
		}
		return false // go on with the command
	})
	stop := make(chan struct{})
	go func() {
		defer close(r.ended)
		defer m.Close()
		// Its keys expire only when it is told that time has passed.
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.FastForward(time.Second)
			case <-stop:
				return
			}
		}
	}()
	r.end, r.kill = func() { close(stop) }, func() {}
	r.embedded = true
	r.url = "redis://:" + password + "@" + m.Addr() + "/0"
	return nil
}
