// Command chaos is the fault laboratory: it runs a whole stack of real
// processes under load, breaks its parts as a seed says, and proves that no
// vote was lost, doubled or invented.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"paredao/internal/config"
	"paredao/internal/daemon"
	"paredao/internal/redisstore"
)

func main() {
	var left leftovers
	code := daemon.Main("chaos", func(ctx context.Context) error { return mainRun(ctx, &left) })
	// After a second signal the run is still at work.
	if err := left.clear(); err != nil {
		fmt.Fprintf(os.Stderr, "chaos: %v; the next run removes what is left\n", err)
	}
	os.Exit(code)
}

// options are what the command can be told.
type options struct {
	scenario    string
	seconds     int
	seed        uint64
	fsync       string
	shards      int
	connections int
	rate        float64
	votes       int64
	out         string
	bin         string
	root        string
	archive     string
	keep        bool
	list        bool
	// given are the flags that were given, in order.
	given []string
}

const about = `chaos starts a whole stack of real processes on loopback (redis-server, apis,
consumers, archivers, an archive), posts votes, breaks the parts meanwhile, and
then compares, vote by vote, what was acknowledged with what was counted and
archived. The faults follow from the seed, and are printed before they begin.

It leaves a report, report.md and report.json, in the folder given with --out.

Exit codes: 0 nothing was lost, doubled or invented, and the audit with recount
found no difference; 1 it was not so, or it could not be done; 2 wrong use.

Usage:
  chaos [flags]

Flags:
`

// mainRun runs one scenario:
//
//	ledger client ─▶ (toxiproxy, nginx) ─▶ apis ─▶ proxies ─▶ Redis
//	      │                      consumers, archivers ─┘  └─▶ archive
//	      └───────── judge, tally audit ──▶ report
func mainRun(ctx context.Context, left *leftovers) (err error) {
	redisstore.DiscardClientLog()
	o, err := parse(os.Args[1:], os.Stdout)
	if err != nil {
		return err
	}
	if o.list {
		return list(os.Stdout)
	}
	sc, err := find(o.scenario)
	if err != nil {
		return err
	}
	if err := o.absolute(); err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	dir, err := left.folder()
	if err != nil {
		return fmt.Errorf("chaos: %w", err)
	}
	r := newRun(o, dir, left)
	cleared, err := clearDead()
	for _, dir := range cleared {
		r.say("%s was left of a run that was killed, and is removed", dir)
	}
	if err != nil {
		r.say("%v", err)
	}
	if err := r.report.begin(o.out); err != nil {
		return err
	}
	r.report.surroundings()
	r.say("%s, seed %d", sc.name, o.seed)
	for _, flag := range sc.ignored(o.given) {
		r.say("--%s does nothing here", flag)
		r.report.note("--%s was given, and does nothing in this scenario.", flag)
	}
	err = sc.run(ctx, r)
	if err == nil && ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err != nil {
		r.report.fail("%v", err)
	}
	err = errors.Join(r.report.err(), r.report.write(o.out))
	if err != nil && o.keep {
		r.say("kept %s", dir)
		return errors.Join(err, left.keep())
	}
	return errors.Join(err, left.clear())
}

// absolute makes the folders' names absolute, so that they mean the same to all
// processes, and the report can tell them from other text.
func (o *options) absolute() (err error) {
	if o.bin, err = filepath.Abs(o.bin); err != nil {
		return err
	}
	o.root, err = filepath.Abs(o.root)
	return err
}

// defaults are the options when none is given.
func defaults() options {
	o, _ := parse(nil, io.Discard) // nothing can be wrong
	return o
}

func parse(args []string, stdout io.Writer) (o options, err error) {
	f := pflag.NewFlagSet("chaos", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.SortFlags = false
	f.StringVar(&o.scenario, "scenario", "mix", "what to do, see --list")
	f.BoolVar(&o.list, "list", false, "list the scenarios")
	f.IntVar(&o.seconds, "seconds", 180, "how long votes are posted, or one phase takes, in seconds")
	f.Uint64Var(&o.seed, "seed", 0, "the faults follow from it (default: a random one, which is printed)")
	f.StringVar(&o.fsync, "appendfsync", "", "Redis's appendfsync: always, everysec or no (default: the scenario's)")
	f.IntVar(&o.shards, "queue-shards", 2, "queue shards")
	f.IntVar(&o.connections, "connections", 256, "keep-alive connections, each with one vote in the air")
	f.Float64Var(&o.rate, "rate", 0, "overload, slow-senders: the usual load, votes a second (default: the scenario's, or found by a ramp)")
	f.Int64Var(&o.votes, "votes", 2_000_000, "deep-queue: how deep, in votes")
	f.StringVar(&o.archive, "archive", "", "azurite or folder (default: by the seed)")
	f.StringVar(&o.out, "out", "chaos-report", "folder of the report")
	f.StringVar(&o.bin, "bin", "bin", "folder with the binaries, as make build leaves them")
	f.StringVar(&o.root, "root", ".", "the project's folder, in which make tools has put Azurite")
	f.BoolVar(&o.keep, "keep", false, "keep the run's folder after a failure")
	switch err := f.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		if _, err := io.WriteString(stdout, about+f.FlagUsages()); err != nil {
			return o, fmt.Errorf("print help: %w", err)
		}
		return o, config.ErrHelp
	case err != nil:
		return o, config.FlagError(err)
	case f.NArg() > 0:
		return o, config.Usagef("unexpected argument %q; chaos takes only flags, see --help", f.Arg(0))
	}
	f.Visit(func(flag *pflag.Flag) { o.given = append(o.given, flag.Name) })
	switch {
	case o.bin == "" || o.root == "" || o.out == "":
		err = config.Usagef("--bin, --root and --out must not be empty")
	case o.seconds < 5 || o.seconds > 86400:
		err = config.Usagef("wrong value %d for --seconds: must be 5 to 86400", o.seconds)
	case o.connections < 8 || o.connections > 10000:
		err = config.Usagef("wrong value %d for --connections: must be 8 to 10000", o.connections)
	case !(o.rate >= 0 && o.rate <= 100_000): // NaN is neither
		err = config.Usagef("wrong value %g for --rate: must be 0 to 100000", o.rate)
	case o.votes < 1000 || o.votes > 100_000_000:
		err = config.Usagef("wrong value %d for --votes: must be 1000 to 100000000", o.votes)
	case o.shards < 1 || o.shards > 1024:
		err = config.Usagef("wrong value %d for --queue-shards: must be 1 to 1024", o.shards)
	case o.fsync != "" && o.fsync != "always" && o.fsync != "everysec" && o.fsync != "no":
		err = config.Usagef("wrong value %q for --appendfsync: must be always, everysec or no", o.fsync)
	case o.archive != "" && o.archive != "azurite" && o.archive != "folder":
		err = config.Usagef("wrong value %q for --archive: must be azurite or folder", o.archive)
	}
	if !f.Changed("seed") {
		const short = 1_000_000 // easy to type again
		o.seed = rand.Uint64N(short)
	}
	return o, err
}

func find(name string) (scenario, error) {
	var names []string
	for _, sc := range scenarios() {
		if sc.name == name {
			return sc, nil
		}
		names = append(names, sc.name)
	}
	return scenario{}, config.Usagef("wrong value %q for --scenario: must be one of %s", name, strings.Join(names, ", "))
}

func list(w io.Writer) error {
	for _, sc := range scenarios() {
		if _, err := fmt.Fprintf(w, "%-16s %s\n", sc.name, sc.about); err != nil {
			return fmt.Errorf("list: %w", err)
		}
	}
	return nil
}
