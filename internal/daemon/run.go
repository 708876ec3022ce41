package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// ErrShutdownTimeout says that parts still ran when the shutdown timeout was
// over.
var ErrShutdownTimeout = errors.New("shutdown timeout")

// Part is one of the things that a daemon does at the same time.
type Part struct {
	// Name is for logs and errors.
	Name string
	// Run works until ctx is cancelled, then finishes what is in hand and
	// returns nil (or context.Canceled). That cleanup needs a context of its
	// own: context.WithTimeout(context.WithoutCancel(ctx), …).
	//
	// To return before ctx is cancelled is a failure, even with nil: a process
	// that looks alive and does nothing is worse than one that is restarted.
	Run func(ctx context.Context) error
}

// Options say how Run stops.
type Options struct {
	Log *slog.Logger
	// ShutdownTimeout bounds the whole stop, the drain delay included. 0 means
	// no bound.
	ShutdownTimeout time.Duration
	// DrainDelay is waited after Draining and before the first part is
	// stopped, so that load balancers look elsewhere first.
	DrainDelay time.Duration
	// Draining is called as soon as the stop begins, to turn readiness off.
	// May be nil. See [Admin.SetDraining].
	Draining func()
}

// Run starts all parts together and waits until ctx is cancelled or one of
// them ends. Then it stops them in the order in which they are written,
// producers first: each is cancelled only after those before it have
// returned.
//
// It returns nil if ctx was cancelled and every part stopped well and in time.
// Else it returns what went wrong first, joined with what went wrong after;
// [ErrShutdownTimeout] is among it if time ran out. A part that has panicked
// counts as failed, and its stack is logged.
func Run(ctx context.Context, o Options, parts ...Part) error {
	ended := make(chan *running, len(parts))
	all := make([]*running, len(parts))
	for i, p := range parts {
		all[i] = start(ctx, o.Log, p, ended)
	}

	var failure error
	select {
	case <-ctx.Done():
		o.Log.Info("stopping", "reason", context.Cause(ctx))
	case r := <-ended:
		failure = r.failed()
	}

	deadline := context.WithoutCancel(ctx)
	if o.ShutdownTimeout > 0 {
		var cancel context.CancelFunc
		deadline, cancel = context.WithTimeout(deadline, o.ShutdownTimeout)
		defer cancel()
	}
	if o.Draining != nil {
		o.Draining()
	}
	if failure == nil && o.DrainDelay > 0 {
		failure = drain(deadline, o.DrainDelay, ended)
	}
	err := errors.Join(failure, stop(deadline, all, o))
	if err == nil {
		o.Log.Info("stopped")
	}
	return err
}

// drain waits for delay, unless a part fails or time runs out.
func drain(deadline context.Context, delay time.Duration, ended <-chan *running) error {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-deadline.Done(): // stop will say so
	case r := <-ended:
		return r.failed()
	}
	return nil
}

// stop cancels one part after the other, and waits for each.
func stop(deadline context.Context, all []*running, o Options) error {
	var errs []error
	for i, r := range all {
		select {
		case <-r.done:
			if !r.reported { // failed while others were being stopped
				errs = append(errs, r.failed())
			}
			continue
		default:
		}
		if deadline.Err() != nil {
			return errors.Join(append(errs, giveUp(all[i:], o.ShutdownTimeout))...)
		}
		began := time.Now()
		r.cancel()
		select {
		case <-r.done:
			o.Log.Debug("part stopped", "part", r.Name, "took", time.Since(began))
			if r.err != nil && !errors.Is(r.err, context.Canceled) {
				errs = append(errs, fmt.Errorf("%s: stop: %w", r.Name, r.err))
			}
		case <-deadline.Done():
			return errors.Join(append(errs, giveUp(all[i:], o.ShutdownTimeout))...)
		}
	}
	return errors.Join(errs...)
}

// giveUp cancels all parts that still run, and returns an error that names them.
func giveUp(rest []*running, timeout time.Duration) error {
	var names []string
	for _, r := range rest {
		select {
		case <-r.done:
		default:
			r.cancel()
			names = append(names, r.Name)
		}
	}
	return fmt.Errorf("%w: after %v still running: %s", ErrShutdownTimeout, timeout, strings.Join(names, ", "))
}

// running is a part that has been started.
type running struct {
	Part

	log      *slog.Logger
	cancel   context.CancelFunc
	done     chan struct{} // closed when Run has returned
	err      error         // what it returned; valid once done is closed
	reported bool          // failed has been called; only Run's goroutine uses it
}

func start(ctx context.Context, log *slog.Logger, p Part, ended chan<- *running) *running {
	// The signal that cancels ctx must not reach the parts all at once.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r := &running{Part: p, log: log, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer func() {
			cancel()
			close(r.done)
			ended <- r
		}()
		r.err = guard(ctx, p.Run, func(stack []byte) {
			log.Error("panic", "part", p.Name, "stack", string(stack))
		})
	}()
	return r
}

// failed is the error of a part that returned without being told to.
func (r *running) failed() error {
	r.reported = true
	err := r.err
	if err == nil {
		err = errors.New("ended by itself")
	}
	r.log.Error("part failed, stopping", "part", r.Name, "err", err)
	return fmt.Errorf("%s: %w", r.Name, err)
}
