package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is a real redis-server on loopback, whose files outlive its process.
type Redis struct {
	Port int
	Dir  string
	args []string
	env  []string

	mu   sync.Mutex
	cmd  *exec.Cmd // nil when it does not run
	done chan struct{}
}

// StartRedis starts a redis-server on a free port with its files in dir. args
// are settings of the server, as "--appendonly", "yes"; of two equal ones the
// last counts.
func StartRedis(ctx context.Context, dir string, args ...string) (*Redis, error) {
	return StartRedisEnv(ctx, nil, dir, args...)
}

// StartRedisEnv is StartRedis with more variables in the environment.
func StartRedisEnv(ctx context.Context, env []string, dir string, args ...string) (*Redis, error) {
	r := &Redis{Dir: dir, args: args, env: env}
	var err error
	for range 5 { // a port that is free may be taken meanwhile
		if r.Port, err = FreePort(); err != nil {
			return nil, err
		}
		if err = r.Start(ctx); err == nil {
			return r, nil
		}
	}
	return nil, fmt.Errorf("redis-server does not start: %w", err)
}

// Addr is the server's host:port.
func (r *Redis) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.Port)) }

// URL is the server's redis-url.
func (r *Redis) URL() string { return "redis://" + r.Addr() + "/0" }

// Pid is the server's process id; 0 when it does not run.
func (r *Redis) Pid() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil {
		return 0
	}
	return r.cmd.Process.Pid
}

// Running tells whether the server has been started and has not ended.
func (r *Redis) Running() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil {
		return false
	}
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

// Kill ends the server as kill -9 does, and returns when it is gone.
func (r *Redis) Kill() { r.end(syscall.SIGKILL) }

// Stop ends it in an orderly way, as an operator would.
func (r *Redis) Stop() { r.end(syscall.SIGTERM) }

func (r *Redis) end(sig syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Signal(sig) // it may have ended
	<-r.done
	r.cmd = nil
}

// Signal sends a signal, as SIGSTOP and SIGCONT.
func (r *Redis) Signal(sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cmd == nil {
		return errors.New("redis-server does not run")
	}
	return r.cmd.Process.Signal(sig)
}

// Pause stops the server as SIGSTOP does, and returns once it stands still.
func (r *Redis) Pause(ctx context.Context) error {
	if err := r.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return standStill(ctx, r.Pid())
}

// Start starts the server again after Kill, with the same files and port, and
// returns when it answers with its data.
func (r *Redis) Start(ctx context.Context) error {
	if err := r.Launch(); err != nil {
		return err
	}
	if err := r.ready(ctx); err != nil {
		r.Kill()
		return err
	}
	return nil
}

// Launch starts the server and waits for nothing.
func (r *Redis) Launch() error {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return fmt.Errorf("%w; `make tools` installs it", err)
	}
	args := append([]string{
		"--port", strconv.Itoa(r.Port), "--bind", "127.0.0.1", "--dir", r.Dir,
		"--save", "", "--loglevel", "warning", "--logfile", filepath.Join(r.Dir, "redis.log"),
		"--maxmemory-policy", "noeviction", "--enable-debug-command", "yes",
		"--enable-protected-configs", "yes", // dbfilename
	}, r.args...)
	cmd := exec.Command(bin, args...)
	cmd.Env = append(cmd.Environ(), r.env...)
	// The server must not outlive a parent that is killed; and a Ctrl-C in the
	// terminal is for the parent alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended does not matter
		close(done)
	}()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cmd, r.done = cmd, done
	return nil
}

// ready waits until this very server answers with its data, and not another on
// its port.
func (r *Redis) ready(ctx context.Context) error {
	r.mu.Lock()
	pid, done := r.cmd.Process.Pid, r.done
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	c := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1})
	defer func() { _ = c.Close() }() // it was only asked
	for {
		info, err := c.InfoMap(ctx, "everything").Result()
		if err == nil && info["Persistence"]["loading"] == "0" {
			if got := info["Server"]["process_id"]; got != strconv.Itoa(pid) {
				return errors.New("the port is another server's")
			}
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("it ended at once: %s", r.Log())
		case <-ctx.Done():
			return fmt.Errorf("it did not answer: %w: %w", err, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Log is what the server has written to its log.
func (r *Redis) Log() string {
	text, err := os.ReadFile(filepath.Join(r.Dir, "redis.log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}
