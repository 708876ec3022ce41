package httpapi

import (
	"context"
	"runtime/debug"
	"time"
)

// After a crowd has gone, its buffers and stacks are garbage that Go keeps for
// long when little is going on: it collects when the heap has doubled, and
// pools give up what they hold at the second collection only.
const (
	tidyEvery = 15 * time.Second
	// tidyCrowd is how many connections must have gone for it to be worth a
	// collection.
	tidyCrowd = 500
	// tidyTimes: workers that served the crowd end some time after it.
	tidyTimes = 3
)

// tidier decides when memory is given back.
type tidier struct {
	most int64 // connections since it was given back
	left int   // how often it is to be given back yet
}

// look takes the number of connections; true: give memory back now.
func (t *tidier) look(open int64) bool {
	t.most = max(t.most, open)
	if t.most-open > tidyCrowd && open < t.most/2 {
		t.most, t.left = open, tidyTimes
	}
	if t.left == 0 {
		return false
	}
	t.left--
	return true
}

// tidy gives memory back to the system after crowds, until ctx is done.
func (s *Server) tidy(ctx context.Context) {
	tick := time.NewTicker(tidyEvery)
	defer tick.Stop()
	var t tidier
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if t.look(s.edge.open.Load()) {
			debug.FreeOSMemory()
		}
	}
}
