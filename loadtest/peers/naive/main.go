// Command naive is the fair peer of the benchmark: votes as such systems
// usually take and count them, one RPUSH a request, one LPOP and one HINCRBY a
// vote.
package main

import (
	"context"
	"os"

	"github.com/redis/go-redis/v9"

	"paredao/internal/config"
	"paredao/internal/daemon"
)

func main() {
	os.Exit(daemon.Main("naive", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout, os.Stderr) }))
}

const about = `
naive takes and counts votes as such systems are usually written, with nothing
made slow on purpose. The benchmark measures the api and the consumer against it.

Usage:
  naive api [flags]        POST /polls/{poll}/votes: one RPUSH of a JSON vote a request
  naive consumer [flags]   LPOP, json.Unmarshal, HINCRBY, one vote after the other
`

// Keys in Redis.
const (
	queueKey    = "naive:votes"
	tallyPrefix = "naive:tally:"
)

// stored is a vote in the queue, with the facts that the real one keeps.
type stored struct {
	ID         string `json:"id"`
	Poll       string `json:"poll"`
	Option     string `json:"option"`
	AcceptedAt string `json:"accepted_at"`
	Client     string `json:"client"`
	UserAgent  string `json:"user_agent"`
}

func run(ctx context.Context, args []string, stdout, stderr *os.File) error {
	redis.SetLogger(discard{})
	role := ""
	if len(args) > 0 {
		role, args = args[0], args[1:]
	}
	switch role {
	case "api":
		return runAPI(ctx, args, stdout, stderr)
	case "consumer":
		return runConsumer(ctx, args, stdout)
	case "-h", "--help":
		if _, err := stdout.WriteString(about[1:]); err != nil {
			return err
		}
		return config.ErrHelp
	}
	return config.Usagef("wrong role %q: must be api or consumer, see --help", role)
}

type discard struct{}

func (discard) Printf(context.Context, string, ...any) {}
