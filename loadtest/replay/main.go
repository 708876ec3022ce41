// Command replay posts the votes of a published run through a whole stack of
// real processes, and proves that the totals are those of the publication.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"paredao/internal/config"
	"paredao/internal/daemon"
	"paredao/internal/lab"
	"paredao/internal/ledger"
	"paredao/internal/redisstore"
)

func main() { os.Exit(daemon.Main("replay", run)) }

// The published totals of an earlier prototype of this system.
const (
	poll      = "replay"
	published = "0=421611,1=421342,2=422597"
)

// least is how many connections a replay has at least.
const least = 64

// options are what the command can be told.
type options struct {
	bin         string
	tally       string
	votes       string
	connections int
	consumers   int
	shards      int
	fsync       string
	seed        uint64
}

const about = `replay posts the votes of a published run: 421,611 for option 0, 421,342 for 1
and 422,597 for 2, shuffled, each with an Idempotency-Key, through POST to the
api, while consumers and an archiver run. It starts all of them, and a
redis-server, as real processes on free ports in a folder of their own, and ends
them.

Then it waits until all is counted and archived and compares, vote by vote, what
was acknowledged with what stands in the archive; tally totals, tally audit
--recount and tally recount must give exactly the published numbers.

Exit codes: 0 they do; 1 they do not, or it could not be done; 2 wrong use.

Usage:
  replay [flags]

Flags:
`

func run(ctx context.Context) error {
	redisstore.DiscardClientLog()
	o, choices, counts, err := parse(os.Args[1:], os.Stdout)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "paredao-replay-*")
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	s := &stack{o: o, dir: dir}
	err = replay(ctx, s, choices, counts)
	return errors.Join(err, s.end(err != nil), os.RemoveAll(dir))
}

func parse(args []string, stdout io.Writer) (o options, choices []ledger.Choice, counts []int64, err error) {
	f := pflag.NewFlagSet("replay", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.StringVar(&o.bin, "bin", "bin", "folder with the binaries, as make build leaves them")
	f.StringVar(&o.tally, "tally", "", "path of tally (default: the one in --bin)")
	f.StringVar(&o.votes, "votes", published, "options and how many votes each gets, for a shorter try")
	f.IntVar(&o.connections, "connections", least, "keep-alive connections, at least 64, each with one vote in the air")
	f.IntVar(&o.consumers, "consumers", 2, "consumers")
	f.IntVar(&o.shards, "queue-shards", 1, "queue shards")
	f.StringVar(&o.fsync, "appendfsync", "everysec", "Redis's appendfsync: always, everysec or no")
	f.Uint64Var(&o.seed, "seed", 20260120, "seed of the shuffle")
	switch err := f.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		if _, err := io.WriteString(stdout, about+f.FlagUsages()); err != nil {
			return o, nil, nil, fmt.Errorf("print help: %w", err)
		}
		return o, nil, nil, config.ErrHelp
	case err != nil:
		return o, nil, nil, config.FlagError(err)
	case f.NArg() > 0:
		return o, nil, nil, config.Usagef("unexpected argument %q; replay takes only flags, see --help", f.Arg(0))
	}
	if o.tally == "" {
		o.tally = o.bin + "/tally"
	}
	for part := range strings.SplitSeq(o.votes, ",") {
		option, text, _ := strings.Cut(part, "=")
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 || option == "" {
			return o, nil, nil, config.Usagef("wrong value %q for --votes: must be like %s", o.votes, published)
		}
		choices, counts = append(choices, ledger.Choice{Poll: poll, Option: option}), append(counts, n)
	}
	switch {
	case o.connections < least || o.connections > 10000:
		err = config.Usagef("wrong value %d for --connections: must be %d to 10000", o.connections, least)
	case o.consumers < 1 || o.consumers > 64:
		err = config.Usagef("wrong value %d for --consumers: must be 1 to 64", o.consumers)
	case o.shards < 1 || o.shards > 1024:
		err = config.Usagef("wrong value %d for --queue-shards: must be 1 to 1024", o.shards)
	case o.fsync != "always" && o.fsync != "everysec" && o.fsync != "no":
		err = config.Usagef("wrong value %q for --appendfsync: must be always, everysec or no", o.fsync)
	}
	return o, choices, counts, err
}

// replay does it:
//
//	ledger client ──▶ api ──▶ Redis ◀── consumers, archiver ──▶ folder
//	      └──────── judge, tally totals, tally audit, tally recount ┘
func replay(ctx context.Context, s *stack, choices []ledger.Choice, counts []int64) (err error) {
	defer func() {
		// daemon.Main takes context.Canceled after a signal for an orderly end, and
		// exit code 0 is to say that the totals were proved.
		if err != nil && ctx.Err() != nil {
			err = errors.New("interrupted: " + err.Error())
		}
	}()
	if err := s.start(ctx, choices); err != nil {
		return err
	}
	var total int64
	for _, n := range counts {
		total += n
	}
	client, err := ledger.NewClient(ledger.Params{
		URLs: []string{"http://" + s.api}, Choices: choices, Source: ledger.Shuffle(counts, s.o.seed),
		Connections: s.o.connections, Timeout: 10 * time.Second, Patience: 2 * time.Minute,
	})
	if err != nil {
		return config.Usagef("%v", err)
	}
	say("posting %d votes over %d connections", total, s.o.connections)
	posted := make(chan struct{})
	go func() {
		defer close(posted)
		client.Run(ctx)
	}()
	watch(client.Record(), total, posted)
	if err := ctx.Err(); err != nil {
		return err
	}

	began := time.Now()
	result, err := ledger.Judge(ctx, ledger.JudgeParams{
		Store: s.store, Blobs: s.blobs, Record: client.Record(), Timeout: 10 * time.Minute,
		Progress: func(what string) { say("%s", what) },
	})
	if err != nil {
		return fmt.Errorf("the ledger could not be judged: %w", err)
	}
	judged := time.Since(began) - result.Drained
	fmt.Printf("\n%s\n", result)
	differences := result.Problems
	for i, c := range choices {
		if got := result.Options[i]; got.Acked != counts[i] {
			differences = append(differences, fmt.Sprintf("%s: %d votes were acknowledged, not %d", c, got.Acked, counts[i]))
		}
	}
	differences = append(differences, s.ask(ctx, choices, counts)...)

	fmt.Printf("posted   %d votes in %.1f s: %.0f accepted votes a second, %d connections\n",
		result.Acked, client.Took().Seconds(), float64(result.Acked)/client.Took().Seconds(), s.o.connections)
	fmt.Printf("drained  %.1f s later, and judged in %.1f s\n", result.Drained.Seconds(), judged.Seconds())
	fmt.Printf("stack    1 api, %d consumers, 1 archiver, %d queue shards, archive in a folder\n", s.o.consumers, s.o.shards)
	fmt.Printf("redis    %s, appendonly yes, appendfsync %s, over TCP on loopback\n", lab.RedisVersion(ctx), s.o.fsync)
	fmt.Printf("machine  %s, which also ran the load generator\n", lab.Machine())
	if len(differences) > 0 {
		return fmt.Errorf("the replay differs: %s", strings.Join(differences, "; "))
	}
	if s.o.votes != published {
		fmt.Println("The totals are exactly the votes that were posted.")
		return nil
	}
	fmt.Println("The totals are exactly those of the publication.")
	return nil
}

// watch says now and then how far the posting is.
func watch(r *ledger.Record, total int64, posted <-chan struct{}) {
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-posted:
			return
		case <-tick.C:
			say("%d of %d votes acknowledged", r.Acked(), total)
		}
	}
}

// say tells the progress, which is no data.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
