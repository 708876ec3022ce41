package main

import (
	"fmt"
	"time"
)

// The parts of a stack that a fault may break as a whole.
const (
	partRedis   = "redis"
	partArchive = "archive"
	partAPIs    = "apis"
	partHTTP    = "http"
	partClients = "clients"
)

// ownerTTL is the stack's owner-ttl: short, so that shards change hands while a
// run lasts.
const ownerTTL = 2 * time.Second

// kinds are the faults of a mix. What a redis-server is killed with, and how
// often, is the scenario's.
func kinds(p *stackParams, redisKill *kind) []*kind {
	names := func(role string, n int) []string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf("%s %d", role, i))
		}
		return out
	}
	apis, consumers, archivers := names(api, p.apis), names(consumer, p.consumers), names(archiver, p.archivers)
	roles := []string{api, consumer, archiver}
	redis, s := []string{"redis-server"}, time.Second
	ms := time.Millisecond
	all := []*kind{
		// Nobody can vote meanwhile.
		redisKill,
		{name: "SIGSTOP", targets: redis, part: partRedis, outage: true, least: 2 * s, most: 4 * s, do: (*world).redisPause},
		{name: "becomes a replica of nobody (READONLY)", targets: redis, part: partRedis, outage: true, least: 2 * s, most: 4 * s, do: (*world).redisReadOnly},
		{name: "can't save (MISCONF)", targets: redis, part: partRedis, outage: true, least: 2 * s, most: 4 * s, do: (*world).redisMisconf},
		{name: "maxmemory just above what is used", targets: redis, part: partRedis, outage: true, least: 2 * s, most: 4 * s, do: (*world).redisFull},
		{name: "way to Redis stalls", targets: []string{api}, part: way(api), outage: true, delays: true, least: 3 * s, most: 5 * s, do: (*world).linkStall},
		{name: "kill -9", targets: []string{"both apis"}, part: partAPIs, outage: true, least: s, most: 2 * s, do: (*world).apisKill},

		// Part of the service.
		{name: "kill -9", targets: consumers, least: 500 * ms, most: 3 * s, do: (*world).kill},
		{name: "kill -9", targets: archivers, least: 500 * ms, most: 3 * s, do: (*world).kill},
		{name: "kill -9", targets: apis, part: partAPIs, least: 500 * ms, most: 3 * s, do: (*world).kill},
		{name: "SIGSTOP, three times owner-ttl", targets: consumers, least: 3 * ownerTTL, most: 4 * ownerTTL, do: (*world).pause},
		{name: "SIGSTOP, three times owner-ttl", targets: archivers, least: 3 * ownerTTL, most: 4 * ownerTTL, do: (*world).pause},
		{name: "SIGSTOP", targets: apis, part: partAPIs, delays: true, least: 2 * s, most: 4 * s, do: (*world).pause},
		{name: "rolling restart, SIGTERM", targets: []string{"both apis"}, part: partAPIs, least: 3 * s, most: 5 * s, do: (*world).rollingRestart},
		{name: "SCRIPT FLUSH, again and again", targets: redis, part: partRedis, least: 3 * s, most: 5 * s, do: (*world).scriptFlush},
		{name: "hang-ups by 30 % of the clients", targets: []string{"clients"}, part: partClients, least: 3 * s, most: 6 * s, do: (*world).hangUps},
		{name: "300 connections that send a byte a second", targets: []string{"apis"}, part: "slow clients", least: 4 * s, most: 8 * s, do: (*world).slowSenders},
		{name: "latency of 100 ms", targets: []string{"HTTP of api 0"}, part: partHTTP, least: 3 * s, most: 5 * s, do: (*world).httpLatency},
		{name: "bandwidth of 20 KB/s", targets: []string{"HTTP of api 0"}, part: partHTTP, least: 3 * s, most: 5 * s, do: (*world).httpBandwidth},
		{name: "connections reset", targets: []string{"HTTP of api 0"}, part: partHTTP, least: s, most: 3 * s, do: (*world).httpReset},
	}
	for _, role := range roles {
		target := []string{role}
		all = append(all,
			&kind{name: "20 % of the commands cut off before Redis", targets: target, part: way(role), least: 2 * s, most: 5 * s, do: (*world).linkCut},
			&kind{name: "20 % of the replies lost after the command ran", targets: target, part: way(role), least: 2 * s, most: 5 * s, do: (*world).linkDrop},
			&kind{name: "latency of 50 ms to Redis", targets: target, part: way(role), least: 2 * s, most: 4 * s, do: (*world).linkLatency},
			&kind{name: "bandwidth of 200 KB/s to Redis", targets: target, part: way(role), least: 2 * s, most: 4 * s, do: (*world).linkBandwidth},
			&kind{name: "connections to Redis reset", targets: target, part: way(role), least: 500 * ms, most: 1500 * ms, do: (*world).linkReset},
		)
		if role != api {
			all = append(all, &kind{name: "way to Redis stalls", targets: target, part: way(role), least: 3 * s, most: 8 * s, do: (*world).linkStall})
		}
	}
	archive := func(name string, do action) *kind {
		return &kind{name: name, targets: []string{partArchive}, part: partArchive, least: 4 * s, most: 10 * s, do: do}
	}
	if p.azurite {
		return append(all,
			archive("service stopped", (*world).archiveGone),
			archive("503 with Retry-After", (*world).archiveBusy),
			archive("answers lost after a PUT got through", (*world).archiveDrops))
	}
	return append(all,
		archive("disk full (ENOSPC)", (*world).diskFull),
		archive("read-only file system", (*world).diskReadOnly))
}

// way is the part that leads a kind of daemon to Redis.
func way(role string) string { return "way of " + role }

// killKind is a redis-server killed with -9, not too often: a restart has all
// its data to load.
func killKind(length time.Duration, name string, do action) *kind {
	apart := 25 * time.Second
	if length >= 10*time.Minute {
		apart = 150 * time.Second
	}
	return &kind{
		name: name, targets: []string{"redis-server"}, part: partRedis, outage: true,
		least: time.Second, most: 3 * time.Second, apart: apart, do: do,
	}
}
