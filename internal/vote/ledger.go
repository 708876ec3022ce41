package vote

import "time"

// PollLedger is what one poll has in the ledger of one shard, or summed over
// shards. Unit: votes.
type PollLedger struct {
	// Accepted votes: acknowledged by Redis.
	Accepted int64 `json:"accepted"`
	// Counted votes stand in the tally.
	Counted int64 `json:"counted"`
	// Archived votes stand in committed batches.
	Archived int64 `json:"archived"`
	// Dead votes stand in the dead list, since no consumer could read them.
	Dead int64 `json:"dead"`
	// Dropped votes were dead, and removed by an operator.
	Dropped int64 `json:"dropped"`
}

// Pending votes are accepted and not yet counted. Dead ones are pending until
// an operator requeues or drops them.
func (l PollLedger) Pending() int64 { return l.Accepted - l.Counted - l.Dropped }

// Queued votes stand in the queue, by the ledger's own sum. The audit counts
// them in the frames instead.
func (l PollLedger) Queued() int64 { return l.Pending() - l.Dead }

// Add adds what another shard has.
func (l *PollLedger) Add(o PollLedger) {
	l.Accepted += o.Accepted
	l.Counted += o.Counted
	l.Archived += o.Archived
	l.Dead += o.Dead
	l.Dropped += o.Dropped
}

// ShardPolls is one shard's windows and ledgers by poll, read in one step at
// Now.
type ShardPolls struct {
	Now     time.Time
	Windows map[string]Window
	Ledgers map[string]PollLedger
}

// Results is a poll's totals, read from all shards.
type Results struct {
	AsOf   time.Time
	Window Window
	Tally  Tally
	Ledger PollLedger
	// Final: closed on every shard, and nothing pending. Never taken back.
	Final bool
}

// StatusOf tells a poll's status over all shards: final when each shard says
// that it is closed and that nothing is pending.
func StatusOf(poll string, shards []ShardPolls) Status {
	final := true
	var status Status
	for i, s := range shards {
		st := s.Windows[poll].Status(s.Now)
		if i == 0 {
			status = st
		}
		final = final && st == StatusClosed && s.Ledgers[poll].Pending() == 0
	}
	if final {
		return StatusFinal
	}
	return status
}
