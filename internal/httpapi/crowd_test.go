package httpapi_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
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
	body := `{"option":"ana"}`
	var all []net.Conn
	for range n {
		c := s.dial()
		_, err := io.WriteString(c, post("p", body, typeJSON, lengthOf(body)))
		require.NoError(s.t, err)
		a, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(s.t, err)
		_, err = io.Copy(io.Discard, a.Body)
		require.NoError(s.t, err)
		require.Equal(s.t, http.StatusAccepted, a.StatusCode)
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

// The more connections there are, the sooner those go that do nothing.
func TestIdleOnesGoFirst(t *testing.T) {
	s := limited(t, 16)
	began := time.Now()
	kept := s.keep(16) // those that came last found a crowded server
	last := kept[len(kept)-1]
	_ = last.SetReadDeadline(time.Now().Add(time.Minute))
	_, err := last.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	assert.Less(t, time.Since(began), 30*time.Second, "the usual time is "+strconv.Itoa(75)+" s")
	require.NoError(t, s.stop())
	assert.Zero(t, s.server.OpenConnections())
}
