package vote

import (
	"crypto/sha256"
	"time"

	"github.com/google/uuid"
)

// MaxIDLength is the longest poll, option or class id, in bytes.
const MaxIDLength = 63

// MaxUserAgent is how much of a user agent is kept, in bytes.
const MaxUserAgent = 512

// ValidID tells whether s may name a poll, an option or a class:
// [a-z0-9][a-z0-9_-]{0,62}. Such an id needs no escaping in JSON, in a URL, in
// a Redis key or in a frame's header.
func ValidID(s string) bool {
	return validID([]byte(s))
}

func validID(s []byte) bool {
	if len(s) == 0 || len(s) > MaxIDLength {
		return false
	}
	for i, c := range s {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9':
		case (c == '_' || c == '-') && i > 0:
		default:
			return false
		}
	}
	return true
}

// Vote is one voter's choice, as it travels in a frame.
type Vote struct {
	// ID is the voter's receipt, a UUIDv7.
	ID uuid.UUID
	// Poll, Class and Option are ids. Class is empty in the default class.
	Poll, Class, Option string
	// Client is the voter's address as ip-privacy lets it be kept.
	Client string
	// UserAgent is the browser's, cut to MaxUserAgent bytes.
	UserAgent string
	// Voter is the hashed subject of a ballot token; empty without one.
	Voter string
}

// IdempotencyKey is the digest of a poll and a client's Idempotency-Key.
type IdempotencyKey [16]byte

// NewIdempotencyKey digests a client's key. The same text for another poll is
// another key.
func NewIdempotencyKey(poll, key string) IdempotencyKey {
	text := make([]byte, 0, 320) // room for an id and the longest key
	text = append(append(append(text, poll...), 0), key...)
	sum := sha256.Sum256(text)
	return IdempotencyKey(sum[:16])
}

// Receipt is what a voter gets for an accepted vote.
type Receipt struct {
	// ID, Option and AcceptedAt are those of the vote that counts: of the first
	// one, where an idempotency key was sent again.
	ID         uuid.UUID
	Option     string
	AcceptedAt time.Time
	// Replayed says that the vote had been accepted before, under the same key.
	Replayed bool
}

// Tally maps an option (or class/option) to its votes.
type Tally map[string]int64

// TallyField is the field under which a vote's choice is added up: the option,
// or class/option where there is a class.
func TallyField(class, option string) string {
	if class == "" {
		return option
	}
	return class + "/" + option
}
