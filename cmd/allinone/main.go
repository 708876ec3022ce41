// Command allinone runs api, consumer and archiver in one process, with a Redis
// of its own: for a first try, and for small polls.
package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"time"

	"paredao/internal/config"
	"paredao/internal/daemon"
	"paredao/internal/pollfile"
	"paredao/internal/redisstore"
	"paredao/internal/service"
	"paredao/internal/vote"
)

// Set by the linker.
var version, commit = "dev", "unknown"

func main() { os.Exit(daemon.Main("allinone", run)) }

// run wires everything:
//
//	voters ──▶ api ──▶ Redis ──▶ consumer ──▶ Redis ──▶ archiver ──▶ DIR/archive
//	                     └─ a redis-server child with its file in DIR, or an
//	                        embedded one, or the one that --redis-url names
func run(ctx context.Context) (err error) {
	cfg, warnings, err := config.ParseAllinone(os.Args[1:], config.Environ(), config.Version(version, commit), os.Stdout)
	if err != nil {
		return err
	}
	log := cfg.Log.New(os.Stderr)
	for _, w := range warnings {
		log.Warn(w)
	}
	redisstore.DiscardClientLog()
	// What may be a wrong setting comes before Redis is started.
	blobs, err := service.OpenArchive(ctx, cfg.Archive)
	if err != nil {
		return err
	}
	polls, err := readPolls(cfg.HTTP.PollsFile)
	if err != nil {
		return err
	}

	server := &redisServer{}
	options := redisstore.Options{URL: cfg.Redis.URL.Reveal(), PasswordFile: cfg.Redis.PasswordFile, Shards: cfg.Redis.Shards}
	if !cfg.Redis.URLSet {
		if server, err = startRedis(ctx, cfg.Data, log); err != nil {
			return err
		}
		options.URL, options.PasswordFile, options.Embedded = server.url, "", server.embedded
	}
	// It ends with its part; this is for a start that fails half-way.
	defer func() { err = errors.Join(err, server.stop()) }()
	store, err := redisstore.Open(options)
	if err != nil {
		return config.Usagef("%v", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	base := service.NewBase(store, daemon.NewRegistry("allinone", version, commit), log)
	setup, err := base.Setup("", polls...)
	if err != nil {
		return err
	}
	api, addr, err := service.API(base, cfg.HTTP, cfg.Enqueue)
	if err != nil {
		return err
	}
	services := []service.Service{
		{Parts: []daemon.Part{{Name: "greeting", Run: greeting(store, polls, cfg, addr, log)}}},
		api,
		service.Consumer(base, cfg.Count, cfg.Owner),
		service.Archiver(base, blobs, cfg.Batch, cfg.Owner),
	}
	if !cfg.Redis.URLSet {
		// Last, since all others need it.
		services = append(services, service.Service{Parts: []daemon.Part{{Name: "redis", Run: server.run}}})
	}
	return base.Run(ctx, cfg.Daemon, setup, services...)
}

// readPolls reads the polls file. Without one, a demo poll opens.
func readPolls(name string) ([]pollfile.Definition, error) {
	if name == "" {
		return []pollfile.Definition{{Poll: vote.Poll{
			ID: "demo", Title: "Quem você quer eliminar?", Results: vote.ResultsLive,
			Options: []vote.Option{{ID: "ana", Name: "Ana"}, {ID: "bruno", Name: "Bruno"}, {ID: "carla", Name: "Carla"}},
		}}}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, config.Usagef("polls-file %q: %v", name, err)
	}
	polls, err := pollfile.Parse(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, config.Usagef("polls-file %q: %v", name, err)
	}
	return polls, nil
}

// greeting says where to vote and how to see the totals, once all addresses are
// taken and the polls can be voted on.
func greeting(store *redisstore.Store, polls []pollfile.Definition, cfg config.Allinone, addr net.Addr, log *slog.Logger) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		log.Info("api takes votes", "addr", addr.String())
		// They are applied in their order. What hinders that is logged there.
		last := polls[len(polls)-1].Poll.ID
		for _, err := store.Poll(ctx, last); err != nil; _, err = store.Poll(ctx, last) {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(20 * time.Millisecond):
			}
		}
		if err := greet(os.Stdout, cfg, addr); err != nil {
			// It still works; whoever started it may have closed the pipe.
			log.Warn("the greeting could not be printed", "err", err)
		}
		<-ctx.Done()
		return nil
	}
}
