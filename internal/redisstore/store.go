package redisstore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"paredao/internal/vote"
)

// Store is Redis as Paredão uses it. It is safe for use by many goroutines.
type Store struct {
	rdb    redis.UniversalClient
	shards int
	lua    scripts
}

// Open returns a store. It makes no connection: a Redis that is down must not
// stop a daemon's start.
func Open(o Options) (*Store, error) {
	rdb, err := o.client()
	if err != nil {
		return nil, err
	}
	lua, err := loadScripts(o.Embedded)
	if err != nil {
		return nil, err
	}
	return &Store{rdb: rdb, shards: o.Shards, lua: lua}, nil
}

// DiscardClientLog silences the Redis client's own log lines. They go to a
// variable of that package, so main calls this once, before any store opens.
func DiscardClientLog() { redis.SetLogger(discard{}) }

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}

// Close closes the connections.
func (s *Store) Close() error {
	if err := s.rdb.Close(); err != nil {
		return fmt.Errorf("close redis: %w", err)
	}
	return nil
}

// Shards is the number of queue shards.
func (s *Store) Shards() int { return s.shards }

// CheckShards compares the number of queue shards with the one in Redis, and
// writes it there if there is none. It returns vote.ErrShardsMismatch if they
// differ.
func (s *Store) CheckShards(ctx context.Context) error {
	got, err := s.agree(ctx, "queue_shards", strconv.Itoa(s.shards))
	if err != nil {
		return err
	}
	return s.sameShards(got)
}

// SameShards compares like CheckShards, and writes nothing: a Redis that has no
// number yet agrees with any.
func (s *Store) SameShards(ctx context.Context) error {
	got, err := s.rdb.HGet(ctx, shardKeys(0).meta(), "queue_shards").Result()
	if errors.Is(err, redis.Nil) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("meta queue_shards: %w", err)
	}
	return s.sameShards(got)
}

func (s *Store) sameShards(got string) error {
	if got != strconv.Itoa(s.shards) {
		return fmt.Errorf("%w: queue-shards is %d, but this Redis was set up with %s: set queue-shards to %s",
			vote.ErrShardsMismatch, s.shards, got, got)
	}
	return nil
}

// ClientKey returns the key for the digests of clients' addresses, which all
// processes share. The first to ask makes it.
func (s *Store) ClientKey(ctx context.Context) ([]byte, error) {
	fresh := make([]byte, 32)
	_, _ = rand.Read(fresh) // never fails, see crypto/rand
	got, err := s.agree(ctx, "ip_hmac_key", hex.EncodeToString(fresh))
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(got)
	if err != nil {
		return nil, errors.New("meta:{0} ip_hmac_key is not hexadecimal")
	}
	return key, nil
}

func (s *Store) agree(ctx context.Context, field, value string) (string, error) {
	got, err := s.lua.meta.Run(ctx, s.rdb, []string{shardKeys(0).meta()}, field, value).Text()
	if err != nil {
		return "", fmt.Errorf("meta %s: %w", field, err)
	}
	return got, nil
}

// Health is what the server says of itself.
type Health struct {
	// Servers is how many answered: all masters of a cluster, or the one server.
	Servers int
	// Problem says why votes can't be taken; empty if they can.
	Problem string
	// UsedMemory and MaxMemory in bytes; MaxMemory is 0 where there is no limit
	// or the user may not ask.
	UsedMemory, MaxMemory int64
}

// Health asks the servers whether they are fit to hold votes.
func (s *Store) Health(ctx context.Context) (Health, error) {
	if c, ok := s.rdb.(*redis.ClusterClient); ok {
		return clusterHealth(ctx, c)
	}
	return health(ctx, s.rdb)
}

// clusterHealth asks every master. With an error it says what those say that
// answered.
func clusterHealth(ctx context.Context, c *redis.ClusterClient) (Health, error) {
	var mu sync.Mutex
	var worst Health
	var errs []error
	err := c.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error {
		h, err := health(ctx, m)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			errs = append(errs, err)
			return nil
		}
		worst.Servers++
		if worst.Problem == "" {
			worst.Problem = h.Problem
		}
		// The fullest master decides.
		if h.MaxMemory > 0 && (worst.MaxMemory == 0 ||
			float64(h.UsedMemory)/float64(h.MaxMemory) > float64(worst.UsedMemory)/float64(worst.MaxMemory)) {
			worst.UsedMemory, worst.MaxMemory = h.UsedMemory, h.MaxMemory
		}
		return nil
	})
	if err := errors.Join(append(errs, err)...); err != nil {
		return worst, fmt.Errorf("cluster: %w", err)
	}
	return worst, nil
}

func health(ctx context.Context, c redis.Cmdable) (Health, error) {
	if err := c.Ping(ctx).Err(); err != nil {
		return Health{}, fmt.Errorf("ping: %w", err)
	}
	text, err := c.Info(ctx, "everything").Result()
	if err != nil {
		if isReply(err) {
			return Health{Servers: 1}, nil // this user may not ask; the votes' own errors will tell
		}
		return Health{}, fmt.Errorf("info: %w", err)
	}
	info := map[string]string{}
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[k] = v
		}
	}
	h := Health{Servers: 1}
	h.UsedMemory, _ = strconv.ParseInt(info["used_memory"], 10, 64)
	h.MaxMemory, _ = strconv.ParseInt(info["maxmemory"], 10, 64)
	major, _, _ := strings.Cut(info["redis_version"], ".")
	switch n, err := strconv.Atoi(major); {
	case err == nil && n < 7:
		h.Problem = fmt.Sprintf("Redis is %s; 7.0 or newer is needed", info["redis_version"])
	case info["maxmemory_policy"] != "" && info["maxmemory_policy"] != "noeviction":
		h.Problem = fmt.Sprintf("maxmemory-policy is %s; only noeviction never drops votes: CONFIG SET maxmemory-policy noeviction",
			info["maxmemory_policy"])
	case info["role"] == "slave":
		h.Problem = "this Redis is a replica, which takes no votes"
	}
	return h, nil
}

// isReply tells whether err is the server's own answer, and not a failure to
// reach it.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && !errors.Is(err, redis.Nil)
}

func millis(ms int64) time.Time {
	if ms <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

func toMillis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// The scripts answer in numbers, strings and lists of them. These read such an
// answer; what has another form is an error, never a zero.

var errAnswer = errors.New("unexpected answer from a script")

func asInt(v any) (int64, error) {
	switch v := v.(type) {
	case int64:
		return v, nil
	case string:
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w: %.80v is no number", errAnswer, v)
}

func asList(v any, length int) ([]any, error) {
	list, ok := v.([]any)
	if !ok || length >= 0 && len(list) != length {
		return nil, fmt.Errorf("%w: no list of %d", errAnswer, length)
	}
	return list, nil
}

func asPairs(v any) (map[string]string, error) {
	list, err := asList(v, -1)
	if err != nil {
		return nil, err
	}
	if len(list)%2 != 0 {
		return nil, fmt.Errorf("%w: no pairs", errAnswer)
	}
	out := make(map[string]string, len(list)/2)
	for i := 0; i < len(list); i += 2 {
		k, ok1 := list[i].(string)
		val, ok2 := list[i+1].(string)
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("%w: no text", errAnswer)
		}
		out[k] = val
	}
	return out, nil
}

func asTally(v any) (vote.Tally, error) {
	pairs, err := asPairs(v)
	if err != nil {
		return nil, err
	}
	out := make(vote.Tally, len(pairs))
	for k, n := range pairs {
		if out[k], err = asInt(n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// asLedgers reads the fields "<what>:<poll>" of a ledger; the shard's own
// counters have no colon.
func asLedgers(v any) (map[string]vote.PollLedger, error) {
	pairs, err := asPairs(v)
	if err != nil {
		return nil, err
	}
	out := map[string]vote.PollLedger{}
	for field, text := range pairs {
		what, poll, ok := strings.Cut(field, ":")
		if !ok {
			continue
		}
		n, err := asInt(text)
		if err != nil {
			return nil, err
		}
		l := out[poll]
		switch what {
		case "accepted":
			l.Accepted = n
		case "counted":
			l.Counted = n
		case "archived":
			l.Archived = n
		case "dead":
			l.Dead = n
		case "dropped":
			l.Dropped = n
		}
		out[poll] = l
	}
	return out, nil
}
