package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/spf13/pflag"

	"paredao/internal/config"
	"paredao/loadtest/peers/peer"
)

func runAPI(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var f peer.Flags
	var url string
	set := pflag.NewFlagSet("naive api", pflag.ContinueOnError)
	f.AddTo(set)
	addRedis(set, &url)
	if err := peer.Parse(set, about, args, stdout); err != nil {
		return err
	}
	rdb, err := connect(url)
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }()
	a := &api{polls: f.Polls(), rdb: rdb}
	app := peer.NewApp()
	app.Post("/polls/:poll/votes", a.vote)
	return peer.Serve(ctx, app, f.Listen, stderr)
}

func addRedis(set *pflag.FlagSet, url *string) {
	set.StringVar(url, "redis-url", "redis://127.0.0.1:6379/0", "where Redis is")
}

// connect returns a client with the pool and the time limits of the real one.
func connect(url string) (*redis.Client, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, config.Usagef("wrong value for --redis-url: %v", err)
	}
	const timeout = 2 * time.Second
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = timeout, timeout, timeout
	o.PoolSize = 10*runtime.GOMAXPROCS(0) + 1
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return redis.NewClient(o), nil
}

type api struct {
	polls map[string]map[string]bool
	rdb   *redis.Client
}

// body is what a voter sends.
type body struct {
	Option string `json:"option"`
}

// answer is what a voter gets.
type answer struct {
	ID         string `json:"id"`
	Poll       string `json:"poll"`
	Option     string `json:"option"`
	AcceptedAt string `json:"accepted_at"`
}

func (a *api) vote(c *fiber.Ctx) error {
	options, ok := a.polls[c.Params("poll")]
	if !ok {
		return fiber.NewError(http.StatusNotFound, "unknown poll")
	}
	var want body
	if err := json.Unmarshal(c.Body(), &want); err != nil {
		return fiber.NewError(http.StatusBadRequest, "malformed body")
	}
	if !options[want.Option] {
		return fiber.NewError(http.StatusUnprocessableEntity, "unknown option")
	}
	id, err := uuid.NewV7()
	if err != nil {
		return fmt.Errorf("vote id: %w", err)
	}
	v := stored{
		ID: id.String(), Poll: c.Params("poll"), Option: want.Option,
		AcceptedAt: time.Now().UTC().Format(peer.AcceptedLayout),
		Client:     client(c), UserAgent: c.Get(fiber.HeaderUserAgent),
	}
	// Encoded here and now: Fiber's strings are borrowed from the request.
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if err := a.rdb.RPush(context.Background(), queueKey, b).Err(); err != nil {
		return fiber.NewError(http.StatusServiceUnavailable, "the queue is away")
	}
	return c.Status(http.StatusAccepted).JSON(answer{v.ID, v.Poll, v.Option, v.AcceptedAt})
}

// client is the address that the proxy in front names last, or the socket's.
func client(c *fiber.Ctx) string {
	forwarded := c.Get(fiber.HeaderXForwardedFor)
	if forwarded == "" {
		return c.IP()
	}
	return strings.TrimSpace(forwarded[strings.LastIndexByte(forwarded, ',')+1:])
}
