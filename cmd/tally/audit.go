package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"paredao/internal/audit"
	"paredao/internal/blobstore"
	"paredao/internal/redisstore"
	"paredao/internal/vote"
)

func (a *app) auditCommand() *cobra.Command {
	var recount bool
	c := &cobra.Command{
		Use:   "audit [POLL…]",
		Short: "Prove that every accepted vote was counted exactly once",
		Long: `Checks, per poll and shard, at one instant of each shard:

  accepted = counted + queued + dead + dropped
  counted  = archived + awaiting archive
  counted  = the sum of the tally

and that no vote is for an option that its poll does not have. queued, dead and awaiting archive are counted in the frames themselves. With
--recount every row of the archive is read as well, and each option's tally is
compared with it; what the archive has and Redis has lost is named, and
tally restore adds it.

Exit code 3: something does not add up; what, is said on standard output.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkIDs(args); err != nil {
				return err
			}
			return a.withStore(cmd.Context(), func(s *redisstore.Store) error {
				p := audit.Params{Source: s, Shards: s.Shards()}
				if !recount {
					return a.runAudit(cmd, s, p, args)
				}
				return a.withArchive(cmd.Context(), func(b blobstore.Store) error {
					bar := newBar(cmd.ErrOrStderr(), "recounting")
					p.Recount, p.Blobs, p.Progress = true, b, bar.progress
					defer bar.finish()
					return a.runAudit(cmd, s, p, args)
				})
			})
		},
	}
	c.Flags().BoolVar(&recount, "recount", false, "also read the whole archive and compare each option")
	return c
}

// audited audits the polls that are named, or all. A poll that was applied
// meanwhile would look like a stranger, or its votes like forged ones, so then it
// is done again.
func audited(ctx context.Context, s *redisstore.Store, p audit.Params, ids []string) (*audit.Report, error) {
	if len(ids) > 0 {
		p.Polls = slices.Compact(slices.Sorted(slices.Values(ids)))
		for _, id := range p.Polls {
			if _, err := s.Poll(ctx, id); err != nil {
				return nil, err
			}
		}
	}
	for {
		var err error
		if len(ids) == 0 {
			p.All = true
			if p.Polls, p.Undefined, err = s.KnownPolls(ctx); err != nil {
				return nil, err
			}
		}
		if p.Options, err = pollOptions(ctx, s); err != nil {
			return nil, err
		}
		report, err := audit.Audit(ctx, p)
		if err != nil {
			return nil, err
		}
		if report.OK() {
			if len(p.Polls) == 0 {
				return nil, errNoPolls
			}
			return report, nil
		}
		options, err := pollOptions(ctx, s)
		if err != nil {
			return nil, err
		}
		polls, undefined := p.Polls, p.Undefined
		if p.All {
			if polls, undefined, err = s.KnownPolls(ctx); err != nil {
				return nil, err
			}
		}
		if slices.Equal(polls, p.Polls) && slices.Equal(undefined, p.Undefined) && maps.EqualFunc(options, p.Options, slices.Equal) {
			return report, nil
		}
	}
}

// pollOptions are the options of every poll by id.
func pollOptions(ctx context.Context, s *redisstore.Store) (map[string][]string, error) {
	polls, err := s.Polls(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[string][]string, len(polls))
	for _, p := range polls {
		ids := make([]string, len(p.Options))
		for i, o := range p.Options {
			ids[i] = o.ID
		}
		out[p.ID] = ids
	}
	return out, nil
}

func (a *app) runAudit(cmd *cobra.Command, s *redisstore.Store, p audit.Params, ids []string) error {
	report, err := audited(cmd.Context(), s, p, ids)
	if errors.Is(err, errNoPolls) || errors.Is(err, vote.ErrPollNotFound) {
		return err
	}
	if err != nil {
		return fmt.Errorf("the audit could not be done: %w", err)
	}
	if err := a.writeAudit(cmd.OutOrStdout(), report); err != nil {
		return err
	}
	if !report.OK() {
		return &exitError{exitDifference, fmt.Errorf("the audit found a difference (%d in all): %s",
			len(report.Differences), describe(report.Differences[0]))}
	}
	return nil
}

func (a *app) writeAudit(w io.Writer, r *audit.Report) error {
	s := &sheet{head: []string{
		"poll", "accepted", "counted", "queued", "dead", "dropped", "archived", "awaiting_archive", "recounted", "ok",
	}}
	if a.output == "csv" { // a table has them below
		s.head = append(s.head, "differences")
	}
	for _, p := range r.Polls {
		recounted := ""
		if p.Recounted != nil {
			recounted = itoa(*p.Recounted)
		}
		row := []string{
			p.Poll, itoa(p.Accepted), itoa(p.Counted), itoa(p.Queued), itoa(p.Dead), itoa(p.Dropped),
			itoa(p.Archived), itoa(p.Awaiting), recounted, strconv.FormatBool(p.OK),
		}
		if a.output == "csv" {
			row = append(row, differencesOf(p.Poll, r))
		}
		s.add(row...)
	}
	if a.output == "csv" {
		for _, poll := range strangers(r) {
			s.add(poll, "", "", "", "", "", "", "", "", "false", differencesOf(poll, r))
		}
	}
	if err := a.write(w, r, s); err != nil || a.output != "table" {
		return err
	}
	for _, d := range r.Differences {
		if _, err := fmt.Fprintln(w, "DIFFERENCE: "+describe(d)); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	verdict := "Everything adds up."
	if !r.OK() {
		verdict = "It does not add up."
	}
	if _, err := fmt.Fprintf(w, "%s As of %s.\n", verdict, r.AsOf.Format(time.RFC3339Nano)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// differencesOf are those of a poll, and those of no poll in particular.
func differencesOf(poll string, r *audit.Report) string {
	var out []string
	for _, d := range r.Differences {
		if d.Poll == poll || d.Poll == "" {
			out = append(out, describe(d))
		}
	}
	return strings.Join(out, "; ")
}

// strangers are the polls of differences that are none of the audited ones; one
// of no poll in particular stands for all, so it is among them only where there
// are none.
func strangers(r *audit.Report) []string {
	var out []string
	for _, d := range r.Differences {
		known := slices.ContainsFunc(r.Polls, func(p audit.PollAudit) bool { return p.Poll == d.Poll || d.Poll == "" })
		if !known && !slices.Contains(out, d.Poll) {
			out = append(out, d.Poll)
		}
	}
	return out
}

// describe says a difference on one line.
func describe(d audit.Difference) string {
	text := fmt.Sprintf("shard %d: %s", d.Shard, d.What)
	if d.Poll != "" {
		text = "poll " + d.Poll + ", " + text
	}
	if len(d.Frames) > 0 {
		text += ": " + strings.Join(d.Frames[:min(len(d.Frames), 10)], " ")
		if len(d.Frames) > 10 {
			text += " … (-o json names all)"
		}
	}
	return printable(text) // it may quote what somebody wrote into Redis
}

func (a *app) recountCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "recount [POLL…]",
		Short: "Count the votes again from the archive alone",
		Long: `Counts the votes again from the archive alone, reading every row. It needs no
Redis. A frame that was archived twice is counted once. Votes that are not yet
archived are not in it.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkIDs(args); err != nil {
				return err
			}
			return a.withArchive(cmd.Context(), func(b blobstore.Store) error {
				bar := newBar(cmd.ErrOrStderr(), "recounting")
				totals, err := audit.Recount(cmd.Context(), b, args, bar.progress)
				bar.finish()
				if err != nil {
					return fmt.Errorf("the recount could not be done: %w", err)
				}
				for _, name := range totals.Foreign {
					a.log.Warn("this object beside the manifests is none; it was passed over", "object", name)
				}
				if totals.Batches == 0 {
					return fmt.Errorf("the archive at %s (--archive-url) holds no batches", b)
				}
				for _, id := range args {
					if totals.Votes[id] == nil {
						return fmt.Errorf("poll %s has no votes in the archive at %s: %w", id, b, vote.ErrPollNotFound)
					}
				}
				return a.writeRecount(cmd.OutOrStdout(), totals)
			})
		},
	}
}

// recounted is a poll's totals in the archive.
type recounted struct {
	Poll    string            `json:"poll"`
	Total   int64             `json:"total"`
	Options []recountedOption `json:"options"`
}

type recountedOption struct {
	ID      string       `json:"id"`
	Votes   int64        `json:"votes"`
	Percent vote.Percent `json:"percent"`
}

func (a *app) writeRecount(w io.Writer, t *audit.Totals) error {
	out := []recounted{}
	s := &sheet{head: []string{"poll", "option", "votes", "percent"}}
	for _, poll := range slices.Sorted(maps.Keys(t.Votes)) {
		r := recounted{Poll: poll}
		options := slices.Sorted(maps.Keys(t.Votes[poll]))
		votes := make([]int64, len(options))
		for i, o := range options {
			votes[i] = t.Votes[poll][o]
			r.Total += votes[i]
		}
		for i, percent := range vote.Percentages(votes) {
			r.Options = append(r.Options, recountedOption{options[i], votes[i], percent})
			s.add(poll, options[i], itoa(votes[i]), percent.String())
		}
		out = append(out, r)
	}
	if err := a.write(w, out, s); err != nil || a.output != "table" {
		return err
	}
	if _, err := fmt.Fprintf(w, "%d batches, %d objects, %d frames; %d frames were archived more than once and counted once.\n",
		t.Batches, t.Objects, t.Frames, t.Repeated); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// bar shows progress on a terminal, and nothing elsewhere.
type bar struct{ b *progressbar.ProgressBar }

func newBar(w io.Writer, what string) *bar {
	if !isTerminal(w) {
		return &bar{}
	}
	return &bar{progressbar.NewOptions64(1, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("votes"),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())}
}

func (b *bar) progress(done, total int64) {
	if b.b == nil {
		return
	}
	b.b.ChangeMax64(total)
	_ = b.b.Set64(done) // a bar that can't be drawn stops nothing
}

func (b *bar) finish() {
	if b.b != nil {
		_ = b.b.Finish()
	}
}
