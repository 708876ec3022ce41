//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// loadParams are of one run at one rate.
type loadParams struct {
	target      netip.AddrPort
	requests    requestParams
	connections int
	threads     int
	rate        float64
	warmup      time.Duration
	measure     time.Duration
	// drain is how long after the last slot what is late is still sent and
	// awaited.
	drain   time.Duration
	timeout time.Duration
}

// load runs the schedule once:
//
//	slots (n/rate) ─▶ free connection ─▶ api ─▶ answer ─▶ histograms
//	   └─ wait while all are busy: latency ──────────────────┘
//
// When ctx ends it returns what has been measured so far.
func load(ctx context.Context, p loadParams) (*measured, error) {
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	loops := make([]*loop, p.threads)
	defer func() {
		for _, l := range loops {
			l.close()
		}
	}()
	for i := range loops {
		l, err := newLoop(p, i, &stop)
		loops[i] = l
		if err != nil {
			return nil, err
		}
	}
	failures := make(chan error, p.threads)
	each := func(f func(*loop) error) (err error) {
		for _, l := range loops {
			go func() { failures <- f(l) }()
		}
		for range loops {
			err = errors.Join(err, <-failures)
		}
		return err
	}
	if err := each((*loop).connect); ctx.Err() != nil {
		return nil, errEarly
	} else if err != nil {
		return nil, fmt.Errorf("can't connect to %s: %w", p.target, err)
	}
	cpu, start := cpuTime(), time.Now()
	err := each(func(l *loop) error { return l.run(start) })
	cores := (cpuTime() - cpu).Seconds() / time.Since(start).Seconds()
	if err != nil {
		return nil, err
	}
	all := make([]*measured, len(loops))
	for i, l := range loops {
		all[i] = l.m
	}
	m := merge(all)
	m.cores = cores
	return m, nil
}

var errEarly = errors.New("interrupted before anything was measured")

// cpuTime is what this process has taken.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

type state uint8

const (
	dead       state = iota // dialed again at the next look
	connecting              // until it is writable
	free                    // can take a slot
	waiting                 // for the answer
)

type conn struct {
	fd     int
	state  state
	queued bool
	// generation tells late events of an earlier socket apart.
	generation int32
	due, sent  time.Duration
	// late is how long the generator let the request lie while it could be sent.
	late    time.Duration
	partial []byte
}

const (
	// tick is the shortest sleep: shorter ones cost more than they give.
	tick = 100 * time.Microsecond
	// busyTick is for noticing that the loop wakes late while all are busy.
	busyTick = time.Millisecond
	// slept tells a sleep from the mere fetching of what lay there.
	slept = 20 * time.Microsecond
	// look is how often time-outs, dead connections and Ctrl-C are looked at.
	look = 50 * time.Millisecond
)

// loop is one thread's: every threads-th slot, and its share of the connections.
// All its times are since the start of the schedule.
type loop struct {
	p     loadParams
	id    int64
	stop  *atomic.Bool
	start time.Time
	votes *requests
	m     *measured

	epoll        int
	conns        []conn
	queue        []int32 // free connections, in turn: a ring
	head, queued int
	free         int
	// freeSince is since when at least one has been free, busySince none.
	freeSince, busySince time.Duration

	slot, slots int64 // next of this loop's, and how many there are
	from, to    time.Duration
	looked      time.Duration
	// unread is when events were last fetched: what is fetched next came later.
	unread time.Duration
	events []unix.EpollEvent
	buf    []byte
	failed error // of the first connection, while connecting
}

func newLoop(p loadParams, id int, stop *atomic.Bool) (*loop, error) {
	n := p.connections / p.threads
	if id < p.connections%p.threads {
		n++
	}
	l := &loop{
		p: p, id: int64(id), stop: stop, votes: newRequests(p.requests, id), m: newMeasured(), start: time.Now(),
		epoll: -1, conns: make([]conn, n), queue: make([]int32, n),
		from: p.warmup, to: p.warmup + p.measure,
		events: make([]unix.EpollEvent, 256), buf: make([]byte, longestAnswer),
	}
	for i := range l.conns {
		l.conns[i].fd = -1
	}
	for l.due(l.slots) < l.to {
		// By steps first, since there may be millions.
		const step = 1 << 16
		if l.due(l.slots+step) < l.to {
			l.slots += step
		} else {
			l.slots++
		}
	}
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return l, fmt.Errorf("epoll: %w", err)
	}
	return l, nil
}

func (l *loop) close() {
	if l == nil {
		return
	}
	for i := range l.conns {
		l.hangUp(&l.conns[i], 0)
	}
	if l.epoll >= 0 {
		_ = unix.Close(l.epoll)
	}
}

func (l *loop) now() time.Duration { return time.Since(l.start) }

// number is that of this loop's slot in the whole schedule.
func (l *loop) number(slot int64) int64 { return slot*int64(l.p.threads) + l.id }

// due is when this loop's slot is.
func (l *loop) due(slot int64) time.Duration {
	return time.Duration(float64(l.number(slot)) * float64(time.Second) / l.p.rate)
}

// within is how much of a span lies in the measured time.
func (l *loop) within(from, to time.Duration) time.Duration {
	return max(min(to, l.to)-max(from, l.from), 0)
}

// connect connects all, before the schedule begins.
func (l *loop) connect() error {
	for i := range l.conns {
		l.dial(i, l.now())
	}
	for l.failed == nil && l.free < len(l.conns) {
		if l.stop.Load() {
			return context.Canceled
		}
		if l.now() > l.p.timeout {
			return fmt.Errorf("after %s only %d of %d connections stood", l.p.timeout, l.free, len(l.conns))
		}
		if err := l.wait(look); err != nil {
			return err
		}
	}
	return l.failed
}

// run goes through the schedule.
func (l *loop) run(start time.Time) error {
	l.start, l.m = start, newMeasured()
	l.freeSince, l.looked, l.unread = 0, 0, 0
	end := l.to + l.p.drain
	var now time.Duration
	for {
		now = l.now()
		now = l.sendDue(now)
		if l.stop.Load() || now > end || l.slot == l.slots && !l.inTheAir() {
			break
		}
		if now-l.looked > look {
			l.lookAround(now)
		}
		var sleep time.Duration
		switch {
		case l.slot == l.slots:
			sleep = look
		case l.free == 0:
			sleep = busyTick
		default:
			sleep = min(max(l.due(l.slot)-now, tick), look)
		}
		if err := l.wait(sleep); err != nil {
			return err
		}
	}
	l.finish(now)
	return nil
}

// finish counts what had no end.
func (l *loop) finish(now time.Duration) {
	interrupted := now < l.to
	if interrupted {
		l.to = now
	}
	l.m.window = max(l.to-l.from, 0)
	if l.free == 0 {
		l.m.allBusy += l.within(l.busySince, now)
	}
	for i := range l.conns {
		// After Ctrl-C the last ones are nobody's fault.
		if c := &l.conns[i]; c.state == waiting && !interrupted {
			l.fail(c.due, "unanswered")
		}
	}
	for ; l.slot < l.slots && l.due(l.slot) < l.to; l.slot++ {
		if l.due(l.slot) >= l.from {
			l.m.due++
			l.m.unsent++
		}
	}
}

func (l *loop) inTheAir() bool {
	for i := range l.conns {
		if l.conns[i].state == waiting {
			return true
		}
	}
	return false
}

// sendDue sends what is due, as long as a connection is free.
func (l *loop) sendDue(now time.Duration) time.Duration {
	for l.free > 0 && l.slot < l.slots && l.due(l.slot) <= now {
		i := l.queue[l.head]
		if l.head++; l.head == len(l.queue) {
			l.head = 0
		}
		l.queued--
		c := &l.conns[i]
		c.queued = false
		if c.state != free { // it ended while it stood there
			continue
		}
		l.send(int(i), now)
		now = l.now()
	}
	return now
}

// send sends the next slot's request.
func (l *loop) send(i int, now time.Duration) {
	c := &l.conns[i]
	c.due, c.sent = l.due(l.slot), now
	c.late = now - max(c.due, l.freeSince)
	if c.due >= l.from {
		l.m.due++
	}
	b := l.votes.next(l.number(l.slot))
	l.slot++
	l.turn(c, waiting, now)
	// So small a request always fits into an empty socket.
	if n, err := unix.Write(c.fd, b); err != nil || n < len(b) {
		l.fail(c.due, kindOf(err))
		l.hangUp(c, now)
		l.dial(i, now)
	}
}

// turn gives a connection another state.
func (l *loop) turn(c *conn, s state, now time.Duration) {
	was := c.state
	c.state = s
	switch {
	case was == free && s != free:
		if l.free--; l.free == 0 {
			l.busySince = now
		}
	case was != free && s == free:
		if l.free++; l.free == 1 {
			l.freeSince = now
			l.m.allBusy += l.within(l.busySince, now)
		}
	}
}

// release makes a connection free.
func (l *loop) release(i int, now time.Duration) {
	c := &l.conns[i]
	l.turn(c, free, now)
	if c.queued {
		return
	}
	c.queued = true
	at := l.head + l.queued
	if at >= len(l.queue) {
		at -= len(l.queue)
	}
	l.queue[at] = int32(i)
	l.queued++
}

// wait fetches events, sleeping no longer than so long, and handles them.
func (l *loop) wait(sleep time.Duration) error {
	began := l.now()
	n, err := epollWait(l.epoll, l.events, sleep)
	woke := l.now()
	before := l.unread
	l.unread = woke
	if woke-began > slept {
		l.m.waited += l.within(began, woke)
		// What came did not lie there long, unless the loop overslept.
		before = min(woke, began+sleep)
	}
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	for _, e := range l.events[:n] {
		if l.conns[e.Fd].generation != e.Pad {
			continue
		}
		l.handle(int(e.Fd), before)
	}
	return nil
}

// epollWait is unix.EpollWait for times below a millisecond. It needs Linux 5.11.
func epollWait(epoll int, events []unix.EpollEvent, sleep time.Duration) (int, error) {
	timeout := unix.NsecToTimespec(int64(sleep))
	n, _, code := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
		uintptr(unsafe.Pointer(&timeout)), 0, 0)
	if code != 0 {
		return 0, code
	}
	return int(n), nil
}

// handle handles what happened to a connection, not before that time.
func (l *loop) handle(i int, before time.Duration) {
	c := &l.conns[i]
	switch c.state {
	case dead:
	case connecting:
		l.connected(i)
	case free:
		// The server has ended it, or says what nobody asked for.
		now := l.now()
		l.hangUp(c, now)
		l.dial(i, now)
	case waiting:
		l.read(i, before)
	}
}

func (l *loop) read(i int, before time.Duration) {
	c := &l.conns[i]
	n, err := unix.Read(c.fd, l.buf)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return
	}
	now := l.now()
	b := l.buf[:max(n, 0)]
	if len(c.partial) > 0 {
		c.partial = append(c.partial, b...)
		b = c.partial
	}
	var a answer
	size := 0
	kind := "closed"
	switch {
	case err != nil:
		kind = kindOf(err)
	case n > 0:
		if a, size, err = parseAnswer(b); err != nil {
			kind = err.Error()
		} else if size == 0 {
			if len(c.partial) == 0 {
				c.partial = append(c.partial, b...)
			}
			return // the rest comes
		}
	}
	c.partial = c.partial[:0]
	if size == 0 {
		l.fail(c.due, kind)
		l.hangUp(c, now)
		l.dial(i, now)
		return
	}
	l.settle(c, a, now, before)
	if a.closes || size < len(b) {
		l.hangUp(c, now)
		l.dial(i, now)
		return
	}
	l.release(i, now)
	l.sendDue(now)
}

// settle notes an answer.
func (l *loop) settle(c *conn, a answer, now, before time.Duration) {
	if now >= l.from && now < l.to {
		l.m.answeredIn++
		if a.status == 202 {
			l.m.acceptedIn++
		}
	}
	if c.due < l.from {
		if a.status/100 != 2 {
			l.m.warmupBad++
		}
		return
	}
	l.m.statuses[a.status]++
	l.m.took += now - c.sent
	record(l.m.own, c.late+now-max(before, c.sent))
	if a.status == 202 {
		record(l.m.latency, now-c.due)
		record(l.m.service, now-c.sent)
	}
}

// fail notes what had no answer.
func (l *loop) fail(due time.Duration, kind string) {
	if due < l.from {
		l.m.warmupBad++
		return
	}
	l.m.errors[kind]++
}

// lookAround ends what takes too long, and dials anew what is dead.
func (l *loop) lookAround(now time.Duration) {
	l.looked = now
	for i := range l.conns {
		c := &l.conns[i]
		switch {
		case c.state == waiting && now-c.sent > l.p.timeout:
			l.fail(c.due, "time-out")
			l.hangUp(c, now)
			l.dial(i, now)
		case c.state == connecting && now-c.sent > l.p.timeout:
			l.hangUp(c, now)
			l.dial(i, now)
		case c.state == dead:
			l.dial(i, now)
		}
	}
}

func (l *loop) hangUp(c *conn, now time.Duration) {
	l.turn(c, dead, now)
	c.generation++
	c.partial = c.partial[:0]
	if c.fd >= 0 {
		_ = unix.Close(c.fd) // which takes it out of epoll
		c.fd = -1
	}
}

// dial begins to connect a dead connection.
func (l *loop) dial(i int, now time.Duration) {
	c := &l.conns[i]
	if err := l.tryDial(i); err != nil {
		l.hangUp(c, now)
		l.connectFailed(err, now)
		return
	}
	c.sent = now
	l.turn(c, connecting, now)
}

func (l *loop) tryDial(i int) (err error) {
	c := &l.conns[i]
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(l.p.target.Port()), Addr: l.p.target.Addr().As16()})
	if l.p.target.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(l.p.target.Port()), Addr: l.p.target.Addr().As4()}
	}
	if c.fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		c.fd = -1
		return fmt.Errorf("socket: %w", err)
	}
	if err := unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if err := unix.Connect(c.fd, to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	e := unix.EpollEvent{Events: unix.EPOLLOUT, Fd: int32(i), Pad: c.generation}
	return unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, c.fd, &e)
}

// connected finds out how the connecting ended.
func (l *loop) connected(i int) {
	c, now := &l.conns[i], l.now()
	code, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && code != 0 {
		err = unix.Errno(code)
	}
	if err == nil {
		e := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(i), Pad: c.generation}
		err = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_MOD, c.fd, &e)
	}
	if err != nil {
		l.hangUp(c, now)
		l.connectFailed(err, now)
		return
	}
	l.release(i, now)
}

// connectFailed: no request was sent, so it is an error of the time at which it
// happens.
func (l *loop) connectFailed(err error, now time.Duration) {
	if l.failed == nil {
		l.failed = err
	}
	l.fail(now, "connect: "+kindOf(err))
}

// kindOf is a short name of a failure.
func kindOf(err error) string {
	switch {
	case err == nil:
		return "cut short"
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return "reset"
	case errors.Is(err, unix.ECONNREFUSED):
		return "connection refused"
	}
	return err.Error()
}
