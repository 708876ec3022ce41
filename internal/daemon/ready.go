package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	checkTimeout = 2 * time.Second
	// answerAge is how old an answer may be: probes by many can't hammer Redis.
	answerAge = 500 * time.Millisecond
)

// Check is one thing that must work for the daemon to be ready.
type Check struct {
	Name string
	// Check returns nil, or why it can't work. The text is shown to whoever
	// asks /readyz, so it must hold no secret. ctx ends after 2 s. It is not
	// called again before it has returned.
	Check func(ctx context.Context) error
}

// readiness runs the checks together and remembers the answer for a moment.
type readiness struct {
	base    context.Context // ends with the server
	timeout time.Duration
	now     func() time.Time
	outage  *OutageLog

	mu     sync.Mutex // held while the checks run: whoever asks meanwhile shares their answer
	checks []*check
	at     time.Time
	answer map[string]string
}

type check struct {
	Check

	log     *slog.Logger
	pending chan error // a call that has not been heard of yet, or nil
}

func newReadiness(base context.Context, checks []Check, log *slog.Logger) *readiness {
	r := &readiness{
		base: base, timeout: checkTimeout, now: time.Now,
		outage: NewOutageLog(OutageParams{Log: log, Message: "not ready"}),
	}
	for _, c := range checks {
		r.checks = append(r.checks, &check{Check: c, log: log})
	}
	return r
}

// failing is why the daemon is not ready, by check; empty if it is.
func (r *readiness) failing() map[string]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.at.IsZero() && r.now().Sub(r.at) < answerAge {
		return r.answer
	}
	ctx, cancel := context.WithTimeout(r.base, r.timeout)
	defer cancel()
	for _, c := range r.checks {
		c.begin(ctx)
	}
	answer := make(map[string]string)
	for _, c := range r.checks {
		if err := c.wait(ctx); err != nil {
			answer[c.Name] = err.Error()
		}
	}
	r.at, r.answer = r.now(), answer
	r.outage.Report(reason(answer))
	return answer
}

// begin starts the check. One that hangs since an earlier call is not started
// a second time, or goroutines would pile up.
func (c *check) begin(ctx context.Context) {
	if c.pending != nil {
		select {
		case err := <-c.pending:
			c.log.Debug("check answered too late", "check", c.Name, "err", err)
		default:
			return
		}
	}
	pending := make(chan error, 1)
	c.pending = pending
	go func() {
		pending <- guard(ctx, c.Check.Check, func(stack []byte) {
			c.log.Error("panic", "check", c.Name, "stack", string(stack))
		})
	}()
}

func (c *check) wait(ctx context.Context) error {
	select {
	case err := <-c.pending:
		c.pending = nil
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-c.pending: // in time, but the wait for another check was longer
		c.pending = nil
		return err
	default:
		return fmt.Errorf("no answer: %w", ctx.Err())
	}
}

// reason is the answer as one error, or nil.
func reason(answer map[string]string) error {
	if len(answer) == 0 {
		return nil
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(answer)) {
		parts = append(parts, name+": "+answer[name])
	}
	return errors.New(strings.Join(parts, "; "))
}
