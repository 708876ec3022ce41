package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"paredao/internal/config"
	"paredao/internal/pollfile"
	"paredao/internal/redisstore"
	"paredao/internal/service"
	"paredao/internal/vote"
)

func (a *app) pollsCommand() *cobra.Command {
	return group("polls", "Define, list, open and close polls",
		a.pollsApply(), a.pollsList(), a.pollsShow(),
		a.pollsWindow("open", "Open a scheduled poll now",
			"Opens a scheduled poll now. An open one stays as it is. A closed poll never\nopens again, since its final totals can't be taken back.", (*redisstore.Store).OpenPoll),
		a.pollsWindow("close", "Close a poll now",
			"Closes a poll now, by Redis's clock. Once the command has returned, no api gets\nanother vote in; votes accepted before are still counted. This can't be undone.", (*redisstore.Store).ClosePoll))
}

// change is a poll and what applying its definition did.
type change struct {
	Poll   string `json:"poll"`
	Change string `json:"change"`
}

func (a *app) pollsApply() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "apply -f FILE|-",
		Short: "Define polls from a YAML or JSON file",
		Long: `Defines polls from a YAML or JSON file, or changes them. Applying the same file
again changes nothing. The whole file is checked before anything is written.

What has happened stays: a poll that has opened does not become scheduled again,
and one that has closed does not open again ("kept"). The options of a poll with
votes can't change; names, titles and a closing time to come may.`,
		Example: "  tally polls apply -f polls.yaml\n  cat polls.json | tally polls apply -f -",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return config.Usagef("tally polls apply needs -f FILE, or -f - for standard input")
			}
			defs, err := readPolls(cmd.Context(), cmd.InOrStdin(), file)
			if err != nil {
				return err
			}
			return a.withStore(cmd.Context(), func(s *redisstore.Store) error {
				if err := s.CheckShards(cmd.Context()); err != nil {
					return err
				}
				done := []change{}
				sh := &sheet{head: []string{"poll", "change"}}
				err := service.ApplyPolls(cmd.Context(), s, defs, func(id string, ap redisstore.Applied) {
					done = append(done, change{id, ap.Change})
					sh.add(id, ap.Change)
					if ap.Change == "kept" {
						a.log.Warn("the poll has opened or closed already: its window was not changed as the file says", "poll", id)
					}
				})
				// What was written before an error is shown.
				if len(done) > 0 {
					err = errors.Join(err, a.write(cmd.OutOrStdout(), done, sh))
				}
				return err
			})
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the file, or - for standard input")
	return c
}

func readPolls(ctx context.Context, stdin io.Reader, file string) ([]pollfile.Definition, error) {
	if file == "-" {
		return parseStdin(ctx, stdin)
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("polls file: %w", err)
	}
	defs, err := pollfile.Parse(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return defs, nil
}

// parseStdin does not wait for input when ctx is done.
func parseStdin(ctx context.Context, stdin io.Reader) ([]pollfile.Definition, error) {
	type parsed struct {
		defs []pollfile.Definition
		err  error
	}
	done := make(chan parsed, 1)
	go func() {
		defs, err := pollfile.Parse(stdin)
		done <- parsed{defs, err}
	}()
	select {
	case p := <-done:
		return p.defs, p.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (a *app) pollsList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List all polls", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.showPolls(cmd, nil) },
	}
}

func (a *app) pollsShow() *cobra.Command {
	return &cobra.Command{
		Use: "show POLL", Short: "Show a poll's definition and status", Args: onePoll,
		RunE: func(cmd *cobra.Command, args []string) error { return a.showPolls(cmd, args) },
	}
}

// showPolls shows all polls in a list, or one with its options.
func (a *app) showPolls(cmd *cobra.Command, ids []string) error {
	if err := checkIDs(ids); err != nil {
		return err
	}
	return a.withStore(cmd.Context(), func(s *redisstore.Store) error {
		polls, err := pollsNamed(cmd.Context(), s, ids)
		if err != nil {
			return err
		}
		shards, err := s.ShardPolls(cmd.Context())
		if err != nil {
			return err
		}
		for i := range polls {
			polls[i].Status = vote.StatusOf(polls[i].ID, shards)
		}
		if len(ids) == 1 {
			p := polls[0]
			sh := &sheet{head: []string{"poll", "title", "status", "opens_at", "closes_at", "option", "name"}}
			for _, o := range p.Options {
				sh.add(p.ID, p.Title, string(p.Status), when(p.Opens), when(p.Closes), o.ID, o.Name)
			}
			return a.write(cmd.OutOrStdout(), p, sh)
		}
		if polls == nil {
			polls = []vote.PollState{}
		}
		sh := &sheet{head: []string{"poll", "status", "opens_at", "closes_at", "options", "title"}}
		for _, p := range polls {
			sh.add(p.ID, string(p.Status), when(p.Opens), when(p.Closes), itoa(len(p.Options)), p.Title)
		}
		return a.write(cmd.OutOrStdout(), polls, sh)
	})
}

func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

func (a *app) pollsWindow(use, short, long string, do func(*redisstore.Store, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " POLL", Short: short, Long: long, Args: onePoll,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkIDs(args); err != nil {
				return err
			}
			return a.withStore(cmd.Context(), func(s *redisstore.Store) error {
				if err := do(s, cmd.Context(), args[0]); err != nil {
					return err
				}
				shards, err := s.ShardPolls(cmd.Context())
				if err != nil {
					return err
				}
				status := vote.StatusOf(args[0], shards)
				sh := &sheet{head: []string{"poll", "status"}}
				sh.add(args[0], string(status))
				return a.write(cmd.OutOrStdout(), map[string]any{"poll": args[0], "status": status}, sh)
			})
		},
	}
}
