package main

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"paredao/internal/config"
)

func TestGreet(t *testing.T) {
	var b strings.Builder
	cfg := config.Allinone{Data: "./data", Redis: config.Redis{Shards: 1}, Archive: config.Archive{URL: config.ArchiveURL{Dir: "./data/archive"}}}
	for addr, want := range map[string]string{
		"[::]:8080": "http://localhost:8080/", "0.0.0.0:80": "http://localhost:80/", "127.0.0.1:1": "http://127.0.0.1:1/", "[::1]:2": "http://[::1]:2/",
	} {
		b.Reset()
		a, err := net.ResolveTCPAddr("tcp", addr)
		require.NoError(t, err)
		require.NoError(t, greet(&b, cfg, a))
		require.Contains(t, b.String(), "curl -X POST "+want+"polls/demo/votes -d option=ana\n")
	}
	require.Error(t, greet(broken{}, cfg, &net.TCPAddr{}))
	cfg.Archive.URL = config.ArchiveURL{Container: "votes", Prefix: "a/b"}
	require.Contains(t, tallyCommand(cfg), " --archive-url azblob://votes/a/b")
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken") }

func TestQuoted(t *testing.T) {
	for word, want := range map[string]string{
		"data/redis.url": "data/redis.url", "a b": "'a b'", "it's": `'it'\''s'`, "$HOME": "'$HOME'", "-x": "'-x'", "": "''", "ü": "'ü'",
	} {
		require.Equal(t, want, quoted(word))
	}
}
