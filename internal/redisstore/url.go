package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Options say which Redis to use.
type Options struct {
	// URL is redis://, rediss:// or unix:// for one server,
	// redis-sentinel://user:pass@h1:p,h2:p/master-name?db=0, or
	// redis-cluster://h1:p,h2:p. The last two take ?tls=true.
	URL string
	// PasswordFile, if set, holds the password. It is read again for every new
	// connection.
	PasswordFile string
	// Shards is the number of queue shards.
	Shards int
	// Embedded says that the server is the one embedded in allinone, whose Lua
	// knows no shebang line.
	Embedded bool
	// Timeout bounds each command and dial; 0 means 2 s.
	Timeout time.Duration
	// NoRetry switches the client's own retries off. Only tests need that.
	NoRetry bool
}

// ParseURL checks a Redis URL. Its errors never hold a password.
func ParseURL(raw string) error {
	_, err := parseURL(raw)
	return err
}

// parseURL reads the URL by hand as far as the hosts, since net/url takes no
// list of them. Its errors quote nothing: where a URL is wrong, any part of it
// may be one of a password.
func parseURL(raw string) (*redis.UniversalOptions, error) {
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok {
		return nil, errors.New("is no URL; allowed are redis://, rediss://, unix://, redis-sentinel:// and redis-cluster://")
	}
	rest, rawQuery, _ := strings.Cut(rest, "?")
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, errors.New("has a query that can't be read")
	}
	authority, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i+1:]
	}
	// What stands before an @ is a password, also where a / or ? cut it short.
	socket := scheme == "unix" && (authority == "" || strings.HasSuffix(authority, "@"))
	if strings.ContainsRune(rawQuery, '@') || !socket && strings.ContainsRune(path, '@') {
		return nil, errors.New("has an @ behind a / or ?; in a user or password write / as %2F, ? as %3F and @ as %40")
	}
	for name := range query {
		if name != "db" && name != "tls" {
			return nil, errors.New("has a parameter other than db and tls")
		}
	}
	o := &redis.UniversalOptions{}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, password, _ := strings.Cut(authority[:i], ":")
		authority = authority[i+1:]
		if o.Username, err = url.PathUnescape(user); err == nil {
			o.Password, err = url.PathUnescape(password)
		}
		if err != nil {
			return nil, errors.New("has a user or password with a % that is no escape; write % as %25")
		}
	}
	db := query.Get("db")
	switch scheme {
	case "redis", "rediss":
		if path != "" {
			db = path
		}
		if scheme == "rediss" {
			query.Set("tls", "true")
		}
	case "redis-sentinel":
		if o.MasterName, err = url.PathUnescape(path); err != nil || path == "" {
			return nil, errors.New("names no master; write redis-sentinel://host:26379/master-name")
		}
	case "redis-cluster":
		o.IsClusterMode = true
		if path != "" || db != "" && db != "0" {
			return nil, errors.New("names a database, but a cluster has only database 0")
		}
	case "unix":
		if authority != "" && path != "" && !strings.HasPrefix(rest, "/") {
			path = authority + "/" + path // unix://relative/path
		} else {
			path = "/" + path
		}
		if o.Addrs, err = socketPath(path); err != nil {
			return nil, err
		}
	default:
		return nil, errors.New("has an unknown scheme; allowed are redis, rediss, unix, redis-sentinel and redis-cluster")
	}
	if scheme != "unix" {
		if o.Addrs, err = hosts(authority, scheme); err != nil {
			return nil, err
		}
	}
	if db != "" {
		if o.DB, err = strconv.Atoi(db); err != nil || o.DB < 0 {
			return nil, errors.New("has a database that is no number")
		}
	}
	switch query.Get("tls") {
	case "true":
		// The name to verify is that of the host that is dialled, which need not
		// be one of these: no ServerName.
		o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	case "", "false":
	default:
		return nil, errors.New("has a tls other than true and false")
	}
	return o, nil
}

func socketPath(path string) ([]string, error) {
	path, err := url.PathUnescape(path)
	if err != nil || path == "/" {
		return nil, errors.New("names no socket; write unix:///path/to/redis.sock")
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, fmt.Errorf("has a socket path that can't be resolved: %w", err)
	}
	return []string{path}, nil
}

func hosts(authority, scheme string) ([]string, error) {
	port := "6379"
	if scheme == "redis-sentinel" {
		port = "26379"
	}
	single := scheme == "redis" || scheme == "rediss"
	var out []string
	for h := range strings.SplitSeq(authority, ",") {
		if h == "" {
			return nil, fmt.Errorf("names no host; write %s://host:%s", scheme, port)
		}
		host, p, err := net.SplitHostPort(h)
		if err != nil {
			bare := h
			if strings.HasPrefix(h, "[") && strings.HasSuffix(h, "]") {
				bare = h[1 : len(h)-1]
			}
			host, p = bare, port
		}
		host = strings.Replace(host, "%25", "%", 1) // before the zone of an IPv6 address
		if _, err := netip.ParseAddr(host); err != nil && strings.Contains(host, ":") {
			return nil, errors.New("has a host that can't be read; an IPv6 address stands in brackets")
		}
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 {
			return nil, errors.New("has a port that is no number; allowed are 1 to 65535")
		}
		out = append(out, net.JoinHostPort(host, p))
	}
	if single && len(out) > 1 {
		return nil, errors.New("names more than one host; for a cluster write redis-cluster://, for Sentinel redis-sentinel://")
	}
	return out, nil
}

// client connects, lazily: it makes no connection yet.
func (o Options) client() (redis.UniversalClient, error) {
	u, err := parseURL(o.URL)
	if err != nil {
		return nil, fmt.Errorf("redis-url %w", err)
	}
	timeout := o.Timeout
	if timeout == 0 {
		timeout = 2 * time.Second
	}
	u.DialTimeout, u.ReadTimeout, u.WriteTimeout = timeout, timeout, timeout
	u.ContextTimeoutEnabled = true
	// An idle consumer blocks a connection for each of its shards; the rest is
	// the client's own default.
	u.PoolSize = 10*runtime.GOMAXPROCS(0) + o.Shards
	u.DialerRetries = 1 // the callers' own retries say when to give up
	if o.NoRetry {
		u.MaxRetries = -1
	}
	// An ACL user need not have CLIENT, and nobody reads what it would set.
	u.DisableIdentity = true
	u.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	if o.PasswordFile != "" {
		user, file := u.Username, o.PasswordFile
		u.CredentialsProviderContext = func(context.Context) (string, string, error) {
			p, err := os.ReadFile(file)
			if err != nil {
				return "", "", fmt.Errorf("redis-password-file: %w", err)
			}
			return user, strings.TrimSuffix(strings.TrimSuffix(string(p), "\n"), "\r"), nil
		}
	}
	switch {
	case u.IsClusterMode:
		return clusterClient(u.Cluster()), nil
	case u.MasterName != "":
		return sentinelClient(u.Failover()), nil
	}
	return redis.NewUniversalClient(u), nil
}

// clusterReload is how old the knowledge of who has which slots may get while
// all is well.
const clusterReload = 10 * time.Second

func clusterClient(o *redis.ClusterOptions) *redis.ClusterClient {
	o.ClusterStateReloadInterval = clusterReload
	rdb := redis.NewClusterClient(o)
	rdb.OnNewNode(func(n *redis.Client) { n.AddHook(lostNode{rdb}) })
	return rdb
}

// lostNode has the cluster's state read anew when a node does not answer: a
// master that died can't say MOVED, and the client would try it for ever.
type lostNode struct{ rdb *redis.ClusterClient }

// DialHook implements redis.Hook.
func (h lostNode) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (h lostNode) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		h.look(ctx, err, cmd)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (h lostNode) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		h.look(ctx, err, cmds...)
		return err
	}
}

func (h lostNode) look(ctx context.Context, err error, cmds ...redis.Cmder) {
	// (The reading itself is a CLUSTER command.)
	if err == nil || errors.Is(err, redis.Nil) || errors.Is(err, context.Canceled) || cmds[0].Name() == "cluster" {
		return
	}
	if !isReply(err) || redis.IsClusterDownError(err) || redis.IsReadOnlyError(err) {
		h.rdb.ReloadState(ctx) // in the background, and not more often than five times a second
	}
}

// sentinelClient asks the sentinels where the primary is.
func sentinelClient(o *redis.FailoverOptions) *redis.Client {
	rdb := redis.NewFailoverClient(o)
	// The client has its own copy by now; what is read from o later is for its
	// connections to sentinels. One that does not answer must be given up for
	// another while a connection to the primary is being made, or it would be
	// asked for ever: a sentinel often dies with the primary's machine.
	o.ReadTimeout /= 3
	o.WriteTimeout /= 3
	o.MaxRetries = -1
	return rdb
}
