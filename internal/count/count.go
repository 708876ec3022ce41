package count

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"paredao/internal/vote"
)

// Queue is where votes wait.
type Queue interface {
	// ReadQueue returns the first elements and takes nothing off.
	ReadQueue(ctx context.Context, shard int, limit vote.ReadLimit) ([]string, error)
	// CommitCount counts, if the head is still what was read.
	CommitCount(ctx context.Context, c *vote.CountCommit) (vote.CommitStatus, time.Time, error)
	// AwaitVotes blocks until votes may have come, or until the timeout.
	AwaitVotes(ctx context.Context, shard int, timeout time.Duration) error
}

// Metrics are what a consumer reports. All must be set.
type Metrics struct {
	// Counted counts votes by poll, Dead those in unreadable elements by reason.
	Counted, Dead *prometheus.CounterVec
	// Refused counts commits that found the head moved.
	Refused prometheus.Counter
	// AcceptToCount observes each frame's seconds from enqueue to commit.
	AcceptToCount prometheus.Observer
}

// Params configure a Consumer.
type Params struct {
	Queue Queue
	// Worker tells this consumer's commits from others'. It must be unique.
	Worker string
	// ChunkSize is about how many votes a chunk holds.
	ChunkSize int
	// Outage gets each failed call (an error) and each good one (nil).
	Outage  func(error)
	Log     *slog.Logger
	Metrics Metrics
}

// Bounds of a chunk besides its votes: what it may take in memory, and how many
// elements one commit may move, while which Redis answers no one else. A frame of
// one vote costs it some ten microseconds there.
const (
	chunkBytes    = 8 << 20
	chunkElements = 512
)

// idleWait is how long a consumer waits for a signal before it looks by itself.
const idleWait = time.Second

// deadLines is how many unreadable elements of a chunk are logged one by one.
const deadLines = 5

// stepTimeout bounds a chunk, also during a shutdown.
const stepTimeout = 10 * time.Second

// Consumer counts votes.
type Consumer struct {
	p       Params
	commits atomic.Uint64
}

// New returns a consumer.
func New(p Params) *Consumer { return &Consumer{p: p} }

// Work counts the votes of a shard until ctx is done. The chunk in hand is
// finished then.
func (c *Consumer) Work(ctx context.Context, shard int) {
	codec, err := vote.NewCodec()
	if err != nil {
		c.p.Outage(err)
		return
	}
	defer codec.Close()
	w := &worker{c: c, shard: shard, codec: codec}
	const minWait, maxWait = 20 * time.Millisecond, time.Second
	wait := minWait
	for ctx.Err() == nil {
		empty, err := w.chunk(context.WithoutCancel(ctx))
		if err == nil && empty {
			err = c.p.Queue.AwaitVotes(ctx, shard, idleWait)
			if ctx.Err() != nil {
				return
			}
		}
		c.p.Outage(err)
		if err == nil {
			wait = minWait
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, maxWait)
	}
}

// worker counts one shard.
type worker struct {
	c       *Consumer
	shard   int
	codec   *vote.Codec
	polls   map[string]map[string]*counter
	key     []byte
	touched []*counter
}

// counter adds up one poll's votes for one option. What the frame in hand adds
// stays apart until the whole frame has been read.
type counter struct{ votes, frame int64 }

// chunk counts the first elements of the queue; empty says that there are none.
func (w *worker) chunk(ctx context.Context) (empty bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	elements, err := w.c.p.Queue.ReadQueue(ctx, w.shard,
		vote.ReadLimit{Votes: w.c.p.ChunkSize, Bytes: chunkBytes, Elements: chunkElements})
	if err != nil || len(elements) == 0 {
		return err == nil, err
	}
	commit := &vote.CountCommit{
		Shard:    w.shard,
		Token:    w.c.p.Worker + "/" + strconv.Itoa(w.shard) + "/" + strconv.FormatUint(w.c.commits.Add(1), 10),
		Elements: len(elements),
		First:    vote.ElementID([]byte(elements[0])),
		Last:     vote.ElementID([]byte(elements[len(elements)-1])),
		Digest:   vote.ElementsDigest(elements),
	}
	accepted := w.add(commit, elements)
	status, now, err := w.c.p.Queue.CommitCount(ctx, commit)
	if err != nil {
		return false, err
	}
	if status == vote.CommitRefused {
		w.c.p.Metrics.Refused.Inc()
		w.c.p.Log.Warn("commit refused: the head of the queue has moved, another consumer counted these votes",
			"shard", w.shard, "elements", commit.Elements, "first", commit.First)
		return false, nil
	}
	w.report(commit, accepted, now)
	return false, nil
}

// add adds up the elements and returns when the readable ones were accepted.
func (w *worker) add(commit *vote.CountCommit, elements []string) []time.Time {
	w.polls = map[string]map[string]*counter{}
	accepted := make([]time.Time, 0, len(elements))
	deadVotes := map[string]int64{}
	for i, e := range elements {
		h, err := w.codec.Read([]byte(e), w.vote)
		for _, c := range w.touched {
			if err == nil {
				c.votes += c.frame
			}
			c.frame = 0
		}
		w.touched = w.touched[:0]
		if err == nil {
			accepted = append(accepted, h.AcceptedAt)
			continue
		}
		commit.Dead = append(commit.Dead, i)
		for _, p := range h.Polls {
			deadVotes[p.Poll] += p.Votes
		}
		if len(commit.Dead) <= deadLines {
			w.c.p.Log.Error("unreadable element, goes to the dead list", "shard", w.shard,
				"element", vote.ElementID([]byte(e)), "votes", h.Accepted(), "err", err)
		}
	}
	if more := len(commit.Dead) - deadLines; more > 0 {
		w.c.p.Log.Error("more unreadable elements go to the dead list", "shard", w.shard, "elements", more)
	}
	for poll, n := range deadVotes {
		commit.DeadVotes = append(commit.DeadVotes, vote.PollVotes{Poll: poll, Votes: n})
	}
	commit.Counts = make(map[string]vote.Tally, len(w.polls))
	for poll, fields := range w.polls {
		tally := make(vote.Tally, len(fields))
		for field, c := range fields {
			if c.votes > 0 {
				tally[field] = c.votes
			}
		}
		if len(tally) > 0 {
			commit.Counts[poll] = tally
		}
	}
	return accepted
}

// vote adds one vote. It allocates only for a choice not seen in this chunk.
func (w *worker) vote(v *vote.RawVote) {
	fields := w.polls[string(v.Poll)]
	if fields == nil {
		fields = map[string]*counter{}
		w.polls[string(v.Poll)] = fields
	}
	field := v.Option
	if len(v.Class) > 0 {
		w.key = append(append(append(w.key[:0], v.Class...), '/'), v.Option...)
		field = w.key
	}
	c := fields[string(field)]
	if c == nil {
		c = &counter{}
		fields[string(field)] = c
	}
	if c.frame == 0 {
		w.touched = append(w.touched, c)
	}
	c.frame++
}

func (w *worker) report(commit *vote.CountCommit, accepted []time.Time, now time.Time) {
	m := w.c.p.Metrics
	for poll, tally := range commit.Counts {
		var n int64
		for _, votes := range tally {
			n += votes
		}
		m.Counted.WithLabelValues(poll).Add(float64(n))
	}
	if len(commit.Dead) > 0 {
		var n int64
		for _, d := range commit.DeadVotes {
			n += d.Votes
		}
		m.Dead.WithLabelValues("unreadable").Add(float64(max(n, int64(len(commit.Dead)))))
	}
	for _, at := range accepted {
		m.AcceptToCount.Observe(max(0, now.Sub(at).Seconds()))
	}
}
