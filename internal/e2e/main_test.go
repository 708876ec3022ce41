// Package e2e holds the acceptance tests: the real binaries under ledger load,
// with the faults of the issue. Each test injects its fault and makes sure that
// it did; the ledger judges.
//
// By default a fault goes on for ten seconds. The long form is
//
//	go test ./internal/e2e -timeout 90m -e2e.seconds=60 -e2e.idle=1000
//
// With 1,000 idle seconds the latency of the vote after them is checked too,
// which is a figure of a machine that does nothing else.
package e2e

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"paredao/internal/testkit"
)

var (
	faultSeconds = flag.Int("e2e.seconds", 10, "how long each fault goes on, in seconds")
	idleSeconds  = flag.Int("e2e.idle", 20, "how long the idle daemons are watched, in seconds; from 1000 on, latency is checked too")
)

// faultTime is how long a test's fault goes on.
func faultTime() time.Duration { return time.Duration(*faultSeconds) * time.Second }

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := testkit.RemoveBinaries(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		os.Exit(code)
	}))
}
