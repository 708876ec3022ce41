package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"sync"
	"time"
)

// waitWatch looks again and again at how long a process's main thread could have
// run, and had no processor.
type waitWatch struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex
	looks []waitLook
}

// waitLook is the sum until a moment.
type waitLook struct {
	at     time.Time
	waited time.Duration
}

const waitSampled = 5 * time.Millisecond

// watchWaits begins to look. stop ends it.
func watchWaits(pid int) *waitWatch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &waitWatch{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for {
			if waited, err := waitedForCPU(pid); err == nil {
				w.note(waitLook{time.Now(), waited})
			}
			if !wait(ctx, waitSampled) {
				return
			}
		}
	}()
	return w
}

func (w *waitWatch) stop() {
	w.cancel()
	<-w.done
}

// note keeps a look; of those between which nothing was waited only the ends.
func (w *waitWatch) note(l waitLook) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.looks)
	if n > 1 && w.looks[n-1].waited == l.waited && w.looks[n-2].waited == l.waited {
		w.looks[n-1] = l
		return
	}
	w.looks = append(w.looks, l)
}

// sum is all the waiting that was seen; false: none can be seen here.
func (w *waitWatch) sum() (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.looks) == 0 {
		return 0, false
	}
	return w.looks[len(w.looks)-1].waited - w.looks[0].waited, true
}

// most is the most waiting in any stretch of a length between two moments, and
// at most that length. What lies between two looks is taken for evenly spread.
func (w *waitWatch) most(from, to time.Time, length time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var most time.Duration
	try := func(begin time.Time) {
		if end := begin.Add(length); !begin.Before(from) && !end.After(to) {
			most = max(most, w.until(end)-w.until(begin))
		}
	}
	// The most lies where a stretch begins or ends at a look.
	try(from)
	try(to.Add(-length))
	for _, l := range w.looks {
		if l.at.Before(from) || l.at.After(to) {
			continue
		}
		try(l.at)
		try(l.at.Add(-length))
	}
	return min(most, length)
}

// until is the sum until a moment. The lock is the caller's.
func (w *waitWatch) until(at time.Time) time.Duration {
	n := len(w.looks)
	i := sort.Search(n, func(i int) bool { return w.looks[i].at.After(at) })
	switch {
	case n == 0:
		return 0
	case i == 0:
		return w.looks[0].waited
	case i == n:
		return w.looks[n-1].waited
	}
	a, b := w.looks[i-1], w.looks[i]
	share := float64(at.Sub(a.at)) / float64(b.at.Sub(a.at))
	return a.waited + time.Duration(share*float64(b.waited-a.waited))
}

// waitedForCPU is for how long a process's main thread could have run, and did
// not.
func waitedForCPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		return 0, err
	}
	var ran, waited int64
	if _, err := fmt.Sscan(string(text), &ran, &waited); err != nil {
		return 0, err
	}
	return time.Duration(waited), nil
}
