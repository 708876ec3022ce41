package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"paredao/internal/config"
	"paredao/internal/redisstore"
	"paredao/internal/vote"
)

// pollEvery is how often --watch and --final look.
const pollEvery = time.Second

func (a *app) totalsCommand() *cobra.Command {
	var watch, final bool
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "totals [POLL…]",
		Short: "Print each poll's totals",
		Long: `Prints each poll's totals, percentages and bars, the votes that are accepted
and not yet counted (pending), and whether the totals are final: the poll is
closed on every shard and nothing is pending.`,
		Example: `  tally totals
  tally totals paredao-07 -o json
  tally totals paredao-07 --final --timeout 5m`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case watch && final:
				return config.Usagef("--watch and --final exclude each other")
			case timeout != 0 && !final:
				return config.Usagef("--timeout goes with --final")
			case timeout < 0:
				return config.Usagef("wrong value %q for --timeout: must not be below 0", timeout)
			}
			if err := checkIDs(args); err != nil {
				return err
			}
			return a.withStore(cmd.Context(), func(s *redisstore.Store) error {
				switch {
				case watch:
					return a.watch(cmd.Context(), cmd.OutOrStdout(), s, args)
				case final:
					return a.final(cmd.Context(), cmd.OutOrStdout(), s, args, timeout)
				}
				results, err := readTotals(cmd.Context(), s, args)
				if err != nil {
					return err
				}
				return a.writeTotals(cmd.OutOrStdout(), results, nil)
			})
		},
	}
	c.Flags().BoolVar(&watch, "watch", false, "redraw in place every second, with votes a second, until Ctrl-C")
	c.Flags().BoolVar(&final, "final", false, "wait until the totals are final, then print them")
	c.Flags().DurationVar(&timeout, "timeout", 0, "with --final: how long to wait (0: for ever)")
	return c
}

// errNoPolls: to wait for no poll, or to audit none, would prove nothing.
var errNoPolls = errors.New("this Redis has no polls; define some with tally polls apply -f FILE, or see --redis-url")

// readTotals reads everything before anything is printed.
func readTotals(ctx context.Context, s *redisstore.Store, ids []string) ([]vote.PollResults, error) {
	polls, err := pollsNamed(ctx, s, ids)
	if err != nil {
		return nil, err
	}
	out := make([]vote.PollResults, 0, len(polls))
	for _, p := range polls {
		r, err := s.Results(ctx, p.ID)
		if err != nil {
			return nil, err
		}
		out = append(out, r.Show(&p.Poll))
	}
	return out, nil
}

// writeTotals writes the totals; rates are votes a second by poll, if known.
func (a *app) writeTotals(w io.Writer, results []vote.PollResults, rates map[string]float64) error {
	switch a.output {
	case "json":
		return writeJSON(w, results)
	case "csv":
		s := &sheet{head: []string{"poll", "title", "status", "final", "as_of", "total", "pending", "option", "name", "votes", "percent"}}
		for _, r := range results {
			for _, o := range r.Options {
				s.add(r.Poll, r.Title, string(r.Status), strconv.FormatBool(r.Final), r.AsOf.Format(time.RFC3339Nano),
					itoa(r.Total), itoa(r.Pending), o.ID, o.Name, itoa(o.Votes), o.Percent.String())
			}
		}
		return s.csv(w)
	}
	if len(results) == 0 {
		if _, err := fmt.Fprintln(w, "No polls. Define some with: tally polls apply -f FILE"); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		return nil
	}
	for i, r := range results {
		if i > 0 {
			if _, err := fmt.Fprintln(w); err != nil {
				return fmt.Errorf("write: %w", err)
			}
		}
		if err := drawPoll(w, r, rates); err != nil {
			return err
		}
	}
	return nil
}

const barWidth = 30

func drawPoll(w io.Writer, r vote.PollResults, rates map[string]float64) error {
	head := fmt.Sprintf("%s  %s  [%s]", r.Poll, printable(r.Title), r.Status)
	if rate, ok := rates[r.Poll]; ok {
		head += fmt.Sprintf("  %.0f votes/s", rate)
	}
	if _, err := fmt.Fprintln(w, head); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	s := &sheet{head: []string{"  option", "votes", "percent", ""}}
	for _, o := range r.Options {
		bar := strings.Repeat("█", int(o.Percent)*barWidth/10000)
		name := o.ID
		if o.Name != o.ID {
			name += " (" + o.Name + ")"
		}
		s.add("  "+name, itoa(o.Votes), o.Percent.String()+" %", bar)
	}
	final := "not final"
	if r.Final {
		final = "final"
	}
	s.add("  total", itoa(r.Total), "", fmt.Sprintf("%d pending, %s", r.Pending, final))
	return s.table(w)
}

// watch redraws until ctx is done. On anything but a terminal it prints one
// state after the other.
func (a *app) watch(ctx context.Context, w io.Writer, s *redisstore.Store, ids []string) error {
	redraw := isTerminal(w) && a.output == "table"
	var before map[string]int64
	var at time.Time
	for {
		results, err := readTotals(ctx, s, ids)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // Ctrl-C is how a watch ends
		}
		if err != nil {
			return err
		}
		now := time.Now()
		rates := map[string]float64{}
		totals := map[string]int64{}
		for _, r := range results {
			totals[r.Poll] = r.Total
			if had, ok := before[r.Poll]; ok {
				rates[r.Poll] = float64(r.Total-had) / now.Sub(at).Seconds()
			}
		}
		before, at = totals, now
		if redraw {
			// Home, and clear what was below.
			if _, err := io.WriteString(w, "\x1b[H\x1b[2J"); err != nil {
				return fmt.Errorf("write: %w", err)
			}
		}
		if err := a.writeTotals(w, results, rates); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollEvery):
		}
	}
}

// final waits until every poll is final.
func (a *app) final(ctx context.Context, w io.Writer, s *redisstore.Store, ids []string, timeout time.Duration) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	open := "Redis has not answered"
	for {
		results, err := readTotals(ctx, s, ids)
		switch {
		case err == nil && len(results) == 0:
			return errNoPolls
		case err == nil && len(notFinal(results)) == 0:
			return a.writeTotals(w, results, nil)
		case err == nil:
			open = strings.Join(notFinal(results), ", ")
		case ctx.Err() == nil:
			return err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("not final after %s: %s", timeout, open)
			}
			return ctx.Err()
		case <-time.After(pollEvery / 4):
		}
	}
}

func notFinal(results []vote.PollResults) []string {
	var out []string
	for _, r := range results {
		if !r.Final {
			out = append(out, fmt.Sprintf("%s is %s with %d pending", r.Poll, r.Status, r.Pending))
		}
	}
	return out
}
