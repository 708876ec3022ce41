// Command api takes votes over HTTP and puts them on the queue.
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

func main() { os.Exit(daemon.Main("api", run)) }

// run wires the api:
//
//	voters ──▶ http ──▶ committer ──▶ Redis (votes:{N})
//	probes ──▶ admin
func run(ctx context.Context) (err error) {
	cfg, warnings, err := config.ParseAPI(os.Args[1:], config.Environ(), config.Version(version, commit), os.Stdout)
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

	base := service.NewBase(store, daemon.NewRegistry("api", version, commit), log)
	setup, err := base.Setup(cfg.HTTP.PollsFile)
	if err != nil {
		return err
	}
	api, addr, err := service.API(base, cfg.HTTP, cfg.Enqueue)
	if err != nil {
		return err
	}
	log.Info("api takes votes", "addr", addr.String(), "redis", cfg.Redis.URL, "shards", cfg.Redis.Shards)
	return base.Run(ctx, cfg.Daemon, setup, api)
}
