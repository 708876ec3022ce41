package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Spec says what to run.
type Spec struct {
	// Name is for errors; Path the binary.
	Name, Path string
	Args       []string
	// Env is added to the parent's environment.
	Env []string
}

// Child is a process that was started. Its methods may be called at any time,
// also after its end.
type Child struct {
	spec Spec
	cmd  *exec.Cmd
	log  *Log
	done chan struct{}

	mu    sync.Mutex
	addrs map[string]string // by message: the log forgets its oldest lines
}

// Start starts a process in a process group of its own, so that a Ctrl-C in the
// terminal reaches the parent alone.
func Start(s Spec) (*Child, error) {
	cmd := exec.Command(s.Path, s.Args...)
	cmd.Env = append(cmd.Environ(), s.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	c := &Child{spec: s, cmd: cmd, log: newLog(), done: make(chan struct{}), addrs: map[string]string{}}
	cmd.Stdout, cmd.Stderr = c.log, c.log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	go func() {
		_ = cmd.Wait() // ExitCode tells how it ended
		c.log.end()
		close(c.done)
	}()
	return c, nil
}

// Name is the spec's name, and the process id.
func (c *Child) Name() string { return fmt.Sprintf("%s (pid %d)", c.spec.Name, c.Pid()) }

// Pid is the process id.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// Done is closed when the process has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Log is what the process has printed so far, or the end of it.
func (c *Child) Log() *Log { return c.log }

// Signal sends a signal; that the process has ended is no error.
func (c *Child) Signal(s syscall.Signal) error {
	if err := c.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("%v to %s: %w", s, c.Name(), err)
	}
	return nil
}

// Kill ends the process as kill -9 does, and returns when it is gone.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	<-c.done
}

// Term asks the process to end and returns its exit code. When ctx is done
// before, the process is killed and the error says so.
func (c *Child) Term(ctx context.Context) (int, error) {
	if err := c.Signal(syscall.SIGTERM); err != nil {
		return -1, err
	}
	select {
	case <-c.done:
		return c.ExitCode(), nil
	case <-ctx.Done():
		c.Kill()
		return -1, fmt.Errorf("%s did not end after SIGTERM: %w", c.Name(), ctx.Err())
	}
}

// ExitCode is the exit code after the end; -1 before, or after a signal.
func (c *Child) ExitCode() int {
	select {
	case <-c.done:
		return c.cmd.ProcessState.ExitCode()
	default:
		return -1
	}
}

// What the daemons log when they listen.
const (
	saysPublic = "api takes votes"
	saysAdmin  = "admin listens"
)

// Admin is the admin address that the process says it listens on.
func (c *Child) Admin(ctx context.Context) (string, error) { return c.addr(ctx, saysAdmin) }

// Public is the address that the api says it takes votes on.
func (c *Child) Public(ctx context.Context) (string, error) { return c.addr(ctx, saysPublic) }

// Listened are the addresses that the process has listened on so far, empty
// where there is none.
func (c *Child) Listened() (public, admin string) {
	// A context that is done: Await returns what is there.
	now, cancel := context.WithCancel(context.Background())
	cancel()
	public, _ = c.addr(now, saysPublic)
	admin, _ = c.addr(now, saysAdmin)
	return public, admin
}

func (c *Child) addr(ctx context.Context, message string) (string, error) {
	c.mu.Lock()
	addr := c.addrs[message]
	c.mu.Unlock()
	if addr != "" {
		return addr, nil
	}
	line, err := c.log.Await(ctx, message)
	if err != nil {
		return "", fmt.Errorf("%s did not say %q: %w; it said:\n%s", c.Name(), message, err, c.log)
	}
	if addr = field(line, "addr"); addr == "" {
		return "", fmt.Errorf("%s: no addr in its line %q", c.Name(), line)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addrs[message] = addr
	return addr, nil
}

// Ready waits until the process says that it is ready.
func (c *Child) Ready(ctx context.Context) error {
	admin, err := c.Admin(ctx)
	if err != nil {
		return err
	}
	for {
		_, err := Get(ctx, "http://"+admin+"/readyz")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (%w)", c.Name(), err, ctx.Err())
		case <-c.done:
			return fmt.Errorf("%s ended with %d: %s", c.Name(), c.ExitCode(), c.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Metric adds up the samples of a metric whose labels contain all of labels,
// like `reason="unreadable"`. Without any it is 0.
func (c *Child) Metric(ctx context.Context, name string, labels ...string) (float64, error) {
	sum, _, err := c.Samples(ctx, name, labels...)
	return sum, err
}

// Samples is Metric, and says how many samples there are.
func (c *Child) Samples(ctx context.Context, name string, labels ...string) (sum float64, n int, err error) {
	admin, err := c.Admin(ctx)
	if err != nil {
		return 0, 0, err
	}
	text, err := Get(ctx, "http://"+admin+"/metrics")
	if err != nil {
		return 0, 0, fmt.Errorf("metrics of %s: %w", c.Name(), err)
	}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest == "" || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		at := strings.LastIndexByte(rest, ' ')
		value, err := strconv.ParseFloat(rest[at+1:], 64)
		if err != nil {
			return 0, 0, fmt.Errorf("metrics of %s: line %q", c.Name(), line)
		}
		has := true
		for _, l := range labels {
			has = has && strings.Contains(rest[:at], l)
		}
		if has {
			sum += value
			n++
		}
	}
	return sum, n, nil
}

// Get returns the body of a 200.
func Get(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	// A connection of its own: none is left over for a process that restarts on
	// the same address.
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(body)))
	}
	return string(body), nil
}
