package main

import (
	"context"
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
func runEverysec(ctx context.Context, r *run) error {
	cut := killKind(r.length(), "power cut, with the last second of its file", (*world).powerCut)
	// Late, but with time for what follows it.
	const share, most = 6, 15 * time.Second
	stale := fault{
		at: r.length() * 7 / 10, dur: min(most, r.length()/share), target: "redis-server",
		kind: &kind{name: "replaced by its backup of so long ago", part: partRedis, outage: true, do: (*world).staleBackup},
	}
	return r.mix(ctx, mixPlan{fsync: "everysec", kill: cut, set: []fault{stale}, watchAOF: true, settle: settle})
}

// powerCut kills the server, takes away what it had written since a second
// before, and starts it again.
func (w *world) powerCut(ctx context.Context, f fault) (string, error) {
	w.s.redis.Kill()
	now := time.Now()
	from, gone, err := w.aof.CutBack(now.Add(-powerLoss))
	if err != nil {
		return "", err
	}
	w.mayLose(from, now)
	wait(ctx, f.dur)
	remark, err := w.redisUp(ctx)
	return fmt.Sprintf("the last %d bytes are gone; %s", gone, remark), err
}

// staleBackup copies the server's files, and puts the copy back after a while.
func (w *world) staleBackup(ctx context.Context, f fault) (string, error) {
	c, cancel := after(ctx)
	defer cancel()
	// As Redis's documentation says: no rewrite while the files are copied.
	const rewrite = "auto-aof-rewrite-percentage"
	if err := w.redis.ConfigSet(c, rewrite, "0").Err(); err != nil {
		return "", err
	}
	for {
		info, err := w.redis.InfoMap(c, "persistence").Result()
		if err != nil {
			return "", err
		}
		if info["Persistence"]["aof_rewrite_in_progress"] == "0" && info["Persistence"]["aof_rewrite_scheduled"] == "0" {
			break
		}
		if !wait(c, 20*time.Millisecond) {
			return "", c.Err()
		}
	}
	from := time.Now()
	backup := filepath.Join(w.r.dir, "backup")
	if err := lab.CopyAOF(w.s.redis.Dir, backup); err != nil {
		return "", err
	}
	if err := w.redis.ConfigSet(c, rewrite, "100").Err(); err != nil {
		return "", err
	}
	if !wait(ctx, f.dur) {
		return "not put back, since the run ended", nil
	}
	w.s.redis.Kill()
	w.mayLose(from, time.Now())
	if err := lab.RestoreAOF(w.s.redis.Dir, backup); err != nil {
		return "", err
	}
	return w.redisUp(ctx)
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
	if err := ledger.Drain(ctx, w.s.store, drainPatience, func(left string) { w.r.say("drain: %s", left) }); err != nil {
		return err
	}
	return w.r.restore(ctx, w.s)
}

// restore audits, and has what Redis has lost and the archive has restored. That
// there is something to restore is reported, not required: a power cut may well
// take nothing that was archived.
func (r *run) restore(ctx context.Context, s *stack) error {
	const differs = 3 // tally's exit code
	out, err := s.tally(ctx, "audit", "--recount")
	r.report.command("tally audit --recount", out, err)
	if exit := (*exec.ExitError)(nil); err == nil {
		r.report.row("audit before tally restore", "no difference")
		return nil
	} else if !errors.As(err, &exit) || exit.ExitCode() != differs {
		return fmt.Errorf("tally audit --recount: %w", err)
	}
	r.report.row("audit before tally restore", "the archive is ahead (exit code 3)")
	out, err = s.tally(ctx, "restore", "--settle", "5s", "--timeout", "2m")
	r.report.command("tally restore --settle 5s", out, err)
	if err != nil {
		return fmt.Errorf("tally restore: %w", err)
	}
	return nil
}
