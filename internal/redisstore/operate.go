package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"paredao/internal/vote"
)

// ShardQueue is a shard's queue as operators see it.
type ShardQueue struct {
	Shard int
	// Now is Redis's time.
	Now time.Time
	// Frames and Votes wait to be counted; Oldest is when the first of them was
	// accepted (zero: none).
	Frames int64
	Votes  int64
	Oldest time.Time
	// AwaitingFrames and AwaitingVotes are counted and wait to be archived.
	AwaitingFrames int64
	AwaitingVotes  int64
	AwaitingOldest time.Time
	// Dead elements, and the votes in them as far as their headers tell.
	Dead      int64
	DeadVotes int64
	// Consumer and Archiver own the shard; empty when no one does.
	Consumer, Archiver string
}

// Queues returns the queue of every shard.
func (s *Store) Queues(ctx context.Context) ([]ShardQueue, error) {
	out := make([]ShardQueue, s.shards)
	for shard := range out {
		q, err := s.queue(ctx, shard)
		if err != nil {
			return nil, fmt.Errorf("queue of shard %d: %w", shard, err)
		}
		out[shard] = q
	}
	return out, nil
}

func (s *Store) queue(ctx context.Context, shard int) (ShardQueue, error) {
	k := shardKeys(shard)
	q := ShardQueue{Shard: shard}
	raw, err := s.lua.queue.Run(ctx, s.rdb, []string{k.votes(), k.archive(), k.dead(), k.ledger(),
		k.owner(RoleConsumer), k.owner(RoleArchiver)}).Result()
	if err != nil {
		return q, err
	}
	list, err := asList(raw, 9)
	if err != nil {
		return q, err
	}
	var n [6]int64
	for i := range n {
		if n[i], err = asInt(list[i]); err != nil {
			return q, err
		}
	}
	q.Now, q.Frames, q.AwaitingFrames, q.Dead = millis(n[0]), n[1], n[2], n[3]
	q.Oldest, q.AwaitingOldest = millis(n[4]), millis(n[5])
	q.Consumer, _ = list[6].(string)
	q.Archiver, _ = list[7].(string)
	ledgers, err := asLedgers(list[8])
	for _, l := range ledgers {
		q.Votes += l.Queued()
		q.AwaitingVotes += l.Counted - l.Archived
		q.DeadVotes += l.Dead
	}
	return q, err
}

// DeadElement is an element of a dead list.
type DeadElement struct {
	Shard, Index int
	Element      string
}

// Dead returns up to limit elements of a shard's dead list, from a place on.
func (s *Store) Dead(ctx context.Context, shard, from, limit int) ([]DeadElement, error) {
	elements, err := s.read(ctx, []string{shardKeys(shard).dead()}, from,
		vote.ReadLimit{Votes: limit * vote.MaxFrameVotes, Bytes: 8 << 20, Elements: limit})
	if err != nil {
		return nil, err
	}
	out := make([]DeadElement, len(elements))
	for i, e := range elements {
		out[i] = DeadElement{shard, from + i, e}
	}
	return out, nil
}

// RemoveDead takes an element off the dead list: back to the queue's end, or
// away for good, which the ledger keeps as dropped. False: it was gone.
func (s *Store) RemoveDead(ctx context.Context, e DeadElement, requeue bool) (bool, error) {
	k := shardKeys(e.Shard)
	what := "drop"
	if requeue {
		what = "requeue"
	}
	args := []any{vote.ElementID([]byte(e.Element)), e.Index, what, uuid.NewString()}
	if h, _, err := vote.ParseHeader([]byte(e.Element)); err == nil {
		for _, p := range h.Polls {
			args = append(args, p.Poll, p.Votes)
		}
	}
	n, err := s.lua.deadRemove.Run(ctx, s.rdb, []string{k.dead(), k.votes(), k.ledger(), k.wake()}, args...).Int()
	if err == nil && n < 0 {
		err = errors.New("the ledger does not have its votes as dead, and how many of them were accepted " +
			"can't be told while the queue is so long; do it again when tally queue shows less")
	}
	if err != nil {
		return false, fmt.Errorf("%s a dead element of shard %d: %w", what, e.Shard, err)
	}
	return n == 1, nil
}

// Snapshot reads on from the given places of queue, archive and dead list.
func (s *Store) Snapshot(ctx context.Context, shard int, polls []string, from [3]int64) (vote.SnapshotPage, error) {
	keys, args := snapshotPage(shard, polls, from)
	raw, err := s.lua.snapshot.Run(ctx, s.rdb, keys, args...).Result()
	if err != nil {
		return vote.SnapshotPage{}, fmt.Errorf("snapshot of shard %d: %w", shard, err)
	}
	page, err := asSnapshot(raw)
	if err != nil {
		return page, fmt.Errorf("snapshot of shard %d: %w", shard, err)
	}
	return page, nil
}

// snapshotPage is the call that reads a page.
func snapshotPage(shard int, polls []string, from [3]int64) (keys []string, args []any) {
	const elements, bytes = 256, 4 << 20
	k := shardKeys(shard)
	keys = []string{k.votes(), k.archive(), k.dead(), k.ledger()}
	for _, p := range polls {
		keys = append(keys, k.tally(p))
	}
	return keys, []any{from[0], from[1], from[2], elements, bytes}
}

func asSnapshot(raw any) (vote.SnapshotPage, error) {
	var page vote.SnapshotPage
	list, err := asList(raw, 7)
	if err != nil {
		return page, err
	}
	now, err := asInt(list[0])
	if err != nil {
		return page, err
	}
	page.Now = millis(now)
	for i, dst := range []*vote.ListPage{&page.Queue, &page.Archive, &page.Dead} {
		if *dst, err = asListPage(list[1+i]); err != nil {
			return page, err
		}
	}
	done, err := asInt(list[4])
	if err != nil || done == 0 {
		return page, err
	}
	page.Complete = true
	if page.Ledgers, err = asLedgers(list[5]); err != nil {
		return page, err
	}
	counters, err := asPairs(list[5])
	if err != nil {
		return page, err
	}
	if last := counters["last_batch"]; last != "" {
		if page.LastBatch, err = strconv.ParseUint(last, 10, 64); err != nil {
			return page, fmt.Errorf("%w: last_batch %.40q", errAnswer, last)
		}
	}
	if late := counters["late_batches"]; late != "" {
		if page.LateBatches, err = asInt(late); err != nil {
			return page, err
		}
	}
	tallies, err := asList(list[6], -1)
	if err != nil {
		return page, err
	}
	for _, t := range tallies {
		tally, err := asTally(t)
		if err != nil {
			return page, err
		}
		page.Tallies = append(page.Tallies, tally)
	}
	return page, nil
}

func asListPage(v any) (vote.ListPage, error) {
	var p vote.ListPage
	list, err := asList(v, 3)
	if err != nil {
		return p, err
	}
	if p.Head, err = asInt(list[0]); err != nil {
		return p, err
	}
	if p.From, err = asInt(list[1]); err != nil {
		return p, err
	}
	elements, err := asList(list[2], -1)
	if err != nil {
		return p, err
	}
	for _, e := range elements {
		text, ok := e.(string)
		if !ok {
			return p, errAnswer
		}
		p.Elements = append(p.Elements, text)
	}
	return p, nil
}

// Batches tells which of a shard's archive batches Redis knows.
func (s *Store) Batches(ctx context.Context, shard int, sequences []uint64) (vote.Batches, error) {
	k := shardKeys(shard)
	out := vote.Batches{Committed: make(map[uint64]string, len(sequences))}
	// The fixed one first: if it is committed between the two reads, the second
	// sees it.
	fixed, err := s.rdb.HGet(ctx, k.batch(), "id").Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return out, fmt.Errorf("batch of shard %d: %w", shard, err)
	}
	out.Fixed = fixed
	for chunk := range slices.Chunk(sequences, 1000) {
		ids, err := s.rdb.HMGet(ctx, k.batches(), batchFields(chunk)...).Result()
		if err != nil {
			return out, fmt.Errorf("batches of shard %d: %w", shard, err)
		}
		addCommitted(&out, chunk, ids)
	}
	out.Late, err = s.rdb.HGet(ctx, k.ledger(), "late_batches").Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return out, fmt.Errorf("late batches of shard %d: %w", shard, err)
	}
	return out, nil
}

func batchFields(sequences []uint64) []string {
	fields := make([]string, len(sequences))
	for i, n := range sequences {
		fields[i] = strconv.FormatUint(n, 10)
	}
	return fields
}

func addCommitted(b *vote.Batches, sequences []uint64, ids []any) {
	for i, id := range ids {
		if id, ok := id.(string); ok {
			b.Committed[sequences[i]] = id
		}
	}
}

// CountBatches is how many committed batches of a shard Redis knows.
func (s *Store) CountBatches(ctx context.Context, shard int) (int64, error) {
	n, err := s.rdb.HLen(ctx, shardKeys(shard).batches()).Result()
	if err != nil {
		return 0, fmt.Errorf("batches of shard %d: %w", shard, err)
	}
	return n, nil
}
