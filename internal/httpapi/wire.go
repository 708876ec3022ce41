package httpapi

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/valyala/fasthttp"
)

// framing is how a request's header gives the length of its body.
type framing struct {
	chunked bool
	// bad says why a proxy in front could read the header in another way than
	// this server, and so cut the stream in another place (request smuggling).
	bad string
}

// readFraming looks at a header as it came. It refuses more than RFC 9112 asks
// for: no honest client sends any of this.
func readFraming(raw []byte, http11 bool) framing {
	var f framing
	lengths, codings := 0, 0
	for len(raw) > 0 {
		line := raw
		if i := bytes.IndexByte(raw, '\n'); i >= 0 {
			line, raw = raw[:i], raw[i+1:]
		} else {
			raw = nil
		}
		line = bytes.TrimSuffix(line, []byte{'\r'})
		if len(line) == 0 {
			continue
		}
		if bytes.IndexByte(line, '\r') >= 0 || bytes.IndexByte(line, 0) >= 0 {
			f.bad = "The header has a control character."
		}
		name, value, ok := bytes.Cut(line, []byte{':'})
		switch {
		case !ok || !token(name):
			f.bad = "The header has a line that is no field."
		case len(name) == 14 && bytes.EqualFold(name, []byte("content-length")):
			lengths++
		case len(name) == 17 && bytes.EqualFold(name, []byte("transfer-encoding")):
			codings++
			f.chunked = bytes.EqualFold(bytes.TrimSpace(value), []byte("chunked"))
		}
	}
	switch {
	case lengths+codings > 1:
		f.bad = "The length of the body is given in more than one way."
	case codings > 0 && (!f.chunked || !http11):
		f.bad = "The only Transfer-Encoding here is chunked, in HTTP/1.1."
	}
	return f
}

// token tells whether b is a field's name by RFC 9110.
func token(b []byte) bool {
	for _, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-':
		case c <= ' ' || c > '~' || bytes.IndexByte([]byte(`"(),/:;<=>?@[\]{}`), c) >= 0:
			return false
		}
	}
	return len(b) > 0
}

// dropTrailers reads the header of a chunked request again, as it came. The
// server adds the fields behind the body to it, where an X-Forwarded-For would
// pass for one that a proxy wrote.
func dropTrailers(h *fasthttp.RequestHeader) error {
	raw := slices.Concat(h.Method(), []byte{' '}, h.RequestURI(), []byte(" HTTP/1.1\r\n"), h.RawHeaders())
	if err := h.Read(bufio.NewReaderSize(bytes.NewReader(raw), len(raw))); err != nil {
		return fmt.Errorf("header: %w", err)
	}
	return nil
}

func knownMethod(m []byte) bool {
	switch string(m) {
	case "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH":
		return true
	}
	return false
}

// edgeListener hands out the connections of the public port. It does what
// fasthttp leaves out: it goes on when the machine is short of something, lets
// a client read why it was refused, bounds the number of connections and has
// less patience the more there are, and does not wait at shutdown for clients
// that have connected and said nothing.
type edgeListener struct {
	net.Listener
	// limit is how many connections may be open; refusal answers the others.
	limit    int64
	refusal  func() []byte
	open     atomic.Int64
	refusing chan struct{}
	wg       sync.WaitGroup // of refuse

	mu      sync.Mutex
	closing bool
	silent  map[*edgeConn]bool // have sent nothing yet
}

func newEdgeListener(ln net.Listener, limit int64, refusal func() []byte) *edgeListener {
	return &edgeListener{
		Listener: ln, limit: limit, refusal: refusal,
		refusing: make(chan struct{}, refusers(limit)), silent: map[*edgeConn]bool{},
	}
}

// Accept waits for the next connection.
func (l *edgeListener) Accept() (net.Conn, error) {
	for wait := shortWait; ; wait = min(max(2*wait, shortWait), time.Second) {
		c, err := l.Listener.Accept()
		switch {
		case err == nil:
			wait = 0
			if c := l.enter(c); c != nil {
				return c, nil
			}
		case shortage(err):
			<-time.After(wait) // others must end first, which no one tells
		default:
			return nil, err
		}
	}
}

const shortWait = 5 * time.Millisecond

// shortage tells whether err may pass: too many open files, no memory.
func shortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}

// enter returns the connection as it is served, or nil: it was refused.
func (l *edgeListener) enter(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	if l.open.Add(1) > l.limit {
		l.open.Add(-1)
		l.refuse(tcp)
		return nil
	}
	e := &edgeConn{TCPConn: tcp, l: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.silent[e] = true
	if l.closing {
		e.leave()
	}
	return e
}

// Close takes no more connections, and bids those farewell that say nothing.
func (l *edgeListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
	for c := range l.silent {
		c.leave()
	}
	return l.Listener.Close()
}

func (l *edgeListener) isClosing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closing
}

func (l *edgeListener) spoke(c *edgeConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.silent, c)
}

// crowd tells how many connections there are.
func (l *edgeListener) crowd() crowd { return crowdOf(l.open.Load(), l.limit) }

// edgeConn, once told to linger, reads what the client still sends before it
// closes. A server that closes a connection with unread bytes resets it, and
// the client may lose the answer (413, 431) that says why.
type edgeConn struct {
	*net.TCPConn
	l      *edgeListener
	linger atomic.Int64 // for how long, a time.Duration
	heard  atomic.Bool
	closed atomic.Bool

	mu      sync.Mutex
	leaveBy time.Time // set at shutdown, while nothing has been heard
}

// silentTime is how long a client that has said nothing may stay at shutdown.
const silentTime = 500 * time.Millisecond

func (c *edgeConn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaveBy = time.Now().Add(silentTime)
	_ = c.TCPConn.SetReadDeadline(c.leaveBy) // it fails only when closed
}

// SetReadDeadline implements net.Conn.
func (c *edgeConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if crowd := c.l.crowd(); crowd != roomy {
		t = crowd.patience(time.Now(), t)
	}
	if !c.leaveBy.IsZero() && t.After(c.leaveBy) {
		t = c.leaveBy
	}
	return c.TCPConn.SetReadDeadline(t)
}

// Read implements net.Conn.
func (c *edgeConn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if c.heard.Load() {
		return n, err
	}
	c.l.spoke(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	leaving := !c.leaveBy.IsZero()
	switch {
	case n > 0:
		c.heard.Store(true)
		if leaving { // its request is served like any other
			c.leaveBy = time.Time{}
			_ = c.TCPConn.SetReadDeadline(time.Now().Add(readTimeout)) // it fails only when closed
		}
	case leaving && errors.Is(err, os.ErrDeadlineExceeded):
		err = io.EOF // it said nothing, so it gets no answer
	}
	return n, err
}

// How much of what is still sent is read before a connection closes, how long
// in all, and how long nothing may come.
const (
	lingerBytes = 64 << 20
	lingerTime  = 5 * time.Second
	lingerPause = time.Second
)

// Close closes the connection.
func (c *edgeConn) Close() error {
	c.l.spoke(c)
	if d := time.Duration(c.linger.Swap(0)); d > 0 && c.CloseWrite() == nil {
		c.drain(d)
	}
	if !c.closed.Swap(true) {
		c.l.open.Add(-1)
	}
	return c.TCPConn.Close()
}

func (c *edgeConn) drain(d time.Duration) {
	end := time.Now().Add(d)
	buf := make([]byte, 4<<10) // many may drain at one time
	for left := lingerBytes; left > 0 && !c.l.isClosing(); {
		pause := time.Now().Add(lingerPause)
		if pause.After(end) {
			pause = end
		}
		if c.TCPConn.SetReadDeadline(pause) != nil {
			return
		}
		n, err := c.TCPConn.Read(buf)
		if err != nil {
			return // how the rest ends does not matter: the answer has been sent
		}
		left -= n
	}
}

// limiter lets a few log lines of each kind through a second.
type limiter struct {
	mu    sync.Mutex
	kinds map[string]*window
}

type window struct {
	second  int64
	count   int
	dropped int
}

const linesPerSecond = 5

// allow tells whether a line may be written, and how many of its kind were not
// since the last one.
func (l *limiter) allow(kind string, now time.Time) (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kinds == nil {
		l.kinds = map[string]*window{}
	}
	w := l.kinds[kind]
	if w == nil {
		w = &window{}
		l.kinds[kind] = w
	}
	if s := now.Unix(); s != w.second {
		w.second, w.count = s, 0
	}
	if w.count++; w.count > linesPerSecond {
		w.dropped++
		return 0, false
	}
	dropped, w.dropped = w.dropped, 0
	return dropped, true
}
