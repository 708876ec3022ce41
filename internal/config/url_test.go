package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		"":                                           "",
		"redis://127.0.0.1:6379/0":                   "redis://127.0.0.1:6379/0",
		"redis://[::1]:6379/0":                       "redis://[::1]:6379/0",
		"redis://h/":                                 "redis://h/",
		"redis://h?db=2":                             "redis://h?db=2",
		"redis://u:S3CRET@h:1/2":                     "redis://u:***@h:1/2",
		"redis://:S3CRET@h":                          "redis://:***@h",
		"redis://S3CRET@h":                           "redis://***@h",
		"rediss://u:S3CRET@[::1]:1":                  "rediss://u:***@[::1]:1",
		"unix:///run/redis.sock?db=1":                "unix:///run/redis.sock?db=1",
		"unix://u:S3CRET@/run/redis":                 "unix://u:***@/run/redis",
		"redis://h?password=S3CRET":                  "redis://h?***",
		"redis://h?db=1&password=S3CRET":             "redis://h?db=1&***",
		"redis-cluster://h?tls=true&db=0":            "redis-cluster://h?tls=true&db=0",
		"unix://./data/redis.sock":                   "unix://./data/redis.sock",
		"unix://u:S3CRET@data/redis.sock":            "unix://u:***@data/redis.sock",
		"unix://u:S3CRET":                            "unix://u:***",
		"redis-sentinel://u:S3CRET@h1:1,h2:2/m?db=0": "redis-sentinel://u:***@h1:1,h2:2/m?db=0",
		"redis-cluster://u:S3CRET@h1:1,h2:2":         "redis-cluster://u:***@h1:1,h2:2",

		// Malformed in the ways that people do.
		"localhost:6379":             "localhost:6379",
		"S3CRET":                     "***",
		"u:S3CRET@h":                 "***",
		"h:6380,password=S3CRET":     "***",
		"redis://default:S3CRET":     "redis://default:***",
		"redis://u:S3/CRET@h:1":      "redis://u:***@h:1",
		"redis://u:S3@CRET@h:1":      "redis://u:***@h:1",
		"redis://u:S3#CRET@h:1":      "redis://u:***@h:1",
		"redis://u:S3?CRET@h:1":      "redis://u:***@h:1",
		"redis://u/S3CRET:x@h:1":     "redis://***@h:1",
		"redis://h/S3CRET":           "redis://h/***",
		"redis://h#S3CRET":           "redis://h/***",
		"redis://::1:6379":           "redis://::1:6379",
		"redis://S3 CRET":            "redis://***",
		"redis://:6379":              "redis://:6379",
		"redis://h:1,default:S3CRET": "redis://h:1,default:***",
		"S3CRET\n://h":               "***",
	} {
		assert.Equal(t, want, redact(text), "%q", text)
	}
}

func TestRedactArchive(t *testing.T) {
	for text, want := range map[string]string{
		"file:./x":                        "file:./x",
		"azblob://votes/2026":             "azblob://votes/2026",
		"azblob://votes?sig=S3CRET":       "azblob://votes?***",
		"azblob://a:S3CRET@votes/x":       "azblob://***@votes/x",
		"https://a.net/votes?sig=S3CRET":  "https://a.net/votes?***",
		"AccountName=a;AccountKey=S3CRET": "***",
		"./data":                          "./data",
	} {
		assert.Equal(t, want, redactArchive(text), "%q", text)
	}
}

// assertHidden requires that no way to print v shows S3CRET.
func assertHidden(t *testing.T, v any) {
	t.Helper()
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		fmt.Fprintf(&out, verb+"\n", v)
	}
	b, err := json.Marshal(v)
	require.NoError(t, err)
	out.Write(b)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
	Log{Format: "text"}.New(&out).Info("x", "v", v)
	assert.NotContains(t, out.String(), "S3CRET")
}

func TestSecretsAreHidden(t *testing.T) {
	u, err := ParseRedisURL("redis://u:S3CRET@h")
	require.NoError(t, err)
	assertHidden(t, u)
	assertHidden(t, &u)
	assertHidden(t, struct{ U RedisURL }{u})
	assertHidden(t, Secret{"S3CRET"})
	assert.Equal(t, "redis://u:S3CRET@h", u.Reveal())
	assert.Equal(t, `""`, fmt.Sprintf("%#v", Secret{}))

	c, _, err := ParseAPI([]string{"--redis-url", "redis://u:S3CRET@h"}, nil, "", io.Discard)
	require.NoError(t, err)
	assertHidden(t, c)
}

func TestArchiveURLString(t *testing.T) {
	assert.Empty(t, ArchiveURL{}.String())
	for _, text := range []string{"file:./data/archive", "file:/srv", "azblob://votes", "azblob://votes/a/b"} {
		u, err := parseArchiveURL(text)
		require.NoError(t, err)
		assert.Equal(t, text, u.String())
	}
}

// FuzzSettings: whatever stands in a setting, by flag or by variable, parsing
// ends with the same valid settings or with one printable line.
func FuzzSettings(f *testing.F) {
	names := table(new(Allinone), allinoneProgram)
	for i, s := range names {
		f.Add(byte(i), s.def)
		for text := range cases[s.name].good {
			f.Add(byte(i), text)
		}
		for _, text := range cases[s.name].bad {
			f.Add(byte(i), text)
		}
	}
	f.Fuzz(func(t *testing.T, row byte, text string) {
		s := names[int(row)%len(names)]
		byFlag, _, flagErr := ParseAllinone([]string{"--" + s.name + "=" + text}, azureEnv, "", io.Discard)
		byEnv, _, envErr := ParseAllinone(nil, append([]string{s.variable() + "=" + text}, azureEnv...), "", io.Discard)
		if text != "" {
			require.Equal(t, flagErr == nil, envErr == nil)
		}
		if flagErr != nil {
			requireUsage(t, flagErr, "--"+s.name)
		}
		if envErr != nil {
			requireUsage(t, envErr, s.variable())
		}
		if flagErr != nil || text == "" {
			return
		}
		require.Equal(t, byFlag, byEnv)
		require.Positive(t, byFlag.Redis.Shards)
		require.Positive(t, byFlag.HTTP.BodyLimit)
		require.Positive(t, byFlag.Owner.TTL)
		require.NotEqual(t, byFlag.Archive.URL.Dir == "", byFlag.Archive.URL.Container == "")
		for _, p := range byFlag.HTTP.TrustedProxies {
			require.True(t, p.IsValid())
			require.Equal(t, p.Masked(), p)
		}
	})
}

// FuzzRedisURL: no password shows, in however odd a URL.
func FuzzRedisURL(f *testing.F) {
	f.Add("redis", "user", "", "", "h:6379", "/0")
	f.Add("rediss", "", "a@", "/b", "[::1]:1", "?db=1")
	f.Add("redis-sentinel", "u", "?", "#", "h1:1,h2:2", "/m?db=0")
	f.Add("unix", "u", "%", "%2F", "", "/run/redis.sock")
	f.Add("x", ":/?#@", "\n", "\x00", "", "#@")
	f.Fuzz(func(t *testing.T, scheme, user, before, after, host, tail string) {
		const marker = "S3CRET"
		if strings.Contains(scheme+user+host+tail, marker) {
			t.Skip()
		}
		text := scheme + "://" + user + ":" + before + marker + after + "@" + host + tail
		u, err := ParseRedisURL(text)
		require.NotContains(t, u.String(), marker)
		require.NotContains(t, redact(text), marker)
		if err != nil {
			require.NotContains(t, err.Error(), marker)
			return
		}
		require.Equal(t, text, u.Reveal())
	})
}
