package testkit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisServer is a real redis-server of a test's own, on loopback.
type RedisServer struct {
	tb   testing.TB
	Port int
	Dir  string
	args []string
	cmd  *exec.Cmd
	done chan struct{}
}

// Redis starts a redis-server on a free port, with its files in a folder of the
// test's own, and ends it with the test. args are settings of the server, as
// "--appendonly", "yes".
func Redis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	r := &RedisServer{tb: tb, Dir: tb.TempDir(), args: args}
	for try := 0; ; try++ {
		r.Port = freePort(tb)
		if err := r.start(); err == nil {
			break
		} else if try == 4 {
			tb.Fatalf("redis-server does not start: %v", err)
		}
	}
	tb.Cleanup(r.Kill)
	return r
}

// Addr is the server's host:port.
func (r *RedisServer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.Port)) }

// URL is the server's redis-url.
func (r *RedisServer) URL() string { return "redis://" + r.Addr() + "/0" }

// Pid is the server's process id.
func (r *RedisServer) Pid() int { return r.cmd.Process.Pid }

// Kill ends the server as kill -9 does.
func (r *RedisServer) Kill() {
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Kill() // it may have ended
	<-r.done
	r.cmd = nil
}

// Start starts the server again after Kill, with the same files and port.
func (r *RedisServer) Start() {
	r.tb.Helper()
	if err := r.start(); err != nil {
		r.tb.Fatalf("redis-server does not start again: %v", err)
	}
}

func (r *RedisServer) start() error {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return fmt.Errorf("%w; `make tools` installs it", err)
	}
	args := append([]string{
		"--port", strconv.Itoa(r.Port), "--bind", "127.0.0.1", "--dir", r.Dir,
		"--save", "", "--loglevel", "warning", "--logfile", filepath.Join(r.Dir, "redis.log"),
		"--maxmemory-policy", "noeviction", "--enable-debug-command", "yes",
	}, r.args...)
	cmd := exec.Command(bin, args...)
	// The server must not outlive a test process that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended does not matter to a test
		close(done)
	}()
	r.cmd, r.done = cmd, done
	if err := r.ready(); err != nil {
		r.Kill()
		return err
	}
	return nil
}

// ready waits until this very server answers, and not another on its port.
func (r *RedisServer) ready() error {
	c := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1})
	defer c.Close()
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		select {
		case <-r.done:
			log, _ := os.ReadFile(filepath.Join(r.Dir, "redis.log"))
			return fmt.Errorf("it ended at once: %s", log)
		default:
		}
		info, err := c.InfoMap(context.Background(), "server").Result()
		if err == nil {
			if pid := info["Server"]["process_id"]; pid != strconv.Itoa(r.cmd.Process.Pid) {
				return errors.New("the port is another server's")
			}
			return nil
		}
		pause(20 * time.Millisecond)
	}
	return errors.New("it did not answer within 20 s")
}

// Client returns a client of the server, closed with the test.
func (r *RedisServer) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: r.Addr()})
	r.tb.Cleanup(func() { _ = c.Close() })
	return c
}

func freePort(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
