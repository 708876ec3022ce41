package main

import (
	"math"
	"slices"
)

// The systems.
const (
	bare  = "bare"
	naive = "naive"
	ours  = "ours"
)

// Groups of rows, as --only names them.
const (
	groupAccept   = "accept"
	groupEndToEnd = "endtoend"
	groupDrain    = "drain"
	groupFsync    = "fsync"
	groupRedis    = "redis"
	groupResults  = "results"
	groupRate     = "rate"
)

var groups = []string{groupAccept, groupEndToEnd, groupDrain, groupFsync, groupRedis, groupResults, groupRate}

// spec is one run: what is started, and what is done to it.
type spec struct {
	id          string
	system      string
	connections int
	fsync       string
	whole       bool // consumer and archiver run, too
	drain       bool // and then one consumer empties the queue
	varied      bool // user agents and client addresses vary
	results     bool // GET results in place of votes
	rate        bool // loadtest/rate in place of wrk
}

// The numbers of connections.
const (
	few  = 64
	many = 512
)

// specs are all runs, in the order in which a round makes them: those that are
// compared stand together, so that a machine that changes changes both.
var specs = []spec{
	{id: "bare-64", system: bare, connections: few},
	{id: "naive-64", system: naive, connections: few, fsync: "everysec"},
	{id: "ours-64", system: ours, connections: few, fsync: "everysec"},
	{id: "endtoend-64", system: ours, connections: few, fsync: "everysec", whole: true},
	{id: "always-64", system: ours, connections: few, fsync: "always"},
	{id: "bare-512", system: bare, connections: many},
	{id: "naive-512", system: naive, connections: many, fsync: "everysec"},
	{id: "ours-512", system: ours, connections: many, fsync: "everysec"},
	{id: "endtoend-512", system: ours, connections: many, fsync: "everysec", whole: true},
	{id: "always-512", system: ours, connections: many, fsync: "always"},
	{id: "varied-naive-64", system: naive, connections: few, fsync: "everysec", varied: true},
	{id: "varied-ours-64", system: ours, connections: few, fsync: "everysec", varied: true},
	{id: "results-bare-64", system: bare, connections: few, results: true},
	{id: "results-ours-64", system: ours, connections: few, fsync: "everysec", results: true},
	{id: "rate", system: ours, fsync: "everysec", whole: true, rate: true},
}

// drained are the runs whose queue a consumer empties afterwards, if asked for.
var drained = []string{"naive-64", "ours-64", "ours-512"}

// round is what the runs of one round gave, by their ids.
type round map[string]*measurement

// row is a line of the table.
type row struct {
	group, name string
	unit        string // empty for a ratio
	lower       bool   // less is better
	must, aim   float64
	needs       []string
	value       func(round) float64
}

// Figures that rows are made of; NaN where a run has none, as one that failed.
func accepted(m *measurement) float64    { return m.Load.PerSecond }
func redisMicros(m *measurement) float64 { return m.CPUPerVote["redis"] }

func bytesAVote(m *measurement) float64 {
	if m.Memory == nil {
		return math.NaN()
	}
	return m.Memory.BytesAVote
}

func throughput(m *measurement) float64 {
	if m.EndToEnd == nil {
		return math.NaN()
	}
	return m.EndToEnd.PerSecond
}

func drainRate(m *measurement) float64 {
	if m.Drain == nil {
		return math.NaN()
	}
	return m.Drain.PerSecond
}

// ratio is a row's value a ÷ b, of two runs. A zero was not measured.
func ratio(a string, of func(*measurement) float64, b string, by func(*measurement) float64) func(round) float64 {
	return func(r round) float64 {
		if r[a] == nil || r[b] == nil || of(r[a]) == 0 || by(r[b]) == 0 {
			return math.NaN()
		}
		return of(r[a]) / by(r[b])
	}
}

// rateFigure is a row's value of the run at a constant rate.
func rateFigure(of func(*rateFigures) float64) func(round) float64 {
	return func(r round) float64 {
		if m := r["rate"]; m != nil && m.Rate != nil && of(m.Rate) > 0 {
			return of(m.Rate)
		}
		return math.NaN()
	}
}

// rows is the table of what must be reached.
func rows() []row {
	pair := func(group, name string, must, aim float64, a string, of func(*measurement) float64, b string, by func(*measurement) float64) row {
		return row{group: group, name: name, must: must, aim: aim, needs: []string{a, b}, value: ratio(a, of, b, by)}
	}
	less := func(r row) row {
		r.lower = true
		return r
	}
	return []row{
		pair(groupAccept, "accept ÷ bare, 64 connections", 0.52, 0.75, "ours-64", accepted, "bare-64", accepted),
		pair(groupAccept, "accept ÷ bare, 512 connections", 0.65, 0.85, "ours-512", accepted, "bare-512", accepted),
		pair(groupAccept, "accept ÷ naive peer, 64 connections", 1.9, 3.0, "ours-64", accepted, "naive-64", accepted),
		pair(groupAccept, "accept ÷ naive peer, 512 connections", 2.4, 3.5, "ours-512", accepted, "naive-512", accepted),
		pair(groupEndToEnd, "end to end ÷ accept alone, 64 connections", 0.88, 0.95, "endtoend-64", throughput, "ours-64", accepted),
		pair(groupEndToEnd, "end to end ÷ accept alone, 512 connections", 0.88, 0.95, "endtoend-512", throughput, "ours-512", accepted),
		pair(groupDrain, "one consumer's drain ÷ accept, 64 connections", 25, 40, "ours-64", drainRate, "ours-64", accepted),
		pair(groupDrain, "one consumer's drain ÷ accept, 512 connections", 25, 40, "ours-512", drainRate, "ours-512", accepted),
		pair(groupDrain, "consumer's drain ÷ naive consumer's", 60, 150, "ours-64", drainRate, "naive-64", drainRate),
		pair(groupFsync, "`always` ÷ `everysec`, 64 connections", 0.70, 0.85, "always-64", accepted, "ours-64", accepted),
		pair(groupFsync, "`always` ÷ `everysec`, 512 connections", 0.85, 0.95, "always-512", accepted, "ours-512", accepted),
		less(pair(groupRedis, "Redis µs a vote ÷ naive, 64 connections", 0.25, 0.15, "ours-64", redisMicros, "naive-64", redisMicros)),
		less(pair(groupRedis, "bytes a queued vote ÷ naive (varied agents and addresses)", 0.30, 0.20, "varied-ours-64", bytesAVote, "varied-naive-64", bytesAVote)),
		pair(groupResults, "results GET ÷ bare", 0.90, 1.0, "results-ours-64", accepted, "results-bare-64", accepted),
		{
			group: groupRate, name: "p99 at 70 % of the highest rate, constant rate", unit: "ms", lower: true, must: 20, aim: 5,
			needs: []string{"rate"}, value: rateFigure(func(f *rateFigures) float64 { return f.P99 }),
		},
		{
			group: groupRate, name: "from accept to counted, p99, at 70 %", unit: "ms", lower: true, must: 100, aim: 25,
			needs: []string{"rate"}, value: rateFigure(func(f *rateFigures) float64 { return f.AcceptToCountP99 }),
		},
	}
}

// plan is what was asked for: rows, and the runs that they need.
func plan(only []string) ([]row, []spec) {
	var wanted []row
	var need []string
	for _, r := range rows() {
		if slices.Contains(only, r.group) {
			wanted = append(wanted, r)
			need = append(need, r.needs...)
		}
	}
	var runs []spec
	for _, s := range specs {
		if slices.Contains(need, s.id) {
			s.drain = slices.Contains(only, groupDrain) && slices.Contains(drained, s.id)
			runs = append(runs, s)
		}
	}
	return wanted, runs
}
