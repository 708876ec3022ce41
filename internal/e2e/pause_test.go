package e2e

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"paredao/internal/count"
	"paredao/internal/testkit"
)

// countCommit tells a consumer's commit from its other commands.
func countCommit(cmd []string) bool {
	// EVALSHA hash numkeys votes archive dead ledger tally...
	return len(cmd) > 7 && strings.EqualFold(cmd[0], "EVALSHA") && cmd[3] == "votes:{0}" && strings.HasPrefix(cmd[7], "tally:{0}:")
}

// A consumer is paused for three times owner-ttl with a commit in its hand.
// Another takes over; then the first goes on, and its commit comes late.
func TestPausedConsumer(t *testing.T) {
	s := newStack(t, 1)
	proxy := testkit.NewProxy(t, s.redis.Addr())
	paused := s.start("consumer", proxy.URL())
	s.start("archiver", "")
	l := s.load(steady, s.start("api", ""))
	testkit.Eventually(t, "the consumer counts", func() bool { return paused.MetricOrZero("paredao_votes_counted_total") > 0 })

	held, release := proxy.HoldNext(countCommit)
	testkit.Eventually(t, "a commit is held back", func() bool {
		select {
		case <-held:
			return true
		default:
			return false
		}
	})
	paused.Stop()
	over := time.After(3 * ownerTTL)
	other := s.start("consumer", "")
	testkit.Eventually(t, "the other consumer has taken over", func() bool { return other.MetricOrZero("paredao_votes_counted_total") > 0 })
	<-over
	paused.Cont()
	release()
	testkit.Eventually(t, "the late commit is refused", func() bool { return paused.Logged("commit refused") })
	testkit.Eventually(t, "the metric says so", func() bool { return paused.MetricOrZero("paredao_commits_refused_total") >= 1 })
	s.grow(l, 500)
	s.judge(l)
}

// Two consumers work on one shard all the time, as if there were no owner.
func TestTwoConsumersOnOneShard(t *testing.T) {
	s := newStack(t, 1)
	s.start("archiver", "")
	l := s.load(fullSpeed, s.start("api", ""))

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	metrics := func() count.Metrics {
		return count.Metrics{
			Counted:       prometheus.NewCounterVec(prometheus.CounterOpts{Name: "counted"}, []string{"poll"}),
			Dead:          prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dead"}, []string{"reason"}),
			Refused:       prometheus.NewCounter(prometheus.CounterOpts{Name: "refused"}),
			AcceptToCount: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "seconds"}),
		}
	}
	both := []count.Metrics{metrics(), metrics()}
	done := make(chan struct{}, len(both))
	for i, m := range both {
		c := count.New(count.Params{
			Queue: s.store, Worker: string(rune('a' + i)), ChunkSize: 100, Outage: func(error) {},
			Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Metrics: m,
		})
		go func() {
			c.Work(ctx, 0)
			done <- struct{}{}
		}()
	}
	after(faultTime())
	testkit.Eventually(t, "each has counted, and come too late", func() bool {
		for _, m := range both {
			if testutil.ToFloat64(m.Counted.WithLabelValues(openPoll)) == 0 || testutil.ToFloat64(m.Refused) == 0 {
				return false
			}
		}
		return true
	})
	t.Logf("a: %v counted, %v refused; b: %v counted, %v refused",
		testutil.ToFloat64(both[0].Counted.WithLabelValues(openPoll)), testutil.ToFloat64(both[0].Refused),
		testutil.ToFloat64(both[1].Counted.WithLabelValues(openPoll)), testutil.ToFloat64(both[1].Refused))
	r := s.judge(l)
	stop()
	<-done
	<-done
	require.Equal(t, float64(r.Counted),
		testutil.ToFloat64(both[0].Counted.WithLabelValues(openPoll))+testutil.ToFloat64(both[1].Counted.WithLabelValues(openPoll)))
}
