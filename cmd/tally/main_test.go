package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"paredao/internal/testkit"
)

// TestMain removes the binaries that tests have built, and looks for goroutines
// that were left behind.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := testkit.RemoveBinaries(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))
}

// The forms of every command.
var forms = []string{"table", "json", "csv"}

// patience bounds every run: only a hang is ended by it.
const patience = 2 * time.Minute

// cli runs the real binary, in a folder of its own and with no settings in the
// environment but those it is given.
type cli struct {
	t   *testing.T
	dir string
	env []string
}

// newCLI returns a cli; env are more variables.
func newCLI(t *testing.T, env ...string) *cli {
	t.Helper()
	return &cli{t: t, dir: t.TempDir(), env: env}
}

// in is the same cli for a subtest.
func (c *cli) in(t *testing.T) *cli {
	return &cli{t: t, dir: c.dir, env: c.env}
}

// result is how a run ended.
type result struct {
	args           []string
	code           int
	stdout, stderr string
}

// command prepares a run.
func (c *cli) command(args ...string) *exec.Cmd {
	c.t.Helper()
	cmd := exec.Command(testkit.Binary(c.t, "tally"), args...)
	cmd.Dir = c.dir
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "PAREDAO_") && !strings.HasPrefix(kv, "AZURE_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(cmd.Env, c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run runs to the end.
func (c *cli) run(args ...string) result {
	c.t.Helper()
	return c.runWith("", args...)
}

// runWith runs with something on standard input.
func (c *cli) runWith(stdin string, args ...string) result {
	c.t.Helper()
	cmd := c.command(args...)
	cmd.Stdin = strings.NewReader(stdin)
	return c.start(cmd).wait()
}

// running is a run that was started.
type running struct {
	t              *testing.T
	cmd            *exec.Cmd
	stdout, stderr *output
	done           chan struct{}
}

func (c *cli) start(cmd *exec.Cmd) *running {
	c.t.Helper()
	r := &running{t: c.t, cmd: cmd, stdout: &output{}, stderr: &output{}, done: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = r.stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = r.stderr
	}
	require.NoError(c.t, cmd.Start())
	go func() {
		defer close(r.done)
		_ = cmd.Wait() // the code is asked for
	}()
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has usually ended
		<-r.done
	})
	return r
}

// signal sends a signal.
func (r *running) signal(s syscall.Signal) *running {
	r.t.Helper()
	require.NoError(r.t, r.cmd.Process.Signal(s))
	return r
}

// wait waits for the end.
func (r *running) wait() result {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case <-r.done:
	case <-ctx.Done():
		r.t.Fatalf("%s does not end; it said:\n%s%s", r.cmd, r.stdout, r.stderr)
	}
	return result{r.cmd.Args[1:], r.cmd.ProcessState.ExitCode(), r.stdout.String(), r.stderr.String()}
}

// ok wants success, and nothing on standard error.
func (r result) ok(t *testing.T) string {
	t.Helper()
	require.Equal(t, 0, r.code, "%q: %s", r.args, r.stderr)
	require.Empty(t, r.stderr, "%q", r.args)
	return r.stdout
}

// fails wants an exit code, one line on standard error that has all of texts,
// and nothing on standard output.
func (r result) fails(t *testing.T, code int, texts ...string) {
	t.Helper()
	require.Empty(t, r.stdout, "%q", r.args)
	r.says(t, code, texts...)
}

// says wants an exit code and one line on standard error that has all of texts.
func (r result) says(t *testing.T, code int, texts ...string) {
	t.Helper()
	require.Equal(t, code, r.code, "%q: %s", r.args, r.stderr)
	require.Equal(t, 1, strings.Count(r.stderr, "\n"), "%q: %s", r.args, r.stderr)
	require.Regexp(t, `^tally: .+\n$`, r.stderr, "%q", r.args)
	for _, text := range texts {
		require.Contains(t, r.stderr, text, "%q", r.args)
	}
}

// output is what a process prints, readable while it prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// await waits until text has been printed n times.
func (o *output) await(t *testing.T, text string, n int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprintf("%q is printed %d times", text, n), func() bool {
		return strings.Count(o.String(), text) >= n
	})
}
