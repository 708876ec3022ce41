// Package testkit brings the real parts to the tests: redis-server, Azurite,
// connections that fail on purpose. Only tests may import it.
package testkit

import (
	"testing"
	"time"
)

// Eventually asks again and again until ok, and fails the test when that takes
// longer than any machine should need. It waits for a state, never for a time.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			tb.Fatalf("never came true: %s", what)
		}
		pause(5 * time.Millisecond)
	}
}

// pause lets a poll rest between two looks.
func pause(d time.Duration) { <-time.After(d) }
