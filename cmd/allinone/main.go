// Command allinone runs api, consumer and archiver in one process, with a Redis
// of its own: for a first try, and for small polls.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

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
	blobs, err := service.OpenArchive(ctx, cfg.Archive)
	if err != nil {
		return err
	}

	base := service.NewBase(store, daemon.NewRegistry("allinone", version, commit), log)
	setup, err := base.Setup(cfg.HTTP.PollsFile, demoPolls(cfg.HTTP.PollsFile)...)
	if err != nil {
		return err
	}
	api, addr, err := service.API(base, cfg.HTTP, cfg.Enqueue)
	if err != nil {
		return err
	}
	services := []service.Service{
		api,
		service.Consumer(base, cfg.Count, cfg.Owner),
		service.Archiver(base, blobs, cfg.Batch, cfg.Owner),
	}
	if !cfg.Redis.URLSet {
		// Last, since all others need it.
		services = append(services, service.Service{Parts: []daemon.Part{{Name: "redis", Run: server.run}}})
	}
	if err := greet(os.Stdout, addr, cfg.HTTP.PollsFile == ""); err != nil {
		return err
	}
	return base.Run(ctx, cfg.Daemon, setup, services...)
}

// demoPolls is the poll that opens when there is no polls file.
func demoPolls(pollsFile string) []pollfile.Definition {
	if pollsFile != "" {
		return nil
	}
	return []pollfile.Definition{{Poll: vote.Poll{
		ID: "demo", Title: "Quem você quer eliminar?", Results: vote.ResultsLive,
		Options: []vote.Option{{ID: "ana", Name: "Ana"}, {ID: "bruno", Name: "Bruno"}, {ID: "carla", Name: "Carla"}},
	}}}
}

// greet says where to vote and how to see the totals.
func greet(w io.Writer, addr net.Addr, demo bool) error {
	url := "http://" + addr.String()
	if tcp, ok := addr.(*net.TCPAddr); ok && tcp.IP.IsUnspecified() {
		url = fmt.Sprintf("http://localhost:%d", tcp.Port)
	}
	poll, option := "POLL", "OPTION"
	if demo {
		poll, option = "demo", "ana"
	}
	_, err := fmt.Fprintf(w, `Paredão is running.

  vote     curl -X POST %[1]s/polls/%[2]s/votes -d option=%[3]s
  results  curl %[1]s/polls/%[2]s/results
  totals   bin/tally
  stop     Ctrl-C
`, url, poll, option)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
