package main

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testPlan(seed uint64, length time.Duration, azurite bool) []fault {
	r := newRun(options{seed: seed, seconds: int(length.Seconds())}, "dir", &leftovers{})
	p := stackParams{apis: 2, consumers: 3, archivers: 2, azurite: azurite}
	return r.schedule(&p, mixPlan{kill: killKind(length, "kill -9", (*world).redisKill)})
}

func TestScheduleFollowsFromTheSeed(t *testing.T) {
	text := planText(testPlan(7, 3*time.Minute, true))
	assert.Equal(t, text, planText(testPlan(7, 3*time.Minute, true)))
	assert.NotEqual(t, text, planText(testPlan(8, 3*time.Minute, true)))
	assert.NotEqual(t, text, planText(testPlan(7, 3*time.Minute, false)), "a folder has other faults")
}

func TestScheduleIsWithinBounds(t *testing.T) {
	for _, length := range []time.Duration{20 * time.Second, time.Minute, 3 * time.Minute, 30 * time.Minute} {
		for seed := range uint64(30) {
			faults := testPlan(seed, length, seed%2 == 0)
			require.NotEmpty(t, faults)
			within(t, faults, length)
		}
	}
}

func within(t *testing.T, faults []fault, length time.Duration) {
	t.Helper()
	var outages time.Duration
	for i, f := range faults {
		require.GreaterOrEqual(t, f.at, time.Duration(0))
		require.LessOrEqual(t, f.end(), length-tail, f.String())
		require.Contains(t, append(f.kind.targets, partArchive), f.target)
		if f.kind.outage {
			outages += f.dur
		}
		overlap := 1
		for _, o := range faults[:i] {
			if o.end() > f.at {
				overlap++
			}
			if o.at > f.at || o.part() == f.part() && o.end() > f.at || o.kind == f.kind && f.at-o.at < f.kind.apart {
				t.Fatalf("%s does not go with\n%s", f, o)
			}
		}
		require.LessOrEqual(t, overlap, 3+1, "three, and the one that every run has")
	}
	require.Less(t, outages, length*35/100)
}

func TestLongScheduleHasAllKinds(t *testing.T) {
	for _, azurite := range []bool{true, false} {
		const length = 30 * time.Minute
		p := stackParams{apis: 2, consumers: 3, archivers: 2, azurite: azurite}
		missing := map[string]bool{}
		for _, k := range kinds(&p, killKind(length, "kill -9", nil)) {
			for _, target := range k.targets {
				missing[k.name+" of "+target] = true
			}
		}
		var outages time.Duration
		for _, f := range testPlan(3, length, azurite) {
			delete(missing, f.kind.name+" of "+f.target)
			if f.kind.outage {
				outages += f.dur
			}
		}
		assert.Empty(t, missing)
		assert.Less(t, outages, length/4, "service is up three quarters of the time")
		assert.Greater(t, outages, length/10)
	}
}

func TestDeckDealsEachOnce(t *testing.T) {
	faults := testPlan(1, 10*time.Minute, true)
	seen := map[*kind]int{}
	most := 0
	for _, f := range faults {
		seen[f.kind]++
		most = max(most, seen[f.kind])
	}
	assert.Less(t, most, 40)
	assert.Greater(t, len(faults), 50)
}

// An acknowledgement that a fault has delayed must not come after Redis has
// forgotten the vote: it would lie outside of the time in which votes may be
// lost.
func TestScheduleKeepsDelaysFromLosses(t *testing.T) {
	delays, forgets := 0, 0
	for _, length := range []time.Duration{time.Minute, 3 * time.Minute, 30 * time.Minute} {
		for seed := range uint64(30) {
			r := newRun(options{seed: seed, seconds: int(length.Seconds())}, "dir", &leftovers{})
			faults := r.schedule(&stackParams{apis: 2, consumers: 3, archivers: 2, azurite: seed%2 == 0}, everysecPlan(length))
			for _, f := range faults {
				if f.kind.forgets {
					forgets++
				}
				if !f.kind.delays {
					continue
				}
				delays++
				for _, o := range faults {
					if o.kind.forgets && f.at < o.end()+between && o.at < f.end()+between {
						t.Fatalf("%s meets\n%s", f, o)
					}
				}
			}
		}
	}
	require.Greater(t, delays, 100)
	require.Greater(t, forgets, 100)
}

// Nor where one of the two comes later than planned.
func TestLateFaultsKeepDelaysFromLosses(t *testing.T) {
	w := &world{r: newRun(options{}, "dir", &leftovers{}), l: &load{monitor: newMonitor(func() int64 { return 0 })}}
	defer w.l.monitor.stop()
	var under atomic.Int32
	do := func(more int32) action {
		return func(_ *world, ctx context.Context, _ fault) (effect, error) {
			now := under.Add(more)
			defer under.Add(-more)
			assert.True(t, now <= 2 || now == 100, "%d: they met", now)
			wait(ctx, 50*time.Millisecond)
			return tookEffect, nil
		}
	}
	stops := &kind{name: "stops", delays: true, do: do(1)}
	cut := &kind{name: "cut", forgets: true, do: do(100)}
	begun := time.Since(w.l.start)
	require.NoError(t, w.happen(t.Context(), []fault{
		{at: begun, kind: stops, target: "api 0"},
		{at: begun, kind: cut, target: "redis-server"},
		{at: begun, kind: stops, target: "api 1"},
	}))
	assert.Len(t, w.r.report.r.Faults, 3)
}
