package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"paredao/internal/ledger"
)

// scenario is something that can be asked of the laboratory.
type scenario struct {
	name, about string
	// takes are the flags that it heeds, beside those that every one does.
	takes string
	// run starts what it needs, ends it, and adds to the run's report. An error
	// says that what the scenario promises does not hold, or could not be tried.
	run func(ctx context.Context, r *run) error
}

// scenarios are all there are, one a line.
func scenarios() []scenario {
	return []scenario{
		{"mix", "all faults, alone and mixed, at random; nothing acknowledged may be lost",
			"seconds appendfsync queue-shards connections archive", runMix},
		{"everysec", "the mix with appendfsync everysec, power cuts and a stale backup; then tally restore",
			"seconds appendfsync queue-shards connections archive", runEverysec},
		{"restore", "Redis is lost as a whole, and comes back from the archive",
			"seconds appendfsync queue-shards connections archive", runRestore},
		{"overload", "20 times the rated load, and a Redis that gets full: the excess is refused at once, and all is well afterwards",
			"seconds appendfsync queue-shards rate", runOverload},
		{"slow-senders", "2,000 clients that send a byte a second beside usual ones", "seconds appendfsync queue-shards rate", runSlow},
		{"deep-queue", "a queue 2 million votes deep is drained as fast as a short one", "appendfsync votes", runDeepQueue},
		{"sentinel", "primaries are killed, paused and replaced, and Sentinel names others",
			"seconds appendfsync queue-shards connections", runSentinel},
		{"cluster", "slots of a Redis Cluster move, and its masters are killed, paused and replaced",
			"seconds appendfsync queue-shards connections", runCluster},
		{"dead-consumers", "all consumers are killed, and a fresh one counts what they had in hand", "seconds appendfsync", runDeadConsumers},
	}
}

// ignored are those of the given flags that the scenario does not heed.
func (sc *scenario) ignored(given []string) []string {
	heeds := strings.Fields("scenario seed out bin root keep list " + sc.takes)
	return slices.DeleteFunc(slices.Clone(given), func(flag string) bool { return slices.Contains(heeds, flag) })
}

// run is one run of a scenario.
type run struct {
	options
	// dir is the run's own folder, removed at its end.
	dir    string
	report *report
	began  time.Time
	left   *leftovers
	// drain bounds the drain after a load.
	drain time.Duration
	// mayForget says that Redis may lose writes that it has acknowledged.
	mayForget bool
}

func newRun(o options, dir string, left *leftovers) *run {
	r := &run{options: o, dir: dir, report: newReport(&o), began: time.Now(), left: left, drain: drainPatience}
	r.report.conceal(dir, "DIR")
	r.report.conceal(o.bin+"/", "bin/")
	r.report.conceal(o.root+"/", "")
	return r
}

// say tells the progress on stderr, which is no data.
func (r *run) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%7.1fs  "+format+"\n", append([]any{time.Since(r.began).Seconds()}, args...)...)
}

// folder makes a folder in the run's own.
func (r *run) folder(name string) (string, error) {
	dir := filepath.Join(r.dir, name)
	return dir, os.MkdirAll(dir, 0o755)
}

// fsyncOr is what the user asked for, or else the scenario's own.
func (r *run) fsyncOr(fsync string) string {
	if r.fsync != "" {
		return r.fsync
	}
	return fsync
}

// load is a ledger client at work, and what is seen of it from outside.
type load struct {
	*monitor
	client *ledger.Client
	cancel context.CancelFunc
	ended  chan struct{}
}

// startLoad begins to post votes. URLs and Source are the caller's; what else is
// zero gets the run's own. It goes on until stop, Duration, or the end of ctx.
func (r *run) startLoad(ctx context.Context, p ledger.Params) (*load, error) {
	if p.Connections == 0 {
		p.Connections = r.connections
	}
	if p.Timeout == 0 {
		p.Timeout = 10 * time.Second
	}
	if p.Patience == 0 {
		p.Patience = 2 * time.Minute
	}
	client, err := ledger.NewClient(p)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &load{client: client, cancel: cancel, ended: make(chan struct{}), monitor: newMonitor(client.Record().Acked)}
	go func() {
		defer close(l.ended)
		client.Run(ctx)
	}()
	return l, nil
}

// stop ends the posting and returns when each vote is settled, or given up.
func (l *load) stop() {
	l.cancel()
	l.monitor.stop()
	<-l.ended
}

// record is what the client has been answered.
func (l *load) record() *ledger.Record { return l.client.Record() }

// judge has the ended load judged and the books audited, as an operator would
// with tally, and puts all of it into the report. The error says what does not
// hold.
func (r *run) judge(ctx context.Context, s *stack, l *load, windows ...ledger.LossWindow) (*ledger.Result, error) {
	const most = 0.5 // else the run shows too little
	result, err := ledger.Judge(ctx, ledger.JudgeParams{
		Store: s.store, Blobs: s.blobs, Record: l.record(), Timeout: r.drain, LossWindows: windows,
		MayRepeat: r.mayForget, Progress: func(what string) { r.say("%s", what) },
	})
	if err != nil {
		return nil, fmt.Errorf("the ledger could not be judged: %w", err)
	}
	r.report.judged(result, l)
	errs := []error{problems(result)}
	if result.LossCoverage > most {
		errs = append(errs, fmt.Errorf("votes might be lost in %.0f %% of the time: that shows too little", 100*result.LossCoverage))
	}
	out, err := s.tally(ctx, "audit", "--recount")
	r.report.command("tally audit --recount", out, err)
	if err != nil {
		errs = append(errs, fmt.Errorf("tally audit --recount: %w", err))
	}
	return result, errors.Join(append(errs, r.everywhere(ctx, s, result))...)
}

// drainPatience bounds the drain after a load, brokenPatience that after a load
// in which something broke that should not.
const drainPatience, brokenPatience = 10 * time.Minute, time.Minute

func problems(result *ledger.Result) error {
	if result.OK() {
		return nil
	}
	return fmt.Errorf("the ledger does not hold: %s\n%s", strings.Join(result.Problems, "; "), strings.Join(result.Examples, "\n"))
}

// wait lets d pass; false: ctx has ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
