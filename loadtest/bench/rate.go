package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// rateFigures are a run at a constant rate.
type rateFigures struct {
	// Highest is the rate with a p99 under findP99, Rate the part of it that was
	// run at, in votes a second.
	Highest float64 `json:"highest_per_second"`
	Rate    float64 `json:"rate_per_second"`
	P99     float64 `json:"p99_ms"`
	// AcceptToCountP99 is estimated from the buckets of the consumer's
	// accept_to_count_seconds, which has one observation a frame.
	AcceptToCountP99    float64 `json:"accept_to_count_p99_ms"`
	AcceptToCountFrames float64 `json:"accept_to_count_frames"`
	// Find and At are what loadtest/rate reported.
	Find json.RawMessage `json:"find,omitempty"`
	At   json.RawMessage `json:"at,omitempty"`
}

const (
	rateShare       = 0.7
	findP99         = "50ms"
	rateWarmup      = 3
	rateConnections = 512
	countHistogram  = "paredao_accept_to_count_seconds"
)

// constantRate finds the highest rate, once, and measures at a part of it.
func (b *bench) constantRate(ctx context.Context, s *system, m *measurement) error {
	f := &rateFigures{}
	m.Rate, m.Connections = f, rateConnections
	if b.highest == 0 {
		var err error
		if f.Find, err = b.runRate(ctx, s, "--find", "--p99="+findP99); err != nil {
			return err
		}
		if b.highest, err = highestRate(f.Find); err != nil {
			return err
		}
		say("  the highest rate with a p99 under %s is %.0f a second", findP99, b.highest)
	}
	f.Highest, f.Rate = b.highest, float64(int(b.highest*rateShare))
	admin, err := s.proc("consumer").Admin(ctx)
	if err != nil {
		return err
	}
	before, err := scrape(ctx, admin, countHistogram)
	if err != nil {
		return err
	}
	if f.At, err = b.runRate(ctx, s, "--rate="+strconv.Itoa(int(f.Rate))); err != nil {
		return err
	}
	after, err := scrape(ctx, admin, countHistogram)
	if err != nil {
		return err
	}
	if f.P99, err = latencyP99(f.At); err != nil {
		return err
	}
	const thousand = 1000 // ms in a second
	counted := after.since(before)
	f.AcceptToCountFrames = counted.count()
	if f.AcceptToCountFrames == 0 {
		return errors.New("nothing was counted during the run at a constant rate")
	}
	f.AcceptToCountP99 = counted.quantile(0.99) * thousand
	if math.IsInf(f.AcceptToCountP99, 1) {
		f.AcceptToCountP99 = 0
		return errors.New("votes were counted later than the histogram can say")
	}
	if err := s.stop("api"); err != nil {
		return err
	}
	if _, err := s.awaitEmpty(ctx); err != nil {
		return err
	}
	return errors.Join(s.settle(ctx, m), s.sameRedis(ctx))
}

// runRate runs loadtest/rate and returns what it reports. It refuses by itself,
// with an exit code, where it was the limit.
func (b *bench) runRate(ctx context.Context, s *system, how ...string) (json.RawMessage, error) {
	file := filepath.Join(s.dir, "rate.json")
	cmd := exec.CommandContext(ctx, filepath.Join(b.o.bin, "rate"), append([]string{
		"--url=" + s.url, "--poll=" + poll, "--options=" + weights(), "--seconds=" + strconv.Itoa(b.o.rateSeconds),
		"--warmup=" + strconv.Itoa(rateWarmup), "--connections=" + strconv.Itoa(rateConnections), "--json=" + file,
	}, how...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("rate: %w: %s", errors.Join(err, ctx.Err()), strings.TrimSpace(said.String()))
	}
	out, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("rate: %w", err)
	}
	return out, os.Remove(file)
}

// highestRate is what --find has found, in votes a second.
func highestRate(report []byte) (float64, error) {
	_, v, err := find(report, "highest", "highestrate", "highestpersecond", "highestratepersecond", "found", "foundrate", "maxrate", "rate")
	if err != nil {
		return 0, err
	}
	if n, ok := v.(float64); ok && n > 0 {
		return n, nil
	}
	return 0, fmt.Errorf("rate: the highest rate is %v", v)
}

// latencyP99 is the 99th percentile of the latency, in ms.
func latencyP99(report []byte) (float64, error) {
	path, v, err := find(report, "p99", "p99ms", "p99us", "p99µs", "p99ns", "p99seconds", "p99s", "latencyp99", "latencyp99ms", "99")
	if err != nil {
		return 0, err
	}
	if text, ok := v.(string); ok {
		d, err := time.ParseDuration(text)
		return float64(d) / float64(time.Millisecond), err
	}
	n, ok := v.(float64)
	if !ok {
		return 0, fmt.Errorf("rate: %s is %v", path, v)
	}
	for _, part := range slices.Backward(strings.Split(path, ".")) {
		for unit, ms := range map[string]float64{"ms": 1, "us": 1e-3, "µs": 1e-3, "ns": 1e-6, "seconds": 1e3, "s": 1e3} {
			if strings.HasSuffix(part, "_"+unit) {
				return n * ms, nil
			}
		}
	}
	return 0, fmt.Errorf("rate: %s has no unit", path)
}

// find looks for the first of the names that stands anywhere in a JSON report,
// whatever is around it; case, _ and - do not matter. Of equal names that of the
// latency is meant, not that of the service time or of the generator's own.
func find(report []byte, names ...string) (path string, value any, err error) {
	var doc any
	if err := json.Unmarshal(report, &doc); err != nil {
		return "", nil, fmt.Errorf("rate: %w", err)
	}
	flat := map[string]any{}
	flatten("", doc, flat)
	plain := strings.NewReplacer("_", "", "-", "")
	for _, name := range names {
		for _, pass := range []bool{true, false} {
			for _, path := range slices.Sorted(maps.Keys(flat)) {
				last := path[strings.LastIndexByte(path, '.')+1:]
				low := strings.ToLower(path)
				if strings.Contains(low, "service") || strings.Contains(low, "own") || strings.Contains(low, "generator") {
					continue
				}
				if plain.Replace(strings.ToLower(last)) == name && (!pass || strings.Contains(low, "latency")) {
					return path, flat[path], nil
				}
			}
		}
	}
	return "", nil, fmt.Errorf("rate: its report has none of %s", strings.Join(names, ", "))
}

func flatten(path string, v any, out map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		for k, one := range v {
			flatten(strings.TrimPrefix(path+"."+k, "."), one, out)
		}
	case []any: // of steps, which are not the result
	default:
		out[path] = v
	}
}
