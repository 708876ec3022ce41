// Command archiver moves counted votes in batches to the archive.
package main

import (
	"context"
	"errors"
	"os"

	"paredao/internal/config"
	"paredao/internal/daemon"
	"paredao/internal/redisstore"
	"paredao/internal/service"
)

// Set by the linker.
var version, commit = "dev", "unknown"

func main() { os.Exit(daemon.Main("archiver", run)) }

// run wires the archiver:
//
//	Redis (archive:{N}) ──▶ archiver ──▶ Azure Blob Storage, or a folder
//	             probes ──▶ admin
func run(ctx context.Context) (err error) {
	cfg, warnings, err := config.ParseArchiver(os.Args[1:], config.Environ(), config.Version(version, commit), os.Stdout)
	if err != nil {
		return err
	}
	log := cfg.Log.New(os.Stderr)
	for _, w := range warnings {
		log.Warn(w)
	}
	redisstore.DiscardClientLog()
	store, err := service.OpenStore(cfg.Redis)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	blobs, err := service.OpenArchive(ctx, cfg.Archive)
	if err != nil {
		return err
	}

	base := service.NewBase(store, daemon.NewRegistry("archiver", version, commit), log)
	setup, err := base.Setup("")
	if err != nil {
		return err
	}
	log.Info("archiver starts", "redis", cfg.Redis.URL, "shards", cfg.Redis.Shards, "archive", blobs.String())
	return base.Run(ctx, cfg.Daemon, setup, service.Archiver(base, blobs, cfg.Batch, cfg.Owner))
}
