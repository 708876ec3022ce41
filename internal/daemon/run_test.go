package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The tests of this file run on synctest's clock, where waiting takes no time
// and durations are exact.

// recorder makes parts that write down when they start and stop.
type recorder struct {
	began time.Time

	mu     sync.Mutex
	events []string
}

func newRecorder() *recorder { return &recorder{began: time.Now()} }

func (r *recorder) note(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, fmt.Sprintf("%v %s", time.Since(r.began), what))
}

// part stops after a while, with err.
func (r *recorder) part(name string, takes time.Duration, err error) Part {
	return Part{Name: name, Run: func(ctx context.Context) error {
		<-ctx.Done()
		time.Sleep(takes)
		r.note(name + " stopped")
		return err
	}}
}

// failing fails after a while.
func failing(name string, after time.Duration, err error) Part {
	return Part{Name: name, Run: func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(after):
			return err
		}
	}}
}

func (r *recorder) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events
}

// signalAfter is a context that is cancelled as by a signal.
func signalAfter(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	timer := time.AfterFunc(d, func() { cancel(errors.New("signal: terminated")) })
	t.Cleanup(func() { timer.Stop(); cancel(nil) })
	return ctx
}

func TestRunStopsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		r := newRecorder()
		err := Run(signalAfter(t, time.Minute), Options{
			Log: logTo(&out), ShutdownTimeout: 25 * time.Second, DrainDelay: 5 * time.Second, Draining: func() { r.note("draining") },
		},
			r.part("http", 3*time.Second, nil),
			r.part("enqueue", 2*time.Second, context.Canceled),
			r.part("admin", 0, fmt.Errorf("read: %w", context.Canceled)),
		)
		require.NoError(t, err)
		assert.Equal(t, []string{"1m0s draining", "1m8s http stopped", "1m10s enqueue stopped", "1m10s admin stopped"}, r.all())
		assert.Contains(t, out.String(), `msg=stopping reason="signal: terminated"`)
		assert.Contains(t, out.String(), "msg=stopped\n")
	})
}

// Each part is stopped by its own context, with the values of the caller's.
func TestRunContexts(t *testing.T) {
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		ctx := context.WithValue(signalAfter(t, time.Second), key{}, "value")
		var second context.Context
		err := Run(ctx, Options{Log: logTo(new(output))},
			Part{Name: "first", Run: func(own context.Context) error {
				<-own.Done()
				synctest.Wait()
				assert.Equal(t, "value", own.Value(key{}))
				assert.NoError(t, second.Err(), "not its turn yet")
				return nil
			}},
			Part{Name: "second", Run: func(own context.Context) error {
				second = own
				<-own.Done()
				return nil
			}},
		)
		require.NoError(t, err)
	})
}

func TestRunFails(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		part Part
		is   error
		text string
	}{
		"an error":         {failing("count", time.Second, broken), broken, "count: broken"},
		"nil":              {failing("count", time.Second, nil), nil, "count: ended by itself"},
		"canceled by whom": {failing("count", time.Second, context.Canceled), context.Canceled, "count: context canceled"},
		"a panic": {
			Part{Name: "count", Run: func(context.Context) error { panic("oh") }}, nil, "count: panic: oh",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out output
				r := newRecorder()
				err := Run(t.Context(), Options{
					Log: logTo(&out), ShutdownTimeout: time.Minute, DrainDelay: 30 * time.Second, Draining: func() {},
				}, r.part("first", 0, nil), c.part, r.part("last", 0, nil))
				require.EqualError(t, err, c.text)
				if c.is != nil {
					require.ErrorIs(t, err, c.is)
				}
				assert.Len(t, r.all(), 2, "the others were stopped")
				assert.Less(t, time.Since(r.began), 30*time.Second, "no drain delay when something is broken")
				assert.Len(t, out.lines("part failed, stopping"), 1)
				if name == "a panic" {
					assert.Contains(t, out.lines("msg=panic")[0], "run_test.go", "the stack is logged")
				}
			})
		})
	}
}

func TestRunFailsWhileStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken, worse := errors.New("broken"), errors.New("worse")
		r := newRecorder()
		err := Run(signalAfter(t, time.Second), Options{Log: logTo(new(output)), ShutdownTimeout: time.Minute},
			r.part("http", 10*time.Second, broken),
			failing("enqueue", 5*time.Second, worse), // while http still stops
			r.part("admin", 0, nil),
		)
		require.ErrorIs(t, err, broken)
		require.ErrorIs(t, err, worse)
		require.EqualError(t, err, "http: stop: broken\nenqueue: worse")
		assert.Len(t, r.all(), 2)
	})
}

func TestRunFailsWhileDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		err := Run(signalAfter(t, time.Second), Options{Log: logTo(new(output)), ShutdownTimeout: time.Minute, DrainDelay: 30 * time.Second},
			r.part("http", 0, nil), failing("enqueue", 5*time.Second, errors.New("broken")))
		require.EqualError(t, err, "enqueue: broken")
		assert.Equal(t, []string{"5s http stopped"}, r.all(), "there is no point in draining any more")
	})
}

func TestShutdownTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		err := Run(signalAfter(t, time.Second), Options{Log: logTo(new(output)), ShutdownTimeout: 10 * time.Second, DrainDelay: 4 * time.Second},
			r.part("quick", 0, nil), r.part("slow", time.Hour, nil), r.part("admin", 0, nil))
		require.ErrorIs(t, err, ErrShutdownTimeout)
		require.EqualError(t, err, "shutdown timeout: after 10s still running: slow, admin")
		assert.Equal(t, 11*time.Second, time.Since(r.began), "the drain delay is part of it")
		time.Sleep(2 * time.Hour) // the slow part ends
		assert.Equal(t, []string{"5s quick stopped", "11s admin stopped", "1h0m5s slow stopped"}, r.all(), "all were told to stop")
	})
}

func TestDrainDelayBeyondTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		err := Run(signalAfter(t, 0), Options{Log: logTo(new(output)), ShutdownTimeout: 10 * time.Second, DrainDelay: time.Hour}, r.part("http", 0, nil))
		require.ErrorIs(t, err, ErrShutdownTimeout)
		assert.Equal(t, 10*time.Second, time.Since(r.began))
		synctest.Wait()
		assert.Len(t, r.all(), 1)
	})
}

func TestRunWithoutBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRecorder()
		require.NoError(t, Run(signalAfter(t, 0), Options{Log: logTo(new(output))}, r.part("slow", 24*time.Hour, nil)))
		assert.Len(t, r.all(), 1)
	})
}

func TestRunWithoutParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.NoError(t, Run(signalAfter(t, time.Second), Options{Log: logTo(new(output))}))
	})
}

func TestRunAlreadyCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	stopped := false
	err := Run(ctx, Options{Log: logTo(new(output)), ShutdownTimeout: time.Minute}, Part{Name: "http", Run: func(own context.Context) error {
		<-own.Done()
		stopped = true
		return nil
	}})
	require.NoError(t, err)
	assert.True(t, stopped)
}
