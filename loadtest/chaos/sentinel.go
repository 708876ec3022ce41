package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"syscall"
	"time"

	"paredao/internal/lab"
	"paredao/internal/ledger"
)

// failoverStop is how long the service may stand still when a server is lost.
const failoverStop = 15 * time.Second

// failover is what the scenarios of many servers share: a load, faults one
// after the other, and what they may cost.
type failover struct {
	r      *run
	s      *stack
	l      *load
	random *rand.Rand
	// acks is the apis' ack-replicas: by the seed none or one.
	acks    int
	windows []ledger.LossWindow
	// shards are watched one by one, if that is set.
	shards *shardWatch
}

// failoverFault is a fault after which another server is in charge.
type failoverFault struct {
	name string
	// do does it to a target, and returns when all are well again. gone is when
	// the old server could acknowledge no more votes that the new one lacks; zero
	// if no vote may be lost.
	do func(ctx context.Context) (target string, gone time.Time, err error)
}

// replicaLag is how much earlier than a fault votes may be that no replica has:
// replicas acknowledge once a second.
const replicaLag = time.Second

// failovers posts votes to a stack on many servers while faults follow each
// other, in an order that follows from the seed, and judges.
func (r *run) failovers(ctx context.Context, redisURL, settings string, faults func(f *failover) []failoverFault) (err error) {
	// Only what an api enqueues waits for replicas, no archiver's commit does.
	r.mayForget = true
	f := &failover{r: r, random: rand.New(rand.NewPCG(r.seed, r.seed)), acks: int(r.seed % 2)}
	choices, weights := mixChoices()
	f.s, err = startStack(ctx, stackParams{
		bin: r.bin, dir: r.dir, root: r.root, shards: r.shards, redisURL: redisURL,
		apis: 2, consumers: 2, archivers: 2, choices: choices[:len(choices)-inVain],
		apiArgs:      []string{"--ack-replicas=" + strconv.Itoa(f.acks)},
		consumerArgs: []string{"--owner-ttl=" + ownerTTL.String()},
		archiverArgs: []string{"--owner-ttl=" + ownerTTL.String(), "--archive-max-age=1s"},
	})
	if err != nil {
		return err
	}
	failed := true
	defer func() { err = errors.Join(err, f.s.end(context.WithoutCancel(ctx), failed)) }()
	if err := f.s.store.ClosePoll(ctx, shutPoll); err != nil {
		return err
	}
	r.report.row("redis settings", settings)
	r.report.row("stack", fmt.Sprintf("2 apis, 2 consumers, 2 archivers, %d queue shards; ack-replicas %d; the archive is a folder", r.shards, f.acks))
	source, err := ledger.Draw(weights, 0, r.seed)
	if err != nil {
		return err
	}
	urls, err := f.s.apiURLs(ctx)
	if err != nil {
		return err
	}
	const keyless = 0.3
	if f.l, err = r.startLoad(ctx, ledger.Params{URLs: urls, Choices: choices, Source: source, Refuse: choices[len(choices)-refused:], Keyless: keyless}); err != nil {
		return err
	}
	todo := faults(f)
	if err = f.happen(ctx, todo); ctx.Err() != nil {
		if f.shards != nil {
			f.shards.stop()
		}
		f.l.stop()
		return err
	}
	if err != nil {
		r.say("the faults end here: %v", err)
	}
	if err = errors.Join(err, f.s.well(ctx)); err != nil {
		r.drain = brokenPatience
	}
	if f.shards != nil {
		f.shards.stop() // before the votes end
		err = errors.Join(err, f.shards.verdict(r.report))
	}
	f.l.stop()
	if err = errors.Join(err, f.settle(ctx)); err != nil {
		return err
	}
	failed = false
	return nil
}

// happen lets each fault happen once before any happens again, until the time
// is over.
func (f *failover) happen(ctx context.Context, faults []failoverFault) error {
	// Votes may be lost around a fault; in most of the time none may.
	const pause = 4 * time.Second
	var left []failoverFault
	for end := f.l.start.Add(f.r.length()); time.Now().Before(end); {
		if !wait(ctx, pause) {
			return errors.New("interrupted")
		}
		if len(left) == 0 {
			left = append(left, faults...)
			f.random.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		}
		if err := f.fault(ctx, left[0]); err != nil {
			return fmt.Errorf("%s: %w", left[0].name, err)
		}
		left = left[1:]
	}
	if !wait(ctx, pause) {
		return errors.New("interrupted")
	}
	return nil
}

func (f *failover) fault(ctx context.Context, one failoverFault) error {
	begin := time.Now()
	// No fault takes votes at once, so the next one comes from the new server.
	rec := f.r.report.fault(faultRecord{At: begin.Sub(f.l.start), Name: one.name, Kind: one.name})
	f.r.say("%s", one.name)
	target, gone, err := one.do(ctx)
	if !gone.IsZero() && f.acks == 0 {
		f.windows = append(f.windows, ledger.LossWindow{From: begin.Add(-replicaLag), To: gone})
	}
	if err != nil {
		return err
	}
	end := time.Now()
	f.r.report.change(func() { rec.Target, rec.For, rec.Took = target, end.Sub(begin), true })
	f.l.recovered(func(d time.Duration) { f.r.report.change(func() { rec.Recovery = &d }) })
	return nil
}

// settle gives Redis back what only the archive has, and judges.
func (f *failover) settle(ctx context.Context) error {
	var errs []error
	if len(f.windows) > 0 {
		_, err := f.r.tallyRestore(ctx, f.s)
		errs = append(errs, err)
	}
	_, err := f.r.judge(ctx, f.s, f.l, f.windows...)
	err = errors.Join(append(errs, err)...)
	f.r.report.row("time without any acknowledged vote, in stops over half a second", f.l.stopped().Round(time.Millisecond))
	if stop, at := f.l.longestStop(); stop > failoverStop {
		err = errors.Join(err, fmt.Errorf("no vote was acknowledged for %s from %s on; %s are allowed",
			stop.Round(time.Millisecond), at.Round(time.Millisecond), failoverStop))
	}
	return err
}

// runSentinel kills, pauses and replaces primaries that three sentinels watch.
func runSentinel(ctx context.Context, r *run) error {
	dir, err := r.folder("servers")
	if err != nil {
		return err
	}
	fsync := r.fsyncOr("everysec")
	sentinel, err := lab.StartSentinel(ctx, lab.SentinelParams{Dir: dir, Replicas: 2, Redis: []string{
		"--appendfsync", fsync, "--min-replicas-to-write", "1", "--min-replicas-max-lag", "2",
	}})
	if err != nil {
		return err
	}
	defer sentinel.End()
	settings := "a primary and two replicas, appendonly yes, appendfsync " + fsync +
		", min-replicas-to-write 1, min-replicas-max-lag 2; three sentinels, down-after-milliseconds 1000, failover-timeout 5000"
	return r.failovers(ctx, sentinel.URL(), settings, func(f *failover) []failoverFault {
		// primary is a fault of the primary, and its mending once there is another.
		type action = func(ctx context.Context, old *lab.Redis) (gone time.Time, err error)
		type mending = func(ctx context.Context, old *lab.Redis) error
		primary := func(fault action, mend mending) func(context.Context) (string, time.Time, error) {
			return func(ctx context.Context) (_ string, gone time.Time, err error) {
				old, err := sentinel.Master(ctx)
				if err != nil {
					return "", gone, err
				}
				if gone, err = fault(ctx, old); err != nil {
					return "", gone, err
				}
				if _, err := sentinel.Promoted(ctx, old); err != nil {
					return "", gone, err
				}
				if !wait(ctx, time.Duration(f.random.Int64N(int64(3*time.Second)))) {
					return "", gone, errors.New("interrupted")
				}
				if err := mend(ctx, old); err != nil {
					return "", gone, err
				}
				return "the primary", gone, sentinel.Settled(ctx)
			}
		}
		nothing := func(context.Context, *lab.Redis) error { return nil }
		faults := []failoverFault{
			{"kill -9, and back later", primary(func(_ context.Context, old *lab.Redis) (time.Time, error) {
				old.Kill()
				return time.Now(), nil
			}, sentinel.Restart)},
			{"SIGSTOP, until another is promoted", primary(func(ctx context.Context, old *lab.Redis) (time.Time, error) {
				err := old.Pause(ctx)
				return time.Now(), err
			}, func(_ context.Context, old *lab.Redis) error { return old.Signal(syscall.SIGCONT) })},
			{"SENTINEL FAILOVER, with writes paused", primary(func(ctx context.Context, _ *lab.Redis) (time.Time, error) {
				return time.Time{}, sentinel.Failover(ctx, true)
			}, nothing)},
		}
		if f.acks == 0 {
			// With one of two replicas to acknowledge, the other one would do it,
			// and the primary would take votes that the promoted one never sees.
			faults = append(faults, failoverFault{"SENTINEL FAILOVER", primary(func(ctx context.Context, old *lab.Redis) (time.Time, error) {
				// The old primary goes on until it is told.
				err := errors.Join(sentinel.Failover(ctx, false), sentinel.Demoted(ctx, old))
				return time.Now(), err
			}, nothing)})
		}
		return faults
	})
}
