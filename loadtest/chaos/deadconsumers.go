package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"paredao/internal/ledger"
)

// What the scenario dead-consumers does and promises.
const (
	deadShards      = 4
	deadOwners      = 3
	defaultOwnerTTL = 5 * time.Second // the default
	// countedWithin is when a fresh consumer has counted all, from its start.
	countedWithin = defaultOwnerTTL + 2*time.Second
)

// runDeadConsumers kills all consumers in the middle of their chunks, and starts
// a fresh one:
//
//	ledger client ─▶ api ─▶ Redis ◀─ proxy (holds their commits) ◀─ 3 consumers, killed; then one
func runDeadConsumers(ctx context.Context, r *run) (err error) {
	rounds := max(1, r.seconds/30)
	s, err := startStack(ctx, stackParams{
		bin: r.bin, dir: r.dir, root: r.root, shards: deadShards, fsync: r.fsyncOr("everysec"),
		apis: 1, consumers: deadOwners, archivers: 1, choices: ledgerVotes(), proxied: true,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.end(context.WithoutCancel(ctx), err != nil)) }()
	urls, err := s.apiURLs(ctx)
	if err != nil {
		return err
	}
	source, err := ledger.Draw([]int{2, 1}, 0, r.seed)
	if err != nil {
		return err
	}
	l, err := r.startLoad(ctx, ledger.Params{URLs: urls, Choices: ledgerVotes(), Source: source, Connections: 64, Keyless: 0.3, Rate: 3000})
	if err != nil {
		return err
	}
	defer l.stop()
	var rows [][]string
	var errs []error
	for round := range rounds {
		row, err := killInChunk(ctx, s)
		if row == nil {
			return err
		}
		r.say("round %d of %d: %s", round+1, rounds, strings.Join(row, ", "))
		rows, errs = append(rows, row), append(errs, err)
	}
	r.report.row("owner-ttl", defaultOwnerTTL)
	r.report.row("promised: counted within", countedWithin)
	r.report.table("Rounds", []string{"commits held at the kill", "votes waiting when the fresh one starts", "of them counted after", "first vote counted after"}, rows)
	errs = append(errs, s.well(ctx))
	l.stop()
	_, err = r.judge(ctx, s, l)
	return errors.Join(append(errs, err)...)
}

// killInChunk is a round. It needs all consumers to run and leaves them so.
func killInChunk(ctx context.Context, s *stack) ([]string, error) {
	if err := untilOwned(ctx, s); err != nil {
		return nil, err
	}
	// Each consumer's next commit is held before it reaches Redis: they stand in
	// the middle of their chunks. The votes go on.
	var held []<-chan struct{}
	var release []func()
	for range deadShards {
		h, free := s.links[consumer].proxy.HoldNext(isCommit)
		held, release = append(held, h), append(release, free)
		defer free()
	}
	patience := time.NewTimer(startPatience)
	defer patience.Stop()
	inChunk := 0
	for _, h := range held {
		select {
		case <-h:
			inChunk++
		case <-patience.C:
			return nil, fmt.Errorf("%d of %d shards were seen in a commit within %s", inChunk, deadShards, startPatience)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	if !wait(ctx, 2*time.Second) { // more votes wait
		return nil, context.Cause(ctx)
	}
	for _, c := range s.consumers {
		c.Kill()
	}
	// Their commands never arrive: the machine that sent them is gone.
	s.links[consumer].proxy.CutAll()
	for _, free := range release {
		free()
	}
	waiting, err := waitingVotes(ctx, s)
	if err != nil {
		return nil, err
	}
	before, err := countedVotes(ctx, s)
	if err != nil {
		return nil, err
	}
	// All that has been accepted until now.
	target := before + waiting
	began := time.Now()
	if err := s.consumers[0].Restart(); err != nil {
		return nil, err
	}
	var first, all time.Duration
	for all == 0 {
		counted, err := countedVotes(ctx, s)
		if err != nil {
			return nil, err
		}
		if counted > before && first == 0 {
			first = time.Since(began)
		}
		old, err := oldestBefore(ctx, s, began)
		if err != nil {
			return nil, err
		}
		switch {
		case counted >= target && !old:
			all = time.Since(began)
		case time.Since(began) > 10*countedWithin:
			return nil, fmt.Errorf("%d of %d votes were counted %s after the fresh consumer's start", counted-before, waiting, time.Since(began))
		}
		if !wait(ctx, 5*time.Millisecond) {
			return nil, context.Cause(ctx)
		}
	}
	for _, c := range s.consumers[1:] {
		if err := c.Restart(); err != nil {
			return nil, err
		}
	}
	row := []string{fmt.Sprint(inChunk), commas(waiting), all.Round(time.Millisecond).String(), first.Round(time.Millisecond).String()}
	if all > countedWithin {
		return row, fmt.Errorf("a fresh consumer had counted what the dead ones had left %s after its start, promised are %s",
			all.Round(time.Millisecond), countedWithin)
	}
	return row, nil
}

// isCommit tells a consumer's commit by its first keys.
func isCommit(cmd []string) bool {
	return len(cmd) > 5 && strings.HasPrefix(strings.ToUpper(cmd[0]), "EVAL") &&
		strings.HasPrefix(cmd[3], "votes:{") && strings.HasPrefix(cmd[4], "archive:{")
}

// untilOwned waits until each shard has an owner that lives, and each consumer
// has a shard.
func untilOwned(ctx context.Context, s *stack) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		sum, all := 0.0, true
		for _, c := range s.consumers {
			n, err := c.Metric(ctx, "paredao_shards_owned")
			all = all && err == nil && n > 0
			sum += n
		}
		if all && sum == deadShards {
			return nil
		}
		if !wait(ctx, 50*time.Millisecond) {
			return fmt.Errorf("the consumers own %v shards: %w", sum, context.Cause(ctx))
		}
	}
}

// waitingVotes is how many votes wait to be counted.
func waitingVotes(ctx context.Context, s *stack) (int64, error) {
	queues, err := s.store.Queues(ctx)
	var sum int64
	for _, q := range queues {
		sum += q.Votes
	}
	return sum, err
}

// oldestBefore tells whether a vote waits that was accepted before a moment.
// Both clocks are this machine's.
func oldestBefore(ctx context.Context, s *stack, at time.Time) (bool, error) {
	queues, err := s.store.Queues(ctx)
	for _, q := range queues {
		if q.Frames > 0 && q.Oldest.Before(at) {
			return true, err
		}
	}
	return false, err
}

func countedVotes(ctx context.Context, s *stack) (int64, error) {
	r, err := s.store.Results(ctx, ledgerVotes()[0].Poll)
	return r.Ledger.Counted, err
}
