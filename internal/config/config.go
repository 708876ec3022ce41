package config

import (
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/pflag"
)

// API is what the api binary can be told.
type API struct {
	Redis   Redis
	HTTP    HTTP
	Enqueue Enqueue
	Daemon  Daemon
	Log     Log
}

// Consumer is what the consumer binary can be told.
type Consumer struct {
	Redis  Redis
	Count  Count
	Owner  Owner
	Daemon Daemon
	Log    Log
}

// Archiver is what the archiver binary can be told.
type Archiver struct {
	Redis   Redis
	Archive Archive
	Batch   Batch
	Owner   Owner
	Daemon  Daemon
	Log     Log
}

// Allinone is what the allinone binary can be told: everything that its three
// parts can be, and a folder of its own.
type Allinone struct {
	// Data is the folder for Redis's append-only file and the archive.
	Data    string
	Redis   Redis
	HTTP    HTTP
	Enqueue Enqueue
	Count   Count
	Owner   Owner
	Archive Archive
	Batch   Batch
	Daemon  Daemon
	Log     Log
}

// Tally is what every command of the tally binary can be told. [BindTally]
// binds it to flags, [Tally.Finish] fills it in.
type Tally struct {
	Redis   Redis
	Archive Archive
	Log     Log

	all  *Allinone
	rows rows
}

// Redis says where Redis is and how the queue is spread over it.
type Redis struct {
	// URL is redis://, rediss://, unix://, redis-sentinel:// or
	// redis-cluster://. It is zero only for an allinone without redis-url.
	URL RedisURL
	// URLSet: the URL was given by flag or variable, and is not the default.
	URLSet bool
	// PasswordFile holds the password, and overrides the URL's; "" for none.
	// It could be read at start, and is read again on each reconnect.
	PasswordFile string
	// Shards is the number of queue shards, at least 1.
	Shards int
}

// HTTP is the public side of the api.
type HTTP struct {
	// Listen is the public address, host:port; port 0 picks a free one.
	Listen string
	// TrustedProxies are the networks whose X-Forwarded-For is believed.
	// They are masked, and IPv4 is never written as IPv6.
	TrustedProxies []netip.Prefix
	// BodyLimit is the longest body in bytes.
	BodyLimit int
	// ResultsMaxAge is how old a served result may be.
	ResultsMaxAge time.Duration
	// IPPrivacy is "hmac", "truncate", "raw" or "none".
	IPPrivacy string
	// IPHMACKeyFile holds the key for "hmac"; "" for one kept in Redis.
	IPHMACKeyFile string
	// PollsFile holds polls to apply at start; "" for none.
	PollsFile string
}

// Enqueue is how the api hands votes to Redis.
type Enqueue struct {
	// MaxInFlight is the number of votes that may wait for Redis at one time.
	MaxInFlight int
	// Timeout is how long a vote may wait for Redis's acknowledgement.
	Timeout time.Duration
	// AckReplicas is the number of replicas that must hold a vote.
	AckReplicas int
	// IdempotencyTTL is how long an Idempotency-Key is remembered.
	IdempotencyTTL time.Duration
}

// Count is how the consumer counts.
type Count struct {
	// ChunkSize is the number of votes per chunk, about: whole frames.
	ChunkSize int
}

// Owner is how consumers and archivers share out the shards.
type Owner struct {
	// TTL is how long a shard's owner may be silent before another takes over.
	TTL time.Duration
}

// Archive says where the archive is.
type Archive struct {
	// URL is the folder or the container.
	URL ArchiveURL
	// Azure is how to reach the container, if URL is one. Its text is checked
	// by whoever makes the client.
	Azure Azure
}

// Azure is read from the variables that Azure's own tools use. Which of them
// are set decides how the client signs in; all are "" for a folder.
type Azure struct {
	// ConnectionString is AZURE_STORAGE_CONNECTION_STRING.
	ConnectionString Secret
	// Account is AZURE_STORAGE_ACCOUNT, used with azidentity's default chain.
	Account string
	// Endpoint is AZURE_STORAGE_ENDPOINT, which overrides the service's URL.
	Endpoint string
}

// Batch is when the archiver writes: as soon as either is reached.
type Batch struct {
	MaxVotes int
	MaxAge   time.Duration
}

// Daemon is what all long-running binaries have.
type Daemon struct {
	// AdminListen is the address of health and metrics, host:port.
	AdminListen string
	// ShutdownTimeout bounds the whole shutdown, DrainDelay included.
	ShutdownTimeout time.Duration
	// DrainDelay is how long readiness says 503 before the listener closes.
	DrainDelay time.Duration
}

// ParseAPI reads the api's settings from args (without the program's name) and
// env (in the form of os.Environ). version is what --version prints after the
// name, see [Version]. Warnings are to be logged once logging is set up. err
// is nil, [ErrHelp], a [*UsageError], or stdout's error.
func ParseAPI(args, env []string, version string, stdout io.Writer) (cfg API, warnings []string, err error) {
	c, warnings, err := parse(apiProgram, args, env, version, stdout)
	return API{Redis: c.Redis, HTTP: c.HTTP, Enqueue: c.Enqueue, Daemon: c.Daemon, Log: c.Log}, warnings, err
}

// ParseConsumer is [ParseAPI] for the consumer.
func ParseConsumer(args, env []string, version string, stdout io.Writer) (cfg Consumer, warnings []string, err error) {
	c, warnings, err := parse(consumerProgram, args, env, version, stdout)
	return Consumer{Redis: c.Redis, Count: c.Count, Owner: c.Owner, Daemon: c.Daemon, Log: c.Log}, warnings, err
}

// ParseArchiver is [ParseAPI] for the archiver.
func ParseArchiver(args, env []string, version string, stdout io.Writer) (cfg Archiver, warnings []string, err error) {
	c, warnings, err := parse(archiverProgram, args, env, version, stdout)
	return Archiver{
		Redis: c.Redis, Archive: c.Archive, Batch: c.Batch, Owner: c.Owner, Daemon: c.Daemon, Log: c.Log,
	}, warnings, err
}

// ParseAllinone is [ParseAPI] for the allinone. Without a redis-url,
// Redis.URL is zero and Redis.URLSet false: the caller starts a Redis.
func ParseAllinone(args, env []string, version string, stdout io.Writer) (cfg Allinone, warnings []string, err error) {
	return parse(allinoneProgram, args, env, version, stdout)
}

// BindTally adds the settings that all of tally's commands share to fs. After
// fs has been parsed (by cobra, say) [Tally.Finish] fills cfg in; until then
// it is not to be used. The flags themselves never fail to parse, so no error
// of pflag can hold a secret value.
func BindTally(fs *pflag.FlagSet, cfg *Tally) {
	cfg.all = new(Allinone)
	cfg.rows = table(cfg.all, tallyProgram)
	for _, s := range cfg.rows {
		s.bind(fs)
	}
}

// Finish applies env (in the form of os.Environ) where no flag was given,
// then the defaults, and checks everything. It returns warnings to be logged,
// and nil or a [*UsageError].
//
// Whether Azure's variables are set is not checked, since most of tally's
// commands need no archive.
func (c *Tally) Finish(env []string) (warnings []string, err error) {
	vars := environment(env)
	if err := c.rows.apply(vars); err != nil {
		return nil, err
	}
	c.all.finish(c.rows, vars)
	c.Redis, c.Archive, c.Log = c.all.Redis, c.all.Archive, c.all.Log
	return unknown(vars), nil
}

// Environ is the process's environment, for the Parse functions.
func Environ() []string { return os.Environ() }

// parse does all the work for a daemon: flags, environment, defaults, checks.
// Every binary's struct is a part of the Allinone that it fills.
func parse(p program, args, env []string, version string, stdout io.Writer) (Allinone, []string, error) {
	var c Allinone
	rows := table(&c, p)
	if err := parseFlags(p, rows, args, version, stdout); err != nil {
		return Allinone{}, nil, err
	}
	vars := environment(env)
	if err := rows.apply(vars); err != nil {
		return Allinone{}, nil, err
	}
	c.finish(rows, vars)
	if err := c.check(rows, p); err != nil {
		return Allinone{}, nil, err
	}
	return c, append(unknown(vars), c.risks()...), nil
}

// finish sets what follows from other settings.
func (c *Allinone) finish(rows rows, vars map[string]string) {
	c.Redis.URLSet = rows.get("redis-url").given && !c.Redis.URL.IsZero()
	if c.Archive.URL.IsZero() && c.Data != "" {
		c.Archive.URL = ArchiveURL{Dir: under(c.Data, "archive")}
	}
	if c.Archive.URL.Container != "" {
		c.Archive.Azure = Azure{
			ConnectionString: Secret{vars[azureConnectionString]},
			Account:          vars[azureAccount],
			Endpoint:         vars[azureEndpoint],
		}
	}
}
