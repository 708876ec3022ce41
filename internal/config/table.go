package config

import (
	"fmt"
	"net"
	"time"
)

// who is a set of binaries.
type who uint8

const (
	api who = 1 << iota
	consumer
	archiver
	tally
	allinone

	daemons  = api | consumer | archiver | allinone
	everyone = daemons | tally
)

// program is what --help says of a binary, and where it differs.
type program struct {
	name    string
	who     who
	admin   string // default of admin-listen
	about   string
	example string
}

var (
	apiProgram = program{
		name: "api", who: api, admin: ":9090",
		about: "api accepts votes over HTTP and puts them on the queue in Redis. It also serves the polls, " +
			"their results and the pages to vote on. A vote is answered 202 only once Redis holds it. " +
			"Any number of api processes may run side by side.",
		example: "api --redis-url redis://10.0.0.5:6379/0 --polls-file polls.yaml",
	}
	consumerProgram = program{
		name: "consumer", who: consumer, admin: ":9091",
		about: "consumer takes votes from the queue in Redis and adds them to the tallies, a chunk at a time. " +
			"Any number of consumer processes may run side by side, and each may be killed at any moment: " +
			"no vote is lost or counted twice.",
		example: "consumer --redis-url redis://10.0.0.5:6379/0 --chunk-size 5000",
	}
	archiverProgram = program{
		name: "archiver", who: archiver, admin: ":9092",
		about: "archiver writes the votes that have been counted to blob storage or a folder, in batches, " +
			"so that anyone can repeat the count. It may be killed at any moment: each vote is archived once. " +
			"Azure's credentials come from AZURE_STORAGE_CONNECTION_STRING, or from AZURE_STORAGE_ACCOUNT and the " +
			"identity of the machine or pod; AZURE_STORAGE_ENDPOINT overrides the service's URL.",
		example: "archiver --redis-url redis://10.0.0.5:6379/0 --archive-url azblob://votes",
	}
	allinoneProgram = program{
		name: "allinone", who: allinone, admin: ":9090",
		about: "allinone is api, consumer and archiver in one process, with a Redis of its own unless --redis-url " +
			"names one: for a first try and for small polls. With no polls file it opens a poll named demo. " +
			"All that it keeps is under --data.",
		example: "allinone --data ./data --polls-file polls.yaml",
	}
	tallyProgram = program{name: "tally", who: tally}
)

// Azure's variables, by the names that its SDK and tools use.
const (
	azureConnectionString = "AZURE_STORAGE_CONNECTION_STRING"
	azureAccount          = "AZURE_STORAGE_ACCOUNT"
	azureEndpoint         = "AZURE_STORAGE_ENDPOINT"
)

// table is every setting that the program knows, bound to its place in c.
// The upper bounds keep typing mistakes out; they are far above what helps.
func table(c *Allinone, p program) rows {
	redisURL, redisNote := "redis://127.0.0.1:6379/0", ""
	archiveURL, archiveNote := "file:./data/archive", ""
	if p.who == allinone {
		redisURL, redisNote = "", "a Redis of its own under --data"
		archiveURL, archiveNote = "", "file:./data/archive, or archive in another --data"
	}
	all := rows{
		{
			group: "Data", name: "data", who: allinone, unit: "DIR", def: "./data",
			parse: into(&c.Data, folder),
			usage: "folder for Redis's append-only file and the archive; made if it is missing",
		},

		{
			group: "Redis and the queue", name: "redis-url", who: everyone, unit: "URL", def: redisURL, note: redisNote,
			parse: into(&c.Redis.URL, parseRedisURL), show: redact,
			usage: "where Redis is: redis://USER:PASSWORD@HOST:PORT/DB, rediss:// with TLS, unix:///PATH?db=DB, " +
				"redis-sentinel://HOST:PORT,HOST:PORT/MASTER?db=DB or redis-cluster://HOST:PORT,HOST:PORT; " +
				"the last two take ?tls=true",
		},
		{
			group: "Redis and the queue", name: "redis-password-file", who: everyone, unit: "FILE", note: "the URL's password, if it has one",
			parse: into(&c.Redis.PasswordFile, readable), show: redactPath,
			usage: "file that holds Redis's password (one trailing newline is cut); read again on each reconnect",
		},
		{
			group: "Redis and the queue", name: "queue-shards", who: everyone, unit: "NUMBER", def: "1",
			parse: into(&c.Redis.Shards, number(1, 1024)),
			usage: "number of queue shards, 1 to 1024; all binaries must agree",
		},
		{
			group: "Redis and the queue", name: "owner-ttl", who: consumer | archiver | allinone, unit: "DURATION", def: "5s",
			parse: into(&c.Owner.TTL, duration(100*time.Millisecond, time.Hour)),
			usage: "a shard's owner that is silent for so long gives way to another; for speed only",
		},

		{
			group: "Public HTTP", name: "listen", who: api | allinone, unit: "ADDRESS", def: ":8080",
			parse: into(&c.HTTP.Listen, address),
			usage: "public address, HOST:PORT or :PORT for all of IPv4 and IPv6",
		},
		{
			group: "Public HTTP", name: "trusted-proxies", who: api | allinone, unit: "CIDRS", note: "none: the socket's address is the client",
			parse: into(&c.HTTP.TrustedProxies, prefixes),
			usage: "networks whose X-Forwarded-For is believed, read from the right, with commas between them",
		},
		{
			group: "Public HTTP", name: "body-limit", who: api | allinone, unit: "SIZE", def: "4KiB",
			parse: into(&c.HTTP.BodyLimit, size(64, 64<<20)),
			usage: "longest body, in bytes or with KiB or MiB, 64 to 64MiB; above it 413",
		},
		{
			group: "Public HTTP", name: "results-max-age", who: api | allinone, unit: "DURATION", def: "250ms",
			parse: into(&c.HTTP.ResultsMaxAge, duration(time.Millisecond, time.Hour)),
			usage: "how old a served result may be",
		},
		{
			group: "Public HTTP", name: "ip-privacy", who: api | allinone, unit: "HOW", def: "hmac",
			parse: into(&c.HTTP.IPPrivacy, oneOf("hmac", "truncate", "raw", "none")),
			usage: "what is stored of the client's address: hmac (keyed), truncate (to /24 or /48), raw or none",
		},
		{
			group: "Public HTTP", name: "ip-hmac-key-file", who: api | allinone, unit: "FILE", note: "a random key, kept in Redis",
			parse: into(&c.HTTP.IPHMACKeyFile, readable), show: redactPath,
			usage: "file that holds the key for --ip-privacy=hmac",
		},
		{
			group: "Public HTTP", name: "polls-file", who: api | allinone, unit: "FILE", note: "none",
			parse: into(&c.HTTP.PollsFile, readable),
			usage: "polls to apply at start, YAML or JSON, as with tally polls apply",
		},

		{
			group: "Accepting votes", name: "max-in-flight", who: api | allinone, unit: "VOTES", def: "65536",
			parse: into(&c.Enqueue.MaxInFlight, number(1, 10_000_000)),
			usage: "votes that may wait for Redis at one time; above it 503 at once",
		},
		{
			group: "Accepting votes", name: "enqueue-timeout", who: api | allinone, unit: "DURATION", def: "2s",
			parse: into(&c.Enqueue.Timeout, duration(time.Millisecond, 10*time.Minute)),
			usage: "a vote that Redis has not acknowledged by then gets 503",
		},
		{
			group: "Accepting votes", name: "ack-replicas", who: api | allinone, unit: "NUMBER", def: "0",
			parse: into(&c.Enqueue.AckReplicas, number(0, 100)),
			usage: "replicas of Redis that must hold a vote before it is answered 202",
		},
		{
			group: "Accepting votes", name: "idempotency-ttl", who: api | allinone, unit: "DURATION", def: "10m",
			parse: into(&c.Enqueue.IdempotencyTTL, duration(100*time.Millisecond, 720*time.Hour)),
			usage: "how long an Idempotency-Key is remembered",
		},

		{
			group: "Counting", name: "chunk-size", who: consumer | allinone, unit: "VOTES", def: "2000",
			parse: into(&c.Count.ChunkSize, number(1, 100_000)),
			usage: "votes per chunk, about (whole frames), 1 to 100000",
		},

		{
			group: "Archive", name: "archive-url", who: archiver | tally | allinone, unit: "URL", def: archiveURL, note: archiveNote,
			parse: into(&c.Archive.URL, parseArchiveURL), show: redactArchive,
			usage: "where the archive is: file:DIR or azblob://CONTAINER[/PREFIX]",
		},
		{
			group: "Archive", name: "archive-max-votes", who: archiver | allinone, unit: "VOTES", def: "500000",
			parse: into(&c.Batch.MaxVotes, number(1, 10_000_000)),
			usage: "a batch is written when it has so many votes",
		},
		{
			group: "Archive", name: "archive-max-age", who: archiver | allinone, unit: "DURATION", def: "30s",
			parse: into(&c.Batch.MaxAge, duration(time.Millisecond, 24*time.Hour)),
			usage: "a batch is written when it is so old",
		},

		{
			group: "Process", name: "admin-listen", who: daemons, unit: "ADDRESS", def: p.admin,
			parse: into(&c.Daemon.AdminListen, address),
			usage: "address of /livez, /readyz, /metrics and /debug/pprof/; not for the public",
		},
		{
			group: "Process", name: "shutdown-timeout", who: daemons, unit: "DURATION", def: "25s",
			parse: into(&c.Daemon.ShutdownTimeout, duration(time.Millisecond, 24*time.Hour)),
			usage: "longest time for the whole shutdown",
		},
		{
			group: "Process", name: "drain-delay", who: daemons, unit: "DURATION", def: "0s",
			parse: into(&c.Daemon.DrainDelay, duration(0, 24*time.Hour)),
			usage: "how long /readyz says 503 before the listener closes; part of --shutdown-timeout",
		},

		{
			group: "Logging", name: "log-level", who: everyone, unit: "LEVEL", def: "info",
			parse: into(&c.Log.Level, level),
			usage: "least level that is logged: debug, info, warn or error",
		},
		{
			group: "Logging", name: "log-format", who: everyone, unit: "FORMAT", note: "text on a terminal, else json",
			parse: into(&c.Log.Format, oneOf("text", "json")),
			usage: "text or json; logs go to stderr",
		},
	}
	var known rows
	for _, s := range all {
		if s.who&p.who != 0 {
			known = append(known, s)
		}
	}
	return known
}

// check is what no setting can check alone.
func (c *Allinone) check(rows rows, p program) error {
	if p.who&(api|allinone) != 0 && overlap(c.HTTP.Listen, c.Daemon.AdminListen) {
		return rows.get("admin-listen").wrong(fmt.Sprintf(
			"must be another address than %s of listen, since admin routes are not for the public", c.HTTP.Listen))
	}
	if c.Daemon.DrainDelay >= c.Daemon.ShutdownTimeout {
		return rows.get("drain-delay").wrong(fmt.Sprintf(
			"must be shorter than shutdown-timeout (%s), of which it is a part", short(c.Daemon.ShutdownTimeout)))
	}
	if c.Archive.URL.Container != "" {
		// Their text is the blob store's to check.
		if a := c.Archive.Azure; a.ConnectionString.IsZero() && a.Account == "" {
			return rows.get("archive-url").wrong("needs " + azureConnectionString + " or " + azureAccount + " in the environment")
		}
	}
	return nil
}

// risks warns of settings that are allowed, but seldom meant.
func (c *Allinone) risks() []string {
	var all []string
	for _, p := range c.HTTP.TrustedProxies {
		if p.Bits() == 0 {
			all = append(all, fmt.Sprintf("trusted-proxies has %s: any client can choose its own address by X-Forwarded-For", p))
			break
		}
	}
	if c.Enqueue.Timeout >= ArchiveSettle {
		all = append(all, fmt.Sprintf("enqueue-timeout is %s: a vote that has no answer after %s may be archived before it has one, "+
			"and if Redis then fails over without it, the archive has a vote that was refused", short(c.Enqueue.Timeout), short(ArchiveSettle)))
	}
	return all
}

// ArchiveSettle is how long archivers leave a vote alone, at least. It is above
// the two seconds that Redis may lose under appendfsync everysec (redis.io, Redis
// persistence).
const ArchiveSettle = 3 * time.Second

// overlap tells whether two checked addresses can't both be listened on.
func overlap(a, b string) bool {
	hostA, portA, _ := net.SplitHostPort(a)
	hostB, portB, _ := net.SplitHostPort(b)
	return portA == portB && portA != "0" && (hostA == hostB || anyHost(hostA) || anyHost(hostB))
}

func anyHost(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
