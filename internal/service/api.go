package service

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"paredao/internal/config"
	"paredao/internal/daemon"
	"paredao/internal/enqueue"
	"paredao/internal/httpapi"
	"paredao/internal/vote"
)

// maxAckWait bounds a WAIT for replicas below the client's read timeout.
const maxAckWait = time.Second

// API returns the service that takes votes, and its public address.
//
//	handler ──▶ committer ──▶ one flusher a shard ──▶ Redis
//	   └─ catalog of polls ◀── Redis, twice a second
func API(b Base, http config.HTTP, c config.Enqueue) (Service, net.Addr, error) {
	privacy, err := httpapi.ParsePrivacy(http.IPPrivacy)
	if err != nil {
		return Service{}, nil, config.Usagef("%v", err)
	}
	key, err := clientKey(http.IPHMACKeyFile)
	if err != nil {
		return Service{}, nil, err
	}
	enqueuing := b.work("enqueue", "Redis does not take votes")
	committer, err := enqueue.New(enqueue.Params{
		Queue:       b.Store.Queue(c.IdempotencyTTL, c.AckReplicas, min(c.Timeout, maxAckWait)),
		Shards:      b.Store.Shards(),
		MaxInFlight: c.MaxInFlight,
		Timeout:     c.Timeout,
		Outage:      enqueuing.outcome,
		Log:         b.Log,
		Metrics:     b.enqueueMetrics(),
	})
	if err != nil {
		return Service{}, nil, err
	}
	server, err := httpapi.New(http.Listen, httpapi.Params{
		Submit:         gate{b, committer},
		Polls:          b.Store,
		BodyLimit:      http.BodyLimit,
		ResultsMaxAge:  http.ResultsMaxAge,
		TrustedProxies: http.TrustedProxies,
		Privacy:        privacy,
		ClientKey:      key,
		Rejected: b.counterVec("votes_rejected_total",
			"Requests for a vote that were refused, by the problem's code.", "reason"),
		Outage: b.outage("Redis does not answer about polls"),
		Log:    b.Log,
	})
	if err != nil {
		return Service{}, nil, err
	}
	return Service{
		// The server first: when it has ended no one submits any more.
		Parts: []daemon.Part{
			{Name: "http", Run: server.Run},
			{Name: "committer", Run: committer.Run},
		},
		Checks: []daemon.Check{b.redisCheck(), {Name: "polls", Check: server.Ready}, enqueuing.check()},
	}, server.Addr(), nil
}

// gate keeps votes back until it is known that the shards agree.
type gate struct {
	b    Base
	next httpapi.Submitter
}

// Overloaded asks the next one.
func (g gate) Overloaded() error { return g.next.Overloaded() }

// Submit passes the vote on.
func (g gate) Submit(v *vote.Vote, optionsKey string, key *vote.IdempotencyKey) (vote.Receipt, error) {
	select {
	case <-g.b.agreed:
		return g.next.Submit(v, optionsKey, key)
	default:
		return vote.Receipt{}, fmt.Errorf("%w: Redis has not been reached yet", vote.ErrUnavailable)
	}
}

// minKey is the least a key for HMAC may have, in bytes.
const minKey = 16

func clientKey(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	key, err := os.ReadFile(file)
	if err != nil {
		return nil, config.Usagef("ip-hmac-key-file %q: %v", file, errors.Unwrap(err))
	}
	if key = bytes.TrimRight(key, "\r\n"); len(key) < minKey {
		return nil, config.Usagef("ip-hmac-key-file %q: the key has %d bytes, at least %d are needed", file, len(key), minKey)
	}
	return key, nil
}

func (b Base) enqueueMetrics() enqueue.Metrics {
	return enqueue.Metrics{
		BatchVotes: b.histogram("enqueue_batch_votes", "Votes in a batch that Redis acknowledged.",
			prometheus.ExponentialBuckets(1, 2, 11)),
		Seconds: b.histogram("enqueue_seconds", "Seconds from sending a batch to Redis's acknowledgement.",
			prometheus.ExponentialBuckets(0.0002, 2, 15)),
		Accepted: b.counterVec("votes_accepted_total", "Votes acknowledged by Redis.", "poll"),
	}
}

func (b Base) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "paredao", Name: name, Help: help})
	b.Registry.MustRegister(c)
	return c
}

func (b Base) counterVec(name, help, label string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "paredao", Name: name, Help: help}, []string{label})
	b.Registry.MustRegister(c)
	return c
}

func (b Base) histogram(name, help string, buckets []float64) prometheus.Observer {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "paredao", Name: name, Help: help, Buckets: buckets})
	b.Registry.MustRegister(h)
	return h
}
