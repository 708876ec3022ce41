package vote

import "errors"

// Sentinel errors that cross package borders. Callers branch on them with
// errors.Is; whoever returns one wraps it with the operation and the key.
var (
	// ErrPollNotFound: no poll of that id has been applied.
	ErrPollNotFound = errors.New("poll not found")
	// ErrPollNotOpen: the poll's window has not begun, by Redis's clock.
	ErrPollNotOpen = errors.New("poll is not open yet")
	// ErrPollClosed: the poll's window has ended, by Redis's clock. A closed
	// poll never opens again.
	ErrPollClosed = errors.New("poll is closed")
	// ErrOptionsFixed: the poll has votes, so its options can't change.
	ErrOptionsFixed = errors.New("the options of a poll with votes can't change")
	// ErrUnknownOption: the poll has no such option.
	ErrUnknownOption = errors.New("unknown option")
	// ErrUnknownClass: the poll has no such ballot class.
	ErrUnknownClass = errors.New("unknown class")
	// ErrKeyReused: the idempotency key was used for another option.
	ErrKeyReused = errors.New("idempotency key was used for another option")
	// ErrUnavailable: Redis did not acknowledge the vote in time. It may or
	// may not have been taken.
	ErrUnavailable = errors.New("the queue is unavailable")
	// ErrOverloaded: refused at once, to keep memory bounded, and not taken: before
	// Redis, or by a Redis that is full.
	ErrOverloaded = errors.New("overloaded")
	// ErrFlusherLost: Redis has no record of the flusher, so the fate of a
	// frame that was sent before can't be told any more.
	ErrFlusherLost = errors.New("flusher record is gone")
	// ErrShardsMismatch: Redis holds another number of queue shards than the
	// setting queue-shards says.
	ErrShardsMismatch = errors.New("queue-shards does not match Redis")
	// ErrBatchGone: the archive batch was committed, or replaced, by another
	// archiver.
	ErrBatchGone = errors.New("the archive batch is no longer current")
	// ErrRestoreLost says that what a restore has looked at may not be so any
	// more; it may begin again.
	ErrRestoreLost = errors.New("another restore has begun, or Redis has failed over")
	// ErrBadFrame: the element is no frame that this version can read whole.
	ErrBadFrame = errors.New("unreadable frame")
	// ErrObjectConflict: an object of that name exists with other content.
	// Nothing was overwritten.
	ErrObjectConflict = errors.New("an object of that name exists with other content")
	// ErrObjectNotFound: there is no object of that name.
	ErrObjectNotFound = errors.New("object not found")
)
