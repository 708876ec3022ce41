package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"paredao/internal/blobstore"
	"paredao/internal/config"
	"paredao/internal/redisstore"
	"paredao/internal/service"
	"paredao/internal/vote"
)

// app is what all commands share.
type app struct {
	cfg    config.Tally
	output string
	log    *slog.Logger
}

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }

// ExitCode is the process's exit code.
func (e *exitError) ExitCode() int { return e.code }

// exitDifference is the code of an audit that found a difference.
const exitDifference = 3

func newRoot(version string) *cobra.Command {
	a := &app{}
	totals := a.totalsCommand()
	root := &cobra.Command{
		Use:   "tally [totals] [POLL…]",
		Short: "Totals, polls, queue, audit and recount of Paredão",
		Long: `tally is the operator's tool of Paredão.

Without a command it prints the totals of the polls that are named, or of all.
Data goes to standard output, everything else to standard error.

Exit codes: 0 done; 1 could not (Redis down, no such poll, an invalid polls
file); 2 wrong use (unknown command, flag, or value of a setting); 3 the audit
found a difference.`,
		Example: `  tally                              the totals of all polls
  tally totals paredao-07 --watch    redrawn every second
  tally polls apply -f polls.yaml    define polls
  tally polls close paredao-07       no vote is taken after this returns
  tally totals paredao-07 --final    wait until nothing can change any more
  tally audit --recount              prove the count`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return a.configure(cmd)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			err := totals.RunE(cmd, args)
			if len(args) > 0 && errors.Is(err, vote.ErrPollNotFound) && strings.Contains(err.Error(), "poll "+args[0]+":") {
				return config.Usagef("%q is neither a command nor a poll; see tally --help", args[0])
			}
			return err
		},
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetVersionTemplate("tally {{.Version}}\n")
	config.BindTally(root.PersistentFlags(), &a.cfg)
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "table", "form of the data: table, json or csv")
	root.Flags().AddFlagSet(totals.Flags())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return config.FlagError(err) })
	root.AddCommand(totals, a.pollsCommand(), a.queueCommand(), a.auditCommand(), a.recountCommand(), a.deadCommand())
	return root
}

// configure reads the settings, before any command runs.
func (a *app) configure(cmd *cobra.Command) error {
	warnings, err := a.cfg.Finish(config.Environ())
	if err != nil {
		return err
	}
	switch a.output {
	case "table", "json", "csv":
	default:
		return config.Usagef("--output %q: allowed are table, json, csv", a.output)
	}
	a.log = a.cfg.Log.New(cmd.ErrOrStderr())
	for _, w := range warnings {
		a.log.Warn(w)
	}
	return nil
}

// usageArgs makes cobra's complaint about arguments a wrong use.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return config.Usagef("%s: %v; see %s --help", cmd.CommandPath(), err, cmd.CommandPath())
		}
		return nil
	}
}

// group is a command that only has others below it.
func group(use, short string, sub ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return config.Usagef("%s needs a command; see %s --help", cmd.CommandPath(), cmd.CommandPath())
			}
			return config.Usagef("unknown command %q for %q; see %s --help", args[0], cmd.CommandPath(), cmd.CommandPath())
		},
	}
	c.AddCommand(sub...)
	return c
}

// withStore opens Redis for a command and says what to do when it is down.
func (a *app) withStore(ctx context.Context, f func(s *redisstore.Store) error) (err error) {
	cfg := a.cfg.Redis
	options := redisstore.Options{URL: cfg.URL.Reveal(), PasswordFile: cfg.PasswordFile, Shards: cfg.Shards}
	if !cfg.URLSet {
		if url, embedded, ok := allinoneURL(); ok {
			cfg.URL = url
			options.URL, options.PasswordFile, options.Embedded = url.Reveal(), "", embedded
		}
	}
	s, err := redisstore.Open(options)
	if err != nil {
		return config.Usagef("%v", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.SameShards(ctx); err != nil {
		if errors.Is(err, vote.ErrShardsMismatch) {
			return config.Usagef("%v", err)
		}
		return unreachable(cfg, err)
	}
	if err := f(s); err != nil {
		var netErr net.Error
		if errors.As(err, &netErr) {
			return unreachable(cfg, err)
		}
		return err
	}
	return nil
}

func unreachable(c config.Redis, err error) error {
	return fmt.Errorf("can't read Redis at %s (--redis-url): %w", c.URL, err)
}

// allinoneFile is where an allinone says how its Redis is reached.
const allinoneFile = "data/redis.url"

// allinoneURL finds the Redis of an allinone that runs in this folder, and
// whether it is an embedded one.
func allinoneURL() (url config.RedisURL, embedded, ok bool) {
	b, err := os.ReadFile(filepath.FromSlash(allinoneFile))
	if err != nil {
		return url, false, false
	}
	text, kind, _ := strings.Cut(string(b), "\n")
	if url, err = config.ParseRedisURL(text); err != nil {
		return url, false, false
	}
	// The file outlives an allinone that was killed: see whether it lives.
	network, addr := "tcp", ""
	if path, ok := strings.CutPrefix(url.Reveal(), "unix://"); ok {
		network, addr = "unix", path
	} else if _, rest, ok := strings.Cut(url.Reveal(), "@"); ok {
		addr, _, _ = strings.Cut(rest, "/")
	}
	c, err := net.DialTimeout(network, addr, time.Second)
	if err != nil {
		return url, false, false
	}
	_ = c.Close() // it was only a question
	return url, strings.TrimSpace(kind) == "embedded", true
}

// withArchive opens the archive for a command.
func (a *app) withArchive(ctx context.Context, f func(blobstore.Store) error) error {
	s, err := service.OpenArchive(ctx, a.cfg.Archive)
	if err != nil {
		return err
	}
	return f(s)
}

// pollsNamed returns the polls that were named, or all.
func pollsNamed(ctx context.Context, s *redisstore.Store, ids []string) ([]vote.PollState, error) {
	if len(ids) == 0 {
		return s.Polls(ctx)
	}
	out := make([]vote.PollState, 0, len(ids))
	for _, id := range ids {
		p, err := s.Poll(ctx, id)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}
