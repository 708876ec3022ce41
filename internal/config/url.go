package config

import (
	"errors"
	"log/slog"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// hidden stands in place of a secret.
const hidden = "***"

// Secret is a text that no log, error or dump shows.
type Secret struct{ text string }

// Reveal is the text itself, for the client that needs it.
func (s Secret) Reveal() string { return s.text }

// IsZero tells whether there is no secret.
func (s Secret) IsZero() bool { return s.text == "" }

// String hides the text.
func (s Secret) String() string {
	if s.text == "" {
		return ""
	}
	return hidden
}

// GoString hides the text from %#v.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// LogValue hides the text from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText hides the text from encoding/json.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// RedisURL is a checked redis-url. Whatever prints it shows no password.
type RedisURL struct{ text string }

// Reveal is the URL as it was given, with its password, for the client.
func (u RedisURL) Reveal() string { return u.text }

// IsZero tells whether there is no URL.
func (u RedisURL) IsZero() bool { return u.text == "" }

// String is the URL with its password and other secrets replaced by ***.
func (u RedisURL) String() string { return redact(u.text) }

// GoString is String, quoted, for %#v.
func (u RedisURL) GoString() string { return strconv.Quote(u.String()) }

// LogValue is String, for slog.
func (u RedisURL) LogValue() slog.Value { return slog.StringValue(u.String()) }

// MarshalText is String, for encoding/json.
func (u RedisURL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// ParseRedisURL checks a URL that did not come by a setting, say the one of a
// Redis that the process has started itself. The error says what is allowed
// and holds nothing of the URL.
func ParseRedisURL(text string) (RedisURL, error) { return parseRedisURL(text) }

var redisSchemes = []string{"redis", "rediss", "unix", "redis-sentinel", "redis-cluster"}

// Errors of parseRedisURL: what is allowed, with nothing of the value.
var (
	errScheme   = errors.New("must begin with redis://, rediss://, unix://, redis-sentinel:// or redis-cluster://")
	errPassword = errors.New("must have odd characters of user and password percent-encoded, like %2F for / and %23 for # (or use redis-password-file)")
	errHosts    = errors.New("must name the host as HOST or HOST:PORT, IPv6 in brackets, with a port from 1 to 65535 (a / in a password is written %2F)")
	errOneHost  = errors.New("must name one host; many hosts need redis-sentinel:// or redis-cluster://")
	errDB       = errors.New("must name the database by a number, as redis://HOST:PORT/0 or with ?db=0")
	errQuery    = errors.New("must have nothing but db=NUMBER and tls=true after the ?")
	errUnix     = errors.New("must name the socket by its path, like unix:///run/redis.sock?db=0")
	errMaster   = errors.New("must name the master, like redis-sentinel://HOST:PORT,HOST:PORT/MASTER?db=0")
	errCluster  = errors.New("must name no database but 0, the only one of a cluster, like redis-cluster://HOST:PORT,HOST:PORT, without a path")
)

// redisParts are a redis-url's, cut by hand: net/url refuses many hosts.
type redisParts struct {
	scheme, user, hosts, path, query string
	hasUser                          bool
}

func cutRedisURL(text string) (p redisParts, err error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || !slices.Contains(redisSchemes, scheme) {
		return p, errScheme
	}
	if strings.Contains(rest, "#") {
		return p, errPassword
	}
	p.scheme = scheme
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	p.hosts = authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		p.user, p.hosts, p.hasUser = authority[:i], authority[i+1:], true
	}
	p.path, p.query, _ = strings.Cut(tail, "?")
	return p, nil
}

// parseRedisURL checks that redisstore can make a client from the URL, and that
// nothing in it would be ignored.
func parseRedisURL(text string) (RedisURL, error) {
	p, err := cutRedisURL(text)
	if err != nil {
		return RedisURL{}, err
	}
	if err := p.checkHosts(); err != nil {
		return RedisURL{}, err
	}
	// What stands before an @ may be of a password that a / or ? cut short.
	if strings.Contains(p.query, "@") || strings.Contains(p.path, "@") && (p.scheme != "unix" || p.hosts != "") {
		return RedisURL{}, errPassword
	}
	// What was cut by hand must be what net/url would read.
	if p.hasUser {
		if _, err := url.Parse("redis://" + p.user + "@localhost"); err != nil {
			return RedisURL{}, errPassword
		}
	}
	one, _, _ := strings.Cut(p.hosts, ",")
	u, err := url.Parse(p.scheme + "://" + one + p.path)
	if err != nil {
		return RedisURL{}, errHosts
	}
	if err := p.checkDB(u.Path); err != nil {
		return RedisURL{}, err
	}
	return RedisURL{text}, nil
}

func (p redisParts) checkHosts() error {
	if p.scheme == "unix" {
		// In unix://data/redis.sock the path is relative.
		_, err := url.PathUnescape(p.hosts)
		if err != nil || len(p.path) < 2 || strings.Contains(p.hosts, ":") {
			return errUnix
		}
		return nil
	}
	hosts := strings.Split(p.hosts, ",")
	if len(hosts) > 1 && (p.scheme == "redis" || p.scheme == "rediss") {
		return errOneHost
	}
	for _, h := range hosts {
		if host, port, ok := cutPort(h); !ok || port != "" && !isPort(port, 1) || !isHost(host) {
			return errHosts
		}
	}
	return nil
}

// cutPort splits HOST, HOST:PORT, [IPv6] and [IPv6]:PORT.
func cutPort(text string) (host, port string, ok bool) {
	if inner, isBracket := strings.CutPrefix(text, "["); isBracket {
		host, rest, closed := strings.Cut(inner, "]")
		addr, err := netip.ParseAddr(strings.Replace(host, "%25", "%", 1))
		if !closed || err != nil || !addr.Is6() {
			return "", "", false
		}
		port, hasPort := strings.CutPrefix(rest, ":")
		return addr.String(), port, rest == "" || hasPort && port != ""
	}
	host, port, hasPort := strings.Cut(text, ":")
	return host, port, host != "" && (!hasPort || port != "")
}

func (p redisParts) checkDB(path string) error {
	query, err := url.ParseQuery(p.query)
	if err != nil {
		return errQuery
	}
	for key, values := range query {
		if key != "db" && key != "tls" || len(values) > 1 {
			return errQuery
		}
	}
	if tls := query.Get("tls"); tls != "" && tls != "true" && tls != "false" {
		return errQuery
	}
	db, name := query.Get("db"), strings.TrimPrefix(path, "/")
	switch {
	case db != "" && !isDB(db):
		return errDB
	case p.scheme == "unix":
	case p.scheme == "redis-sentinel":
		if name == "" || strings.Contains(name, "/") {
			return errMaster
		}
	case p.scheme == "redis-cluster":
		if name != "" || db != "" && db != "0" {
			return errCluster
		}
	case name != "" && !isDB(name):
		return errDB
	}
	return nil
}

func isDB(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

var schemeLike = regexp.MustCompile(`^[a-z][a-z0-9+.-]{0,20}$`)

// redact shows what can't be a secret of a URL that may be malformed in any
// way: a password with a / or @ in it, a query of passwords, a host left out,
// a connection string for another kind of client.
func redact(text string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		// Often the scheme was left out. Anything else may be a password.
		if host, port, ok := cutPort(text); ok && isPort(port, 1) && isHost(host) {
			return text
		}
		return hide(text)
	}
	if !schemeLike.MatchString(scheme) {
		return hide(text)
	}
	var b strings.Builder
	b.WriteString(scheme + "://")

	// All before the last @ may be of the password, wherever the @ stands.
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		if user, _, ok := strings.Cut(rest[:i], ":"); ok && !strings.ContainsAny(user, "@/?#%") {
			b.WriteString(user + ":")
		}
		b.WriteString(hidden + "@")
		rest = rest[i+1:]
	}
	hosts, tail := rest, ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		hosts, tail = rest[:i], rest[i:]
	}
	if scheme == "unix" && tail != "" && !strings.Contains(hosts, ":") {
		b.WriteString(hosts) // the first folder of a relative path
		hosts = ""
	}
	for i, h := range strings.Split(hosts, ",") {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(redactHost(h))
	}
	path, query, _ := strings.Cut(tail, "?")
	switch path = strings.TrimPrefix(path, "/"); {
	case isDB(path), scheme == "unix" && path != "", scheme == "redis-sentinel" && hostName.MatchString(path):
		b.WriteString("/" + path)
	case path != "":
		b.WriteString("/" + hidden)
	case tail != "" && tail[0] == '/':
		b.WriteByte('/')
	}
	separator := "?"
	for part := range strings.FieldsFuncSeq(query, func(r rune) bool { return r == '&' }) {
		db, isNumber := strings.CutPrefix(part, "db=")
		if part != "tls=true" && part != "tls=false" && (!isNumber || !isDB(db)) {
			part = hidden
		}
		b.WriteString(separator + part)
		separator = "&"
	}
	return b.String()
}

// redactHost hides what stands in a port's place and is none: of
// "redis://default:secret" the author has only forgotten "@host".
func redactHost(text string) string {
	host, port, ok := cutPort(text)
	if text == "" || isHost(text) || isPort(strings.TrimPrefix(text, ":"), 1) || ok && isHost(host) && (port == "" || isPort(port, 1)) {
		return text
	}
	if i := strings.LastIndexByte(text, ':'); i >= 0 && isHost(text[:i]) {
		return text[:i] + ":" + hidden
	}
	return hidden
}

// redactPath hides what may be a secret itself instead of the file that holds it.
func redactPath(text string) string {
	for _, start := range []string{"/", "./", "../"} {
		if strings.HasPrefix(text, start) {
			return text
		}
	}
	return hide(text)
}

func hide(text string) string {
	if text == "" {
		return ""
	}
	return hidden
}

// ArchiveURL is a checked archive-url: a folder or a container.
type ArchiveURL struct {
	// Dir is the folder of file:DIR, as given; "" for a container.
	Dir string
	// Container is the container's name; "" for a folder.
	Container string
	// Prefix goes before every blob's name, without slashes at its ends; "" for none.
	Prefix string
}

// IsZero tells whether there is no URL.
func (u ArchiveURL) IsZero() bool { return u == ArchiveURL{} }

// String is the URL in the form that archive-url takes.
func (u ArchiveURL) String() string {
	switch {
	case u.IsZero():
		return ""
	case u.Container == "":
		return "file:" + u.Dir
	case u.Prefix == "":
		return "azblob://" + u.Container
	default:
		return "azblob://" + u.Container + "/" + u.Prefix
	}
}

var (
	errArchive   = errors.New("must be file:DIR or azblob://CONTAINER[/PREFIX]")
	errFile      = errors.New("must be file:DIR with a relative or absolute DIR, like file:./data/archive or file:/srv/archive")
	errContainer = errors.New("must name a container of 3 to 63 lower-case letters, digits and single hyphens, as azblob://CONTAINER[/PREFIX]")
	errPrefix    = errors.New(`must have a prefix of at most 255 bytes, without any of ? # % \, whose parts between slashes are not empty and have no dot at either end`)
)

var containerName = regexp.MustCompile(`^[a-z0-9](-?[a-z0-9])*$`)

func parseArchiveURL(text string) (ArchiveURL, error) {
	if dir, ok := strings.CutPrefix(text, "file:"); ok {
		// file:///srv is a URL's way to write /srv. In file://srv, srv would be a host.
		if rest, ok := strings.CutPrefix(dir, "//"); ok {
			if rest = strings.TrimPrefix(rest, "localhost"); !strings.HasPrefix(rest, "/") {
				return ArchiveURL{}, errFile
			}
			dir = rest
		}
		// No shell has expanded a ~ after "file:".
		if dir == "" || dir == "~" || strings.HasPrefix(dir, "~/") || strings.ContainsRune(dir, 0) {
			return ArchiveURL{}, errFile
		}
		return ArchiveURL{Dir: dir}, nil
	}
	rest, ok := strings.CutPrefix(text, "azblob://")
	if !ok {
		return ArchiveURL{}, errArchive
	}
	container, prefix, _ := strings.Cut(rest, "/")
	if len(container) < 3 || len(container) > 63 || !containerName.MatchString(container) {
		return ArchiveURL{}, errContainer
	}
	prefix = strings.TrimSuffix(prefix, "/")
	if prefix != "" && !isBlobPrefix(prefix) {
		return ArchiveURL{}, errPrefix
	}
	return ArchiveURL{Container: container, Prefix: prefix}, nil
}

func isBlobPrefix(prefix string) bool {
	if len(prefix) > 255 || strings.ContainsAny(prefix, `?#%\`) {
		return false
	}
	if prefix != printable(prefix) {
		return false
	}
	for segment := range strings.SplitSeq(prefix, "/") {
		if segment == "" || segment[0] == '.' || segment[len(segment)-1] == '.' {
			return false
		}
	}
	return true
}

// redactArchive hides what may be a key: a query with a shared access
// signature, a user, or a whole connection string.
func redactArchive(text string) string {
	if dir, ok := strings.CutPrefix(text, "file:"); ok {
		return "file:" + dir
	}
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok || !schemeLike.MatchString(scheme) {
		if strings.ContainsAny(text, "=;@?") {
			return hide(text)
		}
		return text
	}
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		rest = hidden + "@" + rest[i+1:]
	}
	if i := strings.IndexAny(rest, "?#;="); i >= 0 {
		rest = rest[:i] + rest[i:i+1] + hidden
	}
	return scheme + "://" + rest
}

// under is the path of name in dir, with dir as the user wrote it.
func under(dir, name string) string { return strings.TrimRight(dir, "/") + "/" + name }
