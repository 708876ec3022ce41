package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"paredao/internal/lab"
	"paredao/internal/ledger"
)

// powerLoss is how much a power cut takes: what appendfsync everysec promises to
// lose at most. (Where the disk is slow Redis may take up to two seconds.)
const powerLoss = time.Second

// runEverysec is the mix where Redis promises less: each of its deaths is a
// power cut, and once an old backup is put back. Acknowledged votes of those
// times may be lost, and no others; the archive may be ahead of Redis, and
// tally restore brings the two together.
func runEverysec(ctx context.Context, r *run) error { return r.mix(ctx, everysecPlan(r.length())) }

func everysecPlan(length time.Duration) mixPlan {
	cut := killKind(length, "power cut, with the last second of its file", (*world).powerCut)
	cut.forgets = true
	// Late, but with time for what follows it.
	const share, most = 6, 15 * time.Second
	stale := fault{
		at: length * 7 / 10, dur: min(most, length/share), target: "redis-server",
		kind: &kind{name: "replaced by its backup of so long ago", part: partRedis, outage: true, forgets: true, do: (*world).staleBackup},
	}
	return mixPlan{
		fsync: "everysec", kill: cut, set: []fault{stale}, watchAOF: true, settle: settle,
		// Often, so that the archive has votes that the backup has not.
		archiveMaxAge: time.Second,
	}
}

// powerCut kills the server, takes away what it had written since a second
// before, and starts it again.
func (w *world) powerCut(ctx context.Context, f fault) (effect, error) {
	w.s.redis.Kill()
	now := time.Now()
	from, gone, err := w.aof.CutBack(now.Add(-powerLoss))
	if err != nil {
		return effect{}, err
	}
	w.mayLose(from, now)
	wait(ctx, f.dur)
	remark, err := w.redisUp(ctx)
	return effect{gone > 0, fmt.Sprintf("what was written in the last %s, %d bytes, is gone; %s",
		now.Sub(from).Round(time.Millisecond), gone, remark)}, err
}

// staleBackup copies the server's files, and puts the copy back after a while.
func (w *world) staleBackup(ctx context.Context, f fault) (effect, error) {
	c, cancel := after(ctx)
	defer cancel()
	// As Redis's documentation says: no rewrite while the files are copied.
	resume, err := w.noRewrite(c)
	if err != nil {
		return effect{}, err
	}
	from, backup := w.aof.Grown(), filepath.Join(w.r.dir, "backup")
	if err := errors.Join(lab.CopyAOF(w.s.redis.Dir, backup), resume()); err != nil {
		return effect{}, err
	}
	if !wait(ctx, f.dur) {
		return effect{remark: "not put back, since the run ended"}, nil
	}
	w.s.redis.Kill()
	now := time.Now()
	w.mayLose(from, now)
	if err := w.aof.Restore(backup); err != nil {
		return effect{}, err
	}
	remark, err := w.redisUp(ctx)
	return effect{true, fmt.Sprintf("%s are gone; %s", now.Sub(from).Round(time.Millisecond), remark)}, err
}

// mayLose notes that votes of a time may be lost.
func (w *world) mayLose(from, to time.Time) {
	w.counts.mu.Lock()
	defer w.counts.mu.Unlock()
	w.counts.windows = append(w.counts.windows, ledger.LossWindow{From: from, To: to})
}

// settle brings Redis and the archive together after the drain, as the docs tell
// operators to.
func settle(ctx context.Context, w *world) error {
	if err := ledger.Drain(ctx, w.s.store, w.r.drain, func(left string) { w.r.say("drain: %s", left) }); err != nil {
		return err
	}
	ahead, err := w.r.restore(ctx, w.s)
	if err == nil && ahead == 0 {
		err = errors.New("the archive was not ahead of Redis, though an old backup had been put back")
	}
	return err
}

// restore audits, and has what Redis has lost and the archive has restored. It
// returns how many frames that was, as both the audit and the restore say.
func (r *run) restore(ctx context.Context, s *stack) (frames int, err error) {
	const differs = 3 // tally's exit code
	out, err := s.tally(ctx, "audit", "--recount", "-o", "json")
	if err == nil {
		r.report.row("audit before tally restore", "no difference")
		return 0, nil
	}
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != differs {
		return 0, fmt.Errorf("tally audit --recount: %w", err)
	}
	ahead, err := aheadFrames(out)
	if err != nil {
		return 0, fmt.Errorf("tally audit --recount: %w", err)
	}
	r.report.row("audit before tally restore (exit code 3): frames that only the archive has", ahead)
	done, err := r.tallyRestore(ctx, s)
	if err != nil {
		return 0, err
	}
	if done.frames != ahead {
		return ahead, fmt.Errorf("the audit named %d frames that only the archive has, and %d were restored", ahead, done.frames)
	}
	return ahead, nil
}

// aheadFrames is how many frames an audit as JSON names that the archive has and
// Redis does not know. Any other difference is an error.
func aheadFrames(text []byte) (int, error) {
	var report struct {
		Differences []struct {
			Shard  int
			Poll   string
			What   string
			Frames []string
		}
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return 0, err
	}
	type frame struct {
		shard int
		id    string
	}
	named := map[frame]bool{}
	for _, d := range report.Differences {
		if len(d.Frames) == 0 {
			return 0, fmt.Errorf("shard %d, poll %q: %s", d.Shard, d.Poll, d.What)
		}
		for _, id := range d.Frames {
			named[frame{d.Shard, id}] = true
		}
	}
	if len(named) == 0 {
		return 0, fmt.Errorf("it names no frames: %s", text)
	}
	return len(named), nil
}

// restored is what tally restore says that it did.
type restored struct {
	frames int
	votes  int64
}

// tallyRestore has what only the archive has given back to Redis.
func (r *run) tallyRestore(ctx context.Context, s *stack) (restored, error) {
	// The apis' enqueue-timeout is shorter.
	out, err := s.tally(ctx, "restore", "--settle", "5s", "--timeout", "2m", "-o", "json")
	if err != nil {
		return restored{}, fmt.Errorf("tally restore: %w", err)
	}
	var said struct {
		Batches []struct {
			Frames int
			Votes  int64
		}
	}
	if err := json.Unmarshal(out, &said); err != nil {
		return restored{}, fmt.Errorf("tally restore: %w: %s", err, out)
	}
	var sum restored
	for _, b := range said.Batches {
		sum.frames += b.Frames
		sum.votes += b.Votes
	}
	r.report.row("tally restore: frames", sum.frames)
	r.report.row("tally restore: votes", sum.votes)
	return sum, nil
}
