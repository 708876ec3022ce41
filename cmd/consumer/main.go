// Command consumer takes votes off the queue and adds them to the tallies.
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

func main() { os.Exit(daemon.Main("consumer", run)) }

// run wires the consumer:
//
//	Redis (votes:{N}) ──▶ consumer ──▶ Redis (tally:{N}:<poll>, archive:{N})
//	           probes ──▶ admin
func run(ctx context.Context) (err error) {
	cfg, warnings, err := config.ParseConsumer(os.Args[1:], config.Environ(), config.Version(version, commit), os.Stdout)
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

	base := service.NewBase(store, daemon.NewRegistry("consumer", version, commit), log)
	setup, err := base.Setup("")
	if err != nil {
		return err
	}
	log.Info("consumer starts", "redis", cfg.Redis.URL, "shards", cfg.Redis.Shards)
	return base.Run(ctx, cfg.Daemon, setup, service.Consumer(base, cfg.Count, cfg.Owner))
}
