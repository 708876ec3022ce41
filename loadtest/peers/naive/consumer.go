package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"paredao/loadtest/peers/peer"
)

func runConsumer(ctx context.Context, args []string, stdout io.Writer) error {
	var url string
	set := pflag.NewFlagSet("naive consumer", pflag.ContinueOnError)
	addRedis(set, &url)
	if err := peer.Parse(set, about, args, stdout); err != nil {
		return err
	}
	rdb, err := connect(url)
	if err != nil {
		return err
	}
	defer func() { _ = rdb.Close() }()
	// The vote in hand is finished: only then is the end looked for.
	for ctx.Err() == nil {
		counted, err := countOne(context.WithoutCancel(ctx), rdb)
		if err != nil {
			return err
		}
		if counted {
			continue
		}
		const idle = 10 * time.Millisecond
		select {
		case <-ctx.Done():
		case <-time.After(idle):
		}
	}
	return nil
}

// countOne counts the first vote of the queue, if there is one.
func countOne(ctx context.Context, rdb *redis.Client) (bool, error) {
	b, err := rdb.LPop(ctx, queueKey).Bytes()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lpop: %w", err)
	}
	var v stored
	if err := json.Unmarshal(b, &v); err != nil {
		return false, fmt.Errorf("vote: %w", err)
	}
	if err := rdb.HIncrBy(ctx, tallyPrefix+v.Poll, v.Option, 1).Err(); err != nil {
		return false, fmt.Errorf("hincrby: %w", err)
	}
	return true, nil
}
