package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"paredao/internal/blobstore"
	"paredao/internal/lab"
	"paredao/internal/ledger"
	"paredao/internal/ledger/child"
	"paredao/internal/redisstore"
)

// startPatience bounds each wait for a process.
const startPatience = time.Minute

// stack is the processes of a replay.
type stack struct {
	o     options
	dir   string
	redis *lab.Redis
	// daemons in the order in which they end: producers first.
	daemons    []*child.Child
	api        string
	redisURL   string
	archiveURL string
	store      *redisstore.Store
	blobs      blobstore.Store
}

func (s *stack) start(ctx context.Context, choices []ledger.Choice) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	var err error
	if s.redis, err = lab.StartRedis(ctx, s.dir, "--appendonly", "yes", "--appendfsync", s.o.fsync); err != nil {
		return err
	}
	s.redisURL = s.redis.URL()
	s.archiveURL = "file:" + filepath.Join(s.dir, "archive")
	if s.blobs, err = blobstore.Open(ctx, s.archiveURL, blobstore.AzureCredentials{}); err != nil {
		return err
	}
	if s.store, err = redisstore.Open(redisstore.Options{URL: s.redisURL, Shards: s.o.shards}); err != nil {
		return err
	}
	polls, err := s.pollsFile(choices)
	if err != nil {
		return err
	}
	api, err := s.daemon("api", "--listen=127.0.0.1:0", "--polls-file="+polls)
	if err != nil {
		return err
	}
	for range s.o.consumers {
		if _, err := s.daemon("consumer"); err != nil {
			return err
		}
	}
	if _, err := s.daemon("archiver", "--archive-url="+s.archiveURL, "--archive-max-age=5s"); err != nil {
		return err
	}
	for _, d := range s.daemons {
		if err := d.Ready(ctx); err != nil {
			return err
		}
	}
	if s.api, err = api.Public(ctx); err != nil {
		return err
	}
	return s.pollApplied(ctx)
}

func (s *stack) daemon(name string, args ...string) (*child.Child, error) {
	c, err := child.Start(child.Spec{
		Name: name, Path: filepath.Join(s.o.bin, name),
		Args: append([]string{
			"--redis-url=" + s.redisURL, "--queue-shards=" + strconv.Itoa(s.o.shards),
			"--admin-listen=127.0.0.1:0", "--log-format=json",
		}, args...),
	})
	if err != nil {
		return nil, fmt.Errorf("%w (make build makes it)", err)
	}
	s.daemons = append(s.daemons, c)
	return c, nil
}

func (s *stack) pollsFile(choices []ledger.Choice) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "polls:\n  - id: %s\n    title: Replay of a published run\n    options:\n", poll)
	for _, c := range choices {
		fmt.Fprintf(&b, "      - {id: %q}\n", c.Option)
	}
	name := filepath.Join(s.dir, "polls.yaml")
	return name, os.WriteFile(name, []byte(b.String()), 0o600)
}

// pollApplied waits until the api has applied the polls file.
func (s *stack) pollApplied(ctx context.Context) error {
	for {
		_, err := s.store.Poll(ctx, poll)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the api has not applied the poll: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// end stops everything: the daemons in an orderly way, then Redis. After a
// failure it shows the ends of their logs.
func (s *stack) end(failed bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	var errs []error
	for _, d := range s.daemons {
		code, err := d.Term(ctx)
		if err == nil && code != 0 {
			err = fmt.Errorf("%s ended with %d after SIGTERM", d.Name(), code)
		}
		errs = append(errs, err)
		if failed || err != nil {
			say("--- log of %s\n%s", d.Name(), d.Log().Tail(2000))
		}
	}
	if s.redis != nil {
		s.redis.Kill()
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	return errors.Join(errs...)
}
