// Command ledger posts votes to running apis and judges what becomes of them,
// vote by vote.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"paredao/internal/config"
	"paredao/internal/daemon"
	"paredao/internal/ledger"
	"paredao/internal/redisstore"
	"paredao/internal/service"
	"paredao/internal/vote"
)

func main() { os.Exit(daemon.Main("ledger", run)) }

// run wires the ledger:
//
//	client ──(votes)──▶ apis … Redis, archive ◀── judge
//	   └───(what was answered)──────────────────────┘
func run(ctx context.Context) error {
	redisstore.DiscardClientLog()
	root := newCommand()
	root.SetArgs(os.Args[1:])
	root.SetOut(os.Stdout)
	root.SetErr(os.Stderr)
	return root.ExecuteContext(ctx)
}

// options are what the command can be told.
type options struct {
	tally       config.Tally
	apis        []string
	poll        string
	weights     string
	wrong       int
	keyless     int
	connections int
	votes       int64
	duration    time.Duration
	rate        float64
	timeout     time.Duration
	patience    time.Duration
	drain       time.Duration
	seed        uint64
	output      string
}

func newCommand() *cobra.Command {
	o := &options{}
	c := &cobra.Command{
		Use:   "ledger",
		Short: "Post votes to running apis and judge what becomes of them",
		Long: `ledger posts votes and keeps, for each, what it was answered: acked (202),
refused (4xx), or unknown (503, a time-out, a broken connection). Unknown ones
are sent again with the same Idempotency-Key until they are acked or refused.

Then it waits until the queue is counted and archived, and compares, id by id:
every acked vote stands in the archive exactly once, with its option; nothing
else stands there; the tallies are the acked votes; the audit with recount finds
no difference; no list holds anything any more; no vote was refused but those of
--wrong, and of those none was taken. That is: the ledger holds.

Break what you like meanwhile: kill consumers, archivers, apis, Redis (with
appendfsync always), drop connections. The first Ctrl-C ends the posting and has
the votes so far judged; the second ends at once.

Unless --poll names one, it opens a poll of its own, so that a running stack can
be tested. Nobody else may vote there, and the queue must come to rest for the
judgement. A poll that --poll names may close meanwhile, or lack an option: its
votes may be refused.

Exit codes: 0 the ledger holds; 1 something was lost, doubled, invented or
wrongly refused, or could not be judged; 2 wrong use.`,
		Example: `  ledger --votes 100000
  ledger --api http://10.0.0.7:8080 --api http://10.0.0.8:8080 --duration 60s \
         --redis-url redis://10.0.0.5:6379/0 --archive-url azblob://votes
  ledger --duration 2m --rate 5000 --weights ana=70,bruno=30 -o json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return config.Usagef("unexpected argument %q; ledger takes only flags, see --help", args[0])
			}
			return nil
		},
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := c.Flags()
	config.BindTally(f, &o.tally)
	f.StringSliceVar(&o.apis, "api", []string{"http://127.0.0.1:8080"}, "base URL of an api; may be given more than once")
	f.StringVar(&o.poll, "poll", "", "poll that has no votes yet (default: a new one, ledger-XXXXXXXX)")
	f.StringVar(&o.weights, "weights", "ana=50,bruno=30,carla=20", "options and their weights; with --poll the options must be that poll's")
	f.IntVar(&o.wrong, "wrong", 1, "percentage of votes for an option that does not exist, which must be refused")
	f.IntVar(&o.keyless, "keyless", 0, "percentage of votes without an Idempotency-Key: sent once, whatever happens")
	f.IntVar(&o.connections, "connections", 64, "keep-alive connections, each with one vote in the air")
	f.Int64Var(&o.votes, "votes", 0, "how many votes to post (default: as many as --duration allows)")
	f.DurationVar(&o.duration, "duration", 0, "how long to post (default: 10s, or until --votes are posted)")
	f.Float64Var(&o.rate, "rate", 0, "votes a second at most (default: as fast as possible)")
	f.DurationVar(&o.timeout, "timeout", 5*time.Second, "how long to wait for an answer before the vote is sent again")
	f.DurationVar(&o.patience, "patience", 2*time.Minute, "how long to send a vote of unknown fate again; shorter than the api's idempotency-ttl")
	f.DurationVar(&o.drain, "drain", 5*time.Minute, "how long to wait until everything is counted and archived")
	f.Uint64Var(&o.seed, "seed", 1, "the same seed draws the same options")
	f.StringVarP(&o.output, "output", "o", "text", "form of the judgement: text or json")
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return config.FlagError(err) })
	return c
}

func (o *options) run(cmd *cobra.Command) (err error) {
	warnings, err := o.tally.Finish(config.Environ())
	if err != nil {
		return err
	}
	log := o.tally.Log.New(cmd.ErrOrStderr())
	for _, w := range warnings {
		log.Warn(w)
	}
	options, weights, err := o.check()
	if err != nil {
		return err
	}
	redis := o.tally.Redis
	store, err := redisstore.Open(redisstore.Options{URL: redis.URL.Reveal(), PasswordFile: redis.PasswordFile, Shards: redis.Shards})
	if err != nil {
		return config.Usagef("%v", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	// Not the signal's context: what was posted is judged after Ctrl-C too. A
	// second Ctrl-C ends the process.
	ctx := context.WithoutCancel(cmd.Context())
	blobs, err := service.OpenArchive(ctx, o.tally.Archive)
	if err != nil {
		return err
	}
	fresh := o.poll == ""
	if fresh {
		o.poll = "ledger-" + uuid.NewString()[:8]
	}
	client, err := o.client(options, weights, fresh)
	if err != nil {
		return config.Usagef("%v", err)
	}
	if err := o.prepare(ctx, store, options, fresh); err != nil {
		return err
	}
	log.Info("posting", "poll", o.poll, "apis", o.apis, "connections", o.connections)
	client.Run(cmd.Context())
	log.Info("posted", "sent", client.Record().Sent(), "acked", client.Record().Acked(), "seconds", client.Took().Seconds())
	result, err := ledger.Judge(ctx, ledger.JudgeParams{
		Store: store, Blobs: blobs, Record: client.Record(), Timeout: o.drain,
		Progress: func(what string) { log.Info(what) },
	})
	if err != nil {
		return fmt.Errorf("the ledger could not be judged: %w", err)
	}
	if err := o.report(cmd, client, result); err != nil {
		return err
	}
	if !result.OK() {
		return fmt.Errorf("the ledger does not hold: %s", result.Problems[0])
	}
	return nil
}

// check checks what pflag can't.
func (o *options) check() (options []string, weights []int, err error) {
	for part := range strings.SplitSeq(o.weights, ",") {
		option, text, _ := strings.Cut(part, "=")
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 1_000_000 || !vote.ValidID(option) {
			return nil, nil, config.Usagef("wrong value %q for --weights: must be like ana=70,bruno=30", o.weights)
		}
		options, weights = append(options, option), append(weights, n)
	}
	if slices.Max(weights) == 0 {
		return nil, nil, config.Usagef("wrong value %q for --weights: one must be above 0", o.weights)
	}
	if o.poll != "" && !vote.ValidID(o.poll) {
		return nil, nil, config.Usagef("wrong value %q for --poll: must match [a-z0-9][a-z0-9_-]{0,62}", o.poll)
	}
	for _, n := range []struct {
		flag    string
		ok      bool
		allowed string
	}{
		{"connections", o.connections >= 1 && o.connections <= 20000, "1 to 20000"},
		{"votes", o.votes >= 0, "0 or more"},
		{"duration", o.duration >= 0, "0 or more"},
		{"rate", o.rate >= 0, "0 or more"},
		{"wrong", o.wrong >= 0 && o.wrong < 100, "0 to 99"},
		{"keyless", o.keyless >= 0 && o.keyless <= 100, "0 to 100"},
		{"timeout", o.timeout > 0, "more than 0"},
		{"patience", o.patience >= 0, "0 or more"},
		{"drain", o.drain > 0, "more than 0"},
		{"output", o.output == "text" || o.output == "json", "text or json"},
	} {
		if !n.ok {
			return nil, nil, config.Usagef("wrong value for --%s: must be %s", n.flag, n.allowed)
		}
	}
	if o.votes == 0 && o.duration == 0 {
		o.duration = 10 * time.Second
	}
	return options, weights, nil
}

// prepare makes the poll, or makes sure that the one that was named is empty.
func (o *options) prepare(ctx context.Context, store *redisstore.Store, options []string, fresh bool) error {
	if err := store.SameShards(ctx); err != nil {
		if errors.Is(err, vote.ErrShardsMismatch) {
			return config.Usagef("%v", err)
		}
		return fmt.Errorf("can't reach Redis at %s (--redis-url): %w", o.tally.Redis.URL, err)
	}
	if !fresh {
		r, err := store.Results(ctx, o.poll)
		if err != nil {
			return err
		}
		if r.Ledger.Accepted > 0 {
			return fmt.Errorf("poll %s has %d votes already; the ledger needs one without", o.poll, r.Ledger.Accepted)
		}
		return nil
	}
	p := vote.Poll{ID: o.poll, Title: "Ledger test", Results: vote.ResultsLive}
	for _, option := range options {
		p.Options = append(p.Options, vote.Option{ID: option, Name: option})
	}
	if err := p.Validate(); err != nil {
		return config.Usagef("wrong value %q for --weights: %v", o.weights, err)
	}
	_, err := store.ApplyPoll(ctx, p, vote.Window{})
	return err
}

// noSuchOption is voted for by those votes that must be refused.
const noSuchOption = "no-such-option"

// client makes the client. Only of a fresh poll is it known that it takes every
// vote.
func (o *options) client(options []string, weights []int, fresh bool) (*ledger.Client, error) {
	var choices, refuse, either []ledger.Choice
	sum := 0
	for i, option := range options {
		choices = append(choices, ledger.Choice{Poll: o.poll, Option: option})
		sum += weights[i]
		weights[i] *= 100 - o.wrong
	}
	if !fresh {
		either = slices.Clone(choices)
	}
	if o.wrong > 0 && !slices.Contains(options, noSuchOption) {
		refuse = append(refuse, ledger.Choice{Poll: o.poll, Option: noSuchOption})
		choices = append(choices, refuse...)
		weights = append(weights, sum*o.wrong)
	}
	source, err := ledger.Draw(weights, o.votes, o.seed)
	if err != nil {
		return nil, err
	}
	return ledger.NewClient(ledger.Params{
		URLs: o.apis, Choices: choices, Refuse: refuse, Either: either, Source: source,
		Connections: o.connections, Rate: o.rate, Keyless: float64(o.keyless) / 100,
		Duration: o.duration, Timeout: o.timeout, Patience: o.patience,
	})
}

func (o *options) report(cmd *cobra.Command, client *ledger.Client, r *ledger.Result) error {
	seconds := client.Took().Seconds()
	out := cmd.OutOrStdout()
	if o.output == "json" {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(struct {
			OK             bool    `json:"ok"`
			Poll           string  `json:"poll"`
			Seconds        float64 `json:"seconds"`
			AckedPerSecond float64 `json:"acked_per_second"`
			*ledger.Result
		}{r.OK(), o.poll, seconds, float64(r.Acked) / seconds, r}); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		return nil
	}
	_, err := fmt.Fprintf(out, "poll %s: posted for %.1f s over %d connections, %.0f acked votes a second\n%s",
		o.poll, seconds, o.connections, float64(r.Acked)/seconds, r)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}
