package archivefile

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"paredao/internal/vote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// object is an archive object in memory.
type object struct{ *bytes.Reader }

func (object) Close() error { return nil }

func inMemory(b []byte) vote.Object { return object{bytes.NewReader(b)} }

// ballot makes the n-th vote of a test: always the same one.
func ballot(n int, poll, option string) vote.Vote {
	id := uuid.UUID{0: 1, 6: 0x70, 8: 0x80, 13: byte(n >> 16), 14: byte(n >> 8), 15: byte(n)}
	return vote.Vote{ID: id, Poll: poll, Option: option}
}

var noon = time.Date(2026, 1, 20, 12, 0, 0, 0, time.UTC)
