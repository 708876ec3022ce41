package httpapi

import (
	"bytes"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// ambiguousFraming tells whether a header gives the length of the body twice,
// or also as chunks: then a proxy and this server could cut the stream in
// different places (request smuggling).
func ambiguousFraming(raw []byte) bool {
	lengths, chunked := 0, 0
	for len(raw) > 0 {
		line := raw
		if i := bytes.IndexByte(raw, '\n'); i >= 0 {
			line, raw = raw[:i], raw[i+1:]
		} else {
			raw = nil
		}
		switch {
		case len(line) > 15 && (line[0]|0x20) == 'c' && bytes.EqualFold(line[:14], []byte("content-length")):
			lengths++
		case len(line) > 18 && (line[0]|0x20) == 't' && bytes.EqualFold(line[:17], []byte("transfer-encoding")):
			chunked++
		}
	}
	return lengths+chunked > 1
}

func knownMethod(m []byte) bool {
	switch string(m) {
	case "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH":
		return true
	}
	return false
}

// lingerListener hands out connections that can close slowly.
type lingerListener struct{ net.Listener }

// Accept waits for the next connection.
func (l lingerListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		return &lingerConn{TCPConn: tcp}, nil
	}
	return c, nil
}

// lingerConn, once told to linger, reads what the client still sends before it
// closes. A server that closes a connection with unread bytes resets it, and
// the client may lose the answer (413, 431) that says why.
type lingerConn struct {
	*net.TCPConn
	linger atomic.Bool
}

// How much, and for how long, a lingering connection is read.
const (
	lingerBytes = 256 << 10
	lingerTime  = time.Second
)

// Close closes the connection.
func (c *lingerConn) Close() error {
	if c.linger.Load() && c.CloseWrite() == nil && c.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		// How the rest ends does not matter: the answer has been sent.
		_, _ = io.CopyN(io.Discard, c.TCPConn, lingerBytes)
	}
	return c.TCPConn.Close()
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
