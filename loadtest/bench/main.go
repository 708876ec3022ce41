// Command bench measures the speed of the api, consumer and archiver against
// peers: ratios of real processes side by side, in interleaved runs, and whether
// each is reached.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"paredao/internal/config"
	"paredao/internal/daemon"
	"paredao/internal/redisstore"
)

func main() {
	var t tempDir
	code := daemon.Main("bench", func(ctx context.Context) error { return mainRun(ctx, &t) })
	// After a second signal the run is still at work; its processes die with
	// this one.
	if err := t.remove(); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
	}
	os.Exit(code)
}

// tempDir is the folder of a run, which may be removed at any time.
type tempDir struct {
	mu   sync.Mutex
	path string
}

func (t *tempDir) make(under string) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	t.path, err = os.MkdirTemp(under, "paredao-bench-*")
	return t.path, err
}

func (t *tempDir) remove() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.path == "" {
		return nil
	}
	return os.RemoveAll(t.path)
}

// settings are what the command can be told.
type settings struct {
	bin         string
	out         string
	dir         string
	only        []string
	rounds      int
	seconds     int
	warmup      int
	threads     int
	drainVotes  int64
	rateSeconds int
}

const howToBuild = "make build bin/bench makes them"

const about = `bench measures the project's api, consumer and archiver against two peers: the
bare handler (the same HTTP and validation, nothing behind them) is the upper
bound, and the naive peer (one RPUSH a request, LPOP and HINCRBY a vote) is how
such systems are usually written. Each claim is a ratio within one round; the
rounds are interleaved, so that a machine that changes changes all sides. It
prints the table of what must be reached, with medians and spread, as Markdown.

Each run starts everything anew, in a folder of its own: redis-server, the
binaries in --bin, and wrk as the load generator. It warms up, measures, and
sees that what Redis holds is what was accepted.

Groups of rows, for --only:

  accept     votes accepted a second, by the bare handler's and the naive peer's
  endtoend   the same while consumer and archiver run, by that of the api alone
  drain      how fast one consumer empties the queue that the api has filled
  fsync      appendfsync always by everysec
  redis      Redis's processor time and memory for a vote, by the naive peer's
  results    GET of the results, by the bare handler's prepared answer
  rate       p99 at 70 % of the highest constant rate, and until a vote is counted

A figure is refused, with exit code 1 and the reason, if anything was answered
but 2xx, if Redis was not the one that was started, if the load generator was
the limit, if strangers took part of the machine, or if votes are missing.

The folder of --out gets report.md, report.json with each run's raw figures, and
ratios and throughput as .svg and .png.

Examples:

  bench                                          all of it
  bench --only accept,redis --rounds 1           a quick look, without a verdict
  bench --only fsync --dir DIR                   on the disk that DIR is on

Exit codes: 0 every "must" is met, or fewer than 3 rounds were asked for; 1 one
is missed, or it could not be measured; 2 wrong use.

Usage:
  bench [flags]

Flags:
`

func parse(args []string, stdout io.Writer) (o settings, err error) {
	f := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.SortFlags = false
	f.StringSliceVar(&o.only, "only", groups, "groups of rows, with commas between them")
	f.IntVar(&o.rounds, "rounds", minRounds, "rounds; a verdict needs 3")
	f.IntVar(&o.seconds, "seconds", 10, "how long each run is measured, in seconds; the naive consumer's drain, too")
	f.IntVar(&o.warmup, "warmup", 2, "how long each run warms up before, in seconds")
	f.IntVar(&o.threads, "threads", 2, "threads of wrk")
	f.Int64Var(&o.drainVotes, "drain-votes", 1_000_000, "how many votes our queue holds at least when the consumer starts")
	f.IntVar(&o.rateSeconds, "rate-seconds", 30, "how long each constant rate is measured, in seconds")
	f.StringVar(&o.bin, "bin", "bin", "folder with the binaries: api, consumer, archiver, tally, bare, naive, rate")
	f.StringVar(&o.out, "out", "bench-report", "folder of the report")
	f.StringVar(&o.dir, "dir", "", "folder under which Redis's files and the archive go (default: the system's for temporary files)")
	switch err := f.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		if _, err := io.WriteString(stdout, about+f.FlagUsages()); err != nil {
			return o, fmt.Errorf("print help: %w", err)
		}
		return o, config.ErrHelp
	case err != nil:
		return o, config.FlagError(err)
	case f.NArg() > 0:
		return o, config.Usagef("unexpected argument %q; bench takes only flags, see --help", f.Arg(0))
	}
	for _, g := range o.only {
		if !slices.Contains(groups, g) {
			return o, config.Usagef("wrong value %q for --only: must be of %s", g, strings.Join(groups, ", "))
		}
	}
	switch {
	case len(o.only) == 0 || o.bin == "" || o.out == "":
		err = config.Usagef("--only, --bin and --out must not be empty")
	case o.rounds < 1 || o.rounds > 100:
		err = config.Usagef("wrong value %d for --rounds: must be 1 to 100", o.rounds)
	case o.seconds < 1 || o.seconds > 3600:
		err = config.Usagef("wrong value %d for --seconds: must be 1 to 3600", o.seconds)
	case o.warmup < 1 || o.warmup > 600:
		err = config.Usagef("wrong value %d for --warmup: must be 1 to 600", o.warmup)
	case o.threads < 1 || o.threads > few:
		err = config.Usagef("wrong value %d for --threads: must be 1 to %d", o.threads, few)
	case o.drainVotes < 1 || o.drainVotes > 100_000_000:
		err = config.Usagef("wrong value %d for --drain-votes: must be 1 to 100000000", o.drainVotes)
	case o.rateSeconds < 1 || o.rateSeconds > 3600:
		err = config.Usagef("wrong value %d for --rate-seconds: must be 1 to 3600", o.rateSeconds)
	}
	return o, err
}

// mainRun measures:
//
//	wrk, rate ─▶ api, or bare, or naive api ─▶ Redis ◀─ consumer, archiver, naive consumer
//	    │            │                           │
//	    └─ figures   └─ /proc, /metrics          └─ audit, INFO ──▶ rows ─▶ report
func mainRun(ctx context.Context, t *tempDir) (err error) {
	redisstore.DiscardClientLog()
	o, err := parse(os.Args[1:], os.Stdout)
	if err != nil {
		return err
	}
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	wanted, runs := plan(o.only)
	if err := present(o.bin, runs); err != nil {
		return err
	}
	dir, err := t.make(o.dir)
	if err != nil {
		return err
	}
	if slices.Contains(o.only, groupFsync) && inMemory(dir) {
		return config.Usagef("%s is in memory, where appendfsync costs nothing: name a folder on a disk with --dir", filepath.Dir(dir))
	}
	b := &bench{o: o, dir: dir, script: filepath.Join(dir, "bench.lua")}
	if err := os.WriteFile(b.script, script, 0o600); err != nil {
		return err
	}
	r := newReport(ctx, o)
	if err := r.begin(o.out); err != nil {
		return err
	}
	problem := b.rounds(ctx, r, wanted, runs)
	if problem != nil && ctx.Err() != nil {
		problem = errors.Join(errors.New("interrupted"), problem)
	}
	r.finish(wanted, problem)
	if err := errors.Join(r.print(os.Stdout), r.write(o.out)); err != nil {
		return errors.Join(problem, err)
	}
	return r.err()
}

// rounds makes all runs, A B C, and again A B C.
func (b *bench) rounds(ctx context.Context, r *report, wanted []row, runs []spec) error {
	say("%d rounds of %d runs, for %d rows", b.o.rounds, len(runs), len(wanted))
	for n := 1; n <= b.o.rounds; n++ {
		for _, sp := range runs {
			m, err := b.measure(ctx, sp, n)
			r.add(m)
			if err != nil {
				return fmt.Errorf("round %d, %s: %w", n, sp.id, err)
			}
			say("round %d of %d: %s", n, b.o.rounds, m.line())
		}
		if err := checkRound(r.round(n)); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
	}
	return nil
}

// line is a run on one line.
func (m *measurement) line() string {
	if m.Rate != nil {
		return fmt.Sprintf("%-17s %9.0f a second, p99 %.1f ms, counted within %.1f ms", m.Run, m.Rate.Rate, m.Rate.P99, m.Rate.AcceptToCountP99)
	}
	text := fmt.Sprintf("%-17s %9.0f a second, wrk %.0f %% busy, machine %.0f %% idle", m.Run, m.Load.PerSecond, 100*m.GeneratorBusy, 100*m.Machine.Idle)
	if m.EndToEnd != nil {
		text += fmt.Sprintf("; counted %.0f, archived %.0f a second", m.EndToEnd.Counted, m.EndToEnd.Archived)
	}
	if m.Memory != nil {
		text += fmt.Sprintf("; %.1f bytes a queued vote", m.Memory.BytesAVote)
	}
	if m.Drain != nil {
		text += fmt.Sprintf("; drained %.0f a second for %.2f s", m.Drain.PerSecond, m.Drain.Seconds)
	}
	return text
}

// present sees that everything is there before an hour has passed.
func present(bin string, runs []spec) error {
	need := map[string]bool{}
	for _, s := range runs {
		switch s.system {
		case ours:
			for _, name := range []string{"api", "consumer", "archiver", "tally"} {
				need[name] = true
			}
			need["rate"] = need["rate"] || s.rate
		default:
			need[s.system] = true
		}
	}
	var missing []string
	for name := range need {
		if _, err := exec.LookPath(filepath.Join(bin, name)); err != nil {
			missing = append(missing, name)
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		return fmt.Errorf("the folder of --bin has no %s: %s", strings.Join(missing, ", "), howToBuild)
	}
	for _, tool := range []string{"wrk", "redis-server"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is not installed: %w", tool, err)
		}
	}
	return nil
}

// inMemory tells whether a folder is on no disk.
func inMemory(dir string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(dir, &fs) == nil && fs.Type == unix.TMPFS_MAGIC
}

// say tells the progress, which is no data.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
