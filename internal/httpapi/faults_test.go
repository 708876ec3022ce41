package httpapi_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/httpapi"
	"paredao/internal/testkit"
)

// A megabyte that would inflate to a gigabyte is refused as it came: unread
// where it is larger than body-limit, and never inflated where it is not.
func TestCompressedBodyIsNotInflated(t *testing.T) {
	// A gzip file may consist of several; each of these is 64 MiB of blanks.
	var member bytes.Buffer
	z, err := gzip.NewWriterLevel(&member, gzip.BestCompression)
	require.NoError(t, err)
	blanks := bytes.Repeat([]byte{' '}, 1<<20)
	for range 64 {
		_, err = z.Write(blanks)
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	bomb := bytes.Repeat(member.Bytes(), 16)
	require.InDelta(t, 1<<20, len(bomb), 100<<10)
	for _, tt := range []struct {
		limit, status int
		code          string
	}{{4 << 10, 413, "body-too-large"}, {8 << 20, 415, "unsupported-content-encoding"}} {
		s := start(t, func(set *settings) { set.http.BodyLimit = tt.limit })
		s.poll("p", "ana")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 10 {
			a := s.send("POST", "/polls/p/votes", string(bomb), "Content-Type", asJSON, "Content-Encoding", "gzip")
			problem(t, a, tt.status, tt.code)
			assert.Less(t, len(a.body), 1000, "nothing of the body comes back")
		}
		runtime.ReadMemStats(&after)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(200<<20), "ten of them, with the client's own part")
		assert.Empty(t, s.stored())
	}
}

// Who is refused for the size of a header finds out why in the log.
func TestLargeHeadersAreLogged(t *testing.T) {
	s := start(t)
	s.poll("p", "ana")
	all := s.raw(post("p", ballot, typeJSON, lengthOf(ballot), "Cookie: "+strings.Repeat("c", 9<<10)))
	require.Len(t, all, 1)
	problem(t, all[0], 431, "headers-too-large")
	testkit.Eventually(t, "it is logged", func() bool { return len(s.log.lines("headers-too-large")) > 0 })
}

// A thousand clients hang up while their vote waits for Redis. The api does not
// answer that with new connections to Redis (go-redis PR#3190), and what Redis
// took is counted.
func TestHangUpsMakeNoConnections(t *testing.T) {
	var proxy *testkit.Proxy
	s := start(t, func(set *settings) {
		set.redisURL = func(r *testkit.RedisServer) string {
			proxy = testkit.NewProxy(t, r.Addr())
			return proxy.URL()
		}
		set.http.Privacy = httpapi.PrivacyNone
	})
	s.poll("p", "ana")
	receipt(t, s.vote("p", "ana"), "p", "ana")
	stat := func(section, name string) int {
		t.Helper()
		text, err := s.rdb.Info(context.Background(), section).Result()
		require.NoError(t, err)
		_, rest, ok := strings.Cut(text, name+":")
		require.True(t, ok, text)
		n, err := strconv.Atoi(strings.Fields(rest)[0])
		require.NoError(t, err)
		return n
	}
	before, made := stat("clients", "connected_clients"), stat("stats", "total_connections_received")

	const rounds, each = 10, 100
	for range rounds {
		held, release := proxy.HoldNext(isEnqueue)
		var clients []net.Conn
		for range each {
			conn := s.dial()
			_, err := io.WriteString(conn, post("p", ballot, typeJSON, lengthOf(ballot)))
			require.NoError(t, err)
			clients = append(clients, conn)
		}
		<-held
		for _, conn := range clients {
			require.NoError(t, conn.(*net.TCPConn).SetLinger(0)) // a reset, as of a lost phone
			require.NoError(t, conn.Close())
		}
		release()
		receipt(t, s.vote("p", "ana"), "p", "ana")
	}
	assert.LessOrEqual(t, stat("clients", "connected_clients"), before+2)
	assert.LessOrEqual(t, stat("stats", "total_connections_received"), made+2)
	s.consume()
	r, err := s.store.Results(context.Background(), "p")
	require.NoError(t, err)
	assert.Equal(t, r.Ledger.Accepted, r.Ledger.Counted)
	assert.GreaterOrEqual(t, r.Ledger.Counted, int64(1+rounds))
	assert.LessOrEqual(t, r.Ledger.Counted, int64(1+rounds+rounds*each))
}
