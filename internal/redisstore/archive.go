package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"

	"paredao/internal/vote"
)

// ArchiveState returns what awaits archiving on a shard.
func (s *Store) ArchiveState(ctx context.Context, shard int) (vote.ArchiveState, error) {
	var st vote.ArchiveState
	k := shardKeys(shard)
	raw, err := s.lua.archiveState.Run(ctx, s.rdb, []string{k.archive(), k.ledger(), k.batch()}).Result()
	if err != nil {
		return st, fmt.Errorf("archive state of shard %d: %w", shard, err)
	}
	list, err := asList(raw, 7)
	if err != nil {
		return st, err
	}
	var n [5]int64
	for i := range n {
		if n[i], err = asInt(list[i]); err != nil {
			return st, err
		}
	}
	st.Now, st.Elements, st.Oldest, st.Newest = millis(n[0]), int(n[1]), millis(n[2]), millis(n[3])
	st.NextSequence = uint64(n[4]) + 1
	if st.Batch, err = asBatch(list[5], shard); err != nil {
		return st, err
	}
	ledgers, err := asLedgers(list[6])
	for _, l := range ledgers {
		st.Votes += l.Counted - l.Archived
	}
	return st, err
}

func asBatch(v any, shard int) (*vote.ArchiveBatch, error) {
	f, err := asPairs(v)
	if err != nil || len(f) == 0 {
		return nil, err
	}
	b := &vote.ArchiveBatch{Shard: shard, ID: f["id"], First: f["first"], Last: f["last"]}
	var err1, err2, err3 error
	b.Sequence, err1 = strconv.ParseUint(f["sequence"], 10, 64)
	b.Elements, err2 = strconv.Atoi(f["elements"])
	b.Votes, err3 = strconv.ParseInt(f["votes"], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("batch:{%d}: %w", shard, err)
	}
	return b, nil
}

// ReadArchive returns elements of the list that awaits archiving, from a place
// on.
func (s *Store) ReadArchive(ctx context.Context, shard, from int, limit vote.ReadLimit) ([]string, error) {
	return s.read(ctx, []string{shardKeys(shard).archive()}, from, limit)
}

// ReadBatch does the same while the batch is the current one; else it returns
// vote.ErrBatchGone.
func (s *Store) ReadBatch(ctx context.Context, b *vote.ArchiveBatch, from int, limit vote.ReadLimit) ([]string, error) {
	k := shardKeys(b.Shard)
	frames, err := s.read(ctx, []string{k.archive(), k.batch()}, from, limit, b.ID)
	if errors.Is(err, redis.Nil) {
		return nil, fmt.Errorf("read batch %s: %w", b.ID, vote.ErrBatchGone)
	}
	return frames, err
}

// FixBatch fixes a batch, in place of the one whose id is given (usually none),
// and returns the batch that is fixed now, which may be an earlier one. It
// returns vote.ErrBatchGone if the list does not begin so any more.
func (s *Store) FixBatch(ctx context.Context, b *vote.ArchiveBatch, replace string) (*vote.ArchiveBatch, error) {
	k := shardKeys(b.Shard)
	raw, err := s.lua.archiveFix.Run(ctx, s.rdb, []string{k.archive(), k.ledger(), k.batch()},
		replace, b.Sequence, b.ID, b.Elements, b.First, b.Last, b.Votes).Result()
	if err != nil {
		return nil, fmt.Errorf("fix batch %s: %w", b.ID, err)
	}
	fixed, err := asBatch(raw, b.Shard)
	if err == nil && fixed == nil {
		err = fmt.Errorf("fix batch %s: %w", b.ID, vote.ErrBatchGone)
	}
	return fixed, err
}

// CommitBatch ends a batch whose objects are written: its frames leave the
// list, and its votes (by poll) enter the ledger. Calling it again is harmless.
// vote.ErrBatchGone says that it never was the current one.
func (s *Store) CommitBatch(ctx context.Context, b *vote.ArchiveBatch, votes []vote.PollVotes) error {
	k := shardKeys(b.Shard)
	args := []any{b.ID}
	for _, v := range votes {
		args = append(args, "archived:"+v.Poll, v.Votes)
	}
	n, err := s.lua.archiveCommit.Run(ctx, s.rdb, []string{k.archive(), k.ledger(), k.batch(), k.batches()}, args...).Int()
	if err == nil && n != 1 {
		err = vote.ErrBatchGone
	}
	if err != nil {
		return fmt.Errorf("commit batch %s: %w", b.ID, err)
	}
	return nil
}
