package main

import (
	"time"

	"github.com/spf13/cobra"

	"paredao/internal/redisstore"
)

// shardQueue is a shard's line of tally queue.
type shardQueue struct {
	Shard int `json:"shard"`
	// Votes and frames that wait to be counted.
	Votes  int64 `json:"queued_votes"`
	Frames int64 `json:"queued_frames"`
	// OldestSeconds is the age of the oldest of them; null without any.
	OldestSeconds *float64 `json:"oldest_seconds"`
	// Owner is the consumer that works on the shard; empty without one.
	Owner    string `json:"owner"`
	Archiver string `json:"archiver"`
	// AwaitingArchive votes are counted and not yet archived.
	AwaitingArchive int64 `json:"awaiting_archive"`
	// Dead elements, and the votes in them as far as their headers tell.
	Dead      int64 `json:"dead"`
	DeadVotes int64 `json:"dead_votes"`
}

func (a *app) queueCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "queue",
		Short: "Show each shard's queue",
		Long: `Shows, for each shard, the votes and frames that wait to be counted, the age of
the oldest, the consumer and the archiver that work on it, the counted votes that
await archiving, and the dead elements that no consumer could read.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd.Context(), func(s *redisstore.Store) error {
				queues, err := s.Queues(cmd.Context())
				if err != nil {
					return err
				}
				out := make([]shardQueue, len(queues))
				sh := &sheet{head: []string{
					"shard", "queued_votes", "queued_frames", "oldest", "owner", "archiver", "awaiting_archive", "dead", "dead_votes",
				}}
				for i, q := range queues {
					out[i] = shardQueue{
						q.Shard, q.Votes, q.Frames, nil, q.Consumer, q.Archiver, q.AwaitingVotes, q.Dead, q.DeadVotes,
					}
					oldest := ""
					if !q.Oldest.IsZero() {
						age := max(0, q.Now.Sub(q.Oldest))
						seconds := age.Seconds()
						out[i].OldestSeconds = &seconds
						oldest = age.Round(time.Millisecond).String()
					}
					sh.add(itoa(q.Shard), itoa(q.Votes), itoa(q.Frames), oldest, q.Consumer, q.Archiver,
						itoa(q.AwaitingVotes), itoa(q.Dead), itoa(q.DeadVotes))
				}
				return a.write(cmd.OutOrStdout(), out, sh)
			})
		},
	}
}
