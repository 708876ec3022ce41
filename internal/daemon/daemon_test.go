package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is a buffer for many goroutines.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// logTo returns a logger whose lines have no time.
func logTo(o *output) *slog.Logger {
	return slog.New(slog.NewTextHandler(o, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

// lines are the lines that hold part.
func (o *output) lines(part string) []string {
	var found []string
	for l := range strings.Lines(o.String()) {
		if strings.Contains(l, part) {
			found = append(found, strings.TrimSpace(l))
		}
	}
	return found
}
