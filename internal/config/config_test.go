package config

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// azureEnv lets an azblob: URL pass.
var azureEnv = []string{"AZURE_STORAGE_ACCOUNT=votes"}

type settingCases struct {
	get  func(c *Allinone) any
	good map[string]any // texts, and what they mean
	bad  []string
}

// cases has an entry for each setting. "FILE", "NONE", "FOLDER" and "DARK"
// stand for a readable file, a path where nothing is, a folder, and a path
// below a file.
var cases = map[string]settingCases{
	"data": {
		get:  func(c *Allinone) any { return c.Data },
		good: map[string]any{"FOLDER": "FOLDER", "NONE": "NONE", "./data": "./data"},
		bad:  []string{"FILE", "DARK"},
	},
	"redis-url": {
		get: func(c *Allinone) any { return c.Redis.URL.Reveal() },
		good: same(
			"redis://127.0.0.1:6379/0", "redis://h", "redis://h/", "redis://h/15", "redis://h?db=3", "redis://[::1]:6379/0", "redis://[::1]/0",
			"redis://[fe80::1%25eth0]:6379/0", "redis://user:p%40%2F%3A%23%25w@h:1/2", "redis://:pw@h:65535", "redis://user:p@ss@h", "redis://user@h",
			"rediss://user:pw@redis.example.org:6380/0", "rediss://h/0?tls=true", "redis-cluster://h?tls=true&db=0", "redis-sentinel://h/m?db=1&tls=false", "unix://data/redis.sock", "unix://./data/redis.sock", "unix://../r.sock", "redis://my_redis-0.redis:6379/0",
			"unix:///run/redis.sock", "unix:///run/redis.sock?db=1", "unix://user:pw@/run/redis.sock",
			"redis-sentinel://user:pass@h1:26379,h2:26379/master-name?db=0", "redis-sentinel://h1/m", "redis-sentinel://[::1]:1,[::2]:2,h/m",
			"redis-cluster://h1:7000,h2:7001", "redis-cluster://user:pw@h1:7000,[::1]:7001/",
		),
		bad: []string{
			"localhost:6379", "http://h", "redis:/h", "redis:h", "REDIS://h", "redis://", "redis:///0", "redis://:6379", "redis://u:p@", "redis://h:", "redis://h:0",
			"redis://h:65536", "redis://h:x", "redis://::1:6379", "redis://[::1", "redis://[::1]x", "redis://[h]:1", "redis://[127.0.0.1]:1", "redis://a b",
			"redis://h1:1,h2:2", "redis://h/x", "redis://h/-1", "redis://h/1/2", "redis://h/99999", "redis://h?db=x", "redis://h?db=-1", "redis://h?%zz",
			"redis://h/0#x", "redis://u:100%@h", "redis://u:p w@h", "redis://u:p/w@h", "redis://u:p?w@h", "redis://u:p#w@h", "redis://u:\x01@h", "redis://h\n",
			"unix://", "unix:///", "unix://redis.sock", "unix://h:6379/0", "redis://h?skip_verify=true", "redis://h?db=1&db=2", "redis://h?tls=yes", "redis-cluster://h/0", "unix:///s?db=x",
			"redis-sentinel://h1,h2", "redis-sentinel://h1,h2/", "redis-sentinel://h1,/m", "redis-sentinel://h/m/0", "redis-sentinel://h:1,h:0/m", "redis-sentinel://h/m?db=x",
			"redis-cluster://h1,h2/1", "redis-cluster://h?db=1", "redis-cluster://", "redis-cluster://h,,h", "redis-cluster://h,h:99999",
		},
	},
	"redis-password-file": {
		get:  func(c *Allinone) any { return c.Redis.PasswordFile },
		good: map[string]any{"FILE": "FILE"},
		bad:  []string{"NONE", "FOLDER", "DARK", "a\x00b"},
	},
	"queue-shards": {
		get:  func(c *Allinone) any { return c.Redis.Shards },
		good: map[string]any{"1": 1, "16": 16, "1024": 1024},
		bad:  []string{"0", "-1", "1025", "x", "1.5", "0x10", " 1", "1e3", "99999999999999999999"},
	},
	"owner-ttl": durations(func(c *Allinone) any { return c.Owner.TTL }, "99ms", "61m"),
	"listen":    addresses(func(c *Allinone) any { return c.HTTP.Listen }),
	"trusted-proxies": {
		get: func(c *Allinone) any { return c.HTTP.TrustedProxies },
		good: map[string]any{
			"10.0.0.0/8":            []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
			"10.1.2.3/8":            []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
			"10.0.0.0/8, 192.0.2.7": []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.7/32")},
			"2001:db8::/32,::1":     []netip.Prefix{netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("::1/128")},
			"::ffff:10.0.0.0/104":   []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
			"::ffff:192.0.2.7":      []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")},
			"::ffff:192.0.2.7/128":  []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")},
		},
		bad: []string{"x", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0/8", "10.0.0.0/8,", ",", "10.0.0.0/8 ::1", "fe80::1%eth0", "::ffff:0.0.0.0/80", "10.0.0.1:80", "*"},
	},
	"body-limit": {
		get: func(c *Allinone) any { return c.HTTP.BodyLimit },
		good: map[string]any{
			"4KiB": 4096, "4kib": 4096, "1MiB": 1 << 20, "64": 64, "1000B": 1000, "4kB": 4000, "1MB": 1_000_000, "64MiB": 64 << 20,
		},
		bad: []string{"0", "63", "-1", "65MiB", "1GiB", "9223372036854775807GiB", "99999999999999999999", "KiB", "4 KiB", "4k", "1.5MiB", "4KiBKiB", "x"},
	},
	"results-max-age":  durations(func(c *Allinone) any { return c.HTTP.ResultsMaxAge }, "0s", "61m"),
	"ip-privacy":       words(func(c *Allinone) any { return c.HTTP.IPPrivacy }, "hmac", "truncate", "raw", "none"),
	"ip-hmac-key-file": {get: func(c *Allinone) any { return c.HTTP.IPHMACKeyFile }, good: map[string]any{"FILE": "FILE"}, bad: []string{"NONE", "FOLDER", "DARK"}},
	"polls-file":       {get: func(c *Allinone) any { return c.HTTP.PollsFile }, good: map[string]any{"FILE": "FILE"}, bad: []string{"NONE", "FOLDER", "DARK"}},
	"max-in-flight": {
		get:  func(c *Allinone) any { return c.Enqueue.MaxInFlight },
		good: map[string]any{"1": 1, "65536": 65536},
		bad:  []string{"0", "-5", "10000001", "many"},
	},
	"enqueue-timeout": durations(func(c *Allinone) any { return c.Enqueue.Timeout }, "0s", "11m"),
	"ack-replicas": {
		get:  func(c *Allinone) any { return c.Enqueue.AckReplicas },
		good: map[string]any{"0": 0, "2": 2},
		bad:  []string{"-1", "101", "two"},
	},
	"idempotency-ttl": durations(func(c *Allinone) any { return c.Enqueue.IdempotencyTTL }, "0s", "721h"),
	"chunk-size": {
		get:  func(c *Allinone) any { return c.Count.ChunkSize },
		good: map[string]any{"1": 1, "2000": 2000, "100000": 100000},
		bad:  []string{"0", "-1", "100001", "2k"},
	},
	"archive-url": {
		get: func(c *Allinone) any { return c.Archive.URL },
		good: map[string]any{
			"file:./data/archive":          ArchiveURL{Dir: "./data/archive"},
			"file:/srv/archive":            ArchiveURL{Dir: "/srv/archive"},
			"file:///srv/archive":          ArchiveURL{Dir: "/srv/archive"},
			"file://localhost/srv/archive": ArchiveURL{Dir: "/srv/archive"},
			"file:votos de 2026":           ArchiveURL{Dir: "votos de 2026"},
			"azblob://votes":               ArchiveURL{Container: "votes"},
			"azblob://votes/":              ArchiveURL{Container: "votes"},
			"azblob://a-1/2026/paredao/":   ArchiveURL{Container: "a-1", Prefix: "2026/paredao"},
			"azblob://votes/eleição 2026":  ArchiveURL{Container: "votes", Prefix: "eleição 2026"},
		},
		bad: []string{
			"./data", "/srv", "s3://votes", "file:", "file://", "file://data/archive", "file:a\x00b", "azblob:votes", "azblob://", "azblob://ab", "azblob://Votes",
			"azblob://a--b", "azblob://-ab", "azblob://ab-", "azblob://votes//x", "azblob://votes/../x", "azblob://votes/a/./b", "azblob://votes?sig=x", "azblob://votes/a%2Fb",
			"azblob://votes/\n", "azblob://votes/" + strings.Repeat("x", 256), "file:~/archive", "file:~", "azblob://" + strings.Repeat("x", 64),
		},
	},
	"archive-max-votes": {
		get:  func(c *Allinone) any { return c.Batch.MaxVotes },
		good: map[string]any{"1": 1, "500000": 500000},
		bad:  []string{"0", "-1", "10000001"},
	},
	"archive-max-age":  durations(func(c *Allinone) any { return c.Batch.MaxAge }, "0s", "25h"),
	"admin-listen":     addresses(func(c *Allinone) any { return c.Daemon.AdminListen }),
	"shutdown-timeout": durations(func(c *Allinone) any { return c.Daemon.ShutdownTimeout }, "0s", "25h"),
	"drain-delay":      durations(func(c *Allinone) any { return c.Daemon.DrainDelay }, "-1ns", "25s"),
	"log-level": {
		get:  func(c *Allinone) any { return c.Log.Level },
		good: map[string]any{"debug": slog.LevelDebug, "info": slog.LevelInfo, "WARN": slog.LevelWarn, "error": slog.LevelError},
		bad:  []string{"warning", "info+1", "4", "all"},
	},
	"log-format": words(func(c *Allinone) any { return c.Log.Format }, "text", "json"),
}

// same are values that are stored as they are.
func same(texts ...string) map[string]any {
	m := make(map[string]any)
	for _, s := range texts {
		m[s] = s
	}
	return m
}

func words(get func(c *Allinone) any, good ...string) settingCases {
	return settingCases{get, same(good...), []string{"x", strings.ToUpper(good[0]), " " + good[0]}}
}

func durations(get func(c *Allinone) any, less, more string) settingCases {
	return settingCases{
		get,
		map[string]any{"1s": time.Second, "1.5s": 1500 * time.Millisecond, "800ms": 800 * time.Millisecond},
		[]string{less, more, "-1s", "5", "s", "5 s", "1d", "99999999h", "x"},
	}
}

func addresses(get func(c *Allinone) any) settingCases {
	return settingCases{
		get, same(":8081", "127.0.0.1:0", "[::1]:8081", "localhost:8081", "[fe80::1%eth0]:8081", "0.0.0.0:8081"),
		[]string{"8081", "localhost", ":", ":x", ":http", ":65536", ":-1", ":+1", "::1:80", "[::1]", "a b:80", "http://h:80", "h/x:80", "[h]:80:80", "-h:80"},
	}
}

// files makes the files that the cases' words stand for.
func files(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, []byte("x\n"), 0o600))
	return map[string]string{"FILE": file, "FOLDER": dir, "NONE": filepath.Join(dir, "none"), "DARK": filepath.Join(file, "x")}
}

func TestEverySetting(t *testing.T) {
	paths := files(t)
	resolve := func(v string) string {
		if p, ok := paths[v]; ok {
			return p
		}
		return v
	}
	for _, s := range table(new(Allinone), allinoneProgram) {
		c, ok := cases[s.name]
		require.True(t, ok, "no cases for %s", s.name)
		t.Run(s.name, func(t *testing.T) {
			for text, want := range c.good {
				if w, ok := want.(string); ok {
					want = resolve(w)
				}
				text = resolve(text)
				byFlag, _, err := ParseAllinone([]string{"--" + s.name, text}, azureEnv, "", io.Discard)
				require.NoError(t, err, "%q", text)
				assert.Equal(t, want, c.get(&byFlag), "%q", text)

				byEnv, _, err := ParseAllinone(nil, append([]string{s.variable() + "=" + text}, azureEnv...), "", io.Discard)
				require.NoError(t, err, "%q", text)
				assert.Equal(t, byFlag, byEnv, "flag and variable differ: %q", text)
			}
			for _, text := range c.bad {
				text = resolve(text)
				_, _, err := ParseAllinone([]string{"--" + s.name + "=" + text}, azureEnv, "", io.Discard)
				requireUsage(t, err, "for --"+s.name+": ")

				_, _, err = ParseAllinone(nil, append([]string{s.variable() + "=" + text}, azureEnv...), "", io.Discard)
				requireUsage(t, err, "for "+s.variable()+": ")
			}
		})
	}
}

// requireUsage requires one printable line that contains part, and exit code 2.
func requireUsage(t *testing.T, err error, part string) {
	t.Helper()
	var usage *UsageError
	require.ErrorAs(t, err, &usage)
	assert.Equal(t, 2, usage.ExitCode())
	assert.Contains(t, err.Error(), part)
	assert.Equal(t, err.Error(), printable(err.Error()), "not one printable line")
}

func TestDefaults(t *testing.T) {
	api, warnings, err := ParseAPI(nil, nil, "", io.Discard)
	require.NoError(t, err)
	assert.Empty(t, warnings)
	redis := Redis{URL: RedisURL{"redis://127.0.0.1:6379/0"}, Shards: 1}
	daemon := Daemon{AdminListen: ":9090", ShutdownTimeout: 25 * time.Second}
	assert.Equal(t, API{
		Redis:   redis,
		HTTP:    HTTP{Listen: ":8080", BodyLimit: 4096, ResultsMaxAge: 250 * time.Millisecond, IPPrivacy: "hmac"},
		Enqueue: Enqueue{MaxInFlight: 65536, Timeout: 2 * time.Second, IdempotencyTTL: 10 * time.Minute},
		Daemon:  daemon,
	}, api)

	consumer, _, err := ParseConsumer(nil, nil, "", io.Discard)
	require.NoError(t, err)
	daemon.AdminListen = ":9091"
	assert.Equal(t, Consumer{Redis: redis, Count: Count{2000}, Owner: Owner{5 * time.Second}, Daemon: daemon}, consumer)

	archiver, _, err := ParseArchiver(nil, nil, "", io.Discard)
	require.NoError(t, err)
	daemon.AdminListen = ":9092"
	assert.Equal(t, Archiver{
		Redis: redis, Archive: Archive{URL: ArchiveURL{Dir: "./data/archive"}},
		Batch: Batch{500000, 30 * time.Second}, Owner: Owner{5 * time.Second}, Daemon: daemon,
	}, archiver)

	daemon.AdminListen = ":9090"
	all, _, err := ParseAllinone(nil, nil, "", io.Discard)
	require.NoError(t, err)
	assert.Equal(t, Allinone{
		Data: "./data", Redis: Redis{Shards: 1}, HTTP: api.HTTP, Enqueue: api.Enqueue, Count: consumer.Count,
		Owner: archiver.Owner, Archive: archiver.Archive, Batch: archiver.Batch, Daemon: daemon,
	}, all)
}

func TestAllinone(t *testing.T) {
	dir := t.TempDir()
	c, _, err := ParseAllinone([]string{"--data", dir + "/"}, []string{"PAREDAO_REDIS_URL="}, "", io.Discard)
	require.NoError(t, err)
	assert.False(t, c.Redis.URLSet)
	assert.True(t, c.Redis.URL.IsZero())
	assert.Equal(t, "file:"+dir+"/archive", c.Archive.URL.String())

	c, _, err = ParseAllinone([]string{"--data", dir, "--archive-url", "file:x"}, []string{"PAREDAO_REDIS_URL=redis://h"}, "", io.Discard)
	require.NoError(t, err)
	assert.True(t, c.Redis.URLSet)
	assert.Equal(t, "file:x", c.Archive.URL.String())

	c, _, err = ParseAllinone([]string{"--redis-url="}, []string{"PAREDAO_REDIS_URL=redis://h"}, "", io.Discard)
	require.NoError(t, err)
	assert.False(t, c.Redis.URLSet, "an empty flag wins over the variable")
}

func TestPrecedence(t *testing.T) {
	env := []string{"PAREDAO_QUEUE_SHARDS=3", "PAREDAO_CHUNK_SIZE=", "PAREDAO_OWNER_TTL=nonsense", "PATH=/bin", "odd"}
	c, warnings, err := ParseConsumer([]string{"--queue-shards=5", "--owner-ttl=1s", "--owner-ttl=2s"}, env, "", io.Discard)
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.Equal(t, 5, c.Redis.Shards, "the flag wins")
	assert.Equal(t, 2000, c.Count.ChunkSize, "an empty variable counts as unset")
	assert.Equal(t, 2*time.Second, c.Owner.TTL, "the last flag wins, and what it overrides is not looked at")

	c, _, err = ParseConsumer(nil, []string{"PAREDAO_QUEUE_SHARDS=3"}, "", io.Discard)
	require.NoError(t, err)
	assert.Equal(t, 3, c.Redis.Shards)
}

func TestOptionalFlagsMayBeEmpty(t *testing.T) {
	c, _, err := ParseAPI([]string{"--redis-password-file=", "--polls-file", "", "--trusted-proxies=", "--ip-hmac-key-file=", "--log-format="}, nil, "", io.Discard)
	require.NoError(t, err)
	assert.Empty(t, c.Redis.PasswordFile+c.HTTP.PollsFile+c.HTTP.IPHMACKeyFile+c.Log.Format)
	assert.Empty(t, c.HTTP.TrustedProxies)

	for _, name := range []string{"redis-url", "listen", "chunk-size", "ip-privacy", "body-limit", "archive-max-age", "log-level", "data"} {
		_, _, err := ParseAllinone([]string{"--" + name + "="}, nil, "", io.Discard)
		if name == "redis-url" {
			require.NoError(t, err)
			continue
		}
		requireUsage(t, err, "for --"+name)
	}
	_, _, err = ParseAPI([]string{"--redis-url="}, nil, "", io.Discard)
	requireUsage(t, err, `wrong value "" for --redis-url`)
}

func TestUnknownVariables(t *testing.T) {
	env := []string{
		"PAREDAO_REDIS_ULR=redis://:S3CRET@h", "PAREDAO_EMPTY=", "PAREDAO_\n=x", "PAREDAOX=1", "XPAREDAO_Y=1",
		// Known to other binaries:
		"PAREDAO_CHUNK_SIZE=nonsense", "PAREDAO_DATA=x", "PAREDAO_ARCHIVE_URL=nonsense",
		// Set by Kubernetes for Services named paredao and paredao-api:
		"PAREDAO_SERVICE_HOST=10.0.0.1", "PAREDAO_SERVICE_PORT=8080", "PAREDAO_SERVICE_PORT_HTTP=8080", "PAREDAO_PORT=tcp://10.0.0.1:8080",
		"PAREDAO_API_PORT_8080_TCP=tcp://10.0.0.1:8080", "PAREDAO_API_PORT_8080_TCP_PROTO=tcp", "PAREDAO_API_PORT_8080_TCP_ADDR=10.0.0.1", "PAREDAO_API_PORT_8080_TCP_PORT=8080",
		"PAREDAO_PORT=8080x",
	}
	_, warnings, err := ParseAPI(nil, env, "", io.Discard)
	require.NoError(t, err)
	require.Len(t, warnings, 3)
	assert.Contains(t, warnings[0], `"PAREDAO_\n"`)
	assert.Contains(t, warnings[1], "PAREDAO_PORT ")
	assert.Contains(t, warnings[2], "PAREDAO_REDIS_ULR ")
	assert.NotContains(t, strings.Join(warnings, ""), "S3CRET")
}

func TestTrustEveryoneWarns(t *testing.T) {
	for _, cidr := range []string{"0.0.0.0/0", "10.0.0.0/8,::/0"} {
		_, warnings, err := ParseAPI([]string{"--trusted-proxies", cidr}, nil, "", io.Discard)
		require.NoError(t, err)
		require.Len(t, warnings, 1)
		assert.Contains(t, warnings[0], "trusted-proxies")
	}
}

func TestSlowAnswersWarn(t *testing.T) {
	for value, warns := range map[string]int{"2s": 0, "2999ms": 0, "3s": 1, "10m": 1} {
		_, warnings, err := ParseAPI([]string{"--enqueue-timeout", value}, nil, "", io.Discard)
		require.NoError(t, err)
		require.Len(t, warnings, warns, value)
		if warns > 0 {
			assert.Contains(t, warnings[0], "enqueue-timeout")
		}
	}
}

func TestWhatNoSettingCanCheckAlone(t *testing.T) {
	for _, c := range []struct {
		args, env []string
		part      string // "" if it is allowed
	}{
		{args: []string{"--listen=:9090"}, part: "--admin-listen"},
		{args: []string{"--listen=127.0.0.1:9090"}, part: "--admin-listen"},
		{args: []string{"--listen=:81"}, env: []string{"PAREDAO_ADMIN_LISTEN=[::]:81"}, part: "PAREDAO_ADMIN_LISTEN"},
		{args: []string{"--listen=127.0.0.1:81", "--admin-listen=[::1]:81"}},
		{args: []string{"--listen=:0", "--admin-listen=:0"}},
		{args: []string{"--drain-delay=25s"}, part: `"25s" for --drain-delay: must be shorter than shutdown-timeout (25s)`},
		{args: []string{"--shutdown-timeout=10s"}, env: []string{"PAREDAO_DRAIN_DELAY=20s"}, part: "for PAREDAO_DRAIN_DELAY"},
		{args: []string{"--drain-delay=24s"}},
		{args: []string{"--archive-url=azblob://votes"}, part: "needs AZURE_STORAGE_CONNECTION_STRING"},
		{args: []string{"--archive-url=azblob://votes"}, env: []string{"AZURE_STORAGE_ACCOUNT="}, part: "needs AZURE_STORAGE_CONNECTION_STRING"},
		{args: []string{"--archive-url=azblob://votes"}, env: []string{"AZURE_STORAGE_CONNECTION_STRING=x"}},
		{args: []string{"--archive-url=azblob://votes"}, env: []string{"AZURE_STORAGE_ENDPOINT=https://h"}, part: "needs AZURE_STORAGE_CONNECTION_STRING"},
	} {
		_, _, err := ParseAllinone(c.args, c.env, "", io.Discard)
		if c.part == "" {
			require.NoError(t, err, "%v %v", c.args, c.env)
			continue
		}
		requireUsage(t, err, c.part)
	}
}

func TestAzure(t *testing.T) {
	env := []string{
		"AZURE_STORAGE_CONNECTION_STRING=AccountKey=S3CRET", "AZURE_STORAGE_ACCOUNT=votes", "AZURE_STORAGE_ENDPOINT=https://votes.example.org",
		"PAREDAO_ARCHIVE_URL=azblob://votes/2026",
	}
	c, _, err := ParseArchiver(nil, env, "", io.Discard)
	require.NoError(t, err)
	assert.Equal(t, Azure{Secret{"AccountKey=S3CRET"}, "votes", "https://votes.example.org"}, c.Archive.Azure)
	assert.Equal(t, "AccountKey=S3CRET", c.Archive.Azure.ConnectionString.Reveal())
	assertHidden(t, c)

	c, _, err = ParseArchiver([]string{"--archive-url=file:x"}, env, "", io.Discard)
	require.NoError(t, err)
	assert.Zero(t, c.Archive.Azure)
}

func TestUsageErrors(t *testing.T) {
	for _, c := range []struct{ args, part string }{
		{"--chunk-sise=1", "unknown flag --chunk-sise; see --help"},
		{"--chunk-size", "--chunk-size needs a value"},
		{"-redis-url=redis://:S3CRET@h", "unknown flag -r (flags of more than one letter begin with --)"},
		{"-x", "unknown flag -x;"},
		{"--=S3CRET", "bad flag syntax"},
		{"--un\nknown=S3CRET", `unknown flag "--un\nknown"`},
		{"start", `unexpected argument "start"; consumer takes only flags`},
		{"--version=maybe", `wrong value "maybe" for --version`},
	} {
		_, _, err := ParseConsumer([]string{c.args}, nil, "", io.Discard)
		requireUsage(t, err, c.part)
		assert.NotContains(t, err.Error(), "S3CRET")
	}
	assert.Equal(t, io.EOF, FlagError(io.EOF), "other errors pass")
	assert.Equal(t, "a b", Usagef("a\n%s", "b").Error())
}

func TestLongValuesAreCut(t *testing.T) {
	_, _, err := ParseConsumer([]string{"--chunk-size", strings.Repeat("ã", 1<<16)}, nil, "", io.Discard)
	requireUsage(t, err, `ã"... for --chunk-size`)
	_, _, err = ParseConsumer([]string{"--chunk-size", strings.Repeat("\xff", 200)}, nil, "", io.Discard)
	requireUsage(t, err, `\xff"... for --chunk-size`)
	assert.Less(t, len(err.Error()), 600)
}

func TestHelp(t *testing.T) {
	for _, c := range []struct {
		p     program
		parse func(args []string, out io.Writer) error
	}{
		{apiProgram, func(args []string, out io.Writer) error {
			_, _, err := ParseAPI(args, nil, "1.2 (abc)", out)
			return err
		}},
		{consumerProgram, func(args []string, out io.Writer) error {
			_, _, err := ParseConsumer(args, nil, "1.2 (abc)", out)
			return err
		}},
		{archiverProgram, func(args []string, out io.Writer) error {
			_, _, err := ParseArchiver(args, nil, "1.2 (abc)", out)
			return err
		}},
		{allinoneProgram, func(args []string, out io.Writer) error {
			_, _, err := ParseAllinone(args, nil, "1.2 (abc)", out)
			return err
		}},
	} {
		t.Run(c.p.name, func(t *testing.T) {
			for _, arg := range []string{"--help", "-h"} {
				var out bytes.Buffer
				err := c.parse([]string{"--queue-shards=nonsense", arg}, &out)
				require.ErrorIs(t, err, ErrHelp)
				var code interface{ ExitCode() int }
				require.ErrorAs(t, err, &code)
				assert.Zero(t, code.ExitCode())

				text := out.String()
				for _, line := range strings.Split(text, "\n") {
					assert.LessOrEqual(t, len(line), 80, line)
				}
				flat := strings.Join(strings.Fields(text), " ")
				for _, s := range table(new(Allinone), allinoneProgram) {
					if s.who&c.p.who == 0 {
						assert.NotContains(t, flat, "--"+s.name+" "+s.unit)
					}
				}
				for _, s := range table(new(Allinone), c.p) {
					def := s.def
					if def == "" {
						def = s.note
					}
					require.NotEmpty(t, def, s.name)
					assert.Contains(t, flat, "--"+s.name+" "+s.unit+" ")
					assert.Contains(t, flat, "[default: "+def+"] ["+s.variable()+"]")
				}
				assert.Contains(t, flat, c.p.example)
			}
			var out bytes.Buffer
			require.ErrorIs(t, c.parse([]string{"--version"}, &out), ErrHelp)
			assert.Equal(t, c.p.name+" 1.2 (abc)\n", out.String())

			broken := errors.New("no more room")
			require.ErrorIs(t, c.parse([]string{"--help"}, failing{broken}), broken)
			assert.ErrorIs(t, c.parse([]string{"--version"}, failing{broken}), broken)
		})
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// Examples that are shown must work.
func TestHelpExamples(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("polls.yaml", nil, 0o600))
	for _, p := range []program{apiProgram, consumerProgram, archiverProgram, allinoneProgram} {
		words := strings.Fields(p.example)
		assert.Equal(t, p.name, words[0])
		_, _, err := parse(p, words[1:], azureEnv, "", io.Discard)
		assert.NoError(t, err, p.example)
	}
}

func TestVersion(t *testing.T) {
	assert.Regexp(t, `^1\.2\.0 \(3f2a9c1, go1\.\d+.*\)$`, Version("1.2.0", "3f2a9c1"))
}

func TestEnviron(t *testing.T) {
	t.Setenv("PAREDAO_QUEUE_SHARDS", "7")
	assert.Contains(t, Environ(), "PAREDAO_QUEUE_SHARDS=7")
}

func TestTally(t *testing.T) {
	run := func(env []string, args ...string) (Tally, []string, string, error) {
		var (
			cfg      Tally
			warnings []string
			out      bytes.Buffer
		)
		cmd := &cobra.Command{Use: "tally", SilenceErrors: true, SilenceUsage: true, RunE: func(*cobra.Command, []string) (err error) {
			warnings, err = cfg.Finish(env)
			return err
		}}
		BindTally(cmd.PersistentFlags(), &cfg)
		cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return FlagError(err) })
		cmd.SetArgs(args)
		cmd.SetOut(&out)
		err := cmd.Execute()
		return cfg, warnings, out.String(), err
	}

	cfg, warnings, _, err := run([]string{"PAREDAO_QUEUE_SHARDS=4", "PAREDAO_CHUNK_SIZE=nonsense", "PAREDAO_X=1"}, "--log-level=debug")
	require.NoError(t, err)
	assert.Len(t, warnings, 1)
	assert.Equal(t, Redis{URL: RedisURL{"redis://127.0.0.1:6379/0"}, Shards: 4}, cfg.Redis)
	assert.Equal(t, ArchiveURL{Dir: "./data/archive"}, cfg.Archive.URL)
	assert.Equal(t, slog.LevelDebug, cfg.Log.Level)

	cfg, _, _, err = run([]string{"PAREDAO_REDIS_URL=redis://env"})
	require.NoError(t, err)
	assert.True(t, cfg.Redis.URLSet)
	cfg, _, _, err = run([]string{"PAREDAO_REDIS_URL=redis://env"}, "--redis-url", "redis://127.0.0.1:6379/0")
	require.NoError(t, err)
	assert.True(t, cfg.Redis.URLSet, "even if it equals the default")
	assert.Equal(t, "redis://127.0.0.1:6379/0", cfg.Redis.URL.Reveal())

	cfg, _, _, err = run(nil, "--archive-url=azblob://votes")
	require.NoError(t, err, "most commands need no archive")
	assert.Equal(t, "votes", cfg.Archive.URL.Container)

	_, _, _, err = run(nil, "--redis-url=redis://:S3CRET@h:x")
	requireUsage(t, err, `wrong value "redis://:***@h:***" for --redis-url`)
	_, _, _, err = run(nil, "-redis-url=redis://:S3CRET@h")
	requireUsage(t, err, "unknown flag -r")
	assert.NotContains(t, err.Error(), "S3CRET")

	_, _, help, err := run(nil, "--redis-url=redis://:S3CRET@h", "--help")
	require.NoError(t, err)
	assert.NotContains(t, help, "S3CRET")
	for _, s := range table(new(Allinone), tallyProgram) {
		assert.Contains(t, help, "--"+s.name+" "+s.unit)
		assert.Contains(t, help, s.variable())
	}
	assert.Contains(t, help, "(default redis://127.0.0.1:6379/0)")
}

// What pflag.Value shows is redacted, whoever prints it.
func TestFlagValuesAreRedacted(t *testing.T) {
	fs := pflag.NewFlagSet("tally", pflag.ContinueOnError)
	var cfg Tally
	BindTally(fs, &cfg)
	require.NoError(t, fs.Parse([]string{"--redis-url=redis://u:S3CRET@h"}))
	assert.Equal(t, "redis://u:***@h", fs.Lookup("redis-url").Value.String())
}
