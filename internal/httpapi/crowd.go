package httpapi

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"

	"paredao/internal/vote"
)

// maxConnections is how many connections are served at one time; fewer where
// the process may not open so many files. An active one takes some 30 KB, and
// has one vote in the air.
const maxConnections = 65536

// connectionLimit leaves an eighth of the files for everything else.
func connectionLimit() int64 {
	files := fileLimit()
	return min(maxConnections, files-max(files/8, 1))
}

// crowd says how near the number of connections is to the limit.
type crowd int

const (
	roomy   crowd = iota
	busy          // above half: who is silent goes first
	crowded       // above seven eighths: who is slow goes as well
)

// How long a connection of a busy server may be idle, and how long one of a
// crowded server may take for a request, or be idle.
const (
	busyIdle    = 5 * time.Second
	crowdedRead = 2 * time.Second
)

func crowdOf(open, limit int64) crowd {
	switch {
	case open > limit-limit/8:
		return crowded
	case open > limit/2:
		return busy
	}
	return roomy
}

// patience is when a read that may take until t ends at the latest. Waiting for
// a next request is told from reading one by its deadline, which is longer.
func (c crowd) patience(now, t time.Time) time.Time {
	if c == roomy || t.IsZero() {
		return t
	}
	longest := t
	switch {
	case c == crowded:
		longest = now.Add(crowdedRead)
	case t.Sub(now) > readTimeout:
		longest = now.Add(busyIdle)
	}
	if t.After(longest) {
		return longest
	}
	return t
}

// refusers is how many connections above the limit get an answer at one time,
// before they are closed; those above that number are closed at once. They have
// at most half of the files that the limit leaves.
func refusers(limit int64) int64 { return min(256, max(limit/14, 1)) }

// refuse answers a connection that is one too many, instead of its request.
func (l *edgeListener) refuse(c *net.TCPConn) {
	select {
	case l.refusing <- struct{}{}:
	default:
		_ = c.Close()
		return
	}
	l.wg.Go(func() {
		defer func() {
			_ = c.Close() // whatever became of it, it ends here
			<-l.refusing
		}()
		if c.SetDeadline(time.Now().Add(lingerPause)) != nil {
			return
		}
		if _, err := c.Write(l.refusal()); err != nil || c.CloseWrite() != nil {
			return
		}
		// The request is read, so that closing does not reset the connection and
		// take the answer with it.
		buf := make([]byte, 2<<10)
		for left := headerLimit; left > 0 && !l.isClosing(); {
			n, err := c.Read(buf)
			if err != nil {
				return
			}
			left -= n
		}
	})
}

// tooMany is the whole answer to a connection that is one too many.
func (s *Server) tooMany() []byte {
	p := toProblem(fmt.Errorf("%w: %d connections", vote.ErrOverloaded, s.edge.limit))
	s.p.Rejected.WithLabelValues(p.Code).Inc()
	id := uuid.NewString()
	s.logRefusal(p, id, "", nil)
	body, err := json.Marshal(p)
	if err != nil { // strings and a number: it can't fail
		body = []byte(`{}`)
	}
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: %s\r\nX-Request-ID: %s\r\n"+
		"Cache-Control: no-store\r\nRetry-After: %s\r\nDate: %s\r\nContent-Length: %d\r\n\r\n%s",
		p.Status, p.Title, problemType, id, p.retryAfter, time.Now().UTC().Format(http.TimeFormat), len(body), body)
}
