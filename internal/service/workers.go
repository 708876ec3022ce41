package service

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"paredao/internal/archive"
	"paredao/internal/blobstore"
	"paredao/internal/config"
	"paredao/internal/count"
	"paredao/internal/daemon"
	"paredao/internal/redisstore"
	"paredao/internal/share"
)

// latencyBuckets go from a millisecond to half an hour.
func latencyBuckets() []float64 {
	return []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
}

// Consumer returns the service that counts votes.
//
//	members ◀──▶ share ──▶ one worker a shard: read ▶ add up ▶ compare-and-swap
func Consumer(b Base, c config.Count, o config.Owner) Service {
	b.registerQueue("queue_votes", "queue_frames", "oldest_pending_seconds")
	worker := workerName()
	counting := b.work("count", "votes can't be counted")
	consumer := count.New(count.Params{
		Queue:     b.Store,
		Worker:    worker,
		ChunkSize: c.ChunkSize,
		Outage:    counting.outcome,
		Log:       b.Log,
		Metrics: count.Metrics{
			Counted: b.counterVec("votes_counted_total", "Votes added to the tallies.", "poll"),
			Dead:    b.counterVec("dead_votes_total", "Votes in elements that can't be read (an element without a readable header counts as one).", "reason"),
			Refused: b.counter("commits_refused_total", "Commits that found the head of the queue moved."),
			AcceptToCount: b.histogram("accept_to_count_seconds",
				"Seconds from the enqueue of a frame to its count, one observation a frame.", latencyBuckets()),
		},
	})
	return Service{
		Parts:  []daemon.Part{{Name: "consumer", Run: b.shared(redisstore.RoleConsumer, worker, o.TTL, consumer.Work)}},
		Checks: []daemon.Check{b.redisCheck(), counting.check()},
	}
}

// Archiver returns the service that archives counted votes.
//
//	members ◀──▶ share ──▶ one worker a shard: fix ▶ write objects, manifest ▶ commit
func Archiver(b Base, blobs blobstore.Store, c config.Batch, o config.Owner) Service {
	b.registerQueue("archive_pending_votes")
	worker := workerName()
	archiving := b.work("archiving", "votes can't be archived")
	archiver := archive.New(archive.Params{
		Queue:    b.Store,
		Blobs:    blobs,
		MaxVotes: int64(c.MaxVotes),
		MaxAge:   c.MaxAge,
		Settle:   min(config.ArchiveSettle, c.MaxAge),
		Outage:   archiving.outcome,
		Log:      b.Log,
		Metrics: archive.Metrics{
			Votes:   b.counter("votes_archived_total", "Votes in committed archive batches."),
			Objects: b.counter("archive_objects_total", "Objects written to the archive."),
			AcceptToArchive: b.histogram("accept_to_archive_seconds",
				"Seconds from the enqueue of a frame to the commit of its archive batch, one observation a frame.", latencyBuckets()),
		},
	})
	return Service{
		Parts:  []daemon.Part{{Name: "archiver", Run: b.shared(redisstore.RoleArchiver, worker, o.TTL, archiver.Work)}},
		Checks: []daemon.Check{b.redisCheck(), {Name: "archive", Check: blobs.Check}, archiving.check()},
	}
}

// shared runs work on this worker's share of the shards.
func (b Base) shared(role, worker string, ttl time.Duration, work func(context.Context, int)) func(context.Context) error {
	owned := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "paredao", Name: "shards_owned", Help: "Queue shards that this process works on.",
		ConstLabels: prometheus.Labels{"role": role},
	})
	b.Registry.MustRegister(owned)
	return func(ctx context.Context) error {
		if !b.awaitAgreed(ctx) {
			return nil
		}
		return share.Run(ctx, share.Params{
			Members: b.Store.Shares(role, worker, ttl),
			Worker:  worker,
			Shards:  b.Store.Shards(),
			TTL:     ttl,
			Work:    work,
			Owned:   owned,
			Outage:  b.outage("the other " + role + "s can't be met"),
			Log:     b.Log.With("role", role),
		})
	}
}

// queueCollector reads the queue's gauges when they are asked for.
type queueCollector struct {
	store *redisstore.Store
	descs map[string]*prometheus.Desc
}

func (b Base) registerQueue(names ...string) {
	help := map[string]string{
		"queue_votes":            "Votes accepted and waiting to be counted.",
		"queue_frames":           "Elements of the queue.",
		"oldest_pending_seconds": "Age of the oldest vote that waits to be counted.",
		"archive_pending_votes":  "Votes counted and waiting to be archived.",
	}
	c := &queueCollector{store: b.Store, descs: map[string]*prometheus.Desc{}}
	for _, n := range names {
		c.descs[n] = prometheus.NewDesc("paredao_"+n, help[n], nil, nil)
	}
	b.Registry.MustRegister(c)
}

// Describe implements prometheus.Collector.
func (c *queueCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect implements prometheus.Collector. While Redis is away the gauges are
// left out: a number that could not be read is not shown.
func (c *queueCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	queues, err := c.store.Queues(ctx)
	if err != nil {
		return
	}
	values := map[string]float64{}
	for _, q := range queues {
		values["queue_votes"] += float64(q.Votes)
		values["queue_frames"] += float64(q.Frames)
		values["archive_pending_votes"] += float64(q.AwaitingVotes)
		if !q.Oldest.IsZero() {
			values["oldest_pending_seconds"] = max(values["oldest_pending_seconds"], q.Now.Sub(q.Oldest).Seconds())
		}
	}
	for name, d := range c.descs {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, values[name])
	}
}
