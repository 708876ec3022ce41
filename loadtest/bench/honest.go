package main

import (
	"fmt"
)

// When a run is no measurement.
//
// The load is a closed loop: each connection sends when it was answered. So the
// generator is the limit exactly where answers lie unread while it is at work,
// which shows as wrk's threads being busy all the time; a thread that finds no
// answer sleeps. Hence maxBusy. On shared cores nothing else can be asked: a
// core that is full is full of both.
//
// A machine that is partly idle is a fault of the measurement only for the bare
// handler, which waits for nothing but requests: then something other than the
// processors limits it, and the upper bound is none, which would flatter ours.
// Ours and the naive peer may wait for Redis and the disk; that is theirs.
//
// In the same round and at the same connections the bare handler must take more
// than the others, or it is no upper bound. (Not so for the results, which are
// meant to reach it.)
//
// And no stranger may have taken part of the machine: it may have hit one side of
// a ratio and not the other.
const (
	maxBusy    = 0.90
	maxIdle    = 0.15
	maxForeign = 0.10
)

// check says why a closed-loop run is no measurement.
func (m *measurement) check() error {
	for _, w := range []struct {
		name string
		f    wrkFigures
	}{{"warm-up", m.WarmUp}, {"run", m.Load}, {"fill", m.Fill}} {
		if w.f.Non2xx > 0 || w.f.SocketErrors > 0 {
			return fmt.Errorf("the %s had %d answers that were not 2xx and %d socket errors", w.name, w.f.Non2xx, w.f.SocketErrors)
		}
	}
	if m.Load.Requests == 0 {
		return fmt.Errorf("nothing was answered in %.1f s", m.Load.Seconds)
	}
	if m.GeneratorBusy >= maxBusy {
		return fmt.Errorf("the load generator was the limit: wrk's threads were busy %.0f %% of the time, at most %.0f %% is sound",
			100*m.GeneratorBusy, 100*maxBusy)
	}
	if m.System == bare && m.Machine.Idle > maxIdle {
		return fmt.Errorf("the load generator was the limit: %.0f %% of the machine was idle, at most %.0f %% makes an upper bound",
			100*m.Machine.Idle, 100*maxIdle)
	}
	if m.Machine.Foreign > maxForeign {
		return fmt.Errorf("processes that are none of the benchmark's took %.0f %% of the machine, at most %.0f %% is sound",
			100*m.Machine.Foreign, 100*maxForeign)
	}
	return nil
}

// checkRound says why the runs of a round can't be compared.
func checkRound(r round) error {
	for _, n := range []string{"64", "512"} {
		bound := r[bare+"-"+n]
		for _, other := range []string{naive, ours} {
			if m := r[other+"-"+n]; bound != nil && m != nil && m.Load.PerSecond >= bound.Load.PerSecond {
				return fmt.Errorf("%s took %.0f votes a second and the bare handler %.0f: that is no upper bound, so something else was the limit",
					m.Run, m.Load.PerSecond, bound.Load.PerSecond)
			}
		}
	}
	return nil
}

// checkSum compares what Redis holds with what the generator knows. Up to one
// vote a connection and run of wrk may have been taken without its knowledge.
func checkSum(what string, got, sent, unknown int64) error {
	if got < sent || got > sent+unknown {
		return fmt.Errorf("%s are %d, but %d to %d were accepted", what, got, sent, sent+unknown)
	}
	return nil
}
