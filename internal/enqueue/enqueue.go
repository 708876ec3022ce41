package enqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"paredao/internal/vote"
)

// Queue is where batches go. Each of its methods may be called again after any
// failure.
type Queue interface {
	// Register makes the record by which Redis tells repeated frames.
	Register(ctx context.Context, shard int, flusher string) error
	// Enqueue puts a batch on the queue, once for each batch id.
	// vote.ErrOverloaded says that this call did nothing; earlier ones may have.
	Enqueue(ctx context.Context, b *vote.Batch) (vote.BatchOutcome, error)
	// HasRoom tells whether there is memory left for more votes, or fails when
	// no one can say.
	HasRoom(ctx context.Context) (bool, error)
}

// Metrics are what the committer reports. All must be set.
type Metrics struct {
	// BatchVotes and Seconds observe each acknowledged batch.
	BatchVotes, Seconds prometheus.Observer
	// Accepted counts votes by poll.
	Accepted *prometheus.CounterVec
}

// Params configure a Committer.
type Params struct {
	Queue  Queue
	Shards int
	// MaxInFlight is how many votes may wait for Redis at one time.
	MaxInFlight int
	// Timeout is how long a vote may wait for Redis.
	Timeout time.Duration
	// Outage gets every failed attempt (an error) and every success (nil); it
	// must be cheap.
	Outage  func(error)
	Log     *slog.Logger
	Metrics Metrics
}

// Committer puts votes on the queue. Submit may be called by many goroutines
// while Run runs.
type Committer struct {
	p        Params
	flushers []*flusher
	inFlight atomic.Int64
	next     atomic.Uint32
	full     atomic.Bool
	// sent is about how many bytes Redis was given since its memory was last
	// looked at; look asks for a look now.
	sent atomic.Int64
	look chan struct{}
	// crowded is the error for the vote that is one too many: at an overload a
	// refusal must be cheap.
	crowded error
}

var (
	errFull = fmt.Errorf("%w: Redis's memory is nearly full", vote.ErrOverloaded)
	errLate = fmt.Errorf("%w: the votes before this one take Redis too long", vote.ErrOverloaded)
)

// New returns a committer; Run starts it.
func New(p Params) (*Committer, error) {
	c := &Committer{
		p: p, look: make(chan struct{}, 1),
		crowded: fmt.Errorf("%w: %d votes wait for Redis (max-in-flight)", vote.ErrOverloaded, p.MaxInFlight),
	}
	for shard := range p.Shards {
		codec, err := vote.NewCodec()
		if err != nil {
			return nil, err
		}
		c.flushers = append(c.flushers, &flusher{
			c: c, shard: shard, id: vote.NewFlusherID(), codec: codec, ready: make(chan struct{}, 1),
		})
	}
	return c, nil
}

// Run flushes until ctx is done and every vote in hand has its answer. Stop
// calling Submit before.
func (c *Committer) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, f := range c.flushers {
		wg.Go(func() { f.run(ctx) })
	}
	wg.Go(func() { c.watchMemory(ctx) })
	wg.Wait()
	return nil
}

// lookBytes is how much is sent before Redis's memory is looked at again, and
// keyedBytes what Redis keeps for a vote's idempotency key, about. At a peak
// the last second's votes alone may fill a small Redis, so that a look a second
// would come too late.
const (
	lookBytes  = 1 << 20
	keyedBytes = 200
)

// watchMemory refuses votes well before Redis has no memory left, since a full
// Redis is hard to drain.
func (c *Committer) watchMemory(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-c.look:
		}
		c.sent.Store(0)
		room, err := c.p.Queue.HasRoom(ctx)
		if err != nil {
			continue // Redis is away, and takes no votes; the flushers report that
		}
		if was := c.full.Swap(!room); was == room {
			c.p.Log.Warn("Redis's memory", "room_for_votes", room)
		}
	}
}

// lookNow asks for a look at Redis's memory, if none is about to come.
func (c *Committer) lookNow() {
	select {
	case c.look <- struct{}{}:
	default:
	}
}

// Overloaded tells whether a vote would be refused at once, and why, before the
// caller takes the trouble to read it.
func (c *Committer) Overloaded() error {
	switch {
	case c.full.Load():
		return errFull
	case c.inFlight.Load() >= int64(c.p.MaxInFlight):
		return c.crowded
	}
	return nil
}

// Submit puts a vote on the queue and waits for the answer. v's strings are
// copied before it returns, but for Poll and Option, which must stay as they
// are. optionsKey is that of the definition the vote was checked against. key
// may be nil.
//
// Errors: vote.ErrOverloaded (refused, not taken), vote.ErrUnavailable (may or may
// not have been taken), vote.ErrPollNotFound, ErrPollNotOpen, ErrPollClosed,
// ErrKeyReused.
func (c *Committer) Submit(v *vote.Vote, optionsKey string, key *vote.IdempotencyKey) (vote.Receipt, error) {
	if c.full.Load() {
		return vote.Receipt{}, errFull
	}
	if c.inFlight.Add(1) > int64(c.p.MaxInFlight) {
		c.inFlight.Add(-1)
		return vote.Receipt{}, c.crowded
	}
	defer c.inFlight.Add(-1)

	b, index, poll := c.flusher(key).add(v, optionsKey, key)
	if b == nil {
		return vote.Receipt{}, errLate
	}
	<-b.done
	if b.err != nil {
		return vote.Receipt{}, b.err
	}
	if k, ok := b.outcome.Keys[index]; ok {
		if k.Reused {
			return vote.Receipt{}, vote.ErrKeyReused
		}
		return k.First, nil
	}
	switch b.outcome.Polls[poll] {
	case vote.PollAccepted:
		return vote.Receipt{ID: v.ID, Option: v.Option, AcceptedAt: b.outcome.AcceptedAt}, nil
	case vote.PollNotOpen:
		return vote.Receipt{}, vote.ErrPollNotOpen
	case vote.PollClosed:
		return vote.Receipt{}, vote.ErrPollClosed
	case vote.PollUnknown:
		return vote.Receipt{}, vote.ErrPollNotFound
	case vote.PollStale:
		return vote.Receipt{}, fmt.Errorf("%w: the poll's options have just changed", vote.ErrUnavailable)
	}
	return vote.Receipt{}, fmt.Errorf("%w: outcome %q", vote.ErrUnavailable, b.outcome.Polls[poll])
}

// flusher chooses a vote's shard: by its key, or else the next in turn, past
// those that just now fail (a master of a cluster may be away).
func (c *Committer) flusher(key *vote.IdempotencyKey) *flusher {
	n := len(c.flushers)
	if key != nil {
		return c.flushers[(int(key[0])<<8|int(key[1]))%n]
	}
	next := int(c.next.Load()) % n
	for i := range n {
		if f := c.flushers[(next+i)%n]; !f.failing.Load() {
			return f
		}
	}
	return c.flushers[next]
}

// batch is a frame in the making.
type batch struct {
	lines  []byte
	votes  int
	polls  []vote.BatchPoll
	keyed  []vote.KeyedVote
	opened time.Time
	timer  *time.Timer
	once   sync.Once
	// outcome and err are set before done is closed.
	done    chan struct{}
	outcome vote.BatchOutcome
	err     error
}

func (b *batch) finish(out vote.BatchOutcome, err error) {
	b.once.Do(func() {
		b.outcome, b.err = out, err
		b.timer.Stop()
		close(b.done)
	})
}

func (b *batch) finished() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// flusher sends the batches of one shard, one at a time.
type flusher struct {
	c     *Committer
	shard int
	ready chan struct{}
	// failing: the frame in hand has been sent in vain.
	failing atomic.Bool

	mu      sync.Mutex
	pending []*batch         // in order; votes are added to the last one
	spare   [][]byte         // buffers of lines to be used again
	took    [2]time.Duration // how long the last acknowledged batches were in the air

	// Only run uses these.
	id         string
	seq        uint64
	registered bool
	codec      *vote.Codec
	body       []byte
}

// maxSpare bounds the buffers a flusher keeps.
const maxSpare = 4

// add puts a vote into the open batch and returns the batch, the vote's place
// in it and its poll's; nil when too many wait.
func (f *flusher) add(v *vote.Vote, optionsKey string, key *vote.IdempotencyKey) (b *batch, index, poll int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.pending); n > 0 {
		b = f.pending[n-1]
	}
	if b == nil || b.votes >= vote.MaxFrameVotes || len(b.lines) >= vote.MaxFrameBytes {
		if f.late() {
			return nil, 0, 0
		}
		b = f.open()
	}
	poll = slices.IndexFunc(b.polls, func(p vote.BatchPoll) bool {
		return p.Poll == v.Poll && p.OptionsKey == optionsKey
	})
	if poll < 0 {
		// A frame names a poll once: votes checked against another definition
		// go into another frame.
		if slices.ContainsFunc(b.polls, func(p vote.BatchPoll) bool { return p.Poll == v.Poll }) {
			if f.late() {
				return nil, 0, 0
			}
			b = f.open()
		}
		poll = len(b.polls)
		b.polls = append(b.polls, vote.BatchPoll{Poll: v.Poll, OptionsKey: optionsKey})
	}
	index = b.votes
	b.votes++
	b.polls[poll].Votes++
	b.lines = vote.AppendVote(b.lines, v)
	if key != nil {
		b.keyed = append(b.keyed, vote.KeyedVote{Index: index, PollIndex: poll, Key: *key, Option: v.Option, ID: v.ID})
	}
	return b, index, poll
}

// late tells whether a new batch would wait for more than half of its time,
// going by the faster of the last two acknowledgements; f.mu is held. An answer
// now is worth more to a voter than one that comes late or never. An outage
// changes nothing here: nothing is acknowledged then.
func (f *flusher) late() bool {
	n := len(f.pending)
	// Before it come those that wait, and the one in the air.
	return n > 0 && time.Duration(n+2)*min(f.took[0], f.took[1]) > f.c.p.Timeout/2
}

// open begins a new batch; f.mu is held.
func (f *flusher) open() *batch {
	b := &batch{opened: time.Now(), done: make(chan struct{})}
	if n := len(f.spare); n > 0 {
		b.lines, f.spare = f.spare[n-1], f.spare[:n-1]
	}
	b.timer = time.AfterFunc(f.c.p.Timeout, func() { f.expire(b) })
	f.pending = append(f.pending, b)
	select {
	case f.ready <- struct{}{}:
	default:
	}
	return b
}

// expire ends a batch whose time is up. Nothing of it is sent that was not sent
// before.
func (f *flusher) expire(b *batch) {
	f.mu.Lock()
	f.pending = slices.DeleteFunc(f.pending, func(p *batch) bool { return p == b })
	f.mu.Unlock()
	b.finish(vote.BatchOutcome{}, fmt.Errorf("%w: no acknowledgement within %s", vote.ErrUnavailable, f.c.p.Timeout))
}

// take removes the oldest batch.
func (f *flusher) take() *batch {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.pending) == 0 {
		return nil
	}
	b := f.pending[0]
	f.pending = slices.Delete(f.pending, 0, 1)
	return b
}

func (f *flusher) run(ctx context.Context) {
	defer f.codec.Close()
	for {
		if b := f.take(); b != nil {
			// Votes without a key go to the next shard's batch now.
			f.c.next.Store(uint32(f.shard + 1))
			f.flush(b)
			continue
		}
		select {
		case <-f.ready:
		case <-ctx.Done():
			// No one submits any more; what is left was added before.
			for b := f.take(); b != nil; b = f.take() {
				f.flush(b)
			}
			return
		}
	}
}

// flush sends a batch until it is answered or its time is up. It has a deadline
// of its own, which a shutdown does not cut short.
func (f *flusher) flush(b *batch) {
	ctx, cancel := context.WithDeadline(context.Background(), b.opened.Add(f.c.p.Timeout))
	defer cancel()
	defer f.failing.Store(false) // the next batch will tell
	f.seq++
	f.body = f.codec.Compress(f.body[:0], b.lines, b.votes)
	f.recycle(b)
	frame := vote.Batch{
		Shard: f.shard, ID: vote.FrameID{Flusher: f.id, Seq: f.seq},
		Votes: b.votes, Polls: b.polls, Keyed: b.keyed, Body: f.body,
	}
	start := time.Now()
	if f.c.sent.Add(int64(len(f.body)+keyedBytes*len(b.keyed))) > lookBytes {
		f.c.lookNow()
	}
	// unknown: an attempt may have been taken whose answer is not known. A Redis
	// that is full can't tell any more, so then it refuses nothing.
	unknown := false
	for wait := 5 * time.Millisecond; !b.finished(); wait = min(2*wait, 250*time.Millisecond) {
		out, err := f.send(ctx, &frame)
		f.c.p.Outage(err)
		if err == nil {
			f.observe(time.Since(start))
			f.c.report(b, out)
			b.finish(out, nil)
			return
		}
		full := errors.Is(err, vote.ErrOverloaded)
		if full && !unknown {
			b.finish(vote.BatchOutcome{}, err)
			return
		}
		// Without a record of the flusher nothing was sent, or nothing was done.
		unknown = unknown || f.registered && !full
		f.failing.Store(true)
		select {
		case <-b.done:
		case <-time.After(wait):
		}
	}
}

func (f *flusher) send(ctx context.Context, frame *vote.Batch) (vote.BatchOutcome, error) {
	if !f.registered {
		if err := f.c.p.Queue.Register(ctx, f.shard, f.id); err != nil {
			return vote.BatchOutcome{}, err
		}
		f.registered = true
	}
	out, err := f.c.p.Queue.Enqueue(ctx, frame)
	if errors.Is(err, vote.ErrFlusherLost) {
		// Redis lost the record, and with it every frame that came after it:
		// begin again as a new flusher.
		f.id, f.seq, f.registered = vote.NewFlusherID(), 1, false
		frame.ID = vote.FrameID{Flusher: f.id, Seq: f.seq}
	}
	return out, err
}

// observe notes how long an acknowledged batch was in the air.
func (f *flusher) observe(took time.Duration) {
	f.c.p.Metrics.Seconds.Observe(took.Seconds())
	f.mu.Lock()
	defer f.mu.Unlock()
	f.took = [2]time.Duration{f.took[1], took}
}

// recycle keeps the lines' buffer, unless it is an unusually large one.
func (f *flusher) recycle(b *batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.spare) < maxSpare && cap(b.lines) <= 2*vote.MaxFrameBytes {
		f.spare = append(f.spare, b.lines[:0])
	}
	b.lines = nil
}

// report adds an acknowledged batch to the metrics.
func (c *Committer) report(b *batch, out vote.BatchOutcome) {
	c.p.Metrics.BatchVotes.Observe(float64(b.votes))
	for i, p := range b.polls {
		n := p.Votes
		for _, k := range b.keyed {
			if _, used := out.Keys[k.Index]; used && k.PollIndex == i {
				n--
			}
		}
		if out.Polls[i] == vote.PollAccepted && n > 0 {
			c.p.Metrics.Accepted.WithLabelValues(p.Poll).Add(float64(n))
		}
	}
}
