package config

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestLogFormats(t *testing.T) {
	var out bytes.Buffer
	Log{}.New(&out).Info("hello", "n", 1)
	assert.True(t, strings.HasPrefix(out.String(), "{"), "json where there is no terminal")

	out.Reset()
	Log{Format: "text"}.New(&out).Info("hello", "n", 1)
	assert.Regexp(t, `^\d{4}-\d\d-\d\dT\S+ INFO  hello n=1\n$`, out.String())

	file, err := os.Create(t.TempDir() + "/log")
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	Log{}.New(file).Info("hello")
	b, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(string(b), "{"), "a file is no terminal")
}

func TestLogLevel(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log := Log{Level: slog.LevelWarn, Format: format}.New(&out)
		log.Info("no")
		assert.Empty(t, out.String())
		log.Warn("yes")
		assert.Contains(t, out.String(), "yes")
	}
}

func TestTextHandler(t *testing.T) {
	noon := time.Date(2026, 1, 20, 12, 0, 0, 0, time.UTC)
	line := func(with func(*slog.Logger) *slog.Logger, level slog.Level, msg string, args ...any) string {
		var out bytes.Buffer
		log := with(slog.New(newTextHandler(&out, slog.LevelDebug, time.TimeOnly)))
		r := slog.NewRecord(noon, level, msg, 0)
		r.Add(args...)
		require.NoError(t, log.Handler().Handle(context.Background(), r))
		return out.String()
	}
	plain := func(l *slog.Logger) *slog.Logger { return l }
	assert.Equal(t, "12:00:00 INFO  hello\n", line(plain, slog.LevelInfo, "hello"))
	assert.Equal(t, "12:00:00 ERROR two words err=\"no way\" after=25s\n", line(plain, slog.LevelError, "two words", "err", errors.New("no way"), "after", 25*time.Second))
	assert.Equal(t, "12:00:00 DEBUG+1 x\n", line(plain, slog.LevelDebug+1, "x"))
	assert.Equal(t, "12:00:00 INFO  \"a\\nFAKE\"\n", line(plain, slog.LevelInfo, "a\nFAKE"), "a message is one line")
	assert.Equal(t, "12:00:00 WARN  x a=1 g.b=2\n",
		line(func(l *slog.Logger) *slog.Logger { return l.With("a", 1).WithGroup("g") }, slog.LevelWarn, "x", "b", 2))
	assert.Equal(t, "12:00:00 INFO  x level=low msg=mine time=now\n",
		line(plain, slog.LevelInfo, "x", "level", "low", "msg", "mine", "time", "now"), "attributes are never lost")
}

func TestTextHandlerConcurrently(t *testing.T) {
	var (
		out bytes.Buffer // guarded by the handler
		wg  sync.WaitGroup
	)
	log := Log{Format: "text"}.New(&out)
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				log.With("worker", i).Info("hello", "n", 1)
			}
		})
	}
	wg.Wait()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	assert.Len(t, lines, 400)
	for _, l := range lines {
		assert.Regexp(t, `INFO  hello worker=\d n=1$`, l)
	}
}

func TestTextHandlerReportsErrors(t *testing.T) {
	broken := errors.New("no more room")
	h := newTextHandler(failing{broken}, slog.LevelInfo, time.TimeOnly)
	assert.ErrorIs(t, h.Handle(context.Background(), slog.NewRecord(time.Time{}, slog.LevelInfo, "x", 0)), broken)
}
