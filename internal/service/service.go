package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"paredao/internal/blobstore"
	"paredao/internal/config"
	"paredao/internal/daemon"
	"paredao/internal/pollfile"
	"paredao/internal/redisstore"
	"paredao/internal/vote"
)

// Base is what all services of a process share.
type Base struct {
	Store    *redisstore.Store
	Registry *prometheus.Registry
	Log      *slog.Logger
	// agreed is closed once Redis has the same number of queue shards as this
	// process. Nothing touches the queue before.
	agreed chan struct{}
	// applied is closed once the polls file is applied, too.
	applied chan struct{}
}

// NewBase returns a base; its Setup part must run.
func NewBase(store *redisstore.Store, registry *prometheus.Registry, log *slog.Logger) Base {
	return Base{Store: store, Registry: registry, Log: log, agreed: make(chan struct{}), applied: make(chan struct{})}
}

// awaitAgreed waits for the agreement; false: ctx was done before.
func (b Base) awaitAgreed(ctx context.Context) bool {
	select {
	case <-b.agreed:
		return true
	case <-ctx.Done():
		return false
	}
}

// Service is what a daemon runs: parts in the order in which they stop, and
// what must be well for it to be ready.
type Service struct {
	Parts  []daemon.Part
	Checks []daemon.Check
}

// OpenStore returns the store that the settings name.
func OpenStore(c config.Redis) (*redisstore.Store, error) {
	s, err := redisstore.Open(redisstore.Options{
		URL: c.URL.Reveal(), PasswordFile: c.PasswordFile, Shards: c.Shards,
	})
	if err != nil {
		return nil, config.Usagef("%v", err)
	}
	return s, nil
}

// OpenArchive returns the archive that the settings name.
func OpenArchive(ctx context.Context, c config.Archive) (blobstore.Store, error) {
	s, err := blobstore.Open(ctx, c.URL.String(), blobstore.AzureCredentials{
		ConnectionString: c.Azure.ConnectionString.Reveal(), Account: c.Azure.Account, Endpoint: c.Azure.Endpoint,
	})
	if err != nil {
		return nil, config.Usagef("%v", err)
	}
	return s, nil
}

// outage returns a log of failures of one kind that is quiet during an outage.
func (b Base) outage(message string) func(error) {
	return daemon.NewOutageLog(daemon.OutageParams{Log: b.Log, Message: message}).Report
}

// failing is for how long a work may fail before the daemon says that it is not
// ready.
const failing = 10 * time.Second

// work is an outage log that readiness looks at, too.
type work struct {
	name   string
	report func(error)
	mu     sync.Mutex
	since  time.Time // of the first failure since the last success; zero: well
	err    error
}

func (b Base) work(name, message string) *work {
	return &work{name: name, report: b.outage(message)}
}

// outcome takes the outcome of a step.
func (w *work) outcome(err error) {
	w.report(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		w.since, w.err = time.Time{}, nil
	case w.since.IsZero():
		w.since, w.err = time.Now(), err
	default:
		w.err = err
	}
}

// check fails when no step has succeeded for a while.
func (w *work) check() daemon.Check {
	return daemon.Check{Name: w.name, Check: func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.err == nil || time.Since(w.since) < failing {
			return nil
		}
		return fmt.Errorf("every step has failed for %s: %w", time.Since(w.since).Round(time.Second), w.err)
	}}
}

// workerName names this process among the workers, for people and for ever.
func workerName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", host, os.Getpid(), uuid.NewString()[:8])
}

// Setup is a part that makes sure that this process and Redis agree, as soon as
// Redis answers, then applies the polls file, or else the given polls. A
// disagreement ends the daemon: it is a wrong setting.
func (b Base) Setup(pollsFile string, defs ...pollfile.Definition) (daemon.Part, error) {
	if pollsFile != "" {
		f, err := os.Open(pollsFile)
		if err != nil {
			return daemon.Part{}, config.Usagef("polls-file %q: %v", pollsFile, err)
		}
		defs, err = pollfile.Parse(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return daemon.Part{}, config.Usagef("polls-file %q: %v", pollsFile, err)
		}
	}
	return daemon.Part{Name: "setup", Run: func(ctx context.Context) error { return b.setup(ctx, defs) }}, nil
}

// setup tries until it has done its work, then waits for the end.
func (b Base) setup(ctx context.Context, defs []pollfile.Definition) error {
	err := b.retry(ctx, "Redis can't be asked for its number of shards yet", func() error {
		err := b.Store.CheckShards(ctx)
		if errors.Is(err, vote.ErrShardsMismatch) {
			return config.Usagef("%v", err)
		}
		return err
	})
	if err != nil || ctx.Err() != nil {
		return err
	}
	close(b.agreed)
	err = b.retry(ctx, "the polls can't be applied yet", func() error {
		err := ApplyPolls(ctx, b.Store, defs, func(id string, a redisstore.Applied) {
			b.Log.Info("poll applied", "poll", id, "change", a.Change)
		})
		if errors.Is(err, vote.ErrOptionsFixed) {
			return config.Usagef("polls-file: %v", err)
		}
		return err
	})
	if err != nil || ctx.Err() != nil {
		return err
	}
	close(b.applied)
	<-ctx.Done()
	return nil
}

// setupCheck says whether the setup is done.
func (b Base) setupCheck() daemon.Check {
	return daemon.Check{Name: "setup", Check: func(context.Context) error {
		select {
		case <-b.applied:
			return nil
		default:
			return errors.New("the shards are not agreed on, or the polls not applied, yet")
		}
	}}
}

// retry calls try until it succeeds, says that a setting is wrong, or ctx is
// done, which is no error.
func (b Base) retry(ctx context.Context, message string, try func() error) error {
	outage := b.outage(message)
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := try()
		var usage *config.UsageError
		if errors.As(err, &usage) {
			return err
		}
		if ctx.Err() != nil {
			return nil //nolint:nilerr // a stop on the way is no failure
		}
		outage(err)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// ApplyPolls applies definitions one by one and tells what became of each.
func ApplyPolls(ctx context.Context, s *redisstore.Store, defs []pollfile.Definition, each func(id string, a redisstore.Applied)) error {
	for _, d := range defs {
		a, err := s.ApplyPoll(ctx, d.Poll, d.Window)
		if err != nil {
			return err
		}
		each(d.Poll.ID, a)
	}
	return nil
}

// redisCheck says whether Redis is fit to hold votes.
func (b Base) redisCheck() daemon.Check {
	return daemon.Check{Name: "redis", Check: func(ctx context.Context) error {
		h, err := b.Store.Health(ctx)
		if err != nil {
			return err
		}
		if h.Problem != "" {
			return errors.New(h.Problem)
		}
		return b.Store.CheckShards(ctx)
	}}
}

// Run runs the services with their admin server until ctx is done, and stops
// them in the order in which they are given.
func (b Base) Run(ctx context.Context, c config.Daemon, setup daemon.Part, services ...Service) error {
	var parts []daemon.Part
	var checks []daemon.Check
	seen := map[string]bool{}
	services = append([]Service{{Checks: []daemon.Check{b.setupCheck()}}}, services...)
	for _, s := range services {
		parts = append(parts, s.Parts...)
		for _, check := range s.Checks {
			if !seen[check.Name] {
				seen[check.Name] = true
				checks = append(checks, check)
			}
		}
	}
	admin, err := daemon.NewAdmin(daemon.AdminParams{
		Listen: c.AdminListen, Gatherer: b.Registry, Checks: checks, Log: b.Log,
	})
	if err != nil {
		return err
	}
	return daemon.Run(ctx, daemon.Options{
		Log: b.Log, ShutdownTimeout: c.ShutdownTimeout, DrainDelay: c.DrainDelay, Draining: admin.SetDraining,
	}, append(parts, setup, admin.Part())...)
}
