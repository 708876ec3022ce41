package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
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

// Exit codes; 2, for wrong use, is config's.
const (
	exitFailed     = 1
	exitDifference = 3 // the audit found one
)

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
			if len(args) > 0 && errors.Is(err, vote.ErrPollNotFound) && strings.Contains(err.Error(), pollNotFound(args[0]).Error()) {
				return config.Usagef("%.80q is neither a command nor a poll; see tally --help", config.WithoutSecret(args[0]))
			}
			return err
		},
	}
	root.SetVersionTemplate("tally {{.Version}}\n")
	config.BindTally(root.PersistentFlags(), &a.cfg)
	root.PersistentFlags().StringVarP(&a.output, "output", "o", "table", "form of the data: table, json or csv")
	root.Flags().AddFlagSet(totals.Flags())
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return config.FlagError(err) })
	root.AddCommand(totals, a.pollsCommand(), a.queueCommand(), a.auditCommand(), a.recountCommand(), a.restoreCommand(), a.deadCommand())
	root.SetHelpCommand(helpCommand())
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Hidden, c.Args, c.RunE = true, cobra.ArbitraryArgs, needsCommand
		}
	}
	return root
}

// helpCommand is cobra's, but for a topic that does not exist, which is a wrong
// use. It needs no settings, so wrong ones don't stop it.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Help about any command",
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE: func(cmd *cobra.Command, args []string) error {
			topic, rest, err := cmd.Root().Find(args)
			if err != nil || topic == nil || len(rest) > 0 {
				return config.Usagef("there is no command %.80q; see tally --help", config.WithoutSecret(strings.Join(args, " ")))
			}
			topic.InitDefaultHelpFlag()
			topic.InitDefaultVersionFlag()
			return topic.Help()
		},
	}
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
		return config.Usagef("--output %q: allowed are table, json, csv", config.WithoutSecret(a.output))
	}
	a.log = a.cfg.Log.New(cmd.ErrOrStderr())
	for _, w := range warnings {
		a.log.Warn(w)
	}
	return nil
}

// noArgs and onePoll check a command's arguments.

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return config.Usagef("%s takes no arguments, but got %.80q; see %[1]s --help", cmd.CommandPath(), config.WithoutSecret(args[0]))
	}
	return nil
}

func onePoll(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return config.Usagef("%s needs the id of one poll, but got %d; see %[1]s --help", cmd.CommandPath(), len(args))
	}
	return nil
}

// group is a command that only has others below it.
func group(use, short string, sub ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: needsCommand}
	c.AddCommand(sub...)
	return c
}

func needsCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return config.Usagef("%s needs a command; see %[1]s --help", cmd.CommandPath())
	}
	return config.Usagef("unknown command %.80q for %q; see %[2]s --help", config.WithoutSecret(args[0]), cmd.CommandPath())
}

// withStore opens Redis for a command and says what to do when it is down.
func (a *app) withStore(ctx context.Context, f func(s *redisstore.Store) error) (err error) {
	cfg := a.cfg.Redis
	options := redisstore.Options{URL: cfg.URL.Reveal(), PasswordFile: cfg.PasswordFile, Shards: cfg.Shards}
	if !cfg.URLSet {
		url, embedded, err := allinoneURL()
		if err != nil {
			return err
		}
		if !url.IsZero() {
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
	if err := f(s); isNetwork(err) {
		return unreachable(cfg, err)
	} else if err != nil {
		return err
	}
	return nil
}

// isNetwork tells whether the connection to Redis failed. The error number of a
// file (of standard output, or of the archive) is a net.Error as well, and so is
// what an HTTP client returns.
func isNetwork(err error) bool {
	var network net.Error
	var file *fs.PathError
	var request *url.Error
	return errors.As(err, &network) && !errors.As(err, &file) && !errors.As(err, &request)
}

func unreachable(c config.Redis, err error) error {
	return fmt.Errorf("can't read Redis at %s (--redis-url): %w", c.URL, err)
}

// allinoneFile is where an allinone says how its Redis is reached.
const allinoneFile = "data/redis.url"

// allinoneURL finds the Redis of an allinone that runs in this folder, and
// whether it is an embedded one. The URL is zero if there is none.
func allinoneURL() (found config.RedisURL, embedded bool, err error) {
	b, err := os.ReadFile(filepath.FromSlash(allinoneFile))
	if errors.Is(err, fs.ErrNotExist) {
		return found, false, nil
	}
	if err != nil {
		// Not another Redis instead: its totals would be taken for these.
		return found, false, fmt.Errorf("can't read where allinone's Redis is (--redis-url names another): %w", err)
	}
	text, kind, _ := strings.Cut(string(b), "\n")
	if found, err = config.ParseRedisURL(text); err != nil {
		return found, false, fmt.Errorf("%s (--redis-url names another Redis): the URL %w", allinoneFile, err)
	}
	// The file outlives an allinone that was killed: see whether it lives.
	network, addr := "tcp", ""
	if path, ok := strings.CutPrefix(text, "unix://"); ok {
		network = "unix"
		addr, err = url.PathUnescape(path)
	} else if _, rest, ok := strings.Cut(text, "@"); ok {
		addr, _, _ = strings.Cut(rest, "/")
	}
	if err != nil {
		return config.RedisURL{}, false, fmt.Errorf("%s: %w", allinoneFile, err)
	}
	c, err := net.DialTimeout(network, addr, time.Second)
	if err != nil {
		return config.RedisURL{}, false, nil //nolint:nilerr // it has ended
	}
	_ = c.Close() // it was only a question
	return found, strings.TrimSpace(kind) == "embedded", nil
}

// withArchive opens the archive for a command.
func (a *app) withArchive(ctx context.Context, f func(blobstore.Store) error) error {
	s, err := service.OpenArchive(ctx, a.cfg.Archive)
	if err != nil {
		return err
	}
	return f(s)
}

// pollNotFound is the store's error for a poll that is not there.
func pollNotFound(id string) error {
	if !vote.ValidID(id) {
		return fmt.Errorf("poll %.80q: %w", config.WithoutSecret(id), vote.ErrPollNotFound) // it may hold anything
	}
	return fmt.Errorf("poll %s: %w", id, vote.ErrPollNotFound)
}

// checkIDs tells that polls with such ids can't be.
func checkIDs(ids []string) error {
	for _, id := range ids {
		if !vote.ValidID(id) {
			return pollNotFound(id)
		}
	}
	return nil
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
