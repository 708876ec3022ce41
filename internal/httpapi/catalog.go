package httpapi

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"paredao/internal/vote"
)

// Polls is where definitions and totals come from.
type Polls interface {
	// PollsRevision changes whenever a poll or its window does.
	PollsRevision(ctx context.Context) (string, error)
	Polls(ctx context.Context) ([]vote.PollState, error)
	// ShardPolls returns each shard's windows and ledgers.
	ShardPolls(ctx context.Context) ([]vote.ShardPolls, error)
	Results(ctx context.Context, poll string) (vote.Results, error)
	// Now is Redis's time.
	Now(ctx context.Context) (time.Time, error)
	// ClientKey is the key for digests of clients' addresses.
	ClientKey(ctx context.Context) ([]byte, error)
}

// catalog holds the polls' definitions. What it says yes to may be a moment
// old, since Redis decides in the end whether a vote is in time. What it says
// no to was looked up after the question came.
type catalog struct {
	polls Polls
	cur   atomic.Pointer[edition]

	mu       sync.Mutex // one look at Redis at a time, however many ask
	lookedAt time.Time  // when the last look began
	failed   error      // what became of it
}

// edition is a state of all polls. It never changes.
type edition struct {
	revision string
	byID     map[string]*entry
	inOrder  []*entry
	// redisAt is Redis's time at the process's own instant at, so that the rest
	// follows from the monotonic clock.
	redisAt, at time.Time
}

type entry struct {
	vote.PollState
	optionsKey string
	options    map[string]string // id -> itself, to be kept instead of borrowed bytes
	results    kept[*resultsPage]
	// over: every shard has noted that the poll has closed, and takes no vote for
	// it any more, even if Redis's clock goes back.
	over atomic.Bool
}

// now estimates Redis's time. It decides nothing about a vote that could still
// be in time.
func (e *edition) now() time.Time { return e.redisAt.Add(time.Since(e.at)) }

// lookTimeout bounds a look at Redis for a voter who waits.
const lookTimeout = time.Second

// poll returns a poll, or vote.ErrPollNotFound if it is not there now.
func (c *catalog) poll(ctx context.Context, id string) (*entry, *edition, error) {
	if ed := c.cur.Load(); ed != nil {
		if e, ok := ed.byID[id]; ok {
			return e, ed, nil
		}
	}
	if !vote.ValidID(id) {
		return nil, nil, vote.ErrPollNotFound
	}
	ed, err := c.look(ctx, time.Now())
	if err != nil {
		return nil, nil, err
	}
	if e, ok := ed.byID[id]; ok {
		return e, ed, nil
	}
	return nil, nil, vote.ErrPollNotFound
}

// look returns an edition that was up to date at some moment after asked. Who
// waited while another looked shares that look's outcome, a failure too: else
// an outage would make them fail one after the other, each with its own
// timeout.
func (c *catalog) look(ctx context.Context, asked time.Time) (*edition, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lookedAt.After(asked) {
		if c.failed != nil {
			return nil, c.failed
		}
		return c.cur.Load(), nil
	}
	began := time.Now()
	within, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	ed, err := c.load(within, c.cur.Load())
	if err != nil {
		err = fmt.Errorf("%w: %w", vote.ErrUnavailable, err)
		if ctx.Err() == nil { // else it failed for this caller alone
			c.lookedAt, c.failed = began, err
		}
		return nil, err
	}
	c.lookedAt, c.failed = began, nil
	c.cur.Store(ed)
	return ed, nil
}

func (c *catalog) load(ctx context.Context, old *edition) (*edition, error) {
	redisNow, err := c.polls.Now(ctx)
	if err != nil {
		return nil, err
	}
	at := time.Now()
	// The revision first: what changes after it is seen at the next look.
	revision, err := c.polls.PollsRevision(ctx)
	if err != nil {
		return nil, err
	}
	if old != nil && old.revision == revision {
		return &edition{revision, old.byID, old.inOrder, redisNow, at}, nil
	}
	states, err := c.polls.Polls(ctx)
	if err != nil {
		return nil, err
	}
	ed := &edition{revision: revision, byID: make(map[string]*entry, len(states)), redisAt: redisNow, at: at}
	for _, s := range states {
		e := &entry{PollState: s, optionsKey: s.OptionsKey(), options: make(map[string]string, len(s.Options))}
		for _, o := range s.Options {
			e.options[o.ID] = o.ID
		}
		ed.byID[s.ID] = e
		ed.inOrder = append(ed.inOrder, e)
	}
	return ed, nil
}

// reloadTimeout bounds a reload that no one waits for. A thousand polls with a
// thousand options are more than a voter's look has time for.
const reloadTimeout = time.Minute

// refresh loads what has changed, while looks go on.
func (c *catalog) refresh(ctx context.Context) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	ed, err := c.load(ctx, c.cur.Load())
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if began.After(c.lookedAt) || c.failed != nil {
		c.lookedAt, c.failed = began, nil
		c.cur.Store(ed)
	}
	return nil
}

// end marks the polls that are over for good. Reading the shards makes them note
// what has closed.
func (c *catalog) end(ctx context.Context) error {
	ed := c.cur.Load()
	var closed []*entry
	for _, e := range ed.inOrder {
		if !e.over.Load() && e.Window.Status(ed.now()) == vote.StatusClosed {
			closed = append(closed, e)
		}
	}
	if len(closed) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	shards, err := c.polls.ShardPolls(ctx)
	if err != nil {
		return err
	}
	for _, e := range closed {
		over := true
		for _, s := range shards {
			over = over && s.Windows[e.ID].Status(s.Now) == vote.StatusClosed
		}
		e.over.Store(over)
	}
	return nil
}

// run keeps the catalog fresh until ctx is done.
func (c *catalog) run(ctx context.Context, outage func(error)) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.refresh(ctx)
		if err == nil {
			err = c.end(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		outage(err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
