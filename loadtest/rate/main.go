//go:build linux

package main

import (
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"paredao/internal/config"
	"paredao/internal/daemon"
	"paredao/internal/vote"
)

func main() {
	os.Exit(daemon.Main("rate", func(ctx context.Context) error { return run(ctx, os.Args[1:], os.Stdout, os.Stderr) }))
}

// options are what the command can be told.
type options struct {
	url         string
	poll        string
	options     string
	rate        float64
	seconds     int
	warmup      int
	connections int
	threads     int
	timeout     time.Duration
	keys        bool
	form        bool
	varied      bool
	seed        uint64
	find        bool
	p99         time.Duration
	json        string
	allowErrors bool
	anywhere    bool

	choices []choice
	base    *url.URL
	target  netip.AddrPort
}

const about = `rate posts votes at a constant rate and says how long they took, counted from
when each was due by the schedule: a request that had to wait for a connection
because the server stood still shows that wait. Beside it stands the service
time, from when it was really sent.

  rate --rate 10000                      # 30 s before a running api, make run
  rate --rate 10000 --json r.json --keys --varied --options ana=70,bruno=30
  rate --find --p99 50ms                 # the highest rate that keeps this

With --find it doubles the rate, from --rate or 1000, until a short probe does
not keep --p99, or not the rate, then halves the interval to 3 percent, and
confirms what it has found by a run of --seconds; where that fails, 5 percent
below, up to five times.

It gives no report where the figures would be its own: where for one percent of
the answers more than 2 ms, and more than a fifth of the p99, may be its own
delay (a request that was due while a connection was free, an answer that lay
unread), or where the rate was missed while it was at work nine tenths of the
time. Give it a processor of its own then, or more --threads.

That all connections are busy is not that: the server is slow then, or there are
too few, since N connections carry N / service time requests a second at most.
The report says how much of the time it was so.

Accepted a second are answers 202, requests a second all answers, both by when
they came. With --warmup 0 the first answers' latency counts against the rate.

Ctrl-C ends it and prints what is known so far.

Exit codes: 0 the rate was kept and every answer was 2xx; 1 it was not so, or the
generator was the limit, or it could not be done; 2 wrong use.

Usage:
  rate --rate N [flags]
  rate --find [flags]

Flags:
`

// run loads the api once, or many times with --find:
//
//	flags ─▶ requests ─┐
//	schedule ──────────┴─▶ load ─▶ measured ─▶ judge ─▶ table, JSON
//	                        ▲          │
//	                        └── find ◀─┘
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stdout)
	if err != nil {
		return err
	}
	if err := o.resolve(ctx); err != nil {
		return err
	}
	say := func(format string, args ...any) { fmt.Fprintf(stderr, format+"\n", args...) }
	var m *measured
	var probes []probe
	if o.find {
		f := finder{start: defaultStart, limit: o.p99, run: o.load, say: say, pause: time.Second, judge: o.judge}
		if o.rate > 0 {
			f.start = o.rate
		}
		o.rate, m, err = f.find(ctx)
		probes = f.probes
	} else {
		m, err = o.load(ctx, o.rate, true)
	}
	if err != nil {
		return err
	}
	return o.report(m, probes, ctx.Err() != nil, stdout)
}

// report says what was measured, if that is worth anything.
func (o *options) report(m *measured, probes []probe, interrupted bool, stdout io.Writer) error {
	v := o.judge(m)
	if interrupted {
		if m.window <= 0 {
			return errEarly
		}
		v.problems = append([]string{fmt.Sprintf("interrupted after %.1f measured seconds", m.window.Seconds())}, v.problems...)
	}
	if v.generator != "" {
		return fmt.Errorf("no report, the generator was the limit: %s", v.generator)
	}
	r := newReport(*o, m, v, probes)
	if err := r.print(stdout); err != nil {
		return err
	}
	if o.json != "" {
		if err := r.save(o.json); err != nil {
			return err
		}
	}
	if len(v.problems) > 0 {
		return errors.New(strings.Join(v.problems, "; "))
	}
	return nil
}

func parse(args []string, stdout io.Writer) (o options, err error) {
	f := pflag.NewFlagSet("rate", pflag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	f.SortFlags = false
	f.StringVar(&o.url, "url", "http://127.0.0.1:8080", "base URL of the api")
	f.StringVar(&o.poll, "poll", "demo", "poll to vote in; it must be open and have the options")
	f.StringVar(&o.options, "options", "ana=50,bruno=30,carla=20", "options and their weights")
	f.Float64Var(&o.rate, "rate", 0, "requests a second; with --find where to begin")
	f.IntVar(&o.seconds, "seconds", 30, "how long is measured, in seconds")
	f.IntVar(&o.warmup, "warmup", 3, "how long is loaded before that, in seconds")
	f.IntVar(&o.connections, "connections", 256, "keep-alive connections, each with one request in the air")
	f.IntVar(&o.threads, "threads", 1, "loops that share the connections, each a processor's worth of work")
	f.DurationVar(&o.timeout, "timeout", 10*time.Second, "how long to wait for an answer; and after the end for those that are late")
	f.BoolVar(&o.keys, "keys", false, "an Idempotency-Key of its own for each request")
	f.BoolVar(&o.form, "form", false, "the vote as a form instead of JSON")
	f.BoolVar(&o.varied, "varied", false, "user agents of several browsers in turn")
	f.Uint64Var(&o.seed, "seed", 1, "the same seed draws the same options")
	f.BoolVar(&o.find, "find", false, "find the highest rate whose p99 is below --p99")
	f.DurationVar(&o.p99, "p99", 50*time.Millisecond, "with --find: the bound")
	f.StringVar(&o.json, "json", "", "also write the report to this file, as JSON")
	f.BoolVar(&o.allowErrors, "allow-errors", false, "answers that are not 2xx, and broken connections, are no failure")
	f.BoolVar(&o.anywhere, "anywhere", false, "load a server that is not on this machine; only one that is yours to load")
	switch err := f.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		if _, err := io.WriteString(stdout, about+f.FlagUsages()); err != nil {
			return o, fmt.Errorf("print help: %w", err)
		}
		return o, config.ErrHelp
	case err != nil:
		return o, config.FlagError(err)
	case f.NArg() > 0:
		return o, config.Usagef("unexpected argument %q; rate takes only flags, see --help", f.Arg(0))
	}
	if o.choices, err = parseChoices(o.options); err != nil {
		return o, err
	}
	switch {
	case !f.Changed("rate") && !o.find:
		err = config.Usagef("--rate or --find is missing, see --help")
	case f.Changed("rate") && !(o.rate >= 1 && o.rate <= maxRate): // NaN is neither
		err = config.Usagef("wrong value %g for --rate: must be 1 to %d", o.rate, maxRate)
	case o.seconds < 1 || o.seconds > 86400:
		err = config.Usagef("wrong value %d for --seconds: must be 1 to 86400", o.seconds)
	case o.warmup < 0 || o.warmup > 3600:
		err = config.Usagef("wrong value %d for --warmup: must be 0 to 3600", o.warmup)
	case o.threads < 1 || o.threads > 64:
		err = config.Usagef("wrong value %d for --threads: must be 1 to 64", o.threads)
	case o.connections < o.threads || o.connections > 20000:
		err = config.Usagef("wrong value %d for --connections: must be 1 to 20000, and one a thread at least", o.connections)
	case o.timeout < time.Millisecond || o.timeout > time.Hour:
		err = config.Usagef("wrong value %s for --timeout: must be 1ms to 1h", o.timeout)
	case o.p99 < time.Millisecond || o.p99 > time.Hour:
		err = config.Usagef("wrong value %s for --p99: must be 1ms to 1h", o.p99)
	case f.Changed("p99") && !o.find:
		err = config.Usagef("--p99 is for --find only")
	case !vote.ValidID(o.poll):
		err = config.Usagef("wrong value %q for --poll: must match [a-z0-9][a-z0-9_-]{0,62}", o.poll)
	}
	if err != nil {
		return o, err
	}
	o.base, err = url.Parse(o.url)
	if err != nil || o.base.Scheme != "http" || o.base.Hostname() == "" || o.base.User != nil || o.base.RawQuery != "" || o.base.Fragment != "" {
		return o, config.Usagef("wrong value for --url: must be like http://127.0.0.1:8080")
	}
	return o, nil
}

func parseChoices(text string) (choices []choice, err error) {
	sum := 0
	for part := range strings.SplitSeq(text, ",") {
		option, weight, _ := strings.Cut(part, "=")
		n, err := strconv.Atoi(weight)
		if err != nil || n < 0 || n > 1_000_000 || !vote.ValidID(option) {
			return nil, config.Usagef("wrong value %q for --options: must be like ana=70,bruno=30", text)
		}
		sum += n
		choices = append(choices, choice{option, n})
	}
	if sum == 0 {
		return nil, config.Usagef("wrong value %q for --options: one weight must be above 0", text)
	}
	return choices, nil
}

// resolve finds the address. Other machines only with --anywhere: this is made
// to bring a server down.
func (o *options) resolve(ctx context.Context) error {
	port := uint64(80)
	if text := o.base.Port(); text != "" {
		var err error
		if port, err = strconv.ParseUint(text, 10, 16); err != nil || port == 0 {
			return config.Usagef("wrong value %q for --url: the port must be 1 to 65535", o.url)
		}
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", o.base.Hostname())
	if err != nil {
		return fmt.Errorf("no address for --url %s: %w", o.url, err)
	}
	for _, ip := range found {
		if ip = ip.Unmap(); !ip.IsLoopback() && !o.anywhere {
			return config.Usagef("wrong value %q for --url: %s is not a loopback address; add --anywhere if that server is yours to load", o.url, ip)
		}
	}
	o.target = netip.AddrPortFrom(found[0].Unmap(), uint16(port))
	return nil
}

const (
	maxRate      = 1_000_000
	defaultStart = 1000
	// of a probe of --find, in seconds.
	probeWarmup, probeMeasure = 1, 3
)

// load runs once at a rate, as long as asked for, or as a short probe.
func (o *options) load(ctx context.Context, rate float64, long bool) (*measured, error) {
	p := loadParams{
		target: o.target,
		requests: requestParams{
			host: o.base.Host, path: strings.TrimSuffix(o.base.EscapedPath(), "/") + "/polls/" + o.poll + "/votes",
			choices: o.choices, form: o.form, varied: o.varied, seed: o.seed,
		},
		connections: o.connections, threads: o.threads, rate: rate, timeout: o.timeout,
		warmup: time.Duration(o.warmup) * time.Second, measure: time.Duration(o.seconds) * time.Second, drain: o.timeout,
	}
	if !long {
		p.warmup, p.measure = probeWarmup*time.Second, probeMeasure*time.Second
		p.drain = min(o.timeout, max(time.Second, 2*o.p99))
	}
	if o.keys {
		run := make([]byte, 12)
		_, _ = crand.Read(run) // never fails
		p.requests.keys = hex.EncodeToString(run)
	}
	return load(ctx, p)
}
