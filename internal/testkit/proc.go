package testkit

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"paredao/internal/lab"
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

// Process is one of the project's daemons, running as a child of the test: a
// lab.Daemon whose failures end the test. It is killed with the test at the
// latest, and its log is shown if that failed.
type Process struct {
	tb testing.TB
	d  *lab.Daemon
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
	d, err := lab.StartDaemon(child.Spec{
		Name: name, Path: Binary(tb, name), Env: env,
		// The last of two equal flags counts.
		Args: append(defaults, args...),
	})
	if err != nil {
		tb.Fatal(err)
	}
	p := &Process{tb: tb, d: d}
	tb.Cleanup(p.end)
	return p
}

// end kills the process, and shows the ends of its logs if the test failed.
func (p *Process) end() {
	p.d.Kill()
	if p.tb.Failed() {
		p.tb.Log(p.d.Tail(4096))
	}
}

// Restart starts the process again, after Kill or Term, on the addresses that
// it had, with the same arguments and more of them.
func (p *Process) Restart(more ...string) {
	p.tb.Helper()
	p.must(p.d.Restart(more...))
}

// Kill ends the process as kill -9 does.
func (p *Process) Kill() { p.d.Kill() }

// Term sends SIGTERM and returns the exit code.
func (p *Process) Term() int {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	code, err := p.d.Term(ctx)
	p.must(err)
	return code
}

// Stop pauses the process (SIGSTOP), and returns once it stands still.
func (p *Process) Stop() {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p.must(p.d.Stop(ctx))
}

// Cont lets a paused process go on.
func (p *Process) Cont() {
	p.tb.Helper()
	p.must(p.d.Cont())
}

// Pid is the process id.
func (p *Process) Pid() int { return p.d.Pid() }

// Ready waits until /readyz says so, and returns the process.
func (p *Process) Ready() *Process {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p.must(p.d.Ready(ctx))
	return p
}

// URL is the base URL of an api.
func (p *Process) URL() string { return "http://" + p.Addr() }

// Addr is the public address of an api.
func (p *Process) Addr() string {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	addr, err := p.d.Public(ctx)
	p.must(err)
	return addr
}

// Logged tells whether a line of the newest run's log contains text.
func (p *Process) Logged(text string) bool { return p.d.Log().Contains(text) }

// Metric adds up the samples of a metric whose labels contain all of labels.
// There must be some: a test that looks for a name that is none would see 0.
func (p *Process) Metric(name string, labels ...string) float64 {
	p.tb.Helper()
	v, n := p.samples(name, labels)
	if n == 0 {
		p.tb.Fatalf("%s has no metric %s %v", p.d.Name(), name, labels)
	}
	return v
}

// MetricOrZero is Metric where there may be no sample yet, since its labels come
// with the first vote.
func (p *Process) MetricOrZero(name string, labels ...string) float64 {
	p.tb.Helper()
	v, _ := p.samples(name, labels)
	return v
}

func (p *Process) samples(name string, labels []string) (float64, int) {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v, n, err := p.d.Samples(ctx, name, labels...)
	p.must(err)
	return v, n
}

// CPU is how much processor time the process has used.
func (p *Process) CPU() time.Duration {
	p.tb.Helper()
	used, err := p.d.CPU()
	p.must(err)
	return used
}

func (p *Process) must(err error) {
	p.tb.Helper()
	if err != nil {
		p.tb.Fatal(err)
	}
}
