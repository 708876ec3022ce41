package redisstore

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Roles of workers that share out the shards.
const (
	RoleConsumer = "consumer"
	RoleArchiver = "archiver"
)

// Shares shares the shards out among the live workers of one role. It is
// advisory: two workers on one shard cost time, never a vote.
type Shares struct {
	s            *Store
	role, worker string
	ttl          time.Duration
}

// Shares returns the worker's side of the sharing. A worker that is silent for
// ttl is taken for gone.
func (s *Store) Shares(role, worker string, ttl time.Duration) *Shares {
	return &Shares{s, role, worker, ttl}
}

// Join says that the worker is alive and returns all live ones, sorted.
func (m *Shares) Join(ctx context.Context) ([]string, error) { return m.member(ctx, "1") }

// Leave says that the worker is gone.
func (m *Shares) Leave(ctx context.Context) error {
	_, err := m.member(ctx, "0")
	return err
}

func (m *Shares) member(ctx context.Context, stay string) ([]string, error) {
	live, err := m.s.lua.member.Run(ctx, m.s.rdb, []string{shardKeys(0).members(m.role)},
		m.worker, m.ttl.Milliseconds(), stay).StringSlice()
	if err != nil {
		return nil, fmt.Errorf("members of %s: %w", m.role, err)
	}
	slices.Sort(live) // Redis's order is by time
	return live, nil
}

// Claim takes or keeps a shard; false says that it is another's.
func (m *Shares) Claim(ctx context.Context, shard int) (bool, error) {
	n, err := m.s.lua.claim.Run(ctx, m.s.rdb, []string{shardKeys(shard).owner(m.role)},
		m.worker, m.ttl.Milliseconds()).Int()
	if err != nil {
		return false, fmt.Errorf("claim shard %d: %w", shard, err)
	}
	return n == 1, nil
}

// Release hands a shard back. Another's stays as it is.
func (m *Shares) Release(ctx context.Context, shard int) error {
	err := m.s.lua.release.Run(ctx, m.s.rdb, []string{shardKeys(shard).owner(m.role)}, m.worker).Err()
	if err != nil {
		return fmt.Errorf("release shard %d: %w", shard, err)
	}
	return nil
}
