package redisstore

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseURL(t *testing.T) {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	type want struct {
		addrs          []string
		user, password string
		db             int
		master         string
		cluster, tls   bool
	}
	for raw, w := range map[string]want{
		"redis://h":                            {addrs: []string{"h:6379"}},
		"redis://h/":                           {addrs: []string{"h:6379"}},
		"redis://127.0.0.1:6379/0":             {addrs: []string{"127.0.0.1:6379"}},
		"redis://h:1/15":                       {addrs: []string{"h:1"}, db: 15},
		"redis://h?db=3":                       {addrs: []string{"h:6379"}, db: 3},
		"redis://h/?db=3":                      {addrs: []string{"h:6379"}, db: 3},
		"redis://h?":                           {addrs: []string{"h:6379"}},
		"redis://h?tls=true":                   {addrs: []string{"h:6379"}, tls: true},
		"redis://h?tls=false":                  {addrs: []string{"h:6379"}},
		"rediss://h:6380":                      {addrs: []string{"h:6380"}, tls: true},
		"rediss://h?tls=false":                 {addrs: []string{"h:6379"}, tls: true}, // rediss says it
		"redis://:6379":                        {addrs: []string{":6379"}},
		"redis://:secret@h":                    {addrs: []string{"h:6379"}, password: "secret"},
		"redis://user@h":                       {addrs: []string{"h:6379"}, user: "user"},
		"redis://user:@h":                      {addrs: []string{"h:6379"}, user: "user"},
		"redis://user:secret@h:1/2":            {addrs: []string{"h:1"}, user: "user", password: "secret", db: 2},
		"redis://:a%40b%2Fc%3Ad%23e%25f%3Fg@h": {addrs: []string{"h:6379"}, password: "a@b/c:d#e%f?g"},
		"redis://:a@b:c#d@h":                   {addrs: []string{"h:6379"}, password: "a@b:c#d"},
		"redis://:a+b%20c@h":                   {addrs: []string{"h:6379"}, password: "a+b c"},
		"redis://us%40er:p%3Aw@h":              {addrs: []string{"h:6379"}, user: "us@er", password: "p:w"},
		"redis://:%f0%9f%98%80@h":              {addrs: []string{"h:6379"}, password: "😀"},
		"redis://[::1]":                        {addrs: []string{"[::1]:6379"}},
		"redis://[::1]:6380/1":                 {addrs: []string{"[::1]:6380"}, db: 1},
		"redis://::1":                          {addrs: []string{"[::1]:6379"}},
		"redis://:pw@[fd00::1]:6380":           {addrs: []string{"[fd00::1]:6380"}, password: "pw"},
		"unix:///run/redis.sock":               {addrs: []string{"/run/redis.sock"}},
		"unix:///run/redis.sock?db=2":          {addrs: []string{"/run/redis.sock"}, db: 2},
		"unix://:a%2Fb@/run/redis.sock":        {addrs: []string{"/run/redis.sock"}, password: "a/b"},
		"unix://u:p@/run/redis.sock":           {addrs: []string{"/run/redis.sock"}, user: "u", password: "p"},
		"unix:///run/a%20b@c.sock":             {addrs: []string{"/run/a b@c.sock"}},
		"unix://data/redis.sock":               {addrs: []string{filepath.Join(dir, "data/redis.sock")}},
		"unix://./redis.sock":                  {addrs: []string{filepath.Join(dir, "redis.sock")}},
		"redis-sentinel://h1,h2:5/mymaster":    {addrs: []string{"h1:26379", "h2:5"}, master: "mymaster"},
		"redis-sentinel://u:p%40@h1:1,[::1]:2/m?db=3&tls=true": {
			addrs: []string{"h1:1", "[::1]:2"}, user: "u", password: "p@", master: "m", db: 3, tls: true},
		"redis-cluster://h1,h2:7001,[::1]":    {addrs: []string{"h1:6379", "h2:7001", "[::1]:6379"}, cluster: true},
		"redis-cluster://u:p@h1?tls=true":     {addrs: []string{"h1:6379"}, cluster: true, user: "u", password: "p", tls: true},
		"redis-cluster://h1?db=0":             {addrs: []string{"h1:6379"}, cluster: true},
		"redis://h:65535":                     {addrs: []string{"h:65535"}},
		"redis://paredao-redis.voting.svc:99": {addrs: []string{"paredao-redis.voting.svc:99"}},
	} {
		o, err := parseURL(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		got := want{o.Addrs, o.Username, o.Password, o.DB, o.MasterName, o.IsClusterMode, o.TLSConfig != nil}
		if !reflect.DeepEqual(got, w) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", raw, got, w)
		}
		if o.TLSConfig != nil && (o.TLSConfig.ServerName != "" || o.TLSConfig.InsecureSkipVerify || o.TLSConfig.MinVersion < 0x303) {
			t.Errorf("%s: TLS %+v", raw, o.TLSConfig)
		}
		s, err := Open(Options{URL: raw, Shards: 1})
		if err != nil {
			t.Errorf("%s: Open: %v", raw, err)
			continue
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: Close: %v", raw, err)
		}
	}
}

// Errors name what is wrong, and hold no part of the URL: any of it may be a
// password's.
func TestParseURLErrors(t *testing.T) {
	for raw, want := range map[string]string{
		"":                                "is no URL",
		"S3CRET":                          "is no URL",
		"h:6379":                          "is no URL",
		"redis:/h":                        "is no URL",
		"redis://":                        "names no host; write redis://host:6379",
		"redis:///0":                      "names no host",
		"redis://:S3CRET@":                "names no host",
		"redis://h:":                      "has a port",
		"redis://h:0":                     "has a port",
		"redis://h:65536":                 "has a port",
		"redis://h:-1":                    "has a port",
		"redis://h:S3CRET":                "has a port",
		"redis://:S3CRET":                 "has a port", // the @ forgotten
		"redis://u:S3CRET:6379":           "has a host",
		"redis://h:1:2":                   "has a host",
		"redis://[::1":                    "has a host",
		"redis://[h:1":                    "has a host",
		"redis://h/x":                     "has a database",
		"redis://h/-1":                    "has a database",
		"redis://h/0/1":                   "has a database",
		"redis://h?db=S3CRET":             "has a database",
		"redis://h?tls=yes":               "has a tls",
		"redis://h?tls=1":                 "has a tls",
		"redis://h?S3CRET=1":              "has a parameter",
		"redis://h?read_timeout=1s":       "has a parameter",
		"redis://h?%zz":                   "has a query",
		"redis://h1,h2":                   "names more than one host",
		"rediss://h1,h2":                  "names more than one host",
		"redis://h,":                      "names no host",
		"redis://:S3CRET%@h":              "has a user or password with a %",
		"redis://:S3CRET%zz@h":            "has a user or password with a %",
		"redis://%zz:S3CRET@h":            "has a user or password with a %",
		"redis://:S3/CRET@h":              "has an @ behind a /",
		"redis://:S3?CRET@h":              "has an @ behind a /",
		"redis://:S3/CR?ET@h":             "has an @ behind a /",
		"redis://u:S3CRET@h/0@1":          "has an @ behind a /",
		"http://u:S3CRET@h":               "has an unknown scheme",
		"S3CRET://h":                      "has an unknown scheme",
		"REDIS://h":                       "has an unknown scheme",
		" redis://h":                      "has an unknown scheme",
		"redis-sentinel://h":              "names no master",
		"redis-sentinel://:S3CRET@h/":     "names no master",
		"redis-sentinel://h/%zz":          "names no master",
		"redis-sentinel:///m":             "names no host; write redis-sentinel://host:26379",
		"redis-cluster://h/1":             "names a database",
		"redis-cluster://:S3CRET@h?db=1":  "names a database",
		"redis-cluster://":                "names no host",
		"redis-cluster://h1,,h2":          "names no host",
		"unix://":                         "names no socket",
		"unix:///":                        "names no socket",
		"unix://redis.sock":               "names no socket",
		"unix:///a%zz":                    "names no socket",
		"unix://:S3/CRET@/run/redis.sock": "has an @ behind a /",
	} {
		err := ParseURL(raw)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want: %s", raw, err, want)
			continue
		}
		_, open := Open(Options{URL: raw})
		for _, err := range []error{err, open} {
			if err == nil || strings.Contains(err.Error(), "S3") || strings.Contains(err.Error(), "CRET") {
				t.Errorf("%s: says %v", raw, err)
			}
		}
		if !strings.HasPrefix(open.Error(), "redis-url ") {
			t.Errorf("%s: Open says %v", raw, open)
		}
	}
}

// No URL makes it panic; and whatever is wrong with one, the error has no piece
// of it that could be a password.
func FuzzParseURL(f *testing.F) {
	for _, s := range []string{
		"redis://user:secret@h:6379/0", "rediss://:p@h", "unix://u:p@/run/redis.sock?db=1", "redis-sentinel://:p@h1:1,h2:2/m?db=0&tls=true",
		"redis-cluster://:p@[::1]:1,h2", "redis://:a/b@h", "redis://:a?b@h", "redis://", "://", "unix://", "redis://@/@?@",
	} {
		f.Add(s, "S3CRET!word")
	}
	f.Fuzz(func(t *testing.T, raw, password string) {
		o, err := parseURL(raw)
		switch {
		case err != nil && o != nil, err == nil && len(o.Addrs) == 0:
			t.Errorf("%q: %+v, %v", raw, o, err)
		case err == nil && o.DB < 0:
			t.Errorf("%q: database %d", raw, o.DB)
		}
		if !strings.Contains(password, "!") || len(password) < 2 {
			return // could be a word of the error's own
		}
		for _, mark := range []string{":", "@"} {
			with := strings.Replace(raw, mark, mark+password, 1)
			if err := ParseURL(with); err != nil && strings.Contains(err.Error(), password) {
				t.Errorf("%q: says %v", with, err)
			}
		}
	})
}

func TestOptions(t *testing.T) {
	rdb, err := Options{URL: "redis://h", NoRetry: true, Timeout: 7 * time.Second}.client()
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	if _, err := Open(Options{URL: "x"}); err == nil {
		t.Error("a store without a URL")
	}
}
