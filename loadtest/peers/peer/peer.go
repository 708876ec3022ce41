// Package peer is what the peers of the benchmark have in common: the settings
// of Fiber that the real api has, and how they are started and found.
package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/spf13/pflag"

	"paredao/internal/config"
)

// AcceptedLayout is RFC 3339 with milliseconds, as the real api answers.
const AcceptedLayout = "2006-01-02T15:04:05.000Z"

// Flags are those of every peer that serves HTTP.
type Flags struct {
	Listen  string
	Poll    string
	Options []string
}

// AddTo adds the flags to a set.
func (f *Flags) AddTo(set *pflag.FlagSet) {
	set.StringVar(&f.Listen, "listen", ":8080", "address to listen on")
	set.StringVar(&f.Poll, "poll", "demo", "the only poll")
	set.StringSliceVar(&f.Options, "options", []string{"ana", "bruno", "carla"}, "its options")
}

// Polls are the polls with their options, to look up.
func (f *Flags) Polls() map[string]map[string]bool {
	options := make(map[string]bool, len(f.Options))
	for _, o := range f.Options {
		options[o] = true
	}
	return map[string]map[string]bool{f.Poll: options}
}

// Parse reads the arguments of a program; help goes to stdout.
func Parse(set *pflag.FlagSet, about string, args []string, stdout io.Writer) error {
	set.SetOutput(io.Discard)
	set.Usage = func() {}
	switch err := set.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		if _, err := io.WriteString(stdout, strings.TrimLeft(about, "\n")+"\nFlags:\n"+set.FlagUsages()); err != nil {
			return fmt.Errorf("print help: %w", err)
		}
		return config.ErrHelp
	case err != nil:
		return config.FlagError(err)
	case set.NArg() > 0:
		return config.Usagef("unexpected argument %q, see --help", set.Arg(0))
	}
	return nil
}

// NewApp returns Fiber with the settings of internal/httpapi/server.go.
func NewApp() *fiber.App {
	return fiber.New(fiber.Config{
		AppName:                      "peer",
		DisableStartupMessage:        true,
		CaseSensitive:                true,
		StrictRouting:                true,
		BodyLimit:                    4 << 10,
		ReadBufferSize:               8 << 10,
		ReadTimeout:                  10 * time.Second,
		WriteTimeout:                 10 * time.Second,
		IdleTimeout:                  75 * time.Second,
		DisablePreParseMultipartForm: true,
	})
}

// Serve listens until ctx is done. It says on log where, in the words of the
// real api: who starts that one can start this one.
func Serve(ctx context.Context, app *fiber.App, addr string, log io.Writer) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen %q: %w", addr, err)
	}
	slog.New(slog.NewJSONHandler(log, nil)).Info("api takes votes", "addr", ln.Addr().String())
	served := make(chan error, 1)
	go func() { served <- app.Listener(ln) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	const patience = 5 * time.Second
	err = app.ShutdownWithTimeout(patience)
	// A shutdown before Fiber has begun finds nothing to close.
	_ = ln.Close() // in the other cases it is closed already
	return errors.Join(err, <-served)
}
