package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"paredao/internal/ledger"
	"paredao/internal/vote"
)

// runRestore loses Redis as a whole after a load, and has it come back from the
// archive: with all that was archived, and fit to take votes again.
func runRestore(ctx context.Context, r *run) (err error) {
	r.mayForget = true
	before := []ledger.Choice{{Poll: "before", Option: "ana"}, {Poll: "before", Option: "bruno"}}
	later := []ledger.Choice{{Poll: "later", Option: "yes"}, {Poll: "later", Option: "no"}}
	s, err := startStack(ctx, stackParams{
		bin: r.bin, dir: r.dir, root: r.root, shards: r.shards, fsync: r.fsyncOr("everysec"),
		apis: 2, consumers: 2, archivers: 1, azurite: r.archive == "azurite", choices: append(before[:2:2], later...),
	})
	if err != nil {
		return err
	}
	failed := true
	defer func() { err = errors.Join(err, s.end(context.WithoutCancel(ctx), failed || err != nil)) }()

	r.report.begins("first load")
	l, err := r.burst(ctx, s, before)
	if err != nil {
		return err
	}
	if err := ledger.Drain(ctx, s.store, drainPatience, func(left string) { r.say("drain: %s", left) }); err != nil {
		return err
	}
	r.say("redis-server is lost, with all its files")
	s.redis.Kill()
	if err := errors.Join(os.RemoveAll(s.redis.Dir), os.MkdirAll(s.redis.Dir, 0o755)); err != nil {
		return err
	}
	if err := s.redis.Start(ctx); err != nil {
		return err
	}
	if err := r.applyPolls(ctx, s, pollsOf(s.p.choices)); err != nil {
		return err
	}
	frames, err := r.restore(ctx, s)
	if err != nil {
		return err
	}
	if frames == 0 {
		return errors.New("the audit names nothing that a new Redis lacks")
	}
	again, err := r.tallyRestore(ctx, s)
	if err != nil {
		return err
	}
	if again != (restored{}) {
		return fmt.Errorf("a second restore restores %d votes again", again.votes)
	}
	if _, err := r.judge(ctx, s, l); err != nil {
		return err
	}
	r.say("and votes are taken again")
	r.report.begins("second load")
	if l, err = r.burst(ctx, s, later); err != nil {
		return err
	}
	result, err := r.judge(ctx, s, l)
	if err == nil && result.Acked == 0 {
		err = errors.New("no vote is taken after the restore")
	}
	failed = err != nil
	return err
}

// burst posts votes for half of the run's time.
func (r *run) burst(ctx context.Context, s *stack, choices []ledger.Choice) (*load, error) {
	urls, err := s.apiURLs(ctx)
	if err != nil {
		return nil, err
	}
	source, err := ledger.Draw([]int{2, 1}, 0, r.seed)
	if err != nil {
		return nil, err
	}
	l, err := r.startLoad(ctx, ledger.Params{URLs: urls, Choices: choices, Source: source, Keyless: 0.3})
	if err != nil {
		return nil, err
	}
	defer l.stop()
	if !wait(ctx, r.length()/2) {
		return nil, errors.New("interrupted")
	}
	return l, s.well(ctx)
}

// applyPolls defines polls as an operator would.
func (r *run) applyPolls(ctx context.Context, s *stack, polls []vote.Poll) error {
	var b strings.Builder
	b.WriteString("polls:\n")
	for _, p := range polls {
		fmt.Fprintf(&b, "  - id: %s\n    title: %s\n    options:\n", p.ID, p.Title)
		for _, o := range p.Options {
			fmt.Fprintf(&b, "      - {id: %q, name: %q}\n", o.ID, o.Name)
		}
	}
	file := filepath.Join(r.dir, "polls.yaml")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return err
	}
	out, err := s.tally(ctx, "polls", "apply", "-f", file)
	if err != nil {
		return fmt.Errorf("tally polls apply: %w: %s", err, out)
	}
	return nil
}
