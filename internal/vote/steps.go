package vote

import (
	"time"

	"github.com/google/uuid"
)

// The types of this file are what the stages hand to the queue and get from
// it: one struct a step.

// Batch is a frame on its way into the queue.
type Batch struct {
	Shard int
	// ID is the flusher's id and the frame's sequence number. Sending the same
	// ID again never enqueues again: it answers what happened the first time.
	ID FrameID
	// Votes is the number of votes in Body.
	Votes int
	// Polls says how many of them are for which poll.
	Polls []BatchPoll
	// Keyed are the votes with an idempotency key, ascending by Index.
	Keyed []KeyedVote
	// Body is the frame's body, as Codec.Compress made it.
	Body []byte
}

// BatchPoll is one poll's share of a batch.
type BatchPoll struct {
	Poll  string
	Votes int
	// OptionsKey is that of the definition the votes were checked against.
	OptionsKey string
}

// KeyedVote is a vote that counts only if its key is new.
type KeyedVote struct {
	// Index is the vote's place in the body, PollIndex that of its poll in
	// Batch.Polls.
	Index, PollIndex int
	Key              IdempotencyKey
	Option           string
	ID               uuid.UUID
}

// PollOutcome says whether a batch's votes for a poll were taken.
type PollOutcome byte

// Outcomes of a poll's share of a batch, as enqueue.lua answers them.
const (
	PollAccepted PollOutcome = 'a'
	PollNotOpen  PollOutcome = 'n'
	PollClosed   PollOutcome = 'c'
	PollUnknown  PollOutcome = 'u'
	// PollStale: the definition has other options by now.
	PollStale PollOutcome = 's'
)

// KeyOutcome is the answer to a keyed vote whose key had been used before.
type KeyOutcome struct {
	// Reused: for another option, so it was refused. Else the vote had been
	// accepted before, and First is its receipt.
	Reused bool
	First  Receipt
}

// BatchOutcome is the answer to a Batch.
type BatchOutcome struct {
	AcceptedAt time.Time
	// Polls has an outcome for each of Batch.Polls.
	Polls []PollOutcome
	// Keys has an entry by Index only for keys used before.
	Keys map[int]KeyOutcome
}

// ReadLimit bounds what one read takes off a list: whole elements until one of
// the numbers is reached, at least one element.
type ReadLimit struct {
	Votes, Bytes, Elements int
}

// CountCommit is one compare-and-swap on the head of the queue.
type CountCommit struct {
	Shard int
	// Token tells this commit from all others, so that a lost reply can be
	// asked for again.
	Token string
	// Elements is how many elements leave the head; First and Last are the
	// ElementIDs of the first and the last of them.
	Elements    int
	First, Last string
	// Digest is the ElementsDigest of all of them. Without it, elements between
	// the ends are taken for those that were read.
	Digest string
	// Dead are the places (from 0, ascending) of those no one can read.
	Dead []int
	// DeadVotes are the votes in them, as far as their headers tell.
	DeadVotes []PollVotes
	// Counts is what the others add to the tallies, by poll.
	Counts map[string]Tally
}

// CommitStatus says what became of a commit.
type CommitStatus int

const (
	// CommitDone says that it was applied, by this call or by an earlier one with the same
	// token.
	CommitDone CommitStatus = iota
	// CommitRefused says that the head had moved; nothing was changed.
	CommitRefused
)

// ArchiveState is what an archiver decides by.
type ArchiveState struct {
	Now time.Time
	// Batch is the batch that is fixed and not committed; nil if there is none.
	Batch *ArchiveBatch
	// NextSequence is the number of the next batch to fix.
	NextSequence uint64
	// Elements and Votes are what awaits archiving.
	Elements int
	Votes    int64
	// Oldest is when the first of them was accepted, Newest the last one; zero if
	// there is none.
	Oldest, Newest time.Time
}

// ArchiveBatch is a fixed batch: the first Elements frames of the archive list.
type ArchiveBatch struct {
	Shard int
	// Sequence numbers the shard's batches from 1.
	Sequence uint64
	// ID names the batch and its objects. It follows from the rest.
	ID string
	// Elements is the number of frames, First and Last the ids of the first and
	// the last, Votes the accepted votes in them.
	Elements    int
	First, Last string
	Votes       int64
	// Digest is that of all frames' headers. Redis does not keep it: it is in ID.
	Digest string
}

// SnapshotPage is a step of the audit's snapshot of a shard.
type SnapshotPage struct {
	Now time.Time
	// Queue, Archive and Dead are the pages of the three lists.
	Queue, Archive, Dead ListPage
	// Complete says that the page reaches the ends of all three, and that
	// Ledgers and Tallies are of this instant.
	Complete bool
	Ledgers  map[string]PollLedger
	// LastBatch is the highest sequence of a committed archive batch, and
	// LateBatches how many were committed or restored after a later one.
	LastBatch   uint64
	LateBatches int64
	// Tallies are in the order of the polls asked for.
	Tallies []Tally
}

// ListPage is a page of a list. Places count every element that was ever at
// the head, so they never change.
type ListPage struct {
	// Head is the place of the list's first element now, From that of the first
	// of Elements.
	Head, From int64
	Elements   []string
}

// Batches says which archive batches of a shard Redis knows.
type Batches struct {
	// Committed maps sequence to id.
	Committed map[uint64]string
	// Fixed is the id of the batch that is fixed and not committed, or empty.
	Fixed string
	// Late is LateBatches of a SnapshotPage, read last: if it is still that of a
	// snapshot, the committed batches up to its LastBatch were so then, too.
	Late int64
}

// RestoredBatch is what a batch of the archive adds to a Redis that has lost it.
type RestoredBatch struct {
	Shard    int
	Sequence uint64
	ID       string
	// Votes by poll and option (or class/option) of the frames that Redis lost;
	// none if it knows them all by other batches.
	Votes map[string]Tally
}
