package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/vote"
)

func TestClientAddr(t *testing.T) {
	trusted := []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("fd00::/8"),
	}
	for _, tt := range []struct {
		name, peer string
		headers    []string
		want       string
	}{
		{"no header", "10.0.0.1", nil, "10.0.0.1"},
		{"an empty header", "10.0.0.1", []string{""}, "10.0.0.1"},
		{"from a stranger", "203.0.113.9", []string{"6.6.6.6"}, "203.0.113.9"},
		{"one proxy", "10.0.0.1", []string{"203.0.113.9"}, "203.0.113.9"},
		{"spoofed leftmost", "10.0.0.1", []string{"6.6.6.6, 203.0.113.9"}, "203.0.113.9"},
		{"spoofed as a proxy", "10.0.0.1", []string{"10.9.9.9, 203.0.113.9"}, "203.0.113.9"},
		{"two proxies", "10.0.0.1", []string{"203.0.113.9, 10.0.0.2"}, "203.0.113.9"},
		{"two proxies in two headers", "10.0.0.1", []string{"6.6.6.6,203.0.113.9", "10.0.0.2"}, "203.0.113.9"},
		{"a spoofed header before", "10.0.0.1", []string{"6.6.6.6", "203.0.113.9"}, "203.0.113.9"},
		{"an empty header behind", "10.0.0.1", []string{"203.0.113.9", ""}, "203.0.113.9"},
		{"proxies only", "10.0.0.1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"a proxy of another net", "192.0.2.1", []string{"192.0.2.2"}, "192.0.2.2"},
		{"no spaces", "10.0.0.1", []string{"6.6.6.6,203.0.113.9,10.0.0.2"}, "203.0.113.9"},
		{"many spaces", "10.0.0.1", []string{"  203.0.113.9 \t"}, "203.0.113.9"},
		{"a port", "10.0.0.1", []string{"203.0.113.9:1234"}, "203.0.113.9"},
		{"IPv6", "fd00::1", []string{"2001:db8::7"}, "2001:db8::7"},
		{"IPv6 in brackets", "fd00::1", []string{"[2001:db8::7]"}, "2001:db8::7"},
		{"IPv6 with a port", "fd00::1", []string{"[2001:db8::7]:443"}, "2001:db8::7"},
		{"IPv6 with a zone", "fd00::1", []string{"fe80::1%eth0"}, "fe80::1"},
		{"mapped IPv4", "::ffff:10.0.0.1", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		{"a mapped proxy", "10.0.0.1", []string{"203.0.113.9, ::ffff:10.0.0.2"}, "203.0.113.9"},
		{"garbage", "10.0.0.1", []string{"unknown"}, "10.0.0.1"},
		{"garbage behind", "10.0.0.1", []string{"203.0.113.9, _hidden"}, "10.0.0.1"},
		{"garbage before", "10.0.0.1", []string{"<script>, 203.0.113.9"}, "203.0.113.9"},
		{"garbage before a proxy", "10.0.0.1", []string{"6.6.6.6, x, 10.0.0.2"}, "10.0.0.2"},
		{"a comma behind", "10.0.0.1", []string{"203.0.113.9,"}, "10.0.0.1"},
		{"a comma before", "10.0.0.1", []string{",203.0.113.9"}, "203.0.113.9"},
		{"only commas", "10.0.0.1", []string{",,,"}, "10.0.0.1"},
		{"an octal-looking address", "10.0.0.1", []string{"010.0.0.1"}, "10.0.0.1"},
		{"a net", "10.0.0.1", []string{"203.0.113.0/24"}, "10.0.0.1"},
		{"a host name", "10.0.0.1", []string{"example.org"}, "10.0.0.1"},
		{"very long", "10.0.0.1", []string{strings.Repeat("6.6.6.6, ", 500) + "203.0.113.9"}, "203.0.113.9"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := clientAddr(netip.MustParseAddr(tt.peer), tt.headers, trusted)
			assert.Equal(t, tt.want, got.String())
			assert.Equal(t, netip.MustParseAddr(tt.peer).Unmap(), clientAddr(netip.MustParseAddr(tt.peer), tt.headers, nil))
		})
	}
}

func FuzzClientAddr(f *testing.F) {
	f.Add("6.6.6.6, 203.0.113.9:80", "[fd00::1]")
	f.Add(",", "::ffff:10.0.0.1%x")
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	f.Fuzz(func(t *testing.T, one, two string) {
		peer := netip.MustParseAddr("10.0.0.1")
		got := clientAddr(peer, []string{one, two}, trusted)
		if !got.IsValid() || got.Is4In6() || got.Zone() != "" {
			t.Errorf("%q, %q: %v", one, two, got)
		}
		// What stands left of an untrusted address means nothing.
		if got := clientAddr(peer, []string{one, "203.0.113.9"}, trusted); got.String() != "203.0.113.9" {
			t.Errorf("%q: %v", one, got)
		}
		for _, p := range []Privacy{PrivacyHMAC, PrivacyTruncate, PrivacyRaw, PrivacyNone} {
			if s := keep(p, got, "key"); (s == "") != (p == PrivacyNone) {
				t.Errorf("%s of %v: %q", p, got, s)
			}
		}
	})
}

func TestPrivacy(t *testing.T) {
	for _, p := range []Privacy{PrivacyHMAC, PrivacyTruncate, PrivacyRaw, PrivacyNone} {
		got, err := ParsePrivacy(string(p))
		require.NoError(t, err)
		assert.Equal(t, p, got)
		assert.Empty(t, keep(p, netip.Addr{}, ""))
	}
	for _, s := range []string{"", "HMAC", "md5", " raw"} {
		_, err := ParsePrivacy(s)
		require.ErrorContains(t, err, "ip-privacy")
	}
	assert.Equal(t, "fe80::/48", keep(PrivacyTruncate, netip.MustParseAddr("fe80::1%eth0"), ""))
	a, b := netip.MustParseAddr("1.2.3.4"), netip.MustParseAddr("1.2.3.5")
	assert.NotEqual(t, keep(PrivacyHMAC, a, "k"), keep(PrivacyHMAC, b, "k"))
	assert.NotEqual(t, keep(PrivacyHMAC, a, "k"), keep(PrivacyHMAC, a, "l"))
}

func FuzzReadFraming(f *testing.F) {
	f.Add([]byte("Host: x\r\nContent-Length: 5\r\n\r\n"), true)
	f.Add([]byte("Transfer-Encoding: chunked\n\n"), false)
	f.Fuzz(func(t *testing.T, raw []byte, http11 bool) {
		got := readFraming(raw, http11)
		if got.bad != "" {
			return
		}
		n := 0
		for line := range strings.SplitSeq(strings.ToLower(string(raw)), "\n") {
			if strings.HasPrefix(line, "content-length:") || strings.HasPrefix(line, "transfer-encoding:") {
				n++
			}
		}
		if n > 1 {
			t.Errorf("%q passed", raw)
		}
	})
}

// BenchmarkReadFraming: it stands before every request.
func BenchmarkReadFraming(b *testing.B) {
	raw := []byte("Host: vote.example\r\nUser-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0\r\n" +
		"Accept: */*\r\nAccept-Language: pt-BR,pt;q=0.8\r\nAccept-Encoding: gzip, deflate, br\r\nContent-Type: application/json\r\n" +
		"Idempotency-Key: 550e8400-e29b-41d4-a716-446655440000\r\nContent-Length: 16\r\nOrigin: https://vote.example\r\n" +
		"Connection: keep-alive\r\nSec-Fetch-Dest: empty\r\nX-Forwarded-For: 203.0.113.9\r\n\r\n")
	b.ReportAllocs()
	for b.Loop() {
		if readFraming(raw, true).bad != "" {
			b.Fatal("refused")
		}
	}
}

// FuzzParseForm and FuzzParseJSON: what is taken has an option that is valid
// text, and nothing panics.
func FuzzParseForm(f *testing.F) {
	f.Add("option=ana&class=unico")
	f.Add("option=%61na")
	f.Fuzz(func(t *testing.T, body string) { checkChoice(t, body, parseForm) })
}

func FuzzParseJSON(f *testing.F) {
	f.Add(`{"option":"ana","class":"unico"}`)
	f.Add(`{"option":"\ud83d\ude00","class":null}`)
	f.Add(`{"option":"ana"}`)
	f.Add(`{"option":"a","b"}`)
	f.Fuzz(func(t *testing.T, body string) {
		checkChoice(t, body, parseJSON)
		// The short way takes what the long one takes, as the long one takes it.
		if plain, ok := plainOption([]byte(body)); ok {
			got, err := parseJSON([]byte(body))
			if err != nil || got.Option == nil || *got.Option != string(plain) || got.Class != nil {
				t.Errorf("%q is %q, and %+v (%v)", body, plain, got, err)
			}
		}
	})
}

func checkChoice(t *testing.T, body string, parse func([]byte) (choice, error)) {
	got, err := parse([]byte(body))
	var p *problem
	if err != nil {
		if !errors.As(err, &p) || p.Code != "malformed-body" {
			t.Errorf("%q: %v", body, err)
		}
		return
	}
	if got.Option != nil && strings.ToValidUTF8(*got.Option, "") != *got.Option {
		t.Errorf("%q: option %q", body, *got.Option)
	}
}

func TestLimiter(t *testing.T) {
	var l limiter
	now := time.Unix(1000, 0)
	for i := range 12 {
		dropped, ok := l.allow("a", now)
		assert.Equal(t, i < linesPerSecond, ok)
		assert.Zero(t, dropped)
	}
	_, ok := l.allow("b", now)
	assert.True(t, ok, "kinds do not share")
	dropped, ok := l.allow("a", now.Add(time.Second))
	assert.True(t, ok)
	assert.Equal(t, 12-linesPerSecond, dropped)
	dropped, _ = l.allow("a", now.Add(time.Second))
	assert.Zero(t, dropped)
}

// What is kept is read once for all who ask, not before it is too old, and served
// as stale while it can't be read.
func TestKept(t *testing.T) {
	var k kept[int]
	var calls atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	read := func(v int, err error) func() (int, error) {
		return func() (int, error) { calls.Add(1); return v, err }
	}
	get := func(maxAge time.Duration, read func() (int, error)) (int, bool, error) {
		v, stale, err := k.get(maxAge, wg.Go, read)
		return v, stale > 0, err
	}
	check := func(want int, wantStale bool, wantCalls int64) func(int, bool, error) {
		return func(v int, stale bool, err error) {
			t.Helper()
			require.NoError(t, err)
			assert.Equal(t, want, v)
			assert.Equal(t, wantStale, stale)
			assert.Equal(t, wantCalls, calls.Load())
		}
	}
	away := errors.New("away")
	_, _, err := get(time.Hour, read(0, away))
	require.ErrorIs(t, err, away, "there is nothing to serve")
	check(1, false, 2)(get(time.Hour, read(1, nil)))
	check(1, false, 2)(get(time.Hour, read(2, nil)))
	check(3, false, 3)(get(0, read(3, nil)))
	check(3, true, 4)(get(0, read(0, away)))
	check(3, true, 4)(get(0, read(4, nil))) // it is too early
	k.renewal.began = k.renewal.began.Add(-rest)
	// One tries again, and no one waits for it.
	release := make(chan struct{})
	check(3, true, 4)(get(0, func() (int, error) { <-release; calls.Add(1); return 5, nil }))
	check(3, true, 4)(get(0, read(6, nil)))
	check(3, false, 4)(get(time.Hour, read(6, nil)))
	close(release)
	<-k.renewal.done
	check(7, false, 6)(get(0, read(7, nil)))
	_, _, err = get(0, read(0, vote.ErrPollNotFound))
	require.ErrorIs(t, err, vote.ErrPollNotFound, "a poll that is gone has no results")

	// Of many who ask at one time, one reads; the others get the same.
	began, release := make(chan struct{}), make(chan struct{})
	var readers atomic.Int64
	var all sync.WaitGroup
	k.last.Store(&reading[int]{7, time.Now().Add(-time.Hour)})
	for range 50 {
		all.Go(func() {
			v, stale, err := k.get(time.Minute, wg.Go, func() (int, error) {
				if readers.Add(1) == 1 {
					close(began)
				}
				<-release
				return 8, nil
			})
			if v != 8 || stale > 0 || err != nil {
				t.Errorf("%d, stale %s (%v)", v, stale, err)
			}
		})
	}
	<-began
	close(release)
	all.Wait()
	assert.EqualValues(t, 1, readers.Load())
}

type source = Polls

// brokenPolls is a Redis that is away.
type brokenPolls struct {
	source
	calls int
}

var errAway = errors.New("away")

func (b *brokenPolls) Now(context.Context) (time.Time, error) {
	b.calls++
	return time.Time{}, errAway
}

func TestCatalogSharesAFailedLook(t *testing.T) {
	p := &brokenPolls{}
	c := catalog{polls: p}
	asked := time.Now()
	for range 3 {
		_, err := c.look(context.Background(), asked)
		require.ErrorIs(t, err, errAway)
		require.ErrorIs(t, err, vote.ErrUnavailable)
	}
	assert.Equal(t, 1, p.calls, "two waited while one looked")
	_, err := c.look(context.Background(), time.Now())
	require.ErrorIs(t, err, errAway)
	assert.Equal(t, 2, p.calls)

	// One whose own time is up does not speak for the others.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	asked = time.Now()
	_, err = c.look(ctx, asked)
	require.Error(t, err)
	_, err = c.look(context.Background(), asked)
	require.Error(t, err)
	assert.Equal(t, 4, p.calls)
}

// short is a listener on a machine that is short of something.
type short struct {
	net.Listener
	errs []error
}

func (s *short) Accept() (net.Conn, error) {
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	}
	return s.Listener.Accept()
}

// Too many open files must not end the api.
func TestAcceptSurvivesShortage(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := newEdgeListener(&short{ln, []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}}, 10, nil)
	client, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	c, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, c.Close())
	assert.Empty(t, l.silent)
	require.NoError(t, l.Close())
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
}

// A connection that was accepted while the listener closed is bidden farewell
// like the others.
func TestEdgeListenerClosing(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := newEdgeListener(ln, 10, nil)
	client, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	raw, err := ln.Accept()
	require.NoError(t, err)
	require.NoError(t, l.Close())
	c := l.enter(raw)
	require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Hour)))
	n, err := c.Read(make([]byte, 1))
	assert.Zero(t, n)
	require.EqualError(t, err, "EOF")
	require.NoError(t, c.Close())

	pipe, other := net.Pipe()
	assert.Equal(t, pipe, l.enter(pipe), "only TCP is wrapped")
	require.NoError(t, errors.Join(pipe.Close(), other.Close()))
}

// A listener that ends by itself ends the server: a process that looks alive
// and takes no votes is worse than one that is started again.
func TestServerEndsWithItsListener(t *testing.T) {
	s, err := New("127.0.0.1:0", Params{Polls: &brokenPolls{}, Privacy: PrivacyNone, Outage: func(error) {}})
	require.NoError(t, err)
	require.NoError(t, s.edge.Listener.Close())
	require.ErrorIs(t, s.Run(context.Background()), net.ErrClosed)
}

func TestToProblem(t *testing.T) {
	for _, tt := range []struct {
		err    error
		status int
		code   string
	}{
		{vote.ErrPollNotFound, 404, "poll-not-found"},
		{vote.ErrPollNotOpen, 409, "poll-not-open"},
		{vote.ErrPollClosed, 409, "poll-closed"},
		{vote.ErrKeyReused, 409, "idempotency-key-reused"},
		{vote.ErrUnknownOption, 422, "unknown-option"},
		{vote.ErrUnknownClass, 422, "unknown-class"},
		{vote.ErrOverloaded, 503, "overloaded"},
		{vote.ErrUnavailable, 503, "queue-unavailable"},
		{errors.New("anything else"), 500, "internal"},
		{context.DeadlineExceeded, 500, "internal"},
	} {
		p := toProblem(fmt.Errorf("wrapped: %w", tt.err))
		assert.Equal(t, tt.status, p.Status)
		assert.Equal(t, tt.code, p.Code)
		assert.NotContains(t, p.Detail, "wrapped")
		assert.Contains(t, p.Error(), tt.code)
	}
}

func keep(p Privacy, addr netip.Addr, key string) string {
	return string(newKeeper(p, []byte(key)).append(nil, addr))
}
