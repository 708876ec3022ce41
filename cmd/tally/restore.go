package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"paredao/internal/audit"
	"paredao/internal/blobstore"
	"paredao/internal/config"
	"paredao/internal/redisstore"
)

func (a *app) restoreCommand() *cobra.Command {
	p := audit.RestoreParams{Every: pollEvery}
	c := &cobra.Command{
		Use:   "restore",
		Short: "Give a Redis back the votes that it has lost and the archive has",
		Long: `Adds to Redis the votes that the archive has and Redis has lost: after a crash
under "appendfsync everysec", after a failover to a replica that was behind, or
after a Redis was lost whole. tally audit --recount names such votes; their
tallies and the ledger are completed, and each vote counts once.

  1. Start Redis, consumers and archivers. Votes may come in.
  2. Where Redis has lost the polls too: tally polls apply -f FILE, then close
     those that had been closed by hand (tally polls close POLL).
  3. tally restore --dry-run, then tally restore.
  4. tally audit --recount

What has come back into a queue or into the list that awaits archiving is not
lost: the restore waits until consumers and archivers have carried it through.
It also waits until a vote is older than --settle, which must be longer than
the apis' enqueue-timeout: until then an api may send it again.

It may be interrupted and run again at any time, and does nothing twice.

Idempotency keys are not restored: a voter who sends a vote again whose answer
was lost with Redis counts twice. Votes that were never archived can't come back.`,
		Example: "  tally restore --dry-run\n  tally restore --timeout 30m",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for flag, value := range map[string]time.Duration{"settle": p.Settle, "timeout": p.Timeout} {
				if value < 0 {
					return config.Usagef("wrong value %q for --%s: must not be below 0", value, flag)
				}
			}
			return a.withStore(cmd.Context(), func(s *redisstore.Store) error {
				return a.withArchive(cmd.Context(), func(b blobstore.Store) error {
					p.Waiting = func(text string) { fmt.Fprintln(cmd.ErrOrStderr(), "waiting: "+printable(text)) }
					return a.restore(cmd, s, b, p)
				})
			})
		},
	}
	c.Flags().BoolVar(&p.DryRun, "dry-run", false, "say what would be restored; write nothing and wait for nothing")
	c.Flags().DurationVar(&p.Settle, "settle", 30*time.Second, "age that a lost vote must have; longer than the apis' enqueue-timeout")
	c.Flags().DurationVar(&p.Timeout, "timeout", 10*time.Minute, "how long to wait for consumers and archivers")
	return c
}

func (a *app) restore(cmd *cobra.Command, s *redisstore.Store, b blobstore.Store, p audit.RestoreParams) error {
	ctx := cmd.Context()
	p.Redis, p.Shards, p.Blobs = s, s.Shards(), b
	var err error
	if p.Options, err = definedOptions(ctx, s); err != nil {
		return err
	}
	done, err := audit.Restore(ctx, p)
	if err != nil {
		err = fmt.Errorf("the restore could not be done: %w", err)
	} else if done.Archived == 0 {
		return fmt.Errorf("the archive at %s (--archive-url) holds no batches", b)
	}
	// What was done before an error is shown.
	if err == nil || len(done.Batches) > 0 {
		err = errors.Join(err, a.writeRestored(cmd.OutOrStdout(), done))
	}
	return err
}

// definedOptions are the options of each poll that is whole on every shard.
func definedOptions(ctx context.Context, s *redisstore.Store) (map[string][]string, error) {
	options, err := pollOptions(ctx, s)
	if err != nil {
		return nil, err
	}
	_, undefined, err := s.KnownPolls(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range undefined {
		delete(options, id)
	}
	return options, nil
}

func (a *app) writeRestored(w io.Writer, r *audit.Restored) error {
	s := &sheet{head: []string{"poll", "option", "votes", "poll_frames", "dry_run"}}
	for _, p := range r.Polls {
		for _, o := range p.Options {
			s.add(p.Poll, o.ID, itoa(o.Votes), strconv.Itoa(p.Frames), strconv.FormatBool(r.DryRun))
		}
	}
	if a.output != "table" {
		return a.write(w, r, s)
	}
	// In a table a sentence says the last column.
	s.head = s.head[:4]
	for i := range s.rows {
		s.rows[i] = s.rows[i][:4]
	}
	if len(s.rows) > 0 {
		if err := s.table(w); err != nil {
			return err
		}
	}
	for _, text := range r.Waiting {
		if _, err := fmt.Fprintln(w, "Not yet: "+printable(text)); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	if _, err := fmt.Fprintln(w, sayRestored(r)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// sayRestored says the whole in a sentence.
func sayRestored(r *audit.Restored) string {
	if len(r.Batches)+len(r.Waiting) == 0 {
		return fmt.Sprintf("Nothing to restore: Redis knows all %d batches of the archive.", r.Archived)
	}
	var frames, known int
	var votes int64
	for _, b := range r.Batches {
		frames, known, votes = frames+b.Frames, known+b.Known, votes+b.Votes
	}
	verb := "Restored"
	if r.DryRun {
		verb = "Nothing was written. To be restored are"
	}
	return fmt.Sprintf("%s %d votes in %d frames of %d batches; %d more of their frames Redis had already.",
		verb, votes, frames, len(r.Batches), known)
}
