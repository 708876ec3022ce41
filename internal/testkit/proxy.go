package testkit

import (
	"testing"

	"paredao/internal/lab"
)

// Proxy stands in front of a Redis and breaks connections; see lab.Proxy.
type Proxy = lab.Proxy

// NewProxy starts a proxy in front of the Redis at target, a host:port or the
// path of a unix socket, and closes it with the test.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	p, err := lab.StartProxy(target, 1)
	if err != nil {
		tb.Fatalf("proxy: %v", err)
	}
	tb.Cleanup(p.Close)
	return p
}
