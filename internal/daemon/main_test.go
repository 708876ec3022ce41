package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type coded int

func (c coded) Error() string { return "coded" }
func (c coded) ExitCode() int { return int(c) }

func TestExitCodes(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		code   int
		stderr string
	}{
		"nil":                    {nil, 0, ""},
		"any error":              {errors.New("redis is down"), 1, "api: redis is down\n"},
		"wrong use":              {coded(2), 2, "api: coded\n"},
		"wrong use, wrapped":     {fmt.Errorf("start: %w", coded(2)), 2, "api: start: coded\n"},
		"help was printed":       {coded(0), 0, ""},
		"many errors":            {errors.Join(errors.New("a"), errors.New("b\r\nc")), 1, "api: a; b; c\n"},
		"canceled, not by us":    {context.Canceled, 1, "api: context canceled\n"},
		"shutdown took too long": {ErrShutdownTimeout, 1, "api: shutdown timeout\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr output
			assert.Equal(t, c.code, runMain("api", &stderr, nil, func(context.Context) error { return c.err }))
			assert.Equal(t, c.stderr, stderr.String())
		})
	}
}

func TestFirstSignalCancels(t *testing.T) {
	for name, c := range map[string]struct {
		after func(ctx context.Context) error
		code  int
	}{
		"stops well":                {func(context.Context) error { return nil }, 0},
		"was still starting":        {func(ctx context.Context) error { return fmt.Errorf("dial: %w", ctx.Err()) }, 0},
		"fails while it stops":      {func(context.Context) error { return errors.New("no") }, 1},
		"does not stop in its time": {func(context.Context) error { return errors.Join(ErrShutdownTimeout, context.Canceled) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr output
			signals := make(chan os.Signal, 2)
			code := runMain("api", &stderr, signals, func(ctx context.Context) error {
				signals <- syscall.SIGTERM
				<-ctx.Done()
				assert.Equal(t, "signal: terminated", context.Cause(ctx).Error())
				return c.after(ctx)
			})
			assert.Equal(t, c.code, code)
		})
	}
}

func TestImpatientInterruptExitsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr output
		signals := make(chan os.Signal, 2)
		release, returned := make(chan struct{}), make(chan struct{})
		code := runMain("api", &stderr, signals, func(ctx context.Context) error {
			defer close(returned)
			signals <- os.Interrupt
			<-ctx.Done()
			<-time.After(impatience)
			signals <- os.Interrupt
			<-release // hangs
			return nil
		})
		assert.Equal(t, 1, code)
		assert.Equal(t, "api: second signal (interrupt), exiting at once\n", stderr.String())
		close(release)
		<-returned
	})
}

// A supervisor may signal a process and its group, and a shell too.
func TestRepeatedSignalsChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stderr output
		signals := make(chan os.Signal)
		code := runMain("api", &stderr, signals, func(ctx context.Context) error {
			signals <- syscall.SIGTERM
			<-ctx.Done()
			signals <- os.Interrupt
			<-time.After(impatience)
			signals <- syscall.SIGTERM
			return nil
		})
		assert.Zero(t, code)
		assert.Empty(t, stderr.String())
	})
}

// A panic in a goroutine that nobody guards ends the process at once, and not
// with 0: whoever started it starts it again. (This test runs itself again.)
func TestPanicInAGoroutine(t *testing.T) {
	const asked = "PAREDAO_TEST_PANIC"
	if os.Getenv(asked) != "" {
		os.Exit(Main("api", func(ctx context.Context) error {
			go func() { panic("oh") }()
			<-ctx.Done() // never
			return nil
		}))
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPanicInAGoroutine$")
	cmd.Env = append(os.Environ(), asked+"=1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Positive(t, exit.ExitCode(), "%s", out)
	assert.Contains(t, string(out), "panic: oh")
	assert.Contains(t, string(out), "main_test.go", "the stack")
}

// A panic of run itself, or of a part, is an error like others: what else runs is
// stopped in order.
func TestPanicInMain(t *testing.T) {
	var stderr output
	code := runMain("api", &stderr, nil, func(context.Context) error { panic("oh") })
	assert.Equal(t, 1, code, "not Go's own 2, which stands for wrong use")
	assert.Contains(t, stderr.String(), "main_test.go", "the stack")
	assert.Contains(t, stderr.String(), "api: panic: oh\n")
}

// Real signals, to this process.
func TestMainSignals(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		code := Main("api", func(ctx context.Context) error {
			require.NoError(t, syscall.Kill(os.Getpid(), s))
			<-ctx.Done()
			return nil
		})
		assert.Zero(t, code, s)
	}
}
