//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// report is what is printed and saved. Times are milliseconds.
type report struct {
	OK       bool     `json:"ok"`
	Problems []string `json:"problems,omitempty"`

	URL         string  `json:"url"`
	Poll        string  `json:"poll"`
	Options     string  `json:"options"`
	Form        bool    `json:"form"`
	Keys        bool    `json:"keys"`
	Varied      bool    `json:"varied"`
	Seed        uint64  `json:"seed"`
	Connections int     `json:"connections"`
	Threads     int     `json:"threads"`
	Rate        float64 `json:"rate"`
	Warmup      int     `json:"warmup_seconds"`
	// Seconds is how long was measured.
	Seconds float64 `json:"seconds"`

	AcceptedPerSecond float64          `json:"accepted_per_second"`
	RequestsPerSecond float64          `json:"requests_per_second"`
	Due               int64            `json:"due"`
	Unsent            int64            `json:"unsent"`
	Accepted          int64            `json:"accepted"`
	Answered          int64            `json:"answered"`
	Statuses          map[string]int64 `json:"statuses"`
	Errors            map[string]int64 `json:"errors"`
	WarmupBad         int64            `json:"warmup_not_2xx"`

	// Latency of the accepted counts from when they were due, Service from when
	// they were sent.
	Latency percentiles `json:"latency_ms"`
	Service percentiles `json:"service_ms"`
	// MeanService is of all answers.
	MeanService float64 `json:"mean_service_ms"`

	AllBusyPercent   float64 `json:"all_connections_busy_percent"`
	GeneratorOwnP99  float64 `json:"generator_own_p99_ms"`
	GeneratorPercent float64 `json:"generator_working_percent"`
	GeneratorCores   float64 `json:"generator_cores"`

	// P99Limit and Probes are of --find.
	P99Limit float64 `json:"p99_limit_ms,omitempty"`
	Probes   []probe `json:"probes,omitempty"`
}

type percentiles struct {
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p99_9"`
	P9999 float64 `json:"p99_99"`
	Max   float64 `json:"max"`
}

func newPercentiles(h *hdrhistogram.Histogram) percentiles {
	q := func(percent float64) float64 { return millis(quantile(h, percent)) }
	return percentiles{q(50), q(90), q(99), q(99.9), q(99.99), q(100)}
}

func (p percentiles) row() string {
	var b strings.Builder
	for _, v := range []float64{p.P50, p.P90, p.P99, p.P999, p.P9999, p.Max} {
		fmt.Fprintf(&b, "\t%.2f", v)
	}
	return b.String()
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func ms(d time.Duration) string { return strconv.FormatFloat(millis(d), 'f', 1, 64) }

func newReport(o options, m *measured, v verdict, probes []probe) report {
	r := report{
		OK: len(v.problems) == 0, Problems: v.problems,
		URL: o.url, Poll: o.poll, Options: o.options, Form: o.form, Keys: o.keys, Varied: o.varied, Seed: o.seed,
		Connections: o.connections, Threads: o.threads, Rate: o.rate, Warmup: o.warmup, Seconds: m.window.Seconds(),
		AcceptedPerSecond: m.perSecond(m.acceptedIn), RequestsPerSecond: m.perSecond(m.answeredIn),
		Due: m.due, Unsent: m.unsent, Accepted: m.accepted(), Answered: m.answered(),
		Statuses: map[string]int64{}, Errors: m.errors, WarmupBad: m.warmupBad,
		Latency: newPercentiles(m.latency), Service: newPercentiles(m.service), MeanService: millis(m.meanService()),
		AllBusyPercent: 100 * m.share(m.allBusy), GeneratorOwnP99: millis(quantile(m.own, 99)),
		GeneratorPercent: 100 * m.working(), GeneratorCores: m.cores, Probes: probes,
	}
	for s, n := range m.statuses {
		if n > 0 {
			r.Statuses[strconv.Itoa(s)] = n
		}
	}
	if o.find {
		r.P99Limit = millis(o.p99)
	}
	return r
}

func (r report) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "poll %s at %s: %.0f requests a second were due for %.1f s, over %d connections\n\n", r.Poll, r.URL, r.Rate, r.Seconds, r.Connections)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\ta second\tof those due\t\n")
	fmt.Fprintf(t, "accepted\t%.0f\t%d\t\n", r.AcceptedPerSecond, r.Accepted)
	fmt.Fprintf(t, "requests answered\t%.0f\t%d\t\n", r.RequestsPerSecond, r.Answered)
	for _, s := range slices.Sorted(maps.Keys(r.Statuses)) {
		if s != "202" {
			fmt.Fprintf(t, "status %s\t\t%d\t\n", s, r.Statuses[s])
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Errors)) {
		fmt.Fprintf(t, "no answer, %s\t\t%d\t\n", kind, r.Errors[kind])
	}
	if r.Unsent > 0 {
		fmt.Fprintf(t, "never sent\t\t%d\t\n", r.Unsent)
	}
	_ = t.Flush() // into memory
	fmt.Fprintln(&b)
	t = tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "accepted, ms\tp50\tp90\tp99\tp99.9\tp99.99\tmax\t\n")
	fmt.Fprintf(t, "since it was due%s\t\n", r.Latency.row())
	fmt.Fprintf(t, "since it was sent%s\t\n", r.Service.row())
	_ = t.Flush()
	fmt.Fprintf(&b, "\nall %d connections were busy %.1f %% of the time", r.Connections, r.AllBusyPercent)
	if r.AllBusyPercent >= 1 && r.MeanService > 0 {
		fmt.Fprintf(&b, "; with answers after %.2f ms on average they carry %.0f requests a second at most", r.MeanService, 1000*float64(r.Connections)/r.MeanService)
	}
	fmt.Fprintf(&b, "\nthe generator took %.2f processors, was at work %.0f %% of the time, and of the latencies at most %.2f ms (p99) are its own\n",
		r.GeneratorCores, r.GeneratorPercent, r.GeneratorOwnP99)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func (r report) save(file string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	if err := os.WriteFile(file, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}
