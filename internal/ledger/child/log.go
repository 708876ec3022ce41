package child

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
)

// maxLog bounds what is kept of a log; its oldest half is dropped above it.
const maxLog = 8 << 20

// Log keeps what a process prints.
type Log struct {
	mu      sync.Mutex
	text    []byte
	ended   bool
	changed chan struct{} // closed and replaced at every change
}

func newLog() *Log { return &Log{changed: make(chan struct{})} }

// Write takes what was printed.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text = append(l.text, b...); len(l.text) > maxLog {
		l.text = append(l.text[:0], l.text[len(l.text)-maxLog/2:]...)
	}
	l.wake()
	return len(b), nil
}

func (l *Log) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.wake()
}

func (l *Log) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// String is the whole text.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// Tail is at most the last n bytes, from the start of a line.
func (l *Log) Tail(n int) string {
	text := l.String()
	if len(text) <= n {
		return text
	}
	text = text[len(text)-n:]
	_, text, _ = strings.Cut(text, "\n")
	return text
}

// Contains tells whether text has been printed.
func (l *Log) Contains(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Contains(l.text, []byte(text))
}

// errLogEnded says that a process ended before it printed what was waited for.
var errLogEnded = errors.New("it ended")

// Await returns the first whole line that contains text, as soon as there is
// one.
func (l *Log) Await(ctx context.Context, text string) (string, error) {
	for {
		line, ended, changed := l.find(text)
		if line != "" {
			return line, nil
		}
		if ended {
			return "", errLogEnded
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func (l *Log) find(text string) (line string, ended bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.text) {
		if bytes.HasSuffix(line, []byte{'\n'}) && bytes.Contains(line, []byte(text)) {
			return string(line), l.ended, l.changed
		}
	}
	return "", l.ended, l.changed
}

// field is a text field of a line of a JSON log; empty if there is none.
func field(line, name string) string {
	var fields map[string]any
	if json.Unmarshal([]byte(line), &fields) != nil {
		return ""
	}
	text, _ := fields[name].(string)
	return text
}
