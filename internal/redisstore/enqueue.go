package redisstore

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"paredao/internal/vote"
)

// flusherLife is how long a silent flusher's record stays. A frame whose fate
// is unknown may be sent again within that time.
const flusherLife = 7 * 24 * time.Hour

// Queue takes batches of votes. The same store may have several with other
// settings.
type Queue struct {
	s           *Store
	keyLife     time.Duration
	ackReplicas int
	ackTimeout  time.Duration
}

// Queue returns the side of the store that takes votes. keyLife is how long an
// idempotency key is remembered; a batch is acknowledged only when ackReplicas
// replicas hold it, or fails after ackTimeout.
func (s *Store) Queue(keyLife time.Duration, ackReplicas int, ackTimeout time.Duration) *Queue {
	// Redis refuses a life of 0 ms, and so would the script half-way.
	return &Queue{s, max(keyLife, time.Millisecond), ackReplicas, ackTimeout}
}

// Register makes the record of a new flusher. Calling it again is harmless.
func (q *Queue) Register(ctx context.Context, shard int, flusher string) error {
	err := q.s.lua.register.Run(ctx, q.s.rdb, []string{shardKeys(shard).flusher(flusher)},
		flusherLife.Milliseconds()).Err()
	switch {
	case isFull(err):
		return fmt.Errorf("%w: register flusher on shard %d: %w", vote.ErrOverloaded, shard, err)
	case err != nil:
		return fmt.Errorf("register flusher on shard %d: %w", shard, err)
	}
	return nil
}

// Enqueue puts a batch on the queue. Called again with the same batch id it
// answers what happened the first time. vote.ErrFlusherLost says that Redis has
// no record of the flusher, and that this call did nothing; vote.ErrOverloaded
// that Redis has no room, and that this call did nothing: an earlier one may
// have put the batch on the queue all the same. After any other error the batch
// may be on the queue: call again.
func (q *Queue) Enqueue(ctx context.Context, b *vote.Batch) (vote.BatchOutcome, error) {
	k := shardKeys(b.Shard)
	keys := make([]string, 5, 5+len(b.Keyed))
	keys[0], keys[1], keys[2], keys[3], keys[4] = k.votes(), k.ledger(), k.flusher(b.ID.Flusher), k.windows(), k.wake()
	args := make([]any, 0, 8+3*len(b.Polls)+4*len(b.Keyed))
	args = append(args, b.ID.Flusher, b.ID.Seq, flusherLife.Milliseconds(), q.keyLife.Milliseconds(),
		b.Votes, b.Body, len(b.Polls), len(b.Keyed))
	for _, p := range b.Polls {
		args = append(args, p.Poll, p.Votes, p.OptionsKey)
	}
	for _, v := range b.Keyed {
		keys = append(keys, k.idem(v.Key))
		args = append(args, v.Index, v.PollIndex+1, v.Option, idText.EncodeToString(v.ID[:]))
	}
	text, err := q.run(ctx, keys, args)
	switch {
	case isFull(err):
		return vote.BatchOutcome{}, fmt.Errorf("%w: enqueue on shard %d: %w", vote.ErrOverloaded, b.Shard, err)
	case err != nil:
		return vote.BatchOutcome{}, fmt.Errorf("enqueue on shard %d: %w", b.Shard, err)
	case text == "lost":
		return vote.BatchOutcome{}, fmt.Errorf("enqueue on shard %d: %w", b.Shard, vote.ErrFlusherLost)
	}
	return parseOutcome(text, b)
}

// isFull tells whether Redis refused a script because it has no memory left.
func isFull(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "OOM ") }

// idText is how a vote's id stands in an idempotency key's value: it is kept for
// each keyed vote, so it is short.
var idText = base64.RawURLEncoding

// roomLimit is the share of maxmemory above which no more votes are taken: a
// Redis that is full can hardly be drained.
const roomLimit = 0.85

// HasRoom tells whether Redis has memory left for more votes. In a cluster
// those masters decide that answer: one that is full says no for all, and one
// that is away says nothing. An error says that none has answered.
func (q *Queue) HasRoom(ctx context.Context) (bool, error) {
	h, err := q.s.Health(ctx)
	if h.Servers == 0 {
		return false, err
	}
	return h.MaxMemory == 0 || float64(h.UsedMemory) < roomLimit*float64(h.MaxMemory), nil
}

// unrepeated runs scripts that the client does not repeat by itself. If it did,
// a reply that is lost and an OOM after it would look like an OOM alone, which
// says that nothing was done.
type unrepeated struct{ processor }

type processor interface {
	redis.Scripter
	Process(ctx context.Context, cmd redis.Cmder) error
}

// Eval implements redis.Scripter.
func (u unrepeated) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return u.run(ctx, "eval", script, keys, args)
}

// EvalSha implements redis.Scripter.
func (u unrepeated) EvalSha(ctx context.Context, hash string, keys []string, args ...any) *redis.Cmd {
	return u.run(ctx, "evalsha", hash, keys, args)
}

func (u unrepeated) run(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	all := make([]any, 0, 3+len(keys)+len(args))
	all = append(all, name, script, len(keys))
	for _, k := range keys {
		all = append(all, k)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	cmd.SetFirstKeyPos(3)
	_ = u.Process(ctx, once{cmd}) // cmd has the error
	return cmd
}

// once is a command that is sent once.
type once struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (once) NoRetry() bool { return true }

// run calls the script and, where replicas must hold the votes, waits for them
// on the same connection, since WAIT speaks of that connection's own writes.
func (q *Queue) run(ctx context.Context, keys []string, args []any) (string, error) {
	script := q.s.lua.enqueue
	if q.ackReplicas == 0 {
		return script.Run(ctx, unrepeated{q.s.rdb}, keys, args...).Text()
	}
	node := q.s.rdb
	cluster, ok := node.(*redis.ClusterClient)
	if ok {
		master, err := cluster.MasterForKey(ctx, keys[0])
		if err != nil {
			return "", err
		}
		node = master
	}
	for {
		pipe := node.Pipeline()
		cmd := unrepeated{pipe}.EvalSha(ctx, script.Hash(), keys, args...)
		wait := pipe.Do(ctx, "WAIT", q.ackReplicas, q.ackTimeout.Milliseconds())
		if _, err := pipe.Exec(ctx); err != nil {
			if redis.HasErrorPrefix(err, "NOSCRIPT") {
				if err := script.Load(ctx, node).Err(); err != nil {
					return "", err
				}
				continue
			}
			if cluster != nil {
				cluster.ReloadState(ctx) // the shard may have another master by now
			}
			return "", err
		}
		n, err := wait.Int()
		if err != nil {
			return "", fmt.Errorf("wait for replicas: %w", err)
		}
		if n < q.ackReplicas {
			return "", fmt.Errorf("%d replicas hold the votes, but ack-replicas is %d", n, q.ackReplicas)
		}
		return cmd.Text()
	}
}

func parseOutcome(text string, b *vote.Batch) (vote.BatchOutcome, error) {
	var out vote.BatchOutcome
	stamp, rest, _ := strings.Cut(text, "\n")
	polls, rest, ok := strings.Cut(rest, "\n")
	ms, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || !ok || len(polls) != len(b.Polls) {
		return out, fmt.Errorf("enqueue: %w", errAnswer)
	}
	out.AcceptedAt = millis(ms)
	for _, p := range []byte(polls) {
		out.Polls = append(out.Polls, vote.PollOutcome(p))
	}
	for line := range strings.Lines(rest) {
		var place int
		var option, id, at string
		if _, err := fmt.Sscan(line, &place, &option, &id, &at); err != nil || place < 0 || place >= len(b.Keyed) {
			return out, fmt.Errorf("enqueue: %w", errAnswer)
		}
		if out.Keys == nil {
			out.Keys = map[int]vote.KeyOutcome{}
		}
		if option == "-" {
			out.Keys[b.Keyed[place].Index] = vote.KeyOutcome{Reused: true}
			continue
		}
		raw, err1 := idText.DecodeString(id)
		first, err2 := uuid.FromBytes(raw)
		ms, err3 := strconv.ParseInt(at, 10, 64)
		if err := errors.Join(err1, err2, err3); err != nil {
			return out, fmt.Errorf("enqueue: %w: %w", errAnswer, err)
		}
		out.Keys[b.Keyed[place].Index] = vote.KeyOutcome{
			First: vote.Receipt{ID: first, Option: option, AcceptedAt: millis(ms), Replayed: true},
		}
	}
	return out, nil
}
