package httpapi_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
)

// limited starts a stack that serves n connections at one time.
func limited(t *testing.T, n int64) *stack {
	t.Helper()
	s := start(t, func(set *settings) { set.connections = n })
	s.poll("p", "ana")
	return s
}

// keep opens connections that each have had one answer, and stay.
func (s *stack) keep(n int) []net.Conn {
	s.t.Helper()
	var all []net.Conn
	for range n {
		c := s.dial()
		ask(s.t, c)
		all = append(all, c)
	}
	return all
}

// A connection that is one too many gets an answer like any other refusal, and
// a place is free again when another ends.
func TestTooManyConnections(t *testing.T) {
	s := limited(t, 4)
	kept := s.keep(4)
	require.EqualValues(t, 4, s.server.OpenConnections())
	for i := range 20 {
		body := `{"option":"ana"}`
		all := s.raw(post("p", body, typeJSON, lengthOf(body)))
		require.Len(t, all, 1)
		problem(t, all[0], http.StatusServiceUnavailable, "overloaded")
		assert.True(t, all[0].Close)
		assert.EqualValues(t, i+1, testutil.ToFloat64(s.rejected.WithLabelValues("overloaded")))
	}
	assert.NotEmpty(t, s.log.lines("4 connections"))
	require.NoError(t, kept[0].Close())
	testkit.Eventually(t, "a place is free", func() bool {
		return s.server.OpenConnections() == 3
	})
	receipt(t, s.vote("p", "ana"), "p", "ana")
	assert.Len(t, s.stored(), 5)
}

// Far more come at once than get an answer: the others are closed, and the
// server goes on.
func TestFloodOfConnections(t *testing.T) {
	s := limited(t, 2)
	kept := s.keep(2)
	var silent []net.Conn
	for range 600 {
		c, err := net.Dial("tcp", s.addr)
		require.NoError(t, err)
		silent = append(silent, c)
	}
	for _, c := range silent {
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		b, err := io.ReadAll(c)
		if err == nil && len(b) > 0 {
			assert.Contains(t, string(b), "HTTP/1.1 503 Service Unavailable\r\n")
		}
		_ = c.Close()
	}
	for _, c := range kept {
		require.NoError(t, c.Close())
	}
	testkit.Eventually(t, "all is well again", func() bool {
		return s.vote("p", "ana").StatusCode == http.StatusAccepted
	})
}

// The more connections there are, the sooner those go that do nothing: first the
// idle ones, then the slow ones too. One that has work goes on.
func TestIdleOnesGoFirst(t *testing.T) {
	whole := post("p", ballot, typeJSON, lengthOf(ballot))
	for name, tt := range map[string]struct {
		idle    int // beside a busy one and a slow one
		slowCut bool
	}{
		"busy":    {8, false}, // 10 of 16
		"crowded": {14, true}, // 16 of 16
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := limited(t, 16)
			idle := s.keep(1)
			for range tt.idle - 1 {
				idle = append(idle, s.dial())
			}
			busy := s.dial()
			ask(t, busy)
			began := time.Now()
			slow := s.dial()
			_, err := io.WriteString(slow, whole[:20])
			require.NoError(t, err)
			testkit.Eventually(t, "all are here", func() bool {
				return s.server.OpenConnections() == int64(tt.idle)+2
			})
			// Only now, so that each finds as many as there are. (The first idle one
			// came when there was room, and may stay.)
			for _, c := range idle[1:] {
				ask(t, c)
				ask(t, busy)
			}
			gone := make(chan error, len(idle)+1)
			for _, c := range idle[1:] {
				go func() { gone <- ended(c) }()
			}
			if tt.slowCut {
				go func() {
					all := readAll(t, slow, whole)
					if assert.Len(t, all, 1) {
						problem(t, all[0], http.StatusRequestTimeout, "request-timeout")
					}
					gone <- nil
				}()
			}
			waiting := len(idle) - 1
			if tt.slowCut {
				waiting++
			}
			for waiting > 0 {
				select {
				case err := <-gone:
					require.NoError(t, err)
					waiting--
				default:
					ask(t, busy)
				}
			}
			took := time.Since(began)
			ask(t, busy)
			if tt.slowCut {
				assert.Less(t, took, 10*time.Second, "the usual time of a request")
			} else {
				// Its time is not up while that of all idle ones was.
				_, err = io.WriteString(slow, whole[20:])
				require.NoError(t, err)
				a, err := http.ReadResponse(bufio.NewReader(slow), nil)
				require.NoError(t, err)
				assert.Equal(t, http.StatusAccepted, a.StatusCode)
			}
			require.NoError(t, slow.Close()) // else what it sends is read for a second
			require.NoError(t, s.stop())
			testkit.Eventually(t, "none is left", func() bool { return s.server.OpenConnections() == 0 })
		})
	}
}

// ask votes over a connection, which stays.
func ask(t testing.TB, c net.Conn) {
	t.Helper()
	_, err := io.WriteString(c, post("p", ballot, typeJSON, lengthOf(ballot)))
	require.NoError(t, err)
	a, err := http.ReadResponse(bufio.NewReader(c), nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, a.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusAccepted, a.StatusCode)
}

// ended waits until the server closes a connection without a word.
func ended(c net.Conn) error {
	_ = c.SetReadDeadline(time.Now().Add(time.Minute)) // 75 s is the usual time
	_, err := c.Read(make([]byte, 1))
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("the connection did not end: %w", err)
}
