package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
)

// Main runs a binary and returns its exit code, for main to exit with:
//
//	func main() { os.Exit(daemon.Main("api", run)) }
//
// The first SIGTERM or SIGINT cancels run's context. A SIGINT that comes
// impatience later makes Main return 1 at once, with a line on stderr, while run
// is left where it is: someone sits there and does not want to wait. Any other
// signal changes nothing: supervisors send more than one.
//
// The code is 0 if run returns nil, or if it was told to stop and returns
// context.Canceled; the error's own if it has a method ExitCode() int, as
// wrong settings have; else 1. With any code but 0 the error is printed to
// stderr, on one line.
func Main(name string, run func(ctx context.Context) error) int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	return runMain(name, os.Stderr, signals, run)
}

// impatience is how long after the first signal another one is no echo of it.
const impatience = time.Second

func runMain(name string, stderr io.Writer, signals <-chan os.Signal, run func(ctx context.Context) error) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)

	// Not in this goroutine, since a second signal must not wait for run.
	done := make(chan error, 1)
	go func() {
		done <- guard(ctx, run, func(stack []byte) { _, _ = stderr.Write(stack) })
	}()

	stopping := false
	var since time.Time
	for {
		select {
		case err := <-done:
			if stopping && errors.Is(err, context.Canceled) && !errors.Is(err, ErrShutdownTimeout) {
				return 0 // told to stop while it was still starting
			}
			return exit(name, stderr, err)
		case s := <-signals:
			if stopping && (s != os.Interrupt || time.Since(since) < impatience) {
				continue
			}
			if stopping {
				_, _ = fmt.Fprintf(stderr, "%s: second signal (%v), exiting at once\n", name, s)
				return 1
			}
			stopping, since = true, time.Now()
			cancel(fmt.Errorf("signal: %v", s))
		}
	}
}

// exit prints err and returns its exit code.
func exit(name string, stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	code := 1
	var own interface{ ExitCode() int }
	// Of a child that a signal ended the code is -1.
	if errors.As(err, &own) && own.ExitCode() >= 0 {
		code = own.ExitCode()
	}
	if code != 0 {
		line := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
		_, _ = fmt.Fprintf(stderr, "%s: %s\n", name, line)
	}
	return code
}

// guard runs f and makes an error of a panic, whose stack goes to onPanic.
func guard(ctx context.Context, f func(ctx context.Context) error, onPanic func(stack []byte)) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
			onPanic(debug.Stack())
		}
	}()
	return f(ctx)
}
