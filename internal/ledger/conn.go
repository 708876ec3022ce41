package ledger

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// target is an api's base URL, taken apart.
type target struct {
	addr, host, path string
	tls              *tls.Config // nil without TLS
}

func parseTarget(raw string) (target, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "" {
		return target{}, fmt.Errorf("%q is no base URL like http://127.0.0.1:8080", raw)
	}
	t := target{host: u.Host, path: strings.TrimSuffix(u.EscapedPath(), "/")}
	port := u.Port()
	if u.Scheme == "https" {
		t.tls = &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12}
	}
	if port == "" {
		port = u.Scheme // the service's name, which Dial knows
	}
	t.addr = net.JoinHostPort(u.Hostname(), port)
	return t, nil
}

// conn is one keep-alive connection, made anew when it breaks, then to the next
// target.
type conn struct {
	targets []target
	at      int
	timeout time.Duration
	net     net.Conn // nil: to be made
	reader  *bufio.Reader
	out     []byte
	// hangUp decides whether the next answer is not waited for.
	hangUp func() bool
}

// The user agents of votes with a key and without: the archive keeps them, so
// that its rows say which of the two a vote was.
const (
	keyedAgent   = "paredao-ledger"
	keylessAgent = "paredao-ledger-keyless"
)

// errConnect says that nothing was sent.
var errConnect = errors.New("connect")

// errHungUp says that the client itself closed the connection.
var errHungUp = errors.New("hung up")

// errUnreadable says that an acknowledgement had arrived whole, and was none.
var errUnreadable = errors.New("202 with an unreadable body")

// answer is an api's answer to a vote.
type answer struct {
	status   int
	replayed bool
	// code is the problem's code, of an answer other than 202.
	code string
	id   uuid.UUID
	poll string
	// at is when the answer had been received.
	at time.Time
	// option is what the acknowledgement says the vote is for.
	option string
}

// post sends a vote once, with a key unless that is empty. An error says that
// there was no answer.
func (c *conn) post(choice Choice, key string) (answer, error) {
	a, keep, err := c.exchange(choice, key)
	// A 5xx without a code is a proxy's, whose api is away. Who stayed would never
	// leave: all connections would gather at the proxy.
	away := err != nil && !errors.Is(err, errHungUp) || a.status >= 500 && a.code == ""
	if err != nil || !keep || away {
		c.close()
	}
	if away {
		c.at = (c.at + 1) % len(c.targets)
	}
	return a, err
}

func (c *conn) exchange(choice Choice, key string) (a answer, keep bool, err error) {
	if c.net == nil {
		if err := c.dial(); err != nil {
			return a, false, fmt.Errorf("%w: %w", errConnect, err)
		}
	}
	if err := c.net.SetDeadline(time.Now().Add(c.timeout)); err != nil {
		return a, false, fmt.Errorf("deadline: %w", err)
	}
	t := c.targets[c.at]
	agent := keyedAgent
	if key == "" {
		agent = keylessAgent
	}
	body := len(`{"option":""}`) + len(choice.Option)
	c.out = append(c.out[:0], "POST "+t.path+"/polls/"+choice.Poll+"/votes HTTP/1.1\r\nHost: "+t.host+
		"\r\nUser-Agent: "+agent+"\r\nContent-Type: application/json\r\n"...)
	if key != "" {
		c.out = append(c.out, "Idempotency-Key: "+key+"\r\n"...)
	}
	c.out = append(c.out, "Content-Length: "...)
	c.out = strconv.AppendInt(c.out, int64(body), 10)
	c.out = append(c.out, "\r\n\r\n{\"option\":\""+choice.Option+"\"}"...)
	if _, err := c.net.Write(c.out); err != nil {
		return a, false, fmt.Errorf("send: %w", err)
	}
	if c.hangUp != nil && c.hangUp() {
		return a, false, errHungUp
	}
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return a, false, fmt.Errorf("receive: %w", err)
	}
	// The longest answer is a problem of a few hundred bytes.
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return a, false, fmt.Errorf("receive: %w", err)
	}
	at := time.Now()
	a, err = parseAnswer(resp, text)
	a.at = at
	return a, !resp.Close, err
}

func parseAnswer(resp *http.Response, text []byte) (answer, error) {
	a := answer{status: resp.StatusCode, replayed: resp.Header.Get("Idempotency-Replayed") == "true"}
	var body struct{ ID, Poll, Option, Code string }
	err := json.Unmarshal(text, &body)
	a.code, a.poll, a.option = body.Code, body.Poll, body.Option
	if a.status != http.StatusAccepted {
		return a, nil // whoever stands between may answer in another form
	}
	if err == nil {
		a.id, err = uuid.Parse(body.ID)
	}
	switch {
	case err == nil:
		return a, nil
	case resp.ContentLength < 0 && len(resp.TransferEncoding) == 0:
		// Its end is that of the connection, which may have been cut.
		return a, fmt.Errorf("202 cut off or unreadable: %w", err)
	}
	return a, fmt.Errorf("%w %.200q: %w", errUnreadable, text, err)
}

func (c *conn) dial() error {
	ctx, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	t := c.targets[c.at]
	var err error
	if t.tls != nil {
		c.net, err = (&tls.Dialer{Config: t.tls}).DialContext(ctx, "tcp", t.addr)
	} else {
		c.net, err = (&net.Dialer{}).DialContext(ctx, "tcp", t.addr)
	}
	if err != nil {
		c.net = nil
		return err
	}
	if c.reader == nil {
		c.reader = bufio.NewReader(c.net)
	} else {
		c.reader.Reset(c.net)
	}
	return nil
}

func (c *conn) close() {
	if c.net != nil {
		_ = c.net.Close() // broken, or no more needed
		c.net = nil
	}
}

// kind names an error without what differs from one to the next.
func kind(err error) string {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "connection reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection closed"
	}
	return err.Error()
}
