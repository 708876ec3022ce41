package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed bench.lua
var script []byte

// wrkParams are one run of wrk.
type wrkParams struct {
	script      string // path of bench.lua
	url         string
	method      string
	path        string
	threads     int
	connections int
	time        time.Duration
	varied      bool
	seed        int
}

// wrkFigures are what a run of wrk says of itself.
type wrkFigures struct {
	Requests  int64   `json:"requests"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
	// Non2xx are answers above 399, SocketErrors what had no answer.
	Non2xx       int64 `json:"non_2xx"`
	SocketErrors int64 `json:"socket_errors"`
	// The percentiles are a closed loop's: they say nothing of a service that stalls.
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	CPU float64 `json:"cpu_seconds"`
}

func runWrk(ctx context.Context, p wrkParams) (wrkFigures, error) {
	cmd := exec.CommandContext(ctx, "wrk",
		"-t"+strconv.Itoa(p.threads), "-c"+strconv.Itoa(p.connections), fmt.Sprintf("-d%ds", int(p.time.Seconds())),
		"-s", p.script, p.url)
	varied := "0"
	if p.varied {
		varied = "1"
	}
	cmd.Env = append(cmd.Environ(), "BENCH_METHOD="+p.method, "BENCH_PATH="+p.path, "BENCH_OPTIONS="+weights(),
		"BENCH_VARIED="+varied, "BENCH_SEED="+strconv.Itoa(p.seed))
	// A Ctrl-C in the terminal is for the benchmark, which ends wrk.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return wrkFigures{}, fmt.Errorf("wrk: %w: %s", errors.Join(err, ctx.Err()), strings.TrimSpace(said.String()+out.String()))
	}
	f, err := parseWrk(out.String())
	if err != nil {
		return f, err
	}
	f.CPU = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	return f, nil
}

// parseWrk reads the line that bench.lua prints at the end.
func parseWrk(text string) (wrkFigures, error) {
	var f wrkFigures
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "bench: ")
		if !ok {
			continue
		}
		v := map[string]int64{}
		for word := range strings.FieldsSeq(rest) {
			name, number, _ := strings.Cut(word, "=")
			n, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				return f, fmt.Errorf("wrk: figure %q", word)
			}
			v[name] = n
		}
		for _, name := range []string{"requests", "duration_us", "status", "connect", "read", "write", "timeout", "p50_us", "p99_us"} {
			if _, ok := v[name]; !ok {
				return f, fmt.Errorf("wrk: no %s in %q", name, strings.TrimSpace(line))
			}
		}
		if v["duration_us"] <= 0 {
			return f, fmt.Errorf("wrk: no time passed: %q", strings.TrimSpace(line))
		}
		f.Requests, f.Non2xx = v["requests"], v["status"]
		f.SocketErrors = v["connect"] + v["read"] + v["write"] + v["timeout"]
		f.Seconds = float64(v["duration_us"]) / 1e6
		f.PerSecond = float64(f.Requests-f.Non2xx) / f.Seconds
		f.P50, f.P99 = float64(v["p50_us"])/1e3, float64(v["p99_us"])/1e3
		return f, nil
	}
	return f, fmt.Errorf("wrk gave no figures: %q", text)
}
