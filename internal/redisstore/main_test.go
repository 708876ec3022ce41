package redisstore

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"paredao/internal/testkit"
)

// shared is a redis-server for all tests that need nothing special of it.
var shared *testkit.RedisServer

func TestMain(m *testing.M) {
	DiscardClientLog()
	// go-redis's probe of a server that was down sleeps for a second before it
	// sees that its pool was closed.
	goleak.VerifyTestMain(&withRedis{m: m},
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// withRedis runs the tests with shared, and ends it before leaks are looked for.
type withRedis struct {
	testing.TB
	m        *testing.M
	cleanups []func()
}

func (r *withRedis) Run() int {
	defer func() {
		for _, f := range r.cleanups {
			defer f()
		}
	}()
	if err := makeCertificate(r.TempDir()); err != nil {
		r.Fatal(err)
	}
	shared = testkit.Redis(r)
	return r.m.Run()
}

// What testkit.Redis asks of a test.

func (r *withRedis) Helper()          {}
func (r *withRedis) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *withRedis) TempDir() string {
	dir, err := os.MkdirTemp("", "redisstore")
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (r *withRedis) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (r *withRedis) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
