// Command tally is the operator's tool: totals, polls, queue, audit, recount.
package main

import (
	"context"
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
	return root.ExecuteContext(ctx)
}
