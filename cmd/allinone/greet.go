package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"paredao/internal/config"
)

// greet says where to vote and how to see the totals.
func greet(w io.Writer, cfg config.Allinone, addr net.Addr) error {
	url := "http://" + addr.String()
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		url = fmt.Sprintf("http://localhost:%d", tcp.Port)
	}
	poll, option := "POLL", "OPTION"
	if cfg.HTTP.PollsFile == "" {
		poll, option = "demo", "ana"
	}
	_, err := fmt.Fprintf(w, `Paredão is running.

  vote     curl -X POST %[1]s/polls/%[2]s/votes -d option=%[3]s
  results  curl %[1]s/polls/%[2]s/results
  totals   %[4]s
  stop     Ctrl-C
`, url, poll, option, tallyCommand(cfg))
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// tallyCommand is how tally finds this allinone.
func tallyCommand(cfg config.Allinone) string {
	command := "tally"
	if strings.ContainsRune(os.Args[0], os.PathSeparator) {
		command = quoted(filepath.Join(filepath.Dir(os.Args[0]), command))
	}
	if cfg.Redis.Shards != 1 {
		command += fmt.Sprintf(" --queue-shards %d", cfg.Redis.Shards)
	}
	switch {
	case cfg.Redis.URLSet:
		command += " --redis-url " + quoted(cfg.Redis.URL.String())
	case filepath.Clean(cfg.Data) != "data": // which is where tally looks by itself
		command += ` --redis-url "$(head -n 1 ` + quoted(absolute(filepath.Join(cfg.Data, urlFile))) + `)"`
	}
	switch dir := cfg.Archive.URL.Dir; {
	case dir == "":
		command += " --archive-url " + quoted(cfg.Archive.URL.String())
	case filepath.Clean(dir) != filepath.Join("data", "archive"):
		command += " --archive-url " + quoted("file:"+absolute(dir))
	}
	return command
}

// absolute is where a path leads from any folder, if that can be told.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@%+=,][A-Za-z0-9_./:@%+=,-]*$`)

// quoted is a word for a shell.
func quoted(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
