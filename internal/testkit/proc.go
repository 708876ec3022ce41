package testkit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"paredao/internal/ledger/child"
)

// patience bounds every wait for a process. It is generous: tests wait for the
// event itself, and this only ends a hang.
const patience = time.Minute

// built holds the binaries of this test process.
var built struct {
	mu    sync.Mutex
	dir   string
	paths map[string]string
}

// Binary is the path of one of the project's binaries, built from this very
// tree, without the race detector: once for each test process, however many
// tests ask. Call RemoveBinaries in TestMain.
func Binary(tb testing.TB, name string) string {
	tb.Helper()
	built.mu.Lock()
	defer built.mu.Unlock()
	if path := built.paths[name]; path != "" {
		return path
	}
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "paredao-bin-*")
		if err != nil {
			tb.Fatal(err)
		}
		built.dir, built.paths = dir, map[string]string{}
	}
	path := filepath.Join(built.dir, name)
	cmd := exec.Command("go", "build", "-o", path, "./cmd/"+name)
	cmd.Dir = RepoRoot(tb)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("go build ./cmd/%s: %v\n%s", name, err, out)
	}
	built.paths[name] = path
	return path
}

// RemoveBinaries removes what Binary built.
func RemoveBinaries() error {
	built.mu.Lock()
	defer built.mu.Unlock()
	if built.dir == "" {
		return nil
	}
	err := os.RemoveAll(built.dir)
	built.dir, built.paths = "", nil
	return err
}

// Process is one of the project's daemons, running as a child of the test. It
// is killed with the test at the latest, and its log is shown if that failed.
type Process struct {
	tb   testing.TB
	spec child.Spec

	mu  sync.Mutex
	run *child.Child
	// past are the runs before Restart; only the newest are kept.
	past []*child.Child
}

// StartProcess starts a daemon, by default with its listeners on free ports of
// loopback. It does not wait until it is ready: see Ready.
func StartProcess(tb testing.TB, name string, args ...string) *Process {
	tb.Helper()
	return StartProcessEnv(tb, nil, name, args...)
}

// StartProcessEnv is StartProcess with more variables in the environment.
func StartProcessEnv(tb testing.TB, env []string, name string, args ...string) *Process {
	tb.Helper()
	defaults := []string{"--admin-listen=127.0.0.1:0", "--log-format=json"}
	if name == "api" || name == "allinone" {
		defaults = append(defaults, "--listen=127.0.0.1:0")
	}
	p := &Process{tb: tb, spec: child.Spec{
		Name: name, Path: Binary(tb, name), Env: env,
		// The last of two equal flags counts.
		Args: append(defaults, args...),
	}}
	p.start()
	tb.Cleanup(p.end)
	return p
}

func (p *Process) start() {
	p.tb.Helper()
	run, err := child.Start(p.spec)
	if err != nil {
		p.tb.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run != nil {
		const keep = 3
		if p.past = append(p.past, p.run); len(p.past) > keep {
			p.past = p.past[1:]
		}
	}
	p.run = run
}

// current is the run that was started last.
func (p *Process) current() *child.Child {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// end kills the process, and shows the ends of its logs if the test failed.
func (p *Process) end() {
	p.current().Kill()
	if !p.tb.Failed() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, run := range append(p.past, p.run) {
		p.tb.Logf("log of %s, ended with %d:\n%s", run.Name(), run.ExitCode(), run.Log().Tail(4096))
	}
}

// Restart starts the process again, after Kill or Term, with the same
// arguments and more of them.
func (p *Process) Restart(more ...string) {
	p.tb.Helper()
	select {
	case <-p.current().Done():
	default:
		p.tb.Fatalf("%s still runs", p.current().Name())
	}
	p.spec.Args = append(p.spec.Args, more...)
	p.start()
}

// Kill ends the process as kill -9 does.
func (p *Process) Kill() { p.current().Kill() }

// Term sends SIGTERM and returns the exit code.
func (p *Process) Term() int {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	code, err := p.current().Term(ctx)
	if err != nil {
		p.tb.Fatal(err)
	}
	return code
}

// Stop pauses the process (SIGSTOP), and returns once it stands still.
func (p *Process) Stop() {
	p.tb.Helper()
	p.signal(syscall.SIGSTOP)
	Eventually(p.tb, p.current().Name()+" stands still", func() bool {
		state, _, err := procStat(p.Pid())
		return err == nil && state == "T"
	})
}

// Cont lets a paused process go on.
func (p *Process) Cont() {
	p.tb.Helper()
	p.signal(syscall.SIGCONT)
}

func (p *Process) signal(s syscall.Signal) {
	p.tb.Helper()
	if err := p.current().Signal(s); err != nil {
		p.tb.Fatal(err)
	}
}

// Pid is the process id.
func (p *Process) Pid() int { return p.current().Pid() }

// Ready waits until /readyz says so, and returns the process.
func (p *Process) Ready() *Process {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.current().Ready(ctx); err != nil {
		p.tb.Fatal(err)
	}
	return p
}

// URL is the base URL of an api.
func (p *Process) URL() string { return "http://" + p.Addr() }

// Addr is the public address of an api.
func (p *Process) Addr() string {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	addr, err := p.current().Public(ctx)
	if err != nil {
		p.tb.Fatal(err)
	}
	return addr
}

// Logged tells whether a line of the log contains text.
func (p *Process) Logged(text string) bool { return p.current().Log().Contains(text) }

// Metric adds up the samples of a metric whose labels contain all of labels. A
// metric that can't be read is 0.
func (p *Process) Metric(name string, labels ...string) float64 {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v, err := p.current().Metric(ctx, name, labels...)
	if err != nil {
		return 0
	}
	return v
}

// CPU is how much processor time the process has used.
func (p *Process) CPU() time.Duration {
	p.tb.Helper()
	_, used, err := procStat(p.Pid())
	if err != nil {
		p.tb.Fatal(err)
	}
	return used
}

// procStat reads /proc/PID/stat: the state and the processor time.
func procStat(pid int) (state string, used time.Duration, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, err
	}
	// The name stands in parentheses and may hold anything.
	_, rest, _ := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), " ")
	f := strings.Fields(rest)
	const stateField, userField, systemField = 0, 11, 12 // proc(5), less the first two
	if len(f) <= systemField {
		return "", 0, fmt.Errorf("/proc/%d/stat: %q", pid, b)
	}
	user, err1 := strconv.ParseInt(f[userField], 10, 64)
	system, err2 := strconv.ParseInt(f[systemField], 10, 64)
	const tick = 10 * time.Millisecond // Linux's USER_HZ is 100 everywhere
	return f[stateField], time.Duration(user+system) * tick, errors.Join(err1, err2)
}
