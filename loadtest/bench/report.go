package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"paredao/internal/lab"
)

// report is what the benchmark leaves behind.
type report struct {
	OK       bool              `json:"ok"`
	Problems []string          `json:"problems"`
	About    map[string]string `json:"about"`
	Settings map[string]any    `json:"settings"`
	Rows     []result          `json:"rows"`
	Runs     []*measurement    `json:"runs"`
}

// result is a row with its figures.
type result struct {
	Group  string    `json:"group"`
	Name   string    `json:"name"`
	Unit   string    `json:"unit,omitempty"`
	Lower  bool      `json:"lower_is_better"`
	Must   float64   `json:"must"`
	Aim    float64   `json:"aim"`
	Values []float64 `json:"values"`
	// null where no round gave a value.
	Spread  *spread `json:"spread"`
	Verdict string  `json:"verdict"`
}

func newReport(ctx context.Context, o settings) *report {
	return &report{
		Problems: []string{}, Rows: []result{}, Runs: []*measurement{},
		About: map[string]string{
			"machine": lab.Machine() + ", which also ran the load generator",
			"redis":   lab.RedisVersion(ctx),
			"wrk":     firstLine(ctx, "wrk", "-v"),
			"api":     firstLine(ctx, filepath.Join(o.bin, "api"), "--version"),
		},
		Settings: map[string]any{
			"only": o.only, "rounds": o.rounds, "seconds": o.seconds, "warmup": o.warmup, "threads": o.threads,
			"drain_votes": o.drainVotes, "rate_seconds": o.rateSeconds, "options": weights(), "queue_shards": 1,
			"redis": "one server over TCP on loopback, appendonly yes, auto-aof-rewrite-percentage 0",
		},
	}
}

// firstLine is what a program says of its version.
func firstLine(ctx context.Context, program string, args ...string) string {
	out, _ := exec.CommandContext(ctx, program, args...).CombinedOutput() // wrk says it with exit code 1
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return strings.TrimSpace(line)
}

func (r *report) add(m *measurement) { r.Runs = append(r.Runs, m) }

// round is what a round gave.
func (r *report) round(n int) round {
	out := round{}
	for _, m := range r.Runs {
		if m.Round == n {
			out[m.Run] = m
		}
	}
	return out
}

// begin tries the folder, and leaves a report there that says that the run has
// not ended: an older one must not be taken for this one.
func (r *report) begin(dir string) error {
	r.Problems = []string{"the benchmark has not ended"}
	defer func() { r.Problems = []string{} }()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	for _, name := range []string{"ratios", "throughput"} {
		for _, format := range []string{"svg", "png"} {
			_ = os.Remove(filepath.Join(dir, name+"."+format)) // it may not be there
		}
	}
	return r.writeText(dir)
}

// finish makes the rows. After a problem no row is judged, since the round that
// it ended is not whole.
func (r *report) finish(wanted []row, problem error) {
	if problem != nil {
		r.Problems = append(r.Problems, problem.Error())
	}
	rounds := 0
	for _, m := range r.Runs {
		rounds = max(rounds, m.Round)
	}
	for _, w := range wanted {
		res := result{Group: w.group, Name: w.name, Unit: w.unit, Lower: w.lower, Must: w.must, Aim: w.aim, Values: []float64{}, Verdict: verdictNone}
		for n := 1; n <= rounds; n++ {
			if v := w.value(r.round(n)); !math.IsNaN(v) && !math.IsInf(v, 0) {
				res.Values = append(res.Values, v)
			}
		}
		if len(res.Values) > 0 {
			s := spreadOf(res.Values)
			res.Spread = &s
			if problem == nil {
				res.Verdict = verdict(s.Median, len(res.Values), w.must, w.aim, w.lower)
			}
		}
		switch {
		case problem != nil:
		case len(res.Values) < rounds:
			r.Problems = append(r.Problems, fmt.Sprintf("%s has a value in %d of %d rounds", w.name, len(res.Values), rounds))
		case res.Verdict == verdictMissed:
			r.Problems = append(r.Problems, fmt.Sprintf("%s is %s, and must be %s", w.name, figure(res.Spread.Median, w.unit), res.goal(w.must)))
		}
		r.Rows = append(r.Rows, res)
	}
	r.OK = len(r.Problems) == 0
}

func (r *report) err() error {
	if r.OK {
		return nil
	}
	return errors.New(strings.Join(r.Problems, "; "))
}

// write writes all files.
func (r *report) write(dir string) error {
	return errors.Join(r.writeText(dir), r.writePlots(dir))
}

func (r *report) writeText(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "report.json"), append(data, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "report.md"), []byte(r.markdown()), 0o644))
}

// print writes the report as Markdown.
func (r *report) print(w io.Writer) error {
	_, err := io.Copy(w, bytes.NewBufferString(r.markdown()))
	return err
}

func (r *report) markdown() string {
	var b strings.Builder
	b.WriteString("# Benchmark\n\n")
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "- **%s**\n", strings.ReplaceAll(p, "\n", " "))
	}
	if len(r.Problems) > 0 {
		b.WriteString("\n")
	}
	var rows [][]string
	for _, w := range r.Rows {
		median, ends := "–", "–"
		if w.Spread != nil {
			median = figure(w.Spread.Median, w.Unit)
			ends = figure(w.Spread.Min, "") + " – " + figure(w.Spread.Max, w.Unit)
		}
		rows = append(rows, []string{w.Name, median, ends, w.goal(w.Must), w.goal(w.Aim), w.Verdict})
	}
	writeTable(&b, []string{"ratio", "median", "min – max", "must", "aim", "verdict"}, rows)
	b.WriteString("\n## Runs\n\nMedians; processor time of each process during the load, in µs a request.\n\n")
	writeTable(&b, append([]string{"run", "a second", "min – max", "drained a second"}, cpuNames...), r.runRows())
	b.WriteString("\n## Where\n\n")
	for _, k := range slices.Sorted(maps.Keys(r.About)) {
		fmt.Fprintf(&b, "- %s: %s\n", k, r.About[k])
	}
	for _, k := range slices.Sorted(maps.Keys(r.Settings)) {
		fmt.Fprintf(&b, "- %s: %v\n", strings.ReplaceAll(k, "_", " "), r.Settings[k])
	}
	return b.String()
}

// cpuNames are the processes of the second table.
var cpuNames = []string{"api", "redis", "consumer", "archiver", "wrk"}

// runRows are all runs but those at a constant rate, which have no throughput.
func (r *report) runRows() (rows [][]string) {
	for _, sp := range specs {
		var perSecond, drained []float64
		cpu := map[string][]float64{}
		for _, m := range r.Runs {
			if m.Run != sp.id || m.Load.Requests == 0 {
				continue
			}
			perSecond = append(perSecond, m.Load.PerSecond)
			if m.Drain != nil {
				drained = append(drained, m.Drain.PerSecond)
			}
			for name, t := range m.CPUPerVote {
				if name == bare {
					name = "api"
				}
				cpu[name] = append(cpu[name], t)
			}
		}
		if len(perSecond) == 0 {
			continue
		}
		s := spreadOf(perSecond)
		line := []string{sp.id, commas(s.Median), commas(s.Min) + " – " + commas(s.Max), ""}
		if len(drained) > 0 {
			line[3] = commas(spreadOf(drained).Median)
		}
		for _, name := range cpuNames {
			text := ""
			if len(cpu[name]) > 0 {
				text = fmt.Sprintf("%.1f", spreadOf(cpu[name]).Median)
			}
			line = append(line, text)
		}
		rows = append(rows, line)
	}
	return rows
}

// goal is a must or an aim as it is written.
func (w *result) goal(v float64) string {
	sign := "≥ "
	if w.Lower {
		sign = "≤ "
	}
	return sign + figure(v, w.Unit)
}

// figure writes a number with as many digits as say something.
func figure(v float64, unit string) string {
	digits := 2
	if unit != "" || math.Abs(v) >= 10 {
		digits = 1
	}
	text := fmt.Sprintf("%.*f", digits, v)
	if unit != "" {
		text += " " + unit
	}
	return text
}

// commas writes a whole number.
func commas(v float64) string {
	text := fmt.Sprintf("%.0f", v)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

func writeTable(b *strings.Builder, head []string, rows [][]string) {
	line := func(cells []string) {
		for _, c := range cells {
			fmt.Fprintf(b, "| %s ", strings.NewReplacer("|", `\|`, "\n", " ").Replace(c))
		}
		b.WriteString("|\n")
	}
	line(head)
	b.WriteString(strings.Repeat("|---", len(head)) + "|\n")
	for _, r := range rows {
		line(r)
	}
}
