// Package e2e holds the acceptance tests: the real binaries under ledger load,
// with the faults of the issue. Each test injects its fault and makes sure that
// it did; the ledger judges.
//
// By default a fault goes on for ten seconds. The long form is
//
//	go test ./internal/e2e -timeout 60m -e2e.seconds=60 -e2e.idle-seconds=1000 -e2e.latency
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
	faultSeconds = flag.Int("e2e.seconds", 10, "how long each fault goes on")
	idleSeconds  = flag.Int("e2e.idle-seconds", 20, "how long the idle daemons are watched")
	checkLatency = flag.Bool("e2e.latency", false, "also check that a vote is counted within 100 ms; only on a machine that does nothing else")
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
