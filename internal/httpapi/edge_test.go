package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/httpapi"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

const ballot = `{"option":"ana"}`

// A client that sends its whole body before it reads gets the answer, however
// large the body is, and no reset.
func TestBodyTooLarge(t *testing.T) {
	s := start(t)
	s.poll("p", "ana")
	padded := func(size int) string {
		return `{"option":"ana"` + strings.Repeat(" ", size-len(ballot)) + "}"
	}
	chunked := func(body string, size int) string {
		var b strings.Builder
		for len(body) > 0 {
			n := min(size, len(body))
			fmt.Fprintf(&b, "%x\r\n%s\r\n", n, body[:n])
			body = body[n:]
		}
		return b.String() + "0\r\n\r\n"
	}
	const limit = 4 << 10
	for _, size := range []int{limit - 1, limit} {
		all := s.raw(post("p", padded(size), typeJSON, lengthOf(padded(size))))
		require.Equal(t, []int{202}, statuses(all))
		all = s.raw(post("p", chunked(padded(size), 1000), typeJSON, "Transfer-Encoding: chunked"))
		require.Equal(t, []int{202}, statuses(all))
	}
	require.Len(t, s.stored(), 4)
	for _, size := range []int{limit + 1, limit + 2, 64 << 10, 1 << 20, 20 << 20} {
		body := padded(size)
		for name, request := range map[string]string{
			"length":        post("p", body, typeJSON, lengthOf(body), "X-Request-ID: my-own"),
			"chunked":       post("p", chunked(body, 8000), typeJSON, "Transfer-Encoding: chunked"),
			"100-continue":  post("p", body, typeJSON, lengthOf(body), "Expect: 100-continue"),
			"another path":  strings.Replace(post("p", body, typeJSON, lengthOf(body)), "/polls/p/votes", "/", 1),
			"unknown poll":  post("q", body, typeJSON, lengthOf(body)),
			"wrong type":    post("p", body, "Content-Type: text/plain", lengthOf(body)),
			"a chunk of it": post("p", chunked(body, size), typeJSON, "Transfer-Encoding: chunked"),
		} {
			all := s.raw(request)
			last := all[len(all)-1]
			problem(t, last, 413, "body-too-large")
			assert.True(t, last.Close, name)
			if name == "length" {
				assert.Equal(t, "my-own", last.Header.Get("X-Request-ID"))
			}
		}
	}
	require.Len(t, s.stored(), 4)
	receipt(t, s.vote("p", "ana"), "p", "ana")
}

func TestHeadersTooLarge(t *testing.T) {
	s := start(t)
	s.poll("p", "ana")
	fits := post("p", ballot, typeJSON, lengthOf(ballot), "Cookie: "+strings.Repeat("c", 7<<10))
	require.Equal(t, []int{202}, statuses(s.raw(fits)))
	for _, h := range []string{
		"Cookie: " + strings.Repeat("c", 8<<10), "X: " + strings.Repeat("c", 1<<20), "Idempotency-Key: " + strings.Repeat("k", 9000),
		strings.Repeat("X: y\r\n", 3000) + "Z: z",
	} {
		all := s.raw(post("p", ballot, typeJSON, lengthOf(ballot), h))
		require.Len(t, all, 1)
		problem(t, all[0], 431, "headers-too-large")
		assert.True(t, all[0].Close)
	}
	all := s.raw("GET /polls/" + strings.Repeat("x", 10<<10) + " HTTP/1.1\r\nHost: x\r\n\r\n")
	require.Len(t, all, 1)
	problem(t, all[0], 431, "headers-too-large")
	require.Len(t, s.stored(), 1)
}

func TestRequestIDAndLog(t *testing.T) {
	s := start(t)
	s.poll("p", "ana")
	sane := []string{"a", "5f3c-ABC_~.:/", strings.Repeat("x", 128)}
	insane := []string{"", "a b", "é", strings.Repeat("x", 129), `a" b`}
	for i, id := range sane {
		a := s.vote("p", "nobody"+fmt.Sprint(i), "X-Request-ID", id)
		problem(t, a, 422, "unknown-option")
		assert.Equal(t, id, a.Header.Get("X-Request-ID"))
	}
	for _, id := range insane {
		a := s.send("GET", "/nowhere", "", "X-Request-ID", id)
		problem(t, a, 404, "not-found")
		assert.NotEqual(t, id, a.Header.Get("X-Request-ID"))
		assert.Regexp(t, `^[0-9a-f-]{36}$`, a.Header.Get("X-Request-ID"))
		lines := s.log.lines(a.Header.Get("X-Request-ID"))
		if assert.Len(t, lines, 1) {
			assert.Equal(t, "not-found", lines[0]["code"])
			assert.EqualValues(t, 404, lines[0]["status"])
			assert.Equal(t, "/nowhere", lines[0]["path"])
			assert.Equal(t, "GET", lines[0]["method"])
		}
	}
	lines := s.log.lines(`"unknown-option"`)
	if assert.Len(t, lines, len(sane)) {
		for i, l := range lines {
			assert.Equal(t, sane[i], l["request_id"])
		}
	}
	// A flood of refusals is no flood of lines; what was left out is counted.
	for range 40 {
		s.send("GET", "/polls/p/votes", "")
	}
	testkit.Eventually(t, "a line says how many were left out", func() bool {
		s.send("GET", "/polls/p/votes", "")
		for _, l := range s.log.lines("method-not-allowed") {
			if l["not_logged"].(float64) > 0 {
				return true
			}
		}
		return false
	})
	assert.Less(t, len(s.log.lines("method-not-allowed")), 40)
}

// What a proxy in front may cut in another place than this server is refused,
// and the connection ends. Behind each request waits a second one, which must
// never be read as one of its own.
func TestAmbiguousFramingIsRefused(t *testing.T) {
	s := start(t)
	s.poll("p", "ana")
	second := post("p", ballot, typeJSON, lengthOf(ballot))
	for name, request := range map[string]string{
		"length and chunked":              post("p", "0\r\n\r\n", typeJSON, "Content-Length: 5", "Transfer-Encoding: chunked"),
		"chunked and length":              post("p", "0\r\n\r\n", typeJSON, "Transfer-Encoding: chunked", "Content-Length: 5"),
		"two lengths":                     post("p", ballot, typeJSON, lengthOf(ballot), "Content-Length: 0"),
		"two equal lengths":               post("p", ballot, typeJSON, lengthOf(ballot), lengthOf(ballot)),
		"lengths in one field":            post("p", ballot, typeJSON, lengthOf(ballot)+", 16"),
		"length in another case":          post("p", ballot, typeJSON, lengthOf(ballot), "cOnTeNt-LeNgTh: 0"),
		"a signed length":                 post("p", ballot, typeJSON, "Content-Length: +16"),
		"a negative length":               post("p", ballot, typeJSON, "Content-Length: -1"),
		"a hexadecimal length":            post("p", ballot, typeJSON, "Content-Length: 0x10"),
		"an endless length":               post("p", ballot, typeJSON, "Content-Length: 99999999999999999999"),
		"an empty length":                 post("p", ballot, typeJSON, "Content-Length: "),
		"a space before the colon":        post("p", ballot, typeJSON, "Content-Length : 16"),
		"a tab before the colon":          post("p", "0\r\n\r\n", typeJSON, "Transfer-Encoding\t: chunked"),
		"another coding":                  post("p", ballot, typeJSON, "Transfer-Encoding: identity"),
		"a misspelt coding":               post("p", "0\r\n\r\n", typeJSON, "Transfer-Encoding: xchunked"),
		"two codings":                     post("p", "0\r\n\r\n", typeJSON, "Transfer-Encoding: gzip, chunked"),
		"two coding fields":               post("p", "0\r\n\r\n", typeJSON, "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
		"an empty coding":                 post("p", ballot, typeJSON, "Transfer-Encoding: "),
		"chunked before HTTP/1.1":         strings.Replace(post("p", "0\r\n\r\n", typeJSON, "Transfer-Encoding: chunked", "Connection: keep-alive"), "1.1", "1.0", 1),
		"a folded line":                   post("p", ballot, typeJSON, "X: y\r\n Content-Length: 16"),
		"a folded value":                  post("p", ballot, typeJSON, "Content-Length:\r\n 16"),
		"a folded first line":             post("p", ballot, " X: y", typeJSON, lengthOf(ballot)),
		"a bare CR":                       post("p", ballot, typeJSON, "X: y\rContent-Length: 16"),
		"a CR in a name":                  post("p", ballot, typeJSON, "Content-Length\r: 16"),
		"a NUL":                           post("p", ballot, typeJSON, "X: a\x00b", lengthOf(ballot)),
		"a control in a name":             post("p", ballot, typeJSON, "Content-Length\x0b: 16"),
		"a name that is none":             post("p", ballot, typeJSON, "Content Length: 16"),
		"a line without a colon":          post("p", ballot, typeJSON, lengthOf(ballot), "nothing"),
		"no name":                         post("p", ballot, typeJSON, lengthOf(ballot), ": x"),
		"a chunk of bad size":             post("p", "zz\r\n", typeJSON, "Transfer-Encoding: chunked"),
		"a chunk longer than it says":     post("p", "1\r\n"+ballot+"\r\n0\r\n\r\n", typeJSON, "Transfer-Encoding: chunked"),
		"a negative chunk":                post("p", "-1\r\n", typeJSON, "Transfer-Encoding: chunked"),
		"a line end in a chunk extension": post("p", "10;a\nb\r\n"+ballot+"\r\n0\r\n\r\n", typeJSON, "Transfer-Encoding: chunked"),
		"no HTTP":                         "nonsense\r\n\r\n",
		"a TLS hello":                     "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			all := s.raw(request + second)
			require.Len(t, all, 1, "%v", statuses(all))
			problem(t, all[0], 400, "malformed-request")
			assert.True(t, all[0].Close)
		})
	}
	assert.Empty(t, s.stored())
	// A cut body is none, and nobody is there to be told.
	require.NotContains(t, statuses(s.raw(post("p", ballot, typeJSON, "Content-Length: 17"))), 202)
	require.NotContains(t, statuses(s.raw(post("p", "10\r\n"+ballot+"\r\n", typeJSON, "Transfer-Encoding: chunked"))), 202)
	assert.Empty(t, s.stored())
	// A body that a GET has is read as its body.
	all := s.raw("GET /polls HTTP/1.1\r\nHost: x\r\n" + lengthOf(second) + "\r\n\r\n" + second)
	require.Equal(t, []int{200}, statuses(all))
	assert.Empty(t, s.stored())
	// Without a length there is no body, and what follows is a request.
	all = s.raw(post("p", second, typeJSON))
	require.Equal(t, []int{400, 202}, statuses(all))
	require.Len(t, s.stored(), 1)
}

// Fields behind a chunked body are no header: no proxy wrote them.
func TestTrailersAreNotHeaders(t *testing.T) {
	s := start(t, func(set *settings) {
		set.http.Privacy = httpapi.PrivacyRaw
		set.http.TrustedProxies = prefixes("127.0.0.1/32")
	})
	s.poll("p", "ana")
	for range 2 {
		s.raw(post("p", "10\r\n"+ballot+"\r\n0\r\nX-Forwarded-For: 6.6.6.6\r\nIdempotency-Key: k\r\nUser-Agent: evil\r\nX-Request-ID: evil\r\n\r\n",
			typeJSON, "Transfer-Encoding: chunked", "X-Forwarded-For: 9.9.9.9", "User-Agent: good"))
	}
	for _, v := range s.stored() {
		assert.Equal(t, "9.9.9.9", v.Client)
		assert.Equal(t, "good", v.UserAgent)
	}
	a := s.raw(post("q", "10\r\n"+ballot+"\r\n0\r\nX-Request-ID: evil\r\n\r\n", typeJSON, "Transfer-Encoding: chunked"))
	problem(t, a[0], 404, "poll-not-found")
	assert.NotEqual(t, "evil", a[0].Header.Get("X-Request-ID"))
}

func TestPipelinedRequests(t *testing.T) {
	s := start(t)
	s.poll("p", "ana", "bruno", "carla")
	var text string
	var want []string
	for i := range 30 {
		option := []string{"ana", "bruno", "carla"}[i%3]
		want = append(want, option)
		if i%2 == 0 {
			text += post("p", "option="+option, "Content-Type: "+asForm, lengthOf("option="+option))
		} else {
			body := `{"option":"` + option + `"}`
			text += post("p", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body), typeJSON, "Transfer-Encoding: chunked")
		}
	}
	all := s.raw(text)
	require.Len(t, all, 30)
	stored := s.stored()
	require.Len(t, stored, 30)
	for i, a := range all {
		id, _ := receipt(t, a, "p", want[i])
		assert.Equal(t, want[i], stored[id].Option)
	}
	// An error among them ends nothing.
	all = s.raw(post("p", "option=x", "Content-Type: "+asForm, lengthOf("option=x")) + post("p", ballot, typeJSON, lengthOf(ballot)))
	assert.Equal(t, []int{422, 202}, statuses(all))
}

func TestExpectContinue(t *testing.T) {
	s := start(t)
	s.poll("p", "ana")
	conn := s.dial()
	_, err := io.WriteString(conn, post("p", "", typeJSON, lengthOf(ballot), "Expect: 100-continue"))
	require.NoError(t, err)
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "HTTP/1.1 100 Continue\r\n", line)
	_, err = r.ReadString('\n')
	require.NoError(t, err)
	assert.Empty(t, s.stored())
	_, err = io.WriteString(conn, ballot)
	require.NoError(t, err)
	res, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	receipt(t, answer{res, b}, "p", "ana")
	assert.Len(t, s.stored(), 1)
}

// Old clients and odd ones.
func TestHTTP10AndConnectionClose(t *testing.T) {
	s := start(t)
	s.poll("p", "ana")
	all := s.raw(strings.Replace(post("p", ballot, typeJSON, lengthOf(ballot)), "HTTP/1.1", "HTTP/1.0", 1))
	require.Len(t, all, 1)
	receipt(t, all[0], "p", "ana")
	assert.True(t, all[0].Close)
	all = s.raw(post("p", ballot, typeJSON, lengthOf(ballot), "Connection: close") + post("p", ballot, typeJSON, lengthOf(ballot)))
	require.Equal(t, []int{202}, statuses(all))
	// Lines that end with LF alone: read, or refused.
	all = s.raw(strings.ReplaceAll(post("p", "", typeJSON, lengthOf(ballot)), "\r\n", "\n") + ballot)
	require.Len(t, all, 1)
	assert.Contains(t, []int{202, 400}, all[0].StatusCode)
}

// A sender that never ends its request is cut, and does not count.
func TestSlowSenderIsCut(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.poll("p", "ana")
	whole := post("p", ballot, typeJSON, lengthOf(ballot))
	var wg sync.WaitGroup
	for _, part := range []int{1, 20, len(whole) - len(ballot), len(whole) - 1} {
		conn := s.dial()
		wg.Go(func() {
			_, err := io.WriteString(conn, whole[:part])
			assert.NoError(t, err)
			all := readAll(t, conn, whole)
			if assert.Len(t, all, 1) {
				problem(t, all[0], 408, "request-timeout")
				assert.True(t, all[0].Close)
			}
		})
	}
	wg.Wait()
	assert.Empty(t, s.stored())
}

// A panic ends one request, not the process.
func TestPanicIsAnAnswer(t *testing.T) {
	s := start(t, func(set *settings) {
		set.http.Submit = submitFunc(func(v *vote.Vote) (vote.Receipt, error) {
			if v.Option == "odd" {
				return vote.Receipt{}, errors.New("secret detail of redis://user:password@host")
			}
			panic("secret detail")
		})
		set.http.Polls = &wrappedPolls{results: func(context.Context, httpapi.Polls, string) (vote.Results, error) {
			panic(errors.New("secret detail"))
		}}
	})
	s.poll("p", "ana", "odd")
	for range 3 {
		a := s.vote("p", "ana", "X-Request-ID", "mine")
		problem(t, a, 500, "internal")
		assert.Equal(t, "mine", a.Header.Get("X-Request-ID"))
		assert.NotContains(t, a.text(), "secret")
		a = s.send("GET", "/polls/p/results", "")
		problem(t, a, 500, "internal")
		assert.NotContains(t, a.text(), "secret")
		a = s.vote("p", "odd")
		problem(t, a, 500, "internal")
		assert.NotContains(t, a.text(), "secret")
		assert.Equal(t, 200, s.send("GET", "/polls/p", "").StatusCode)
	}
	assert.NotEmpty(t, s.log.lines("panic in a handler"))
	assert.NotEmpty(t, s.log.lines("secret detail of redis"))
}

type submitFunc func(v *vote.Vote) (vote.Receipt, error)

func (submitFunc) Overloaded() error { return nil }

func (f submitFunc) Submit(v *vote.Vote, _ string, _ *vote.IdempotencyKey) (vote.Receipt, error) {
	return f(v)
}

// A shutdown answers what is in hand, ends idle and silent connections, and
// takes no new ones.
func TestShutdown(t *testing.T) {
	h := &held{came: make(chan struct{}), leave: make(chan struct{})}
	s := start(t, func(set *settings) { set.http.Submit = h })
	s.poll("p", "ana")
	const inFlight = 20
	answers := make(chan answer, inFlight)
	for range inFlight {
		conn := s.dial()
		go func() {
			_, err := io.WriteString(conn, post("p", ballot, typeJSON, lengthOf(ballot)))
			assert.NoError(t, err)
			all := readAll(t, conn, "POST")
			if assert.Len(t, all, 1) {
				answers <- all[0]
			}
		}()
		<-h.came
	}
	idle := s.dial()
	_, err := io.WriteString(idle, "GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
	require.NoError(t, err)
	r := bufio.NewReader(idle)
	res, err := http.ReadResponse(r, nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, res.Body)
	require.NoError(t, err)
	silent := s.dial()
	halfway := s.dial()
	_, err = io.WriteString(halfway, "GET /polls HTTP/1.1\r\nHo")
	require.NoError(t, err)
	s.send("GET", "/openapi.json", "") // the others have been accepted by then

	ended := make(chan error, 1)
	go func() { ended <- s.stop() }()
	rest, err := io.ReadAll(r)
	assert.NoError(t, err)
	assert.Empty(t, rest, "an idle connection ends without a word")
	rest, err = io.ReadAll(silent)
	assert.NoError(t, err)
	assert.Empty(t, rest, "so does one that was never used")
	testkit.Eventually(t, "no new connections", func() bool {
		c, err := net.Dial("tcp", s.addr)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	select {
	case err := <-ended:
		t.Fatalf("ended before its votes were answered: %v", err)
	default:
	}
	_, err = io.WriteString(halfway, "st: x\r\n\r\n")
	require.NoError(t, err)
	assert.Equal(t, []int{200}, statuses(readAll(t, halfway, "GET")))
	close(h.leave)
	for range inFlight {
		a := <-answers
		receipt(t, a, "p", "ana")
		assert.True(t, a.Close)
	}
	require.NoError(t, <-ended)
}

// A shutdown in the middle of a rush: every vote that was acknowledged is there.
func TestShutdownUnderLoad(t *testing.T) {
	s := start(t)
	s.poll("p", "ana")
	var acked sync.Map
	var n atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		c := s.client()
		wg.Go(func() {
			for {
				a, err := do(c, "POST", s.url+"/polls/p/votes", "option=ana", "Content-Type", asForm)
				if err != nil {
					return // the server has gone
				}
				id, _ := receipt(t, a, "p", "ana")
				acked.Store(id, true)
				n.Add(1)
			}
		})
	}
	testkit.Eventually(t, "the rush is on", func() bool { return n.Load() > 500 })
	require.NoError(t, s.stop())
	wg.Wait()
	stored := s.stored()
	acked.Range(func(id, _ any) bool {
		assert.Contains(t, stored, id)
		return true
	})
}

// A client that has connected and speaks at the very end is still served.
func TestShutdownHearsALateClient(t *testing.T) {
	h := &held{came: make(chan struct{}, 1), leave: make(chan struct{})}
	s := start(t, func(set *settings) { set.http.Submit = h })
	s.poll("p", "ana")
	silent := s.dial()
	busy := s.dial()
	_, err := io.WriteString(busy, post("p", ballot, typeJSON, lengthOf(ballot)))
	require.NoError(t, err)
	<-h.came
	ended := make(chan error, 1)
	go func() { ended <- s.stop() }()
	testkit.Eventually(t, "the port is closed", func() bool {
		c, err := net.Dial("tcp", s.addr)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	// It has a moment to speak; where the machine is too slow for that, the
	// connection simply ends.
	_, err = io.WriteString(silent, post("p", ballot, typeJSON, lengthOf(ballot)))
	served := err == nil
	close(h.leave)
	b, err := io.ReadAll(silent)
	if served && err == nil && len(b) > 0 {
		assert.True(t, bytes.HasPrefix(b, []byte("HTTP/1.1 202 ")), "%q", b)
	}
	require.NoError(t, <-ended)
}

// Stopping a server that has hardly begun leaves nothing behind.
func TestShutdownAtOnce(t *testing.T) {
	for range 20 {
		s := start(t, func(set *settings) { set.http.Polls = &wrappedPolls{} })
		require.NoError(t, s.stop())
		_, err := net.Dial("tcp", s.addr)
		require.Error(t, err)
	}
}

func TestListenError(t *testing.T) {
	s := start(t)
	_, err := httpapi.New(s.addr, httpapi.Params{})
	require.ErrorContains(t, err, "listen")
}

func TestBothIPVersions(t *testing.T) {
	s := start(t, func(set *settings) {
		set.addr = ":0"
		set.http.Privacy = httpapi.PrivacyRaw
	})
	s.poll("p", "ana")
	_, port, err := net.SplitHostPort(s.addr)
	require.NoError(t, err)
	for host, client := range map[string]string{"127.0.0.1": "127.0.0.1", "::1": "::1"} {
		s.rdb.Del(context.Background(), "votes:{0}")
		a, err := do(s.client(), "POST", "http://"+net.JoinHostPort(host, port)+"/polls/p/votes", ballot, "Content-Type", asJSON)
		if err != nil && host == "::1" {
			t.Skipf("this machine has no IPv6: %v", err)
		}
		require.NoError(t, err)
		receipt(t, a, "p", "ana")
		assert.Equal(t, client, s.only().Client)
	}
}

// What is kept of an address, by ip-privacy, behind a trusted proxy.
func TestPrivacyModes(t *testing.T) {
	key := []byte("0123456789abcdef")
	for _, tt := range []struct {
		privacy httpapi.Privacy
		want    map[string]string
	}{
		{httpapi.PrivacyRaw, map[string]string{
			"203.0.113.77": "203.0.113.77", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2:3:4:5:6", "::ffff:203.0.113.77": "203.0.113.77",
		}},
		{httpapi.PrivacyTruncate, map[string]string{
			"203.0.113.77": "203.0.113.0/24", "2001:db8:1:2:3:4:5:6": "2001:db8:1::/48", "::ffff:203.0.113.77": "203.0.113.0/24",
		}},
		{httpapi.PrivacyNone, map[string]string{"203.0.113.77": "", "2001:db8:1:2:3:4:5:6": ""}},
		{httpapi.PrivacyHMAC, map[string]string{
			// HMAC-SHA-256 of the 16 bytes of the address, its first 12 bytes.
			"203.0.113.77": "eQ_etpt3DMlr7TOf", "::ffff:203.0.113.77": "eQ_etpt3DMlr7TOf",
		}},
	} {
		t.Run(string(tt.privacy), func(t *testing.T) {
			s := start(t, func(set *settings) {
				set.http.Privacy, set.http.ClientKey = tt.privacy, key
				set.http.TrustedProxies = prefixes("127.0.0.0/8")
			})
			s.poll("p", "ana")
			for from, want := range tt.want {
				s.rdb.Del(context.Background(), "votes:{0}")
				receipt(t, s.vote("p", "ana", "X-Forwarded-For", from), "p", "ana")
				assert.Equal(t, want, s.only().Client, from)
			}
		})
	}
	t.Run("the key in Redis", func(t *testing.T) {
		s := start(t, func(set *settings) { set.http.TrustedProxies = prefixes("127.0.0.0/8") })
		s.poll("p", "ana")
		seen := map[string]int{}
		for i := range 6 {
			s.rdb.Del(context.Background(), "votes:{0}")
			receipt(t, s.vote("p", "ana", "X-Forwarded-For", fmt.Sprint("10.0.0.", i%2)), "p", "ana")
			c := s.only().Client
			assert.Regexp(t, `^[A-Za-z0-9_-]{16}$`, c)
			seen[c]++
		}
		assert.Len(t, seen, 2)
	})
}

// Without trusted proxies the header means nothing.
func TestForwardedForOverTheWire(t *testing.T) {
	s := start(t, func(set *settings) { set.http.Privacy = httpapi.PrivacyRaw })
	s.poll("p", "ana")
	receipt(t, s.vote("p", "ana", "X-Forwarded-For", "6.6.6.6", "X-Real-IP", "6.6.6.6", "Forwarded", "for=6.6.6.6"), "p", "ana")
	assert.Equal(t, "127.0.0.1", s.only().Client)

	s = start(t, func(set *settings) {
		set.http.Privacy = httpapi.PrivacyRaw
		set.http.TrustedProxies = prefixes("127.0.0.1/32", "10.0.0.0/8")
	})
	s.poll("p", "ana")
	receipt(t, s.vote("p", "ana", "X-Forwarded-For", "6.6.6.6, 9.9.9.9", "X-Forwarded-For", "10.1.1.1,  10.2.2.2"), "p", "ana")
	assert.Equal(t, "9.9.9.9", s.only().Client)
}

// A stampede of votes over few connections and many: all are told the truth.
func TestManyVotesAtOnce(t *testing.T) {
	s := start(t, func(set *settings) { set.shards = 3 })
	s.poll("p", "ana", "bruno")
	var acked atomic.Int64
	var wg sync.WaitGroup
	c := s.client()
	for range 50 {
		wg.Go(func() {
			for i := range 40 {
				a, err := do(c, "POST", s.url+"/polls/p/votes", `{"option":"`+[]string{"ana", "bruno"}[i%2]+`"}`, "Content-Type", asJSON)
				if assert.NoError(t, err) && assert.Equal(t, 202, a.StatusCode) {
					acked.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 2000, acked.Load())
	assert.Len(t, s.stored(), 2000)
	s.consume()
	r, err := s.store.Results(context.Background(), "p")
	require.NoError(t, err)
	assert.Equal(t, vote.Tally{"ana": 1000, "bruno": 1000}, r.Tally)
	assert.EqualValues(t, 2000, r.Ledger.Accepted)
}
