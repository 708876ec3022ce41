package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"

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
	end   func()
	clean []func() error
	once  sync.Once
}

// run waits until ctx is done, then ends the server. A server that ends by
// itself is an error.
func (r *redisServer) run(ctx context.Context) error {
	select {
	case <-r.ended:
		return fmt.Errorf("redis-server ended by itself: %w", errors.Join(r.err, r.stop()))
	case <-ctx.Done():
		return r.stop()
	}
}

// stop ends the server and removes its traces, once.
func (r *redisServer) stop() (err error) {
	r.once.Do(func() {
		if r.end != nil {
			r.end()
			<-r.ended
		}
		for _, f := range r.clean {
			err = errors.Join(err, f())
		}
	})
	return err
}

// startRedis starts redis-server with its append-only file below dir, or, where
// there is no redis-server, an embedded Redis that keeps nothing on disk. It
// writes the server's URL to dir/redis.url, where tally looks for it.
func startRedis(ctx context.Context, dir string, log *slog.Logger) (*redisServer, error) {
	if err := os.MkdirAll(filepath.Join(dir, "redis"), 0o750); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	lock, err := lockDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	r := &redisServer{ended: make(chan struct{})}
	r.clean = append(r.clean, lock.Close)
	bin, err := exec.LookPath("redis-server")
	if err == nil {
		err = r.child(ctx, bin, dir, lock, log)
	} else {
		log.Warn("there is no redis-server on PATH: an embedded Redis serves, and votes live only in memory until they are archived")
		err = r.embed()
	}
	if err != nil {
		return nil, errors.Join(err, r.stop())
	}
	file := filepath.Join(dir, "redis.url")
	text := r.url + "\n"
	if r.embedded {
		text += "embedded\n" // it takes scripts in another form, see redisstore.Options
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("data: %w", err), r.stop())
	}
	r.clean = append(r.clean, func() error { return os.Remove(file) })
	return r, nil
}

// lockWait is how long the Redis of an allinone that was killed may take to
// end.
const lockWait = 10 * time.Second

// lockDir takes the folder. The child inherits the lock, so a folder is free
// only when both have ended: two servers on one append-only file would ruin it.
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	for deadline := time.Now().Add(lockWait); ; {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(deadline) || ctx.Err() != nil {
			return nil, errors.Join(fmt.Errorf("data %q is in use by another allinone, or its Redis (%s is locked): %w", dir, path, err), f.Close())
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// child starts redis-server on a private socket.
func (r *redisServer) child(ctx context.Context, bin, dir string, lock *os.File, log *slog.Logger) error {
	// A short path: a socket's may have about 100 bytes.
	private, err := os.MkdirTemp("", "paredao-")
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	r.clean = append(r.clean, func() error { return os.RemoveAll(private) })
	socket := filepath.Join(private, "redis.sock")
	files, err := filepath.Abs(filepath.Join(dir, "redis"))
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	cmd := exec.Command(bin,
		"--port", "0", "--unixsocket", socket, "--unixsocketperm", "700",
		"--dir", files, "--appendonly", "yes", "--appendfsync", "always", "--save", "",
		"--maxmemory-policy", "noeviction", "--daemonize", "no", "--logfile", filepath.Join(files, "redis.log"))
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
	r.end = func() { _ = cmd.Process.Signal(syscall.SIGTERM) } // it may have ended
	r.url = "unix://" + socket
	log.Info("redis-server started", "pid", cmd.Process.Pid, "dir", files)
	return r.ready(ctx, filepath.Join(files, "redis.log"))
}

// ready waits until the child has loaded its file.
func (r *redisServer) ready(ctx context.Context, logFile string) error {
	s, err := redisstore.Open(redisstore.Options{URL: r.url, Shards: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
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
			return fmt.Errorf("redis-server ended at once (see %s): %w", logFile, r.err)
		case <-ctx.Done():
			return ctx.Err()
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
	r.end = func() { close(stop) }
	r.embedded = true
	r.url = "redis://:" + password + "@" + m.Addr() + "/0"
	return nil
}
