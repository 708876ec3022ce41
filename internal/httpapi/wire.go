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
// a client read why it was refused, and does not wait at shutdown for clients
// that have connected and said nothing.
type edgeListener struct {
	net.Listener

	mu      sync.Mutex
	closing bool
	silent  map[*edgeConn]bool // have sent nothing yet
}

func newEdgeListener(ln net.Listener) *edgeListener {
	return &edgeListener{Listener: ln, silent: map[*edgeConn]bool{}}
}

// Accept waits for the next connection.
func (l *edgeListener) Accept() (net.Conn, error) {
	for wait := 5 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		c, err := l.Listener.Accept()
		if err == nil {
			return l.enter(c), nil
		}
		if !shortage(err) {
			return nil, err
		}
		<-time.After(wait) // others must end first, which no one tells
	}
}

// shortage tells whether err may pass: too many open files, no memory.
func shortage(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) ||
		errors.Is(err, syscall.ENOBUFS) || errors.Is(err, syscall.ENOMEM)
}

func (l *edgeListener) enter(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
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

// edgeConn, once told to linger, reads what the client still sends before it
// closes. A server that closes a connection with unread bytes resets it, and
// the client may lose the answer (413, 431) that says why.
type edgeConn struct {
	*net.TCPConn
	l      *edgeListener
	linger atomic.Bool
	heard  atomic.Bool

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
	if c.linger.Load() && c.CloseWrite() == nil {
		c.drain()
	}
	return c.TCPConn.Close()
}

func (c *edgeConn) drain() {
	end := time.Now().Add(lingerTime)
	buf := make([]byte, 16<<10)
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
