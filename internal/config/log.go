package config

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/mattn/go-isatty"
)

// Log is how a binary logs.
type Log struct {
	// Level is the least level that is logged.
	Level slog.Level
	// Format is "text", "json", or "" for text on a terminal and else json.
	Format string
}

// New makes a logger that writes to w, usually os.Stderr.
func (l Log) New(w io.Writer) *slog.Logger {
	terminal := isTerminal(w)
	if l.Format == "json" || l.Format == "" && !terminal {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l.Level}))
	}
	layout := time.RFC3339
	if terminal {
		layout = time.TimeOnly // whoever watches knows the day
	}
	return slog.New(newTextHandler(w, l.Level, layout))
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(interface{ Fd() uintptr })
	return ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))
}

// textHandler writes lines for people: "22:00:01 INFO  listening addr=:8080".
// The attributes are slog.TextHandler's.
type textHandler struct {
	slog.Handler // writes the attributes to out.line

	layout string
	out    *textOutput
}

// textOutput is shared by all handlers that come from one.
type textOutput struct {
	mu   sync.Mutex
	line bytes.Buffer
	w    io.Writer
}

func newTextHandler(w io.Writer, level slog.Level, layout string) *textHandler {
	out := &textOutput{w: w}
	attributes := slog.NewTextHandler(&out.line, &slog.HandlerOptions{
		Level: level,
		// Handle has written level and message itself, and passes on an empty message.
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) > 0 {
				return a
			}
			_, isLevel := a.Value.Any().(slog.Level)
			if a.Key == slog.LevelKey && isLevel || a.Key == slog.MessageKey && a.Value.String() == "" {
				return slog.Attr{}
			}
			return a
		},
	})
	return &textHandler{Handler: attributes, layout: layout, out: out}
}

// Handle writes one line.
func (h *textHandler) Handle(ctx context.Context, r slog.Record) error {
	h.out.mu.Lock()
	defer h.out.mu.Unlock()

	line := &h.out.line
	line.Reset()
	if !r.Time.IsZero() {
		line.WriteString(r.Time.Format(h.layout) + " ")
	}
	fmt.Fprintf(line, "%-5s %s ", r.Level, printable(r.Message))

	// A record without time, whose message is empty, leaves only attributes.
	attributes := slog.NewRecord(time.Time{}, r.Level, "", r.PC)
	r.Attrs(func(a slog.Attr) bool { attributes.AddAttrs(a); return true })
	if err := h.Handler.Handle(ctx, attributes); err != nil {
		return err
	}
	_, err := h.out.w.Write(append(bytes.TrimRight(line.Bytes(), " \n"), '\n'))
	return err
}

// WithAttrs is part of slog.Handler.
func (h *textHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &textHandler{Handler: h.Handler.WithAttrs(attrs), layout: h.layout, out: h.out}
}

// WithGroup is part of slog.Handler.
func (h *textHandler) WithGroup(name string) slog.Handler {
	return &textHandler{Handler: h.Handler.WithGroup(name), layout: h.layout, out: h.out}
}
