package httpapi

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"paredao/internal/vote"
)

// kept is an answer from Redis that many ask for. It is read again when it is
// asked for and too old, once for all who ask at that time. While that fails, the
// last one is served at once, as stale.
type kept[T any] struct {
	last atomic.Pointer[reading[T]]

	mu      sync.Mutex
	renewal *renewal // the last one begun; nil: none yet
	failing bool     // the last one that ended found no Redis
}

// reading is what was read, and when the reading began.
type reading[T any] struct {
	value T
	at    time.Time
}

// renewal is a reading in hand, or one that is over.
type renewal struct {
	began time.Time
	done  chan struct{}
	err   error // set before done is closed
	// panicked is what the reading panicked with. Who waits panics in its place,
	// where it becomes an answer.
	panicked any
}

var errPanicked = errors.New("a panic while it was read")

// rest is how long Redis is left alone after a reading that failed, while there
// is something to serve.
const rest = 250 * time.Millisecond

// get returns a value that is at most maxAge old, or was read since get was
// called. If that can't be had, it returns the last one and says how old it is;
// without one, or if the poll is gone, the error. read runs by spawn, so that it
// goes on for the others if the caller does not wait.
func (k *kept[T]) get(maxAge time.Duration, spawn func(func()), read func() (T, error)) (value T, stale time.Duration, err error) {
	asked := time.Now()
	for {
		last := k.last.Load()
		if last != nil && (!last.at.Before(asked) || time.Since(last.at) < maxAge) {
			return last.value, 0, nil
		}
		r, failing := k.renew(asked, maxAge, last != nil, spawn, read)
		if last != nil && failing {
			return last.value, time.Since(last.at), nil
		}
		<-r.done
		switch {
		case r.panicked != nil:
			panic(r.panicked)
		case r.err == nil: // it may have begun too early for this caller
		case last == nil || errors.Is(r.err, vote.ErrPollNotFound):
			return value, 0, r.err
		default:
			return last.value, time.Since(last.at), nil
		}
	}
}

// renew returns a reading to wait for: the one in hand, or a new one, unless it is
// too early for that. failing: who has something to serve should not wait.
func (k *kept[T]) renew(asked time.Time, maxAge time.Duration, have bool, spawn func(func()), read func() (T, error)) (r *renewal, failing bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r := k.renewal; r != nil {
		select {
		case <-r.done:
			// It may have ended since the caller looked.
			if !r.began.Before(asked) || r.err == nil && time.Since(r.began) < maxAge || k.failing && have && time.Since(r.began) < rest {
				return r, k.failing
			}
		default:
			return r, k.failing
		}
	}
	r = &renewal{began: time.Now(), done: make(chan struct{})}
	k.renewal = r
	spawn(func() {
		defer func() {
			if p := recover(); p != nil {
				r.panicked, r.err = fmt.Sprintf("%v\n%s", p, debug.Stack()), errPanicked
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			k.failing = r.err != nil && !errors.Is(r.err, vote.ErrPollNotFound)
			close(r.done)
		}()
		value, err := read()
		if r.err = err; err == nil {
			k.last.Store(&reading[T]{value, r.began})
		}
	})
	return r, k.failing
}
