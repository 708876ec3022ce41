// Command tally is the operator's tool: totals, polls, queue, audit, recount.
package main

import (
	"context"
	"errors"
	"os"

	"paredao/internal/config"
	"paredao/internal/daemon"
	"paredao/internal/redisstore"
)

// Set by the linker.
var version, commit = "dev", "unknown"

func main() { os.Exit(daemon.Main("tally", run)) }

func run(ctx context.Context) error {
	redisstore.DiscardClientLog()
	root := newRoot(config.Version(version, commit))
	root.SetArgs(os.Args[1:])
	root.SetOut(os.Stdout)
	root.SetErr(os.Stderr)
	err := root.ExecuteContext(ctx)
	if errors.Is(err, context.Canceled) {
		// For a daemon that is a stop like any other; here the work is not done,
		// and a script must not go on as if it were.
		return &exitError{exitFailed, errors.New("interrupted")}
	}
	return err
}
