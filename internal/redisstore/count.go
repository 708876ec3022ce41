package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"paredao/internal/vote"
)

// ReadQueue returns the first elements of a shard's queue. It takes nothing
// off.
func (s *Store) ReadQueue(ctx context.Context, shard int, limit vote.ReadLimit) ([]string, error) {
	return s.read(ctx, []string{shardKeys(shard).votes()}, 0, limit)
}

func (s *Store) read(ctx context.Context, keys []string, from int, limit vote.ReadLimit, batch ...any) ([]string, error) {
	args := append([]any{from, limit.Votes, limit.Bytes, limit.Elements}, batch...)
	frames, err := s.lua.read.Run(ctx, s.rdb, keys, args...).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", keys[0], err)
	}
	return frames, nil
}

// CommitCount counts: if the queue still begins with the elements that were
// read, their votes enter the tallies and they move on. It also returns Redis's
// time. Calling it again with the same token is harmless.
func (s *Store) CommitCount(ctx context.Context, c *vote.CountCommit) (vote.CommitStatus, time.Time, error) {
	k := shardKeys(c.Shard)
	keys := []string{k.votes(), k.archive(), k.dead(), k.ledger()}
	args := []any{c.Token, c.Elements, c.First, c.Last, c.Digest, len(c.Dead), len(c.Counts) + len(c.DeadVotes)}
	for _, d := range c.Dead {
		args = append(args, d)
	}
	polls := slices.Sorted(maps.Keys(c.Counts))
	for _, p := range polls {
		var sum int64
		for _, n := range c.Counts[p] {
			sum += n
		}
		args = append(args, "counted:"+p, sum)
	}
	for _, d := range c.DeadVotes {
		args = append(args, "dead:"+d.Poll, d.Votes)
	}
	for _, p := range polls {
		keys = append(keys, k.tally(p))
		args = append(args, len(c.Counts[p]))
		for field, n := range c.Counts[p] {
			args = append(args, field, n)
		}
	}
	out, err := s.lua.commit.Run(ctx, s.rdb, keys, args...).Int64Slice()
	if err != nil {
		return vote.CommitRefused, time.Time{}, fmt.Errorf("count on shard %d: %w", c.Shard, err)
	}
	if len(out) != 2 {
		return vote.CommitRefused, time.Time{}, fmt.Errorf("count on shard %d: %w", c.Shard, errAnswer)
	}
	status := vote.CommitRefused
	if out[0] == 1 {
		status = vote.CommitDone
	}
	return status, millis(out[1]), nil
}

// answerTime is how much longer than it was asked to Redis may block.
const answerTime = 2 * time.Second

// AwaitVotes blocks until a vote may have come to a shard that was empty, or
// until the timeout. It may return early or late, so the caller looks for
// itself; what it takes off is a signal, never a vote.
func (s *Store) AwaitVotes(ctx context.Context, shard int, timeout time.Duration) error {
	// The client itself would wait ten seconds longer for a server that is gone.
	ctx, cancel := context.WithTimeout(ctx, timeout+answerTime)
	defer cancel()
	err := s.rdb.BLPop(ctx, timeout, shardKeys(shard).wake()).Err()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fmt.Errorf("await votes on shard %d: %w", shard, err)
	}
	return nil
}
