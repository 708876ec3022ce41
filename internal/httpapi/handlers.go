package httpapi

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/utils"
	"github.com/google/uuid"

	"paredao/internal/vote"
)

//go:embed openapi.json
var openAPIDocument []byte

func (s *Server) openAPI(c *fiber.Ctx) error {
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	return c.Send(openAPIDocument)
}

// acceptedLayout is RFC 3339 with milliseconds, in UTC.
const acceptedLayout = "2006-01-02T15:04:05.000Z"

// vote is POST /polls/{poll}/votes.
func (s *Server) vote(c *fiber.Ctx) error {
	// First, since at an overload a refusal must cost little.
	if err := s.p.Submit.Overloaded(); err != nil {
		return err
	}
	ctx := context.Background() // Fiber's own is reused for the next request
	poll, _, err := s.catalog.poll(ctx, c.Params("poll"))
	if err != nil {
		return err
	}
	wanted, classed, err := parseChoice(c)
	if err != nil {
		return err
	}
	key, err := idempotencyKey(c, poll.ID)
	if err != nil {
		return err
	}
	if classed {
		return vote.ErrUnknownClass // no poll has classes yet
	}
	option, ok := poll.options[wanted]
	if !ok {
		if poll, option, err = s.lookAgain(ctx, poll.ID, wanted); err != nil {
			return err
		}
	}
	// Late votes need not burden Redis. A repeated one must, since its first answer
	// stands.
	if key == nil && poll.over.Load() {
		return vote.ErrPollClosed
	}
	sc, err := s.borrow(ctx)
	if err != nil {
		return err
	}
	defer s.scratch.Put(sc)
	sc.client = sc.keeper.append(sc.client[:0], s.client(c))
	// Submit copies all that is borrowed here.
	sc.vote = vote.Vote{
		Poll: poll.ID, Option: option, Client: utils.UnsafeString(sc.client), UserAgent: utils.UnsafeString(userAgent(c)),
	}
	if sc.vote.ID, err = uuid.NewV7(); err != nil {
		return fmt.Errorf("vote id: %w", err)
	}
	receipt, err := s.p.Submit.Submit(&sc.vote, poll.optionsKey, key)
	if err != nil {
		return err
	}
	if receipt.Replayed {
		c.Set("Idempotency-Replayed", "true")
	}
	sc.answer = appendReceipt(sc.answer[:0], poll.ID, &receipt)
	c.Status(http.StatusAccepted)
	c.Response().Header.SetContentType(fiber.MIMEApplicationJSON)
	c.Response().SetBody(sc.answer)
	return nil
}

// scratch is what a vote needs on its way through the handler, to be used again.
type scratch struct {
	vote   vote.Vote
	keeper *keeper
	client []byte
	answer []byte
}

// borrow returns a scratch, to be put back once nothing points to it.
func (s *Server) borrow(ctx context.Context) (*scratch, error) {
	if sc, ok := s.scratch.Get().(*scratch); ok {
		return sc, nil
	}
	key, err := s.clientKey(ctx)
	if err != nil {
		return nil, err
	}
	return &scratch{keeper: newKeeper(s.p.Privacy, key)}, nil
}

// appendReceipt writes the answer to an accepted vote. Ids need no escaping.
func appendReceipt(b []byte, poll string, r *vote.Receipt) []byte {
	b = append(b, `{"id":"`...)
	b = appendID(b, r.ID)
	b = append(b, `","poll":"`...)
	b = append(b, poll...)
	b = append(b, `","option":"`...)
	b = append(b, r.Option...)
	b = append(b, `","accepted_at":"`...)
	b = r.AcceptedAt.AppendFormat(b, acceptedLayout)
	return append(b, `"}`...)
}

// appendID writes the text of an id, as its String does.
func appendID(b []byte, id uuid.UUID) []byte {
	b = hex.AppendEncode(b, id[:4])
	for _, part := range [][]byte{id[4:6], id[6:8], id[8:10], id[10:]} {
		b = hex.AppendEncode(append(b, '-'), part)
	}
	return b
}

// lookAgain asks Redis whether the poll has got the option meanwhile.
func (s *Server) lookAgain(ctx context.Context, poll, option string) (*entry, string, error) {
	ed, err := s.catalog.look(ctx, time.Now())
	if err != nil {
		return nil, "", err
	}
	e, ok := ed.byID[poll]
	if !ok {
		return nil, "", vote.ErrPollNotFound
	}
	if option, ok = e.options[option]; !ok {
		return nil, "", vote.ErrUnknownOption
	}
	return e, option, nil
}

func idempotencyKey(c *fiber.Ctx, poll string) (*vote.IdempotencyKey, error) {
	all := c.Request().Header.PeekAll("Idempotency-Key")
	if len(all) == 0 {
		return nil, nil
	}
	if len(all) > 1 || len(all[0]) == 0 || len(all[0]) > 255 || !visible(all[0]) {
		return nil, newProblem(http.StatusBadRequest, "bad-idempotency-key",
			"An Idempotency-Key is 1 to 255 visible ASCII characters, and stands once.")
	}
	key := vote.NewIdempotencyKey(poll, utils.UnsafeString(all[0]))
	return &key, nil
}

// client returns the client's address.
func (s *Server) client(c *fiber.Ctx) netip.Addr {
	addr, _ := netip.AddrFromSlice(c.Context().RemoteIP())
	var forwarded []string
	if len(s.p.TrustedProxies) > 0 {
		for _, h := range c.Request().Header.PeekAll(fiber.HeaderXForwardedFor) {
			forwarded = append(forwarded, string(h))
		}
	}
	return clientAddr(addr, forwarded, s.p.TrustedProxies)
}

// userAgent returns what is kept of the user agent, borrowed from the request.
func userAgent(c *fiber.Ctx) []byte {
	ua := c.Request().Header.UserAgent()
	return ua[:min(len(ua), vote.MaxUserAgent)]
}

// overview is all polls with their status, and the answer that lists them.
type overview struct {
	byID map[string]vote.PollState
	list resultsPage
}

// states returns all polls with their status now.
func (s *Server) states() (*overview, time.Duration, error) {
	return s.overview.get(s.p.ResultsMaxAge, s.renewals.Go, func() (*overview, error) {
		ctx := context.Background()
		ed, err := s.catalog.look(ctx, time.Now())
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		shards, err := s.p.Polls.ShardPolls(ctx)
		if err != nil {
			return nil, unavailable(err)
		}
		o := &overview{byID: make(map[string]vote.PollState, len(ed.inOrder))}
		all := []vote.PollState{}
		for _, e := range ed.inOrder {
			st := e.PollState
			st.Status = vote.StatusOf(e.ID, shards)
			o.byID[e.ID] = st
			all = append(all, st)
		}
		body, err := json.Marshal(map[string]any{"polls": all})
		if err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
		o.list = resultsPage{body, etag(body)}
		return o, nil
	})
}

// list is GET /polls.
func (s *Server) list(c *fiber.Ctx) error {
	o, stale, err := s.states()
	if err != nil {
		return err
	}
	return s.sendCached(c, o.list.body, o.list.etag, stale)
}

// poll is GET /polls/{poll}.
func (s *Server) poll(c *fiber.Ctx) error {
	e, ed, err := s.catalog.poll(context.Background(), c.Params("poll"))
	if err != nil {
		return err
	}
	o, stale, err := s.states()
	if err != nil {
		return err
	}
	st, ok := o.byID[e.ID]
	if !ok { // applied since the overview was made
		st = e.PollState
		st.Status = e.Window.Status(ed.now())
	}
	body, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return s.sendCached(c, body, etag(body), stale)
}

// sendCached answers with a body that may be cached for as long as results may
// be old. One that is older than that, since Redis is away, is marked as RFC 9111
// has it: Age, and Warning 110, which it no longer requires and all understand.
func (s *Server) sendCached(c *fiber.Ctx, body []byte, tag string, stale time.Duration) error {
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	c.Set(fiber.HeaderCacheControl, "public, max-age="+strconv.Itoa(int(s.p.ResultsMaxAge/time.Second)))
	if stale > 0 {
		c.Set(fiber.HeaderAge, strconv.Itoa(int(stale/time.Second)))
		c.Set(fiber.HeaderWarning, `110 - "Response is Stale"`)
	}
	c.Set(fiber.HeaderETag, tag)
	if matches(c.Request().Header.Peek(fiber.HeaderIfNoneMatch), tag) {
		c.Status(http.StatusNotModified)
		return nil
	}
	c.Response().SetBodyRaw(body)
	return nil
}

// matches tells whether an If-None-Match names the tag. The comparison is the
// weak one, as RFC 9110 wants it here.
func matches(header []byte, tag string) bool {
	if string(header) == "*" {
		return true
	}
	for t := range bytes.SplitSeq(header, []byte{','}) {
		if string(bytes.TrimPrefix(bytes.TrimSpace(t), []byte("W/"))) == strings.TrimPrefix(tag, "W/") {
			return true
		}
	}
	return false
}

// etag is a weak one: equal results may have been read at different times.
func etag(b []byte) string {
	h := fnv.New64a()
	_, _ = h.Write(b) // a hash never fails
	return fmt.Sprintf(`W/"%016x"`, h.Sum64())
}

// resultsPage is a prepared answer.
type resultsPage struct {
	body []byte
	etag string
}

// results is GET /polls/{poll}/results.
func (s *Server) results(c *fiber.Ctx) error {
	e, _, err := s.catalog.poll(context.Background(), c.Params("poll"))
	if err != nil {
		return err
	}
	page, stale, err := e.results.get(s.p.ResultsMaxAge, s.renewals.Go, func() (*resultsPage, error) {
		ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
		defer cancel()
		r, err := s.p.Polls.Results(ctx, e.ID)
		if errors.Is(err, vote.ErrPollNotFound) {
			return nil, err
		}
		if err != nil {
			return nil, unavailable(err)
		}
		shown := r.Show(&e.Poll)
		body, err := json.Marshal(shown)
		if err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
		shown.AsOf = time.Time{}
		same, err := json.Marshal(shown)
		if err != nil {
			return nil, fmt.Errorf("encode: %w", err)
		}
		return &resultsPage{body, etag(same)}, nil
	})
	if err != nil {
		return err
	}
	return s.sendCached(c, page.body, page.etag, stale)
}
