package ledger

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	crand "crypto/rand"

	"github.com/google/uuid"

	"paredao/internal/vote"
)

// Params configure a Client.
type Params struct {
	// URLs are base URLs of apis. A connection stays with one until it fails,
	// then turns to the next.
	URLs []string
	// Choices are what Source chooses from, each at most once.
	Choices []Choice
	// Refuse are those of the Choices that must be refused, Either those that may
	// be taken or refused, as when their poll closes while votes are posted. All
	// others must never be refused: a pipeline that turns away good votes, or
	// takes others, may have books that agree.
	Refuse, Either []Choice
	Source         Source
	// Connections is how many votes may be in the air at one time, one on each.
	Connections int
	// Keyless is the share of votes, from 0 to 1, that have no Idempotency-Key.
	// They take other ways through the pipeline, and nothing but the pipeline
	// itself keeps them from being doubled; but they can't be sent again.
	Keyless float64
	// Rate is how many votes a second are sent at most; 0: as fast as possible.
	Rate float64
	// Duration is how long votes are posted; 0: until the source ends.
	Duration time.Duration
	// Timeout bounds each attempt.
	Timeout time.Duration
	// Patience is how long a vote of unknown fate is sent again. It must be
	// shorter than the api's idempotency-ttl.
	Patience time.Duration
}

// Client posts votes and keeps what became of each.
type Client struct {
	p       Params
	targets []target
	record  *Record
	tickets atomic.Int64
	took    time.Duration
	// hangUps is the share of attempts, as math.Float64bits.
	hangUps atomic.Uint64
}

// NewClient returns a client; Run runs it.
func NewClient(p Params) (*Client, error) {
	c := &Client{p: p, record: NewRecord(p.Choices)}
	if len(p.URLs) == 0 {
		return nil, errors.New("no api is given")
	}
	for _, raw := range p.URLs {
		t, err := parseTarget(raw)
		if err != nil {
			return nil, err
		}
		c.targets = append(c.targets, t)
	}
	for i, ch := range p.Choices {
		if !vote.ValidID(ch.Poll) || !vote.ValidID(ch.Option) {
			return nil, fmt.Errorf("%s: poll and option match [a-z0-9][a-z0-9_-]{0,62}", ch)
		}
		if slices.Contains(p.Choices[:i], ch) {
			return nil, fmt.Errorf("%s stands twice", ch)
		}
	}
	for want, of := range map[expectation][]Choice{mustRefuse: p.Refuse, mayRefuse: p.Either} {
		for _, ch := range of {
			if !c.record.expect(ch, want) {
				return nil, fmt.Errorf("%s is expected to be something else already, or is no choice", ch)
			}
		}
	}
	if p.Source == nil || p.Connections < 1 || p.Timeout <= 0 || p.Rate < 0 || p.Keyless < 0 || p.Keyless > 1 {
		return nil, fmt.Errorf("a source, connections (%d) and a time-out (%s) are needed, a rate (%g) not below 0, a share without keys (%g) from 0 to 1",
			p.Connections, p.Timeout, p.Rate, p.Keyless)
	}
	return c, nil
}

// Record is what the client keeps. It may be read while Run runs.
func (c *Client) Record() *Record { return c.record }

// SetHangUps sets the share of attempts, from 0 to 1, whose connection the
// client closes as soon as the request is sent, before the answer. It may be
// changed while Run runs. Such a vote is of unknown fate, and is sent again if
// it has a key.
func (c *Client) SetHangUps(share float64) { c.hangUps.Store(math.Float64bits(share)) }

// Took is how long votes were posted, the repeating included. It is valid once
// Run has returned.
func (c *Client) Took() time.Duration { return c.took }

// Run posts votes until the source ends, Duration is over, or ctx is done, and
// each vote is settled or its Patience is over.
func (c *Client) Run(ctx context.Context) {
	start := time.Now()
	if c.p.Duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.p.Duration)
		defer cancel()
	}
	var wg sync.WaitGroup
	for i := range c.p.Connections {
		wg.Go(func() { c.work(ctx, i, start) })
	}
	wg.Wait()
	c.took = time.Since(start)
}

// work posts one vote after the other.
func (c *Client) work(ctx context.Context, i int, start time.Time) {
	cn := &conn{targets: c.targets, at: i % len(c.targets), timeout: c.p.Timeout}
	defer cn.close()
	var seed [32]byte
	_, _ = crand.Read(seed[:]) // never fails, see crypto/rand
	keys := rand.NewChaCha8(seed)
	random := rand.New(keys)
	cn.hangUp = func() bool {
		share := math.Float64frombits(c.hangUps.Load())
		return share > 0 && random.Float64() < share
	}
	for c.turn(ctx, start) {
		choice, ok := c.p.Source()
		if !ok {
			return
		}
		c.record.addSent(choice)
		if c.p.Keyless > 0 && random.Float64() < c.p.Keyless {
			c.once(cn, choice)
			continue
		}
		c.settle(cn, choice, newKey(keys))
	}
}

// turn waits until the next vote may be sent; false: no more.
func (c *Client) turn(ctx context.Context, start time.Time) bool {
	if c.p.Rate > 0 {
		n := c.tickets.Add(1) - 1
		at := start.Add(time.Duration(float64(n) / c.p.Rate * float64(time.Second)))
		if wait := time.Until(at); wait > 0 {
			timer := time.NewTimer(wait)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
	}
	return ctx.Err() == nil
}

func newKey(keys *rand.ChaCha8) string {
	var id uuid.UUID
	_, _ = keys.Read(id[:])                         // never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // version 4
	return id.String()
}

// settle sends a vote until it is acked or refused, or Patience is over. Not
// even the end of posting cuts that short.
func (c *Client) settle(cn *conn, choice int, key string) {
	const minWait, maxWait = 10 * time.Millisecond, 500 * time.Millisecond
	giveUp := time.Now().Add(c.p.Patience)
	for wait := minWait; ; wait = min(2*wait, maxWait) {
		if done, _ := c.attempt(cn, choice, key); done {
			return
		}
		if time.Now().Add(wait).After(giveUp) {
			c.record.addUnsettled(choice)
			return
		}
		<-time.After(wait)
	}
}

// once sends a vote without a key, which must not be sent again.
func (c *Client) once(cn *conn, choice int) {
	switch done, err := c.attempt(cn, choice, ""); {
	case done:
	case errors.Is(err, errConnect):
		c.record.addUnsent(choice)
	default:
		c.record.addUnknown(choice)
	}
}

// attempt sends a vote once. It is done when it is acked or refused; an error
// says that there was no answer.
func (c *Client) attempt(cn *conn, choice int, key string) (done bool, err error) {
	want := c.p.Choices[choice]
	a, err := cn.post(want, key)
	switch {
	case err != nil:
		if errors.Is(err, errUnreadable) {
			c.record.addWrong(fmt.Sprintf("a vote for %s was acknowledged without a receipt: %v", want, err))
		}
		c.record.addAnswer(kind(err))
		return false, err
	case a.status == http.StatusAccepted:
		if a.poll != want.Poll || a.option != want.Option {
			c.record.addWrong(fmt.Sprintf("a vote for %s was acknowledged as %s/%s, id %s", want, a.poll, a.option, a.id))
		}
		c.record.addAcked(choice, a.id, a.replayed, a.at)
		return true, nil
	}
	c.record.addAnswer(strconv.Itoa(a.status) + " " + a.code)
	if refusal(a.status) {
		c.record.addRefused(choice)
		return true, nil
	}
	return false, nil
}

// refusal tells whether a status says that the vote is not to be had. 408 says
// only that the request did not arrive whole, and 429 that it came too early;
// both may come of good votes.
func refusal(status int) bool {
	return status >= 400 && status < 500 && status != http.StatusRequestTimeout && status != http.StatusTooManyRequests
}
