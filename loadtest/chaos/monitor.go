package main

import (
	"sync"
	"time"
)

// monitor watches from outside how the number of acknowledged votes grows.
type monitor struct {
	acked func() int64
	start time.Time
	done  chan struct{}
	ended chan struct{}

	mu sync.Mutex
	// last is when the number was seen to grow, to count.
	last      time.Time
	count     int64
	longest   time.Duration
	longestAt time.Duration // since start
	without   time.Duration // in stops
	waiting   []recovery
}

// recovery waits for the next acknowledged vote after a fault.
type recovery struct {
	since time.Time
	count int64
	then  func(time.Duration)
}

// sampled is how often the monitor looks.
const sampled = 5 * time.Millisecond

// stopFrom is the least time without an acknowledged vote that adds to stopped.
const stopFrom = 500 * time.Millisecond

func newMonitor(acked func() int64) *monitor {
	now := time.Now()
	m := &monitor{acked: acked, start: now, last: now, done: make(chan struct{}), ended: make(chan struct{})}
	go m.run()
	return m
}

func (m *monitor) run() {
	defer close(m.ended)
	tick := time.NewTicker(sampled)
	defer tick.Stop()
	for {
		select {
		case <-m.done:
			return
		case <-tick.C:
			m.look(time.Now(), m.acked())
		}
	}
}

// look takes the number of acknowledged votes as it is now.
func (m *monitor) look(now time.Time, count int64) {
	m.mu.Lock()
	if gap := now.Sub(m.last); gap > m.longest {
		m.longest, m.longestAt = gap, m.last.Sub(m.start)
	}
	var over []recovery
	if count > m.count {
		if gap := now.Sub(m.last); gap >= stopFrom {
			m.without += gap
		}
		m.last, m.count = now, count
		left := m.waiting[:0]
		for _, w := range m.waiting {
			if count > w.count {
				over = append(over, w)
			} else {
				left = append(left, w)
			}
		}
		m.waiting = left
	}
	m.mu.Unlock()
	for _, w := range over {
		w.then(now.Sub(w.since))
	}
}

// recovered calls then, once, with the time from now to the next acknowledged
// vote. It is never called if none comes before stop.
func (m *monitor) recovered(then func(time.Duration)) {
	count := m.acked()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = append(m.waiting, recovery{since: time.Now(), count: count, then: then})
}

// stop ends the watch.
func (m *monitor) stop() {
	select {
	case <-m.done:
	default:
		close(m.done)
	}
	<-m.ended
}

// longestStop is the longest time without an acknowledged vote, and when it
// began, since the start.
func (m *monitor) longestStop() (d, at time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.longest, m.longestAt
}

// stopped is the time without an acknowledged vote in all, as far as it came in
// stops and not between two votes.
func (m *monitor) stopped() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.without
}
