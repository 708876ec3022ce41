package redisstore

import (
	"context"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"paredao/internal/config"
	"paredao/internal/vote"
)

// FuzzURLsAgree: every URL that the settings let through makes a client, and for
// one server means what net/url says.
func FuzzURLsAgree(f *testing.F) {
	for _, s := range []string{
		"redis://h", "redis://h:1/2", "redis://u:p%40%2F%3A%23%25w@h?db=1", "redis://u:p@ss@[::1]:6379/0", "rediss://:a:b@h?tls=true",
		"unix://data/redis.sock", "unix://u:p@/run/redis.sock?db=1", "unix://u:p@./a%20b@c.sock", "redis-sentinel://u:p@h1:1,[fe80::1%25eth0]:2/m%61in?db=0&tls=true",
		"redis-cluster://h1,h2:7001/?db=0", "redis://h/00", "redis://h?db=65535", "redis://h?db=+1", "redis://u%:p@h", "redis://h/?", "unix:///a?tls=true",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if _, err := config.ParseRedisURL(raw); err != nil {
			return
		}
		o, err := parseURL(raw)
		if err != nil {
			t.Fatalf("%q passes the settings, and the store says: it %v", raw, err)
		}
		if o.DB < 0 || len(o.Addrs) == 0 || o.IsClusterMode != strings.HasPrefix(raw, "redis-cluster:") ||
			(o.MasterName != "") != strings.HasPrefix(raw, "redis-sentinel:") {
			t.Errorf("%q: %+v", raw, o)
		}
		u, err := url.Parse(raw)
		if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || strings.Contains(raw[strings.LastIndex(raw, "@")+1:], "%") {
			return // many hosts, a socket, a zone: not for net/url to say
		}
		password, _ := u.User.Password()
		port := u.Port()
		if port == "" {
			port = "6379"
		}
		db := strings.TrimPrefix(u.Path, "/")
		if db == "" {
			db = u.Query().Get("db")
		}
		n, _ := strconv.Atoi(db)
		if o.Addrs[0] != net.JoinHostPort(u.Hostname(), port) || o.Username != u.User.Username() || o.Password != password || o.DB != n {
			t.Errorf("%q: %+v, want %s:%s, %q, %q, %d", raw, o, u.Hostname(), port, u.User.Username(), password, n)
		}
	})
}

// FuzzElementNames: Go and the scripts name any elements alike, and read their
// headers alike. Where they did not, a consumer would try the same commit for
// ever.
func FuzzElementNames(f *testing.F) {
	for _, s := range [][3]string{
		{"P1 f-1 1768953601234 1 - p:1\n{}", "P1 f-2 1768953601234 1 - p:1\n{}", "garbage"},
		{"", "", ""},
		{"P1 ", "P1  ", "P1 x "},
		{"P1 " + strings.Repeat("x", 100) + " y\n", "P1 " + strings.Repeat("x", 101) + " y\n", "P1 a\nb c"},
		{"P1 \x00 \x00\n", "\x00", "P1 %d+[^ ]* 1\n"},
		{"P1 f-1 1 99999999999999999999 - p:1\n", "P1 f-1 1 0 - p:1\n", "P1 f-1 0x1 1e3 - p:1\n"},
		{"\n", "P1\n", "P1 \xff\xfe \n"},
	} {
		f.Add(s[0], s[1], s[2], uint8(3))
		f.Add(s[0], s[1], s[2], uint8(200))
	}
	rdb := redis.NewClient(&redis.Options{Addr: shared.Addr()})
	f.Cleanup(func() { _ = rdb.Close() })
	s, err := Open(Options{URL: "redis://" + shared.Addr(), Shards: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	commits := 0
	f.Fuzz(func(t *testing.T, a, b, c string, n uint8) {
		ctx := context.Background()
		k := shardKeys(0)
		elements := make([]string, 1+int(n))
		values := make([]any, len(elements))
		for i := range elements {
			elements[i] = []string{a, b, c}[i%3]
			values[i] = elements[i]
		}
		if err := rdb.Del(ctx, k.votes(), k.archive(), k.dead(), k.ledger()).Err(); err != nil {
			t.Fatal(err)
		}
		if err := rdb.RPush(ctx, k.votes(), values...).Err(); err != nil {
			t.Fatal(err)
		}
		got, err := s.ReadQueue(ctx, 0, all)
		// A header that claims very many votes ends a read early, but not before it.
		if err != nil || len(got) == 0 || !slices.Equal(got, elements[:len(got)]) {
			t.Fatalf("%d elements came back as %d (%v)", len(elements), len(got), err)
		}
		commits++
		commit := vote.CountCommit{
			Shard: 0, Token: strconv.Itoa(commits), Elements: len(elements),
			First: vote.ElementID([]byte(elements[0])), Last: vote.ElementID([]byte(elements[len(elements)-1])),
			Digest: vote.ElementsDigest(elements), Counts: map[string]vote.Tally{},
		}
		for i := range elements {
			commit.Dead = append(commit.Dead, i)
		}
		for name, wrong := range map[string]func(*vote.CountCommit){
			"the first": func(c *vote.CountCommit) { c.First += "x" },
			"the last":  func(c *vote.CountCommit) { c.Last += "x" },
			"digest":    func(c *vote.CountCommit) { c.Digest = vote.ElementsDigest(append(elements[:n:int(n)], "another")) },
		} {
			other := commit
			if wrong(&other); other.Digest == commit.Digest && name == "digest" {
				continue
			}
			if status, _, err := s.CommitCount(ctx, &other); err != nil || status != vote.CommitRefused {
				t.Errorf("%q: with another name of %s: %v, %v", elements[:min(3, len(elements))], name, status, err)
			}
		}
		if status, _, err := s.CommitCount(ctx, &commit); err != nil || status != vote.CommitDone {
			t.Fatalf("%q: %v, %v", elements[:min(3, len(elements))], status, err)
		}
		dead, err := s.Dead(ctx, 0, 0, 1)
		if err != nil || len(dead) != 1 {
			t.Fatalf("dead: %d, %v", len(dead), err)
		}
		if ok, err := s.RemoveDead(ctx, dead[0], false); err != nil || !ok {
			t.Errorf("%q can't be dropped: %v, %v", elements[0], ok, err)
		}
	})
}
