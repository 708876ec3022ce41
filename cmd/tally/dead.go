package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"paredao/internal/config"
	"paredao/internal/redisstore"
	"paredao/internal/vote"
)

// deadElement is a line of tally dead list.
type deadElement struct {
	ID    string `json:"id"`
	Shard int    `json:"shard"`
	Bytes int    `json:"bytes"`
	// Votes by poll, as the header tells; empty if there is no readable one.
	Votes map[string]int64 `json:"votes"`
	// Reason is why it can't be read.
	Reason string `json:"reason"`
}

func (a *app) deadCommand() *cobra.Command {
	return group("dead", "List, requeue or drop elements that no consumer could read",
		&cobra.Command{
			Use: "list", Short: "List the dead elements", Args: noArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return a.withStore(cmd.Context(), func(s *redisstore.Store) error { return a.listDead(cmd, s) })
			},
		},
		a.removeDead("requeue", "Put dead elements back at the end of the queue",
			"Puts dead elements back at the end of the queue, as after an update of the\nconsumers that can read them. What still can't be read comes back.", true),
		a.removeDead("drop", "Give dead elements up for good",
			"Gives dead elements up for good. Their votes stay in the ledger as dropped, and\nthe audit shows them. This can't be undone: keep a copy with `tally dead list`.", false))
}

// eachDead calls f for every dead element of every shard, in order.
func eachDead(ctx context.Context, s *redisstore.Store, f func(redisstore.DeadElement) error) error {
	const page = 100
	for shard := range s.Shards() {
		for from := 0; ; {
			elements, err := s.Dead(ctx, shard, from, page)
			if err != nil {
				return err
			}
			if len(elements) == 0 {
				break
			}
			for _, e := range elements {
				if err := f(e); err != nil {
					return err
				}
			}
			from += len(elements)
		}
	}
	return nil
}

func (a *app) listDead(cmd *cobra.Command, s *redisstore.Store) error {
	codec, err := vote.NewCodec()
	if err != nil {
		return err
	}
	defer codec.Close()
	out := []deadElement{}
	sh := &sheet{head: []string{"id", "shard", "bytes", "votes", "reason"}}
	err = eachDead(cmd.Context(), s, func(e redisstore.DeadElement) error {
		d := deadElement{
			ID: vote.ElementID([]byte(e.Element)), Shard: e.Shard, Bytes: len(e.Element),
			Votes: map[string]int64{}, Reason: "readable by this version: requeue it",
		}
		h, err := codec.Read([]byte(e.Element), func(*vote.RawVote) {})
		if err != nil {
			d.Reason = err.Error()
		}
		var votes []string
		for _, p := range h.Polls {
			d.Votes[p.Poll] = p.Votes
			votes = append(votes, fmt.Sprintf("%s:%d", p.Poll, p.Votes))
		}
		out = append(out, d)
		sh.add(d.ID, itoa(d.Shard), itoa(d.Bytes), strings.Join(votes, " "), d.Reason)
		return nil
	})
	if err != nil {
		return err
	}
	return a.write(cmd.OutOrStdout(), out, sh)
}

func (a *app) removeDead(use, short, long string, requeue bool) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use: use + " ID…|--all", Short: short, Long: long, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, ids []string) error {
			if all == (len(ids) > 0) {
				return config.Usagef("%s needs the ids of dead elements, or --all; see tally dead list", cmd.CommandPath())
			}
			return a.withStore(cmd.Context(), func(s *redisstore.Store) error {
				done, err := removeDead(cmd.Context(), s, ids, all, requeue)
				sh := &sheet{head: []string{"id", "done"}}
				for _, id := range done {
					sh.add(id, use)
				}
				// What was done before an error is shown.
				if err == nil || len(done) > 0 {
					err = errors.Join(err, a.write(cmd.OutOrStdout(), map[string]any{use: done}, sh))
				}
				return err
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "all dead elements that there are now")
	return c
}

// removeDead removes the elements that are there when it begins, the last ones
// first, so that the places of the others stay as they were.
func removeDead(ctx context.Context, s *redisstore.Store, ids []string, all, requeue bool) ([]string, error) {
	var chosen []redisstore.DeadElement
	err := eachDead(ctx, s, func(e redisstore.DeadElement) error {
		if all || slices.Contains(ids, vote.ElementID([]byte(e.Element))) {
			chosen = append(chosen, e)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	done := []string{}
	for _, e := range slices.Backward(chosen) {
		ok, err := s.RemoveDead(ctx, e, requeue)
		if err != nil {
			return done, err
		}
		if ok {
			done = append(done, vote.ElementID([]byte(e.Element)))
		}
	}
	for _, id := range ids {
		if !slices.Contains(done, id) {
			return done, fmt.Errorf("there is no dead element %s; see tally dead list", printable(config.WithoutSecret(id)))
		}
	}
	return done, nil
}
