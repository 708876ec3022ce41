package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"paredao/internal/vote"
)

// Applied says what applying a definition did.
type Applied struct {
	// Change is "created", "changed", "same", or "kept": changed, but for a
	// window that has opened or closed already, which stays.
	Change string
	// Window is the poll's window as it stands now.
	Window vote.Window
}

// ApplyPoll writes a poll's definition and window to every shard. Shard 0
// comes last, since readers look there. Calling it again is harmless.
// vote.ErrOptionsFixed says that the options differ and that the poll has votes.
func (s *Store) ApplyPoll(ctx context.Context, p vote.Poll, w vote.Window) (Applied, error) {
	def, err := json.Marshal(p)
	if err != nil {
		return Applied{}, fmt.Errorf("poll %s: %w", p.ID, err)
	}
	if err := s.freezeOptions(ctx, p, w, def); err != nil {
		return Applied{}, err
	}
	var applied Applied
	for shard := s.shards - 1; shard >= 0; shard-- {
		if applied, err = s.applyPoll(ctx, shard, p, w, def, "0"); err != nil {
			return Applied{}, err
		}
	}
	return applied, nil
}

// freezeOptions stops the votes of a poll whose options change, on every
// shard, before the first shard gets the new ones: then no shard can take a
// vote for old options while another has the new ones.
func (s *Store) freezeOptions(ctx context.Context, p vote.Poll, w vote.Window, def []byte) error {
	old, err := s.Poll(ctx, p.ID)
	if errors.Is(err, vote.ErrPollNotFound) || err == nil && old.OptionsKey() == p.OptionsKey() {
		return nil
	}
	if err != nil {
		return err
	}
	oldDef, err := json.Marshal(old.Poll)
	if err != nil {
		return fmt.Errorf("poll %s: %w", p.ID, err)
	}
	for shard := range s.shards {
		if _, err := s.applyPoll(ctx, shard, p, w, def, "1"); err != nil {
			// Let the votes in again where they were stopped.
			for back := range shard {
				_, undo := s.applyPoll(context.WithoutCancel(ctx), back, old.Poll, old.Window, oldDef, "0")
				err = errors.Join(err, undo)
			}
			return err
		}
	}
	return nil
}

func (s *Store) applyPoll(ctx context.Context, shard int, p vote.Poll, w vote.Window, def []byte, freeze string) (Applied, error) {
	k := shardKeys(shard)
	raw, err := s.lua.pollApply.Run(ctx, s.rdb, []string{k.polls(), k.windows(), k.ledger(), k.pollsRev()},
		p.ID, def, toMillis(w.Opens), toMillis(w.Closes), p.OptionsKey(), uuid.NewString(), freeze).Result()
	if err != nil {
		return Applied{}, fmt.Errorf("apply poll %s on shard %d: %w", p.ID, shard, err)
	}
	code, window, err := asWindowAnswer(raw)
	if err == nil && code == "fixed" {
		err = fmt.Errorf("poll %s: %w", p.ID, vote.ErrOptionsFixed)
	}
	return Applied{code, window}, err
}

func asWindowAnswer(raw any) (string, vote.Window, error) {
	list, err := asList(raw, 4)
	if err != nil {
		return "", vote.Window{}, err
	}
	code, ok := list[0].(string)
	opens, err1 := asInt(list[1])
	closes, err2 := asInt(list[2])
	if !ok {
		return "", vote.Window{}, errAnswer
	}
	return code, vote.Window{Opens: millis(opens), Closes: millis(closes)}, errors.Join(err1, err2)
}

// OpenPoll opens a scheduled poll now. An open one stays as it is; a closed one
// never opens again (vote.ErrPollClosed).
func (s *Store) OpenPoll(ctx context.Context, poll string) error {
	return s.setWindow(ctx, poll, "open")
}

// ClosePoll closes a poll now, by Redis's clock. Once it returns nil, no shard
// takes another vote for it.
func (s *Store) ClosePoll(ctx context.Context, poll string) error {
	return s.setWindow(ctx, poll, "close")
}

func (s *Store) setWindow(ctx context.Context, poll, what string) error {
	for shard := s.shards - 1; shard >= 0; shard-- { // shard 0 last, since it is what is shown
		k := shardKeys(shard)
		raw, err := s.lua.pollWindow.Run(ctx, s.rdb, []string{k.windows(), k.pollsRev()},
			poll, what, uuid.NewString()).Result()
		if err != nil {
			return fmt.Errorf("%s poll %s on shard %d: %w", what, poll, shard, err)
		}
		code, _, err := asWindowAnswer(raw)
		switch {
		case err != nil:
			return err
		case code == "unknown":
			return fmt.Errorf("poll %s: %w", poll, vote.ErrPollNotFound)
		case code == "closed":
			return fmt.Errorf("poll %s: %w, and a closed poll never opens again", poll, vote.ErrPollClosed)
		}
	}
	return nil
}

// PollsRevision changes whenever a poll or its window does.
func (s *Store) PollsRevision(ctx context.Context) (string, error) {
	rev, err := s.rdb.Get(ctx, shardKeys(0).pollsRev()).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return "", fmt.Errorf("polls revision: %w", err)
	}
	return rev, nil
}

// Poll returns one poll as shard 0 has it.
func (s *Store) Poll(ctx context.Context, id string) (vote.PollState, error) {
	polls, err := s.pollsPage(ctx, []string{id})
	if err == nil && len(polls) == 0 {
		err = fmt.Errorf("poll %s: %w", id, vote.ErrPollNotFound)
	}
	if err != nil {
		return vote.PollState{}, err
	}
	return polls[0], nil
}

// Polls returns all polls as shard 0 has them, by id. Their status is unset.
func (s *Store) Polls(ctx context.Context) ([]vote.PollState, error) {
	ids, err := s.rdb.HKeys(ctx, shardKeys(0).polls()).Result()
	if err != nil {
		return nil, fmt.Errorf("polls: %w", err)
	}
	slices.Sort(ids)
	// A definition has up to 1,000 options: read a few at a time.
	const page = 20
	var out []vote.PollState
	for chunk := range slices.Chunk(ids, page) {
		polls, err := s.pollsPage(ctx, chunk)
		if err != nil {
			return nil, err
		}
		out = append(out, polls...)
	}
	return out, nil
}

func (s *Store) pollsPage(ctx context.Context, ids []string) ([]vote.PollState, error) {
	k := shardKeys(0)
	defs, err := s.rdb.HMGet(ctx, k.polls(), ids...).Result()
	if err != nil {
		return nil, fmt.Errorf("polls: %w", err)
	}
	windows, err := s.rdb.HMGet(ctx, k.windows(), ids...).Result()
	if err != nil {
		return nil, fmt.Errorf("windows: %w", err)
	}
	var out []vote.PollState
	for i, id := range ids {
		def, ok1 := defs[i].(string)
		window, ok2 := windows[i].(string)
		if !ok1 || !ok2 {
			continue
		}
		p := vote.PollState{}
		if err := json.Unmarshal([]byte(def), &p.Poll); err != nil {
			return nil, fmt.Errorf("definition of poll %s: %w", id, err)
		}
		if p.Window, err = parseWindow(window); err != nil {
			return nil, fmt.Errorf("poll %s: %w", id, err)
		}
		out = append(out, p)
	}
	return out, nil
}

func parseWindow(s string) (vote.Window, error) {
	f := strings.Fields(s)
	sealed := len(f) == 4 && f[3] == "closed"
	if len(f) != 3 && !sealed {
		return vote.Window{}, fmt.Errorf("%w: window %.80q", errAnswer, s)
	}
	opens, err1 := strconv.ParseInt(f[0], 10, 64)
	closes, err2 := strconv.ParseInt(f[1], 10, 64)
	return vote.Window{Opens: millis(opens), Closes: millis(closes), Sealed: sealed}, errors.Join(err1, err2)
}

// ShardPolls returns the windows and ledgers of all polls on each shard; each
// shard's are of one instant.
func (s *Store) ShardPolls(ctx context.Context) ([]vote.ShardPolls, error) {
	out := make([]vote.ShardPolls, s.shards)
	for shard := range out {
		k := shardKeys(shard)
		raw, err := s.lua.shardPolls.Run(ctx, s.rdb, []string{k.windows(), k.ledger()}).Result()
		if err != nil {
			return nil, fmt.Errorf("polls of shard %d: %w", shard, err)
		}
		if out[shard], err = asShardPolls(raw); err != nil {
			return nil, fmt.Errorf("polls of shard %d: %w", shard, err)
		}
		for poll, w := range out[shard].Windows {
			if err := s.seal(ctx, shard, poll, w, out[shard].Now); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// seal notes on a shard that a poll has closed, once, before anyone is told so.
// Else it would open again if Redis's clock went back, as in a failover to a
// server whose clock is behind. It fails when that has happened just now.
func (s *Store) seal(ctx context.Context, shard int, poll string, w vote.Window, now time.Time) error {
	if w.Sealed || w.Status(now) != vote.StatusClosed {
		return nil
	}
	k := shardKeys(shard)
	raw, err := s.lua.pollWindow.Run(ctx, s.rdb, []string{k.windows(), k.pollsRev()}, poll, "seal", uuid.NewString()).Result()
	code := ""
	if err == nil {
		code, _, err = asWindowAnswer(raw)
	}
	if err == nil && code != "done" && code != "same" {
		err = fmt.Errorf("it was closed, and is %s now: Redis's clock or its data have gone back", code)
	}
	if err != nil {
		return fmt.Errorf("seal poll %s on shard %d: %w", poll, shard, err)
	}
	return nil
}

func asShardPolls(raw any) (vote.ShardPolls, error) {
	list, err := asList(raw, 3)
	if err != nil {
		return vote.ShardPolls{}, err
	}
	now, err := asInt(list[0])
	if err != nil {
		return vote.ShardPolls{}, err
	}
	windows, err := asPairs(list[1])
	if err != nil {
		return vote.ShardPolls{}, err
	}
	out := vote.ShardPolls{Now: millis(now), Windows: make(map[string]vote.Window, len(windows))}
	for poll, text := range windows {
		if out.Windows[poll], err = parseWindow(text); err != nil {
			return out, err
		}
	}
	out.Ledgers, err = asLedgers(list[2])
	return out, err
}

// Results returns a poll's totals, summed over shards; each shard's part is of
// one instant.
func (s *Store) Results(ctx context.Context, poll string) (vote.Results, error) {
	sum := vote.Results{Tally: vote.Tally{}, Final: true}
	for shard := range s.shards {
		r, err := s.shardResults(ctx, shard, poll)
		if err != nil {
			return sum, fmt.Errorf("results of poll %s on shard %d: %w", poll, shard, err)
		}
		if r.AsOf.After(sum.AsOf) {
			sum.AsOf = r.AsOf
		}
		for field, n := range r.Tally {
			sum.Tally[field] += n
		}
		sum.Ledger.Add(r.Ledger)
		sum.Final = sum.Final && r.Final
		if shard == 0 {
			sum.Window = r.Window
		}
	}
	return sum, nil
}

func (s *Store) shardResults(ctx context.Context, shard int, poll string) (vote.Results, error) {
	k := shardKeys(shard)
	var r vote.Results
	raw, err := s.lua.results.Run(ctx, s.rdb, []string{k.tally(poll), k.ledger(), k.windows()}, poll).Result()
	if err != nil {
		return r, err
	}
	list, err := asList(raw, 4)
	if err != nil {
		return r, err
	}
	now, err := asInt(list[0])
	if err != nil {
		return r, err
	}
	r.AsOf = millis(now)
	window, _ := list[1].(string)
	if window == "" {
		return r, vote.ErrPollNotFound
	}
	if r.Window, err = parseWindow(window); err != nil {
		return r, err
	}
	counts, err := asList(list[2], 5)
	if err != nil {
		return r, err
	}
	for i, dst := range []*int64{&r.Ledger.Accepted, &r.Ledger.Counted, &r.Ledger.Archived, &r.Ledger.Dead, &r.Ledger.Dropped} {
		if *dst, err = asInt(counts[i]); err != nil {
			return r, err
		}
	}
	if r.Tally, err = asTally(list[3]); err != nil {
		return r, err
	}
	// Final is for ever, so it waits for a Redis that can be written to.
	sealed := s.seal(ctx, shard, poll, r.Window, r.AsOf) == nil
	r.Final = sealed && r.Window.Status(r.AsOf) == vote.StatusClosed && r.Ledger.Pending() == 0
	return r, nil
}

// KnownPolls returns the ids of all polls that any shard knows by its window or
// its ledger, or shard 0 by a definition, sorted, and those of them that lack
// the definition, or a window on some shard.
func (s *Store) KnownPolls(ctx context.Context) (ids, undefined []string, err error) {
	shards, err := s.ShardPolls(ctx)
	if err != nil {
		return nil, nil, err
	}
	// After the windows: whoever applies a poll writes shard 0 last.
	defined, err := s.rdb.HKeys(ctx, shardKeys(0).polls()).Result()
	if err != nil {
		return nil, nil, fmt.Errorf("polls: %w", err)
	}
	windows := map[string]int{}
	for _, sh := range shards {
		for id := range sh.Windows {
			windows[id]++
		}
		for id := range sh.Ledgers {
			windows[id] += 0
		}
	}
	for _, id := range defined {
		windows[id] += 0
	}
	ids = slices.Sorted(maps.Keys(windows))
	for _, id := range ids {
		if windows[id] < len(shards) || !slices.Contains(defined, id) {
			undefined = append(undefined, id)
		}
	}
	return ids, undefined, nil
}

// Now returns Redis's time.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	now, err := s.rdb.Time(ctx).Result()
	if err != nil {
		return now, fmt.Errorf("time: %w", err)
	}
	return now.UTC(), nil
}
