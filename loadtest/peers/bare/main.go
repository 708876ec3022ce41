// Command bare is the upper bound of the benchmark: the real api's HTTP,
// validation and answer, with nothing behind them.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"os"
	"time"

	strictjson "github.com/go-json-experiment/json"
	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"
	"github.com/spf13/pflag"

	"paredao/internal/daemon"
	"paredao/internal/vote"
	"paredao/loadtest/peers/peer"
)

func main() {
	os.Exit(daemon.Main("bare", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout, os.Stderr) }))
}

const about = `
bare answers votes as the api does, with the same validation, and keeps nothing:
no Redis, no queue. The benchmark measures the api against it.

Usage:
  bare [flags]
`

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var f peer.Flags
	set := pflag.NewFlagSet("bare", pflag.ContinueOnError)
	f.AddTo(set)
	if err := peer.Parse(set, about, args, stdout); err != nil {
		return err
	}
	page, err := preparedResults(&f)
	if err != nil {
		return err
	}
	b := &bare{polls: f.Polls(), results: map[string]*prepared{f.Poll: page}}
	app := peer.NewApp()
	app.Post("/polls/:poll/votes", b.vote)
	app.Get("/polls/:poll/results", b.result)
	return peer.Serve(ctx, app, f.Listen, stderr)
}

type bare struct {
	polls   map[string]map[string]bool
	results map[string]*prepared
}

// choice is what a body may hold.
type choice struct {
	Option *string `json:"option"`
	Class  *string `json:"class"`
}

func (b *bare) vote(c *fiber.Ctx) error {
	poll := c.Params("poll")
	options, ok := b.polls[poll]
	if !ok {
		return fiber.NewError(http.StatusNotFound, "poll-not-found")
	}
	h := &c.Request().Header
	if len(h.Peek(fiber.HeaderContentEncoding)) > 0 || string(h.ContentType()) != fiber.MIMEApplicationJSON {
		return fiber.NewError(http.StatusUnsupportedMediaType, "unsupported-media-type")
	}
	var want choice
	if err := strictjson.Unmarshal(c.Request().Body(), &want, strictjson.RejectUnknownMembers(true)); err != nil || want.Option == nil {
		return fiber.NewError(http.StatusBadRequest, "malformed-body")
	}
	if want.Class != nil {
		return fiber.NewError(http.StatusUnprocessableEntity, "unknown-class")
	}
	if !options[*want.Option] {
		return fiber.NewError(http.StatusUnprocessableEntity, "unknown-option")
	}
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("vote id: %w", err)
	}
	// Ids need no escaping.
	out := make([]byte, 0, 192)
	out = append(out, `{"id":"`...)
	out = append(out, id.String()...)
	out = append(out, `","poll":"`...)
	out = append(out, poll...)
	out = append(out, `","option":"`...)
	out = append(out, *want.Option...)
	out = append(out, `","accepted_at":"`...)
	out = time.Now().UTC().AppendFormat(out, peer.AcceptedLayout)
	out = append(out, `"}`...)
	c.Status(http.StatusAccepted)
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	c.Response().SetBodyRaw(out)
	return nil
}

// prepared is an answer that stands ready.
type prepared struct {
	body []byte
	etag string
}

// preparedResults are results like those that the api serves after a day.
func preparedResults(f *peer.Flags) (*prepared, error) {
	r := vote.PollResults{Poll: f.Poll, Title: "Benchmark", Status: vote.StatusOpen, AsOf: time.Now().UTC(), Pending: 512}
	votes := make([]int64, len(f.Options))
	for i := range votes {
		votes[i] = 1_000_000 + int64(i)
		r.Total += votes[i]
	}
	for i, p := range vote.Percentages(votes) {
		r.Options = append(r.Options, vote.OptionResult{ID: f.Options[i], Name: f.Options[i], Votes: votes[i], Percent: p})
	}
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	h := fnv.New64a()
	_, _ = h.Write(body) // a hash never fails
	return &prepared{body, fmt.Sprintf(`W/"%016x"`, h.Sum64())}, nil
}

func (b *bare) result(c *fiber.Ctx) error {
	page, ok := b.results[c.Params("poll")]
	if !ok {
		return fiber.NewError(http.StatusNotFound, "poll-not-found")
	}
	c.Set(fiber.HeaderContentType, fiber.MIMEApplicationJSON)
	c.Set(fiber.HeaderCacheControl, "public, max-age=0")
	c.Set(fiber.HeaderETag, page.etag)
	if bytes.Equal(c.Request().Header.Peek(fiber.HeaderIfNoneMatch), []byte(page.etag)) {
		c.Status(http.StatusNotModified)
		return nil
	}
	c.Response().SetBodyRaw(page.body)
	return nil
}
