package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"paredao/internal/lab"
	"paredao/internal/ledger"
)

// report is what a run leaves behind. Scenarios add to it from any goroutine.
type report struct {
	mu sync.Mutex
	r  reportData
	// hide are texts that only this machine knows, and what stands for them.
	hide [][2]string
	// stage, if set, stands before the names of rows and sections.
	stage string
}

// reportData is the report as JSON.
type reportData struct {
	Scenario string         `json:"scenario"`
	Seed     uint64         `json:"seed"`
	Command  string         `json:"command"`
	OK       bool           `json:"ok"`
	Headline string         `json:"headline"`
	Problems []string       `json:"problems"`
	Rows     []reportRow    `json:"rows"`
	Result   *ledger.Result `json:"ledger,omitempty"`
	// Earlier are the judgements of the stages before the last.
	Earlier  []*ledger.Result `json:"earlier_ledgers,omitempty"`
	Faults   []*faultRecord   `json:"faults,omitempty"`
	Notes    []string         `json:"notes,omitempty"`
	Sections []reportSection  `json:"sections,omitempty"`
}

type reportRow struct {
	Name  string `json:"name"`
	Value any    `json:"value"`
}

type reportSection struct {
	Title string `json:"title"`
	Text  string `json:"text"`
}

// faultRecord is a fault that was injected.
type faultRecord struct {
	// At is when it began, since the start of the load; For how long it was.
	At  time.Duration `json:"at_ns"`
	For time.Duration `json:"for_ns"`
	// Took says that it was seen to do what its name says; Skipped that it could
	// not be had here.
	Took    bool `json:"took_effect"`
	Skipped bool `json:"left_out,omitempty"`
	// Kind tells the kinds of faults apart.
	Kind string `json:"kind"`
	// Name says what was done, Target to whom.
	Name   string `json:"name"`
	Target string `json:"target"`
	// Recovery is the time from the fault's end to the next acknowledged vote;
	// null if it is not known.
	Recovery *time.Duration `json:"recovery_ns"`
	// Moving is the same until votes are counted or archived again; null where
	// that was not measured.
	Moving *time.Duration `json:"moving_ns,omitempty"`
	Note   string         `json:"note,omitempty"`
}

// nothingLost is what a run shows whose votes were compared one by one.
const nothingLost = "Nothing was lost, doubled or invented, and all that was promised held."

func newReport(o *options) *report {
	return &report{r: reportData{Scenario: o.scenario, Seed: o.seed, Command: commandOf(o), Headline: nothingLost, Problems: []string{}, Rows: []reportRow{}}}
}

// surroundings says where the run takes place.
func (r *report) surroundings() {
	r.row("machine", lab.Machine()+", which also ran the load generator")
	r.row("redis", lab.RedisVersion(context.Background()))
}

// commandOf is what repeats the run: make, as far as it can say it.
func commandOf(o *options) string {
	usual := defaults()
	if o.shards == usual.shards && o.rate == usual.rate && o.votes == usual.votes {
		c := fmt.Sprintf("make chaos SCENARIO=%s SECONDS=%d SEED=%d", o.scenario, o.seconds, o.seed)
		if o.connections != usual.connections {
			c += fmt.Sprintf(" CONNECTIONS=%d", o.connections)
		}
		if o.fsync != "" {
			c += " FSYNC=" + o.fsync
		}
		if o.archive != "" {
			c += " ARCHIVE=" + o.archive
		}
		return c
	}
	c := fmt.Sprintf("make build bin/chaos && bin/chaos --scenario %s --seconds %d --seed %d --queue-shards %d --connections %d",
		o.scenario, o.seconds, o.seed, o.shards, o.connections)
	if o.fsync != "" {
		c += " --appendfsync " + o.fsync
	}
	if o.rate > 0 {
		c += fmt.Sprintf(" --rate %g", o.rate)
	}
	if o.votes != usual.votes {
		c += fmt.Sprintf(" --votes %d", o.votes)
	}
	if o.archive != "" {
		c += " --archive " + o.archive
	}
	return c
}

// row adds a line to the report's table. In JSON the value stays what it is; a
// time.Duration is there in nanoseconds.
func (r *report) row(name string, value any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.r.Rows = append(r.r.Rows, reportRow{r.stage + name, value})
}

// begins tells what follows in the report from what stands there already.
func (r *report) begins(stage string) { r.change(func() { r.stage = stage + ": " }) }

// note adds a remark.
func (r *report) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.r.Notes = append(r.r.Notes, fmt.Sprintf(format, args...))
}

// section adds a section of Markdown.
func (r *report) section(title, markdown string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.r.Sections = append(r.r.Sections, reportSection{r.stage + title, markdown})
}

// table adds a section that is a table.
func (r *report) table(title string, head []string, rows [][]string) {
	var b strings.Builder
	writeTable(&b, head, rows)
	r.section(title, b.String())
}

// command adds what a command printed.
func (r *report) command(command string, out []byte, err error) {
	code := 0
	if err != nil {
		code = -1
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			code = exit.ExitCode()
		}
	}
	r.section(fmt.Sprintf("`%s`, exit code %d", command, code), "```\n"+strings.TrimSpace(string(out))+"\n```\n")
}

// fault adds a fault and returns its record, of which the caller may fill in
// the rest through change.
func (r *report) fault(f faultRecord) *faultRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.r.Faults = append(r.r.Faults, &f)
	return &f
}

// idle are the kinds of faults that were injected and never seen to take
// effect, and how many kinds there were in all.
func (r *report) idle() (idle []string, kinds int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	took := map[string]bool{}
	for _, f := range r.r.Faults {
		if !f.Skipped {
			took[f.Kind] = took[f.Kind] || f.Took
		}
	}
	for kind, ok := range took {
		if !ok {
			idle = append(idle, kind)
		}
	}
	slices.Sort(idle)
	return idle, len(took)
}

// change changes something of the report, alone.
func (r *report) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// judged takes over the judgement of a load.
func (r *report) judged(result *ledger.Result, l *load) {
	r.row("votes sent", result.Sent)
	r.row("acknowledged", result.Acked)
	r.row("unknown, then resolved (replayed)", result.Replayed)
	r.row("refused", result.Refused)
	r.row("refused, and should have been taken", result.WronglyRefused)
	r.row("taken, and should have been refused", result.WronglyTaken)
	r.row("without a key, found no api", result.Unsent)
	r.row("unknown, without a key", result.Unknown)
	r.row("without an answer to the end, with a key", result.Unsettled)
	r.row("of these two, in the archive", result.Taken)
	r.row("counted", result.Counted)
	r.row("archived", result.Archived)
	r.row("lost", result.Lost)
	r.row("lost in a window where that is allowed", result.LostInWindow)
	r.row("share of the time that such windows cover", result.LossCoverage)
	r.row("doubled", result.Doubled)
	r.row("invented", result.Invented)
	r.row("frames archived again, counted once", result.RepeatedFrames)
	r.row("objects that no manifest lists", result.UnlistedObjects)
	if l != nil {
		took := l.client.Took()
		r.row("time of posting", took.Round(10*time.Millisecond))
		r.row("acknowledged votes a second, over all of it", int64(float64(result.Acked)/took.Seconds()))
		stop, at := l.longestStop()
		r.row("longest stop of service", stop.Round(time.Millisecond))
		r.row("which began at", at.Round(time.Millisecond))
	}
	r.row("drained in", result.Drained.Round(time.Millisecond))
	r.change(func() {
		if r.r.Result != nil {
			r.r.Earlier = append(r.r.Earlier, r.r.Result)
		}
		r.r.Result = result
	})
}

// fail adds something that does not hold.
func (r *report) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.r.Problems = append(r.r.Problems, fmt.Sprintf(format, args...))
}

// err says what does not hold.
func (r *report) err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.r.Problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(r.r.Problems, "; "))
}

// conceal makes the report say instead wherever text would stand.
func (r *report) conceal(text, instead string) {
	if !filepath.IsAbs(text) || filepath.Dir(text) == text {
		return // it tells nothing of this machine, and stands everywhere
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hide = append(r.hide, [2]string{text, instead})
}

// begin tries the folder, and leaves a report there that says that the run has
// not ended: an older one must not be taken for this run's.
func (r *report) begin(dir string) error {
	const pending = "the run has not ended"
	r.fail(pending)
	err := r.write(dir)
	r.change(func() { r.r.Problems = []string{} })
	return err
}

// headline says what a run has shown that has no problems.
func (r *report) headline(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.r.Headline = text
}

// write writes report.md and report.json.
func (r *report) write(dir string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.r.OK = len(r.r.Problems) == 0
	slices.SortStableFunc(r.r.Faults, func(a, b *faultRecord) int { return int(a.At - b.At) })
	data, err := json.MarshalIndent(&r.r, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	for name, text := range map[string]string{"report.json": string(data) + "\n", "report.md": r.r.markdown()} {
		for _, h := range r.hide {
			text = strings.ReplaceAll(text, h[0], h[1])
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}

func (d *reportData) markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Fault laboratory: %s, seed %d\n\n", d.Scenario, d.Seed)
	if d.OK {
		b.WriteString(d.Headline + "\n")
	} else {
		b.WriteString("**It does not hold:**\n\n")
		for _, p := range d.Problems {
			fmt.Fprintf(&b, "- %s\n", strings.ReplaceAll(p, "\n", "\n  "))
		}
	}
	fmt.Fprintf(&b, "\nRepeat it with\n\n```\n%s\n```\n\n", d.Command)
	var rows [][]string
	for _, row := range d.Rows {
		rows = append(rows, []string{row.Name, human(row.Value)})
	}
	writeTable(&b, []string{"what", "value"}, rows)
	if len(d.Notes) > 0 {
		b.WriteString("\n")
		for _, n := range d.Notes {
			fmt.Fprintf(&b, "- %s\n", n)
		}
	}
	if len(d.Faults) > 0 {
		fmt.Fprintf(&b, "\n## Faults: %d\n\n", len(d.Faults))
		writeTable(&b, []string{"at", "fault", "target", "for", "seen", "next acknowledged vote", "moves again", "remark"}, faultRows(d.Faults))
	}
	if d.Result != nil && len(d.Result.Answers) > 0 {
		b.WriteString("\n## Answers that settled nothing, and refusals\n\n")
		var rows [][]string
		for what, n := range d.Result.Answers {
			rows = append(rows, []string{what, human(n)})
		}
		slices.SortFunc(rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
		writeTable(&b, []string{"answer", "times"}, rows)
	}
	for _, s := range d.Sections {
		fmt.Fprintf(&b, "\n## %s\n\n%s", s.Title, s.Text)
	}
	return b.String()
}

func faultRows(faults []*faultRecord) [][]string {
	var rows [][]string
	after := func(d *time.Duration) string {
		if d == nil {
			return ""
		}
		return "after " + human(*d)
	}
	for _, f := range faults {
		seen := "no"
		switch {
		case f.Took:
			seen = "yes"
		case f.Skipped:
			seen = "left out"
		}
		rows = append(rows, []string{
			fmt.Sprintf("%.1f s", f.At.Seconds()), f.Name, f.Target, fmt.Sprintf("%.1f s", f.For.Seconds()), seen,
			after(f.Recovery), after(f.Moving), f.Note,
		})
	}
	return rows
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

// human writes numbers with commas and durations in seconds.
func human(v any) string {
	switch n := v.(type) {
	case int:
		return commas(int64(n))
	case int64:
		return commas(n)
	case float64:
		return fmt.Sprintf("%.2f", n)
	case time.Duration:
		return fmt.Sprintf("%.3f s", n.Seconds())
	}
	return fmt.Sprint(v)
}

func commas(n int64) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}
