package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"paredao/internal/ledger/child"
)

// Daemon is one of the project's binaries as a child process that can be
// killed, paused, and started again on the addresses that it had. Its methods
// may be called at any time.
type Daemon struct {
	mu   sync.Mutex
	spec child.Spec
	// more are the arguments that Restart added.
	more []string
	run  *child.Child
	// ended says that the end of run was asked for.
	ended bool
	// past are the runs before Restart; only the newest are kept.
	past []*child.Child
}

// StartDaemon starts a daemon. It does not wait until it is ready: see Ready.
func StartDaemon(spec child.Spec) (*Daemon, error) {
	run, err := child.Start(spec)
	if err != nil {
		return nil, err
	}
	return &Daemon{spec: spec, run: run}, nil
}

// current is the run that was started last.
func (d *Daemon) current() *child.Child {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.run
}

// Name is the daemon's name and its process id.
func (d *Daemon) Name() string { return d.current().Name() }

// Pid is the process id of the newest run.
func (d *Daemon) Pid() int { return d.current().Pid() }

// Done is closed when the newest run has ended.
func (d *Daemon) Done() <-chan struct{} { return d.current().Done() }

// Running tells whether the newest run has not ended.
func (d *Daemon) Running() bool {
	select {
	case <-d.Done():
		return false
	default:
		return true
	}
}

// Log is what the newest run has printed.
func (d *Daemon) Log() *child.Log { return d.current().Log() }

// Died tells whether the newest run has ended, though nobody asked for that.
func (d *Daemon) Died() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.run.Done():
		return !d.ended
	default:
		return false
	}
}

// ExitCode is the newest run's; -1 while it runs, or after a signal.
func (d *Daemon) ExitCode() int { return d.current().ExitCode() }

// Kill ends the process as kill -9 does.
func (d *Daemon) Kill() { d.ending().Kill() }

// ending is the newest run, whose end is asked for, unless it has died before.
func (d *Daemon) ending() *child.Child {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.run.Done():
	default:
		d.ended = true
	}
	return d.run
}

// Term sends SIGTERM and returns the exit code. When ctx is done before the
// process has ended, it is killed and the error says so.
func (d *Daemon) Term(ctx context.Context) (int, error) { return d.ending().Term(ctx) }

// Signal sends a signal; that the process has ended is no error.
func (d *Daemon) Signal(s syscall.Signal) error { return d.current().Signal(s) }

// Restart starts an ended process again, with the same arguments and more of
// them, on the addresses that its last run had listened on.
func (d *Daemon) Restart(more ...string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.run.Done():
	default:
		return fmt.Errorf("%s still runs", d.run.Name())
	}
	public, admin := d.run.Listened()
	spec := d.spec
	spec.Args = slices.Clone(spec.Args)
	// The last of two equal flags counts.
	if public != "" {
		spec.Args = append(spec.Args, "--listen="+public)
	}
	if admin != "" {
		spec.Args = append(spec.Args, "--admin-listen="+admin)
	}
	d.more = append(d.more, more...)
	spec.Args = append(spec.Args, d.more...)
	run, err := child.Start(spec)
	if err != nil {
		return err
	}
	const keep = 3
	if d.past = append(d.past, d.run); len(d.past) > keep {
		d.past = d.past[1:]
	}
	d.run, d.ended = run, false
	return nil
}

// Stop pauses the process (SIGSTOP), and returns once it stands still.
func (d *Daemon) Stop(ctx context.Context) error {
	run := d.current()
	if err := run.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := standStill(ctx, run.Pid()); err != nil {
		return fmt.Errorf("stop %s: %w", run.Name(), err)
	}
	return nil
}

// standStill waits until a process that was sent SIGSTOP stands still.
func standStill(ctx context.Context, pid int) error {
	for {
		state, _, err := procStat(pid)
		if err != nil || state == "T" {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not stand still: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// Cont lets a paused process go on.
func (d *Daemon) Cont() error { return d.Signal(syscall.SIGCONT) }

// Ready waits until /readyz says so.
func (d *Daemon) Ready(ctx context.Context) error { return d.current().Ready(ctx) }

// Public is the address that an api takes votes on.
func (d *Daemon) Public(ctx context.Context) (string, error) { return d.current().Public(ctx) }

// Admin is the admin address.
func (d *Daemon) Admin(ctx context.Context) (string, error) { return d.current().Admin(ctx) }

// Metric adds up the samples of a metric whose labels contain all of labels,
// like `reason="unreadable"`. It is the newest run's, so it begins at 0 after
// Restart.
func (d *Daemon) Metric(ctx context.Context, name string, labels ...string) (float64, error) {
	return d.current().Metric(ctx, name, labels...)
}

// Samples is Metric, and says how many samples there are.
func (d *Daemon) Samples(ctx context.Context, name string, labels ...string) (sum float64, n int, err error) {
	return d.current().Samples(ctx, name, labels...)
}

// CPU is how much processor time the newest run has used.
func (d *Daemon) CPU() (time.Duration, error) {
	_, used, err := procStat(d.Pid())
	return used, err
}

// RSS is how much memory of the newest run is resident, in bytes.
func (d *Daemon) RSS() (int64, error) { return RSS(d.Pid()) }

// Tail is the ends of the logs of the newest runs, at most n bytes of each.
func (d *Daemon) Tail(n int) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	for _, run := range append(d.past[:len(d.past):len(d.past)], d.run) {
		fmt.Fprintf(&b, "log of %s, ended with %d:\n%s\n", run.Name(), run.ExitCode(), run.Log().Tail(n))
	}
	return b.String()
}

// RSS is how much memory of a process is resident, in bytes.
func RSS(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	f := bytes.Fields(b)
	if len(f) < 2 {
		return 0, fmt.Errorf("/proc/%d/statm: %q", pid, b)
	}
	pages, err := strconv.ParseInt(string(f[1]), 10, 64)
	return pages * int64(os.Getpagesize()), err
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
