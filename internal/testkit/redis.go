package testkit

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"paredao/internal/lab"
)

// RedisServer is a real redis-server of a test's own, on loopback.
type RedisServer struct {
	*lab.Redis

	tb testing.TB
}

// Redis starts a redis-server on a free port, with its files in a folder of the
// test's own, and ends it with the test. args are settings of the server, as
// "--appendonly", "yes".
func Redis(tb testing.TB, args ...string) *RedisServer {
	tb.Helper()
	// (The test's own context ends before its cleanups.)
	r, err := lab.StartRedis(context.Background(), tb.TempDir(), args...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(r.Kill)
	return &RedisServer{r, tb}
}

// Start starts the server again after Kill, with the same files and port.
func (r *RedisServer) Start() {
	r.tb.Helper()
	if err := r.Redis.Start(context.Background()); err != nil {
		r.tb.Fatal(err)
	}
}

// Client returns a client of the server, closed with the test.
func (r *RedisServer) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: r.Addr()})
	r.tb.Cleanup(func() { _ = c.Close() })
	return c
}
