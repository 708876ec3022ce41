package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"paredao/internal/vote"
)

// BeginRestore marks a shard with the first token of a restore, before that
// looks which frames are lost. The same token again is harmless; another one
// ends the restore before it.
func (s *Store) BeginRestore(ctx context.Context, shard int, token string) error {
	if err := s.lua.restoreMark.Run(ctx, s.rdb, []string{shardKeys(shard).ledger()}, token).Err(); err != nil {
		return fmt.Errorf("begin to restore shard %d: %w", shard, err)
	}
	return nil
}

// marked reads what read asks for, in one transaction with a new token in place
// of the last one. It returns the new one, or vote.ErrRestoreLost if the shard's
// token is another one.
func (s *Store) marked(ctx context.Context, shard int, token string, read func(redis.Pipeliner)) (string, error) {
	// A try whose reply was lost may have left its token, and behind that stands
	// all that stood behind the last one.
	const tries = 3
	ours, lost := []any{token}, vote.ErrRestoreLost
	for range tries {
		next := uuid.NewString()
		var mark *redis.Cmd
		// By its text: a transaction can't load a script that the server has not.
		_, err := s.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
			mark = s.lua.restoreMark.Eval(ctx, p, []string{shardKeys(shard).ledger()}, append([]any{next}, ours...)...)
			read(p)
			return nil
		})
		var n int
		if err == nil {
			n, err = mark.Int()
		}
		var refused redis.Error
		switch {
		case err != nil && (ctx.Err() != nil || errors.As(err, &refused)):
			return "", err
		case err != nil:
			lost = err
		case n == 1:
			return next, nil
		default:
			lost = vote.ErrRestoreLost
		}
		ours = append(ours, next)
	}
	return "", lost
}

// RestoreSnapshot is Snapshot for a restore, without tallies; see marked.
func (s *Store) RestoreSnapshot(ctx context.Context, shard int, token string, from [3]int64) (vote.SnapshotPage, string, error) {
	var raw *redis.Cmd
	next, err := s.marked(ctx, shard, token, func(p redis.Pipeliner) {
		keys, args := snapshotPage(shard, nil, from)
		raw = s.lua.snapshot.Eval(ctx, p, keys, args...)
	})
	if err != nil {
		return vote.SnapshotPage{}, "", fmt.Errorf("snapshot of shard %d: %w", shard, err)
	}
	page, err := asSnapshot(raw.Val())
	if err != nil {
		return page, "", fmt.Errorf("snapshot of shard %d: %w", shard, err)
	}
	return page, next, nil
}

// RestoreBatches is Batches for a restore, all of one instant; see marked.
func (s *Store) RestoreBatches(ctx context.Context, shard int, token string, sequences []uint64) (vote.Batches, string, error) {
	k := shardKeys(shard)
	var fixed, late *redis.SliceCmd
	var chunks []*redis.SliceCmd
	next, err := s.marked(ctx, shard, token, func(p redis.Pipeliner) {
		fixed, late = p.HMGet(ctx, k.batch(), "id"), p.HMGet(ctx, k.ledger(), "late_batches")
		chunks = chunks[:0]
		for chunk := range slices.Chunk(sequences, 1000) {
			chunks = append(chunks, p.HMGet(ctx, k.batches(), batchFields(chunk)...))
		}
	})
	out := vote.Batches{Committed: make(map[uint64]string, len(sequences))}
	if err != nil {
		return out, "", fmt.Errorf("batches of shard %d: %w", shard, err)
	}
	var head struct {
		ID   string `redis:"id"`
		Late int64  `redis:"late_batches"`
	}
	for _, c := range []*redis.SliceCmd{fixed, late} {
		if err := c.Scan(&head); err != nil {
			return out, "", fmt.Errorf("batches of shard %d: %w", shard, err)
		}
	}
	out.Fixed, out.Late = head.ID, head.Late
	i := 0
	for chunk := range slices.Chunk(sequences, 1000) {
		addCommitted(&out, chunk, chunks[i].Val())
		i++
	}
	return out, next, nil
}

// RestoreBatch adds the votes of a lost batch, marks it as known, and puts the
// next token in place of the last one. Calling it again with the same tokens is
// harmless. vote.ErrRestoreLost says that the shard's token is another one, and
// vote.ErrBatchGone that the batch is fixed or committed, by an archiver; nothing
// was changed then.
func (s *Store) RestoreBatch(ctx context.Context, token, next string, b *vote.RestoredBatch) error {
	k := shardKeys(b.Shard)
	keys := []string{k.ledger(), k.batch(), k.batches()}
	args := []any{token, next, b.Sequence, b.ID}
	for _, poll := range slices.Sorted(maps.Keys(b.Votes)) {
		var sum int64
		for _, n := range b.Votes[poll] {
			sum += n
		}
		keys = append(keys, k.tally(poll))
		args = append(args, poll, sum, len(b.Votes[poll]))
		for field, n := range b.Votes[poll] {
			args = append(args, field, n)
		}
	}
	n, err := s.lua.restore.Run(ctx, s.rdb, keys, args...).Int()
	switch {
	case err != nil:
	case n == 0:
		err = vote.ErrBatchGone
	case n < 0:
		err = vote.ErrRestoreLost
	}
	if err != nil {
		return fmt.Errorf("restore batch %s: %w", b.ID, err)
	}
	return nil
}
