package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/config"
)

const wrkText = `Running 10s test @ http://127.0.0.1:33221
  2 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.62ms    1.05ms  21.73ms   88.41%
    Req/Sec    20.57k     1.40k   24.11k    71.50%
  409515 requests in 10.01s, 96.07MB read
Requests/sec:  40910.52
Transfer/sec:      9.60MB
bench: requests=409515 duration_us=10010020 status=3 connect=0 read=1 write=0 timeout=2 p50_us=1480 p99_us=5210
`

func TestParseWrk(t *testing.T) {
	f, err := parseWrk(wrkText)
	require.NoError(t, err)
	assert.Equal(t, int64(409515), f.Requests)
	assert.Equal(t, int64(3), f.Non2xx)
	assert.Equal(t, int64(3), f.SocketErrors)
	assert.InDelta(t, 10.01, f.Seconds, 0.001)
	assert.InDelta(t, 409512/10.01002, f.PerSecond, 0.01)
	assert.InDelta(t, 5.21, f.P99, 1e-9)
	for _, bad := range []string{
		"", "unable to connect to 127.0.0.1:1 Connection refused\n",
		strings.Replace(wrkText, "timeout=2 ", "", 1), strings.Replace(wrkText, "status=3", "status=x", 1),
		strings.Replace(wrkText, "duration_us=10010020", "duration_us=0", 1),
	} {
		_, err := parseWrk(bad)
		assert.Error(t, err, bad)
	}
}

func TestParseProcessStat(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"4021 (redis-server) S 1 4021 4021 0 -1 4194624 1533 0 0 0 812 455 0 0 20 0 5 0 88123 68239360 3361 18446744073709551615 1 1 0 0 0 0 0\n": 12670 * time.Millisecond,
		"7 (a) b (c) R 1 7 7 0 -1 0 0 0 0 0 1 2 0 0 20 0 1 0 1 1 1\n":                                                                             30 * time.Millisecond,
	} {
		got, err := parseProcessStat([]byte(text))
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	_, err := parseProcessStat([]byte("7 (a) S 1"))
	require.Error(t, err)
	_, err = processTime(os.Getpid())
	require.NoError(t, err)
}

func TestMachineShares(t *testing.T) {
	const text = `cpu  72210 10 37035 64226 807 1 6127 20 0 0
cpu0 34807 0 18088 33860 120 0 3340 0 0 0
cpu1 37402 0 18947 30366 687 0 2786 0 0 0
intr 2208907 0 0
ctxt 5143934
`
	m, err := parseMachineStat(text)
	require.NoError(t, err)
	assert.Equal(t, machineTime{process: (72210 + 10 + 37035) * tick, idle: (64226 + 807) * tick, other: (1 + 6127 + 20) * tick}, m)
	after := machineTime{process: m.process + 16*time.Second, idle: m.idle + 3*time.Second, other: m.other + time.Second}
	s := share(m, after, 14*time.Second)
	assert.InDelta(t, 0.15, s.Idle, 1e-9)
	assert.InDelta(t, 0.10, s.Foreign, 1e-9)
	assert.InDelta(t, 0.05, s.Other, 1e-9)
	assert.Zero(t, share(m, after, time.Minute).Foreign, "ticks are coarse, less than nothing is nothing")
	assert.Equal(t, shares{}, share(m, m, 0))
	for _, bad := range []string{"", "cpu0 1 2 3 4 5 6 7 8\n", "cpu a 2 3 4 5 6 7 8\n"} {
		_, err := parseMachineStat(bad)
		assert.Error(t, err, bad)
	}
	_, err = readMachine()
	require.NoError(t, err)
}

const metricsText = `# HELP paredao_accept_to_count_seconds Seconds from the enqueue of a frame to its count, one observation a frame.
# TYPE paredao_accept_to_count_seconds histogram
paredao_accept_to_count_seconds_bucket{le="0.001"} 100
paredao_accept_to_count_seconds_bucket{le="0.0025"} 180
paredao_accept_to_count_seconds_bucket{le="0.005"} 198
paredao_accept_to_count_seconds_bucket{le="0.01"} 200
paredao_accept_to_count_seconds_bucket{le="+Inf"} 200
paredao_accept_to_count_seconds_sum 0.25
paredao_accept_to_count_seconds_count 200
`

func TestHistogram(t *testing.T) {
	h, err := parseHistogram(metricsText, countHistogram)
	require.NoError(t, err)
	assert.EqualValues(t, 200, h.count())
	assert.InDelta(t, 0.001, h.quantile(0.5), 1e-12)
	assert.InDelta(t, 0.005, h.quantile(0.99), 1e-12)
	assert.InDelta(t, 0.0025+0.0025*(190.0-180)/18, h.quantile(0.95), 1e-12)

	later, err := parseHistogram(strings.NewReplacer(`le="+Inf"} 200`, `le="+Inf"} 300`, `le="0.01"} 200`, `le="0.01"} 290`).Replace(metricsText), countHistogram)
	require.NoError(t, err)
	d := later.since(h)
	assert.EqualValues(t, 100, d.count())
	assert.InDelta(t, 0.005+0.005*50/90, d.quantile(0.5), 1e-12, "only what came since")
	assert.True(t, math.IsInf(d.quantile(0.99), 1), "above the last bound it could be anything")
	assert.True(t, math.IsNaN(h.since(h).quantile(0.5)))

	labelled, err := parseHistogram("x_bucket{a=\"1\",le=\"1\"} 2\nx_bucket{a=\"2\",le=\"1\"} 3\nx_bucket{a=\"1\",le=\"+Inf\"} 2\n", "x")
	require.NoError(t, err)
	assert.EqualValues(t, 5, labelled[1])
	for _, bad := range []string{"", "x_bucket{a=\"1\"} 2\n", "x_bucket{le=\"1\"} y\n"} {
		_, err := parseHistogram(bad, "x")
		assert.Error(t, err, bad)
	}
}

func TestSpreadAndVerdict(t *testing.T) {
	assert.Equal(t, spread{Median: 2, Min: 1, Max: 3}, spreadOf([]float64{3, 1, 2}))
	assert.Equal(t, spread{Median: 2.5, Min: 1, Max: 4}, spreadOf([]float64{4, 1, 2, 3}))
	for _, c := range []struct {
		median float64
		rounds int
		lower  bool
		want   string
	}{
		{0.9, 3, false, verdictAim},
		{0.75, 3, false, verdictAim},
		{0.6, 3, false, verdictMust},
		{0.4, 3, false, verdictMissed},
		{0.9, 2, false, verdictNone},
		{math.NaN(), 3, false, verdictMissed},
		{0.4, 3, true, verdictAim},
		{0.8, 3, true, verdictMissed},
	} {
		must, aim := 0.5, 0.75
		if c.lower {
			must, aim = 0.75, 0.5
		}
		assert.Equal(t, c.want, verdict(c.median, c.rounds, must, aim, c.lower), "%+v", c)
	}
}

// TestPlan sees that each row's runs are made, each once, and none for nothing.
func TestPlan(t *testing.T) {
	wanted, runs := plan(groups)
	assert.Len(t, wanted, len(rows()))
	assert.Len(t, runs, len(specs))
	for _, w := range wanted {
		assert.NotNil(t, w.value, w.name)
		assert.Equal(t, w.lower, w.aim < w.must, w.name)
		for _, need := range w.needs {
			found := 0
			for _, s := range runs {
				if s.id == need {
					found++
				}
			}
			assert.Equal(t, 1, found, "%s needs %s", w.name, need)
		}
		assert.True(t, math.IsNaN(w.value(round{})), w.name)
		empty := round{}
		for _, s := range specs {
			empty[s.id] = &measurement{}
		}
		assert.True(t, math.IsNaN(w.value(empty)), "%s: a run that failed has no figures", w.name)
	}
	wanted, runs = plan([]string{groupDrain})
	assert.Len(t, wanted, 3)
	var ids []string
	for _, s := range runs {
		assert.True(t, s.drain)
		ids = append(ids, s.id)
	}
	assert.Equal(t, []string{"naive-64", "ours-64", "ours-512"}, ids)
	_, runs = plan([]string{groupAccept})
	for _, s := range runs {
		assert.False(t, s.drain)
	}
}

func TestHonest(t *testing.T) {
	good := func() *measurement {
		return &measurement{Run: "bare-64", System: bare, Load: wrkFigures{Requests: 1000, PerSecond: 100}, GeneratorBusy: 0.5}
	}
	require.NoError(t, good().check())
	for reason, change := range map[string]func(*measurement){
		"not 2xx":       func(m *measurement) { m.Load.Non2xx = 1 },
		"warm-up":       func(m *measurement) { m.WarmUp.SocketErrors = 1 },
		"fill":          func(m *measurement) { m.Fill.SocketErrors = 1 },
		"answered":      func(m *measurement) { m.Load.Requests = 0 },
		"threads":       func(m *measurement) { m.GeneratorBusy = 0.95 },
		"idle":          func(m *measurement) { m.Machine.Idle = 0.2 },
		"none of the b": func(m *measurement) { m.Machine.Foreign = 0.2 },
	} {
		m := good()
		change(m)
		assert.ErrorContains(t, m.check(), reason)
	}
	m := good()
	m.System, m.Machine.Idle = ours, 0.2
	require.NoError(t, m.check(), "ours may wait for the disk")

	slow := &measurement{Run: "ours-64", Load: wrkFigures{PerSecond: 60}}
	require.NoError(t, checkRound(round{"bare-64": good(), "ours-64": slow}))
	slow.Load.PerSecond = 101
	require.ErrorContains(t, checkRound(round{"bare-64": good(), "ours-64": slow}), "no upper bound")
	require.NoError(t, checkRound(round{"ours-64": slow}))

	require.NoError(t, checkSum("votes", 100, 100, 64))
	require.NoError(t, checkSum("votes", 164, 100, 64))
	require.Error(t, checkSum("votes", 99, 100, 64))
	require.Error(t, checkSum("votes", 165, 100, 64))

	id, err := identityOf(map[string]string{"process_id": "12", "run_id": "abc"}, 12)
	require.NoError(t, err)
	assert.Equal(t, "abc", id)
	_, err = identityOf(map[string]string{"process_id": "13", "run_id": "abc"}, 12)
	require.ErrorContains(t, err, "not the one that was started")
}

func TestDrainOf(t *testing.T) {
	at := time.Now()
	d, err := drainOf(sample{at, 900}, sample{at.Add(2 * time.Second), 100}, 50_000, 1000)
	require.NoError(t, err)
	assert.InDelta(t, 40_000, d.Votes, 1e-6)
	assert.InDelta(t, 20_000, d.PerSecond, 1e-6)
	_, err = drainOf(sample{at, 900}, sample{at.Add(time.Millisecond), 0}, 50_000, 1000)
	require.ErrorContains(t, err, "--drain-votes")
}

func TestReadRateReport(t *testing.T) {
	// As loadtest/rate writes it.
	const realReport = `{"ok":true,"rate":41000,"seconds":30,"accepted_per_second":40990.5,"latency_ms":{"p50":0.6,"p99":4.25,"p99_9":9},` +
		`"service_ms":{"p50":0.5,"p99":1},"generator_own_p99_ms":0.2,"p99_limit_ms":50,"probes":[{"rate":9,"p99_ms":77}]}`
	highest, err := highestRate([]byte(realReport))
	require.NoError(t, err)
	assert.EqualValues(t, 41000, highest)
	for text, want := range map[string]float64{
		realReport: 4.25,
		`{"service":{"p99_ms":1},"latency":{"p50_ms":0.4,"p99_ms":4.25}}`:            4.25,
		`{"latency_us":{"p99":4250},"service_us":{"p99":1000}}`:                      4.25,
		`{"service_p99_ms":1,"latency_p99_ms":4.25}`:                                 4.25,
		`{"own":{"p99_ms":9},"p99":"4.25ms"}`:                                        4.25,
		`{"result":{"latency_seconds":{"99":0.00425}}, "steps":[{"p99_ms":100000}]}`: 4.25,
	} {
		got, err := latencyP99([]byte(text))
		require.NoError(t, err, text)
		assert.InDelta(t, want, got, 1e-9, text)
	}
	for _, bad := range []string{`{"p99":4.25}`, `{"p99_ms":null}`, `{}`, `x`} {
		_, err := latencyP99([]byte(bad))
		assert.Error(t, err, bad)
	}
	for _, text := range []string{`{"highest_rate":41000}`, `{"found":{"highest":41000},"rate":5}`, `{"result":{"rate":41000}}`} {
		got, err := highestRate([]byte(text))
		require.NoError(t, err, text)
		assert.EqualValues(t, 41000, got, text)
	}
	_, err = highestRate([]byte(`{"highest":0}`))
	require.Error(t, err)
}

func TestParse(t *testing.T) {
	o, err := parse(nil, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, groups, o.only)
	assert.Equal(t, 3, o.rounds)
	var out bytes.Buffer
	_, err = parse([]string{"--help"}, &out)
	require.ErrorIs(t, err, config.ErrHelp)
	assert.Contains(t, out.String(), "--drain-votes")
	for _, g := range groups {
		assert.Contains(t, out.String(), "\n  "+g+" ")
	}
	for _, bad := range [][]string{{"--only=x"}, {"--only="}, {"--rounds=0"}, {"--seconds=0"}, {"--threads=65"}, {"x"}, {"--x"}, {"--bin="}} {
		_, err := parse(bad, io.Discard)
		assert.Error(t, err, "%v", bad)
	}
}

func TestPresent(t *testing.T) {
	_, runs := plan([]string{groupRate})
	err := present(t.TempDir(), runs)
	require.ErrorContains(t, err, "no api, archiver, consumer, rate, tally: make build")
}

// sampleReport has three rounds of two rows, the one met and the other missed.
func sampleReport(t *testing.T) (*report, []row) {
	o, err := parse([]string{"--only=accept"}, io.Discard)
	require.NoError(t, err)
	r := newReport(context.Background(), o)
	wanted, _ := plan([]string{groupAccept, groupRedis})
	for n := 1; n <= 3; n++ {
		for id, perSecond := range map[string]float64{"bare-64": 60_000, "naive-64": 18_000, "ours-64": 40_000 + float64(n)*1000} {
			r.add(&measurement{
				Run: id, Round: n, Load: wrkFigures{Requests: 1, PerSecond: perSecond},
				CPUPerVote: map[string]float64{"redis": perSecond / 1e4, "wrk": 10},
			})
		}
	}
	return r, wanted[:3]
}

func TestReport(t *testing.T) {
	r, wanted := sampleReport(t)
	r.finish(append(wanted[:1:1], wanted[2]), nil)
	assert.True(t, r.OK, "%v", r.Problems)
	require.NoError(t, r.err())
	assert.Equal(t, verdictMust, r.Rows[0].Verdict)
	text := r.markdown()
	assert.Contains(t, text, "| accept ÷ bare, 64 connections | 0.70 | 0.68 – 0.72 | ≥ 0.52 | ≥ 0.75 | must met |\n")
	assert.Contains(t, text, "| accept ÷ naive peer, 64 connections | 2.33 | 2.28 – 2.39 | ≥ 1.90 | ≥ 3.00 | must met |\n")
	assert.Contains(t, text, "| ours-64 | 42,000 | 41,000 – 43,000 |  |  | 4.2 |  |  | 10.0 |\n")

	dir := t.TempDir()
	require.NoError(t, r.begin(dir))
	pending, err := os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	assert.Contains(t, string(pending), "has not ended")
	require.NoError(t, r.write(dir))
	data, err := os.ReadFile(filepath.Join(dir, "report.json"))
	require.NoError(t, err)
	var back report
	require.NoError(t, json.Unmarshal(data, &back))
	assert.Len(t, back.Runs, 9)
	assert.Len(t, back.Rows[0].Values, 3)
	for _, name := range []string{"ratios", "throughput"} {
		svg, err := os.ReadFile(filepath.Join(dir, name+".svg"))
		require.NoError(t, err)
		assert.Contains(t, string(svg), "<svg")
		png, err := os.ReadFile(filepath.Join(dir, name+".png"))
		require.NoError(t, err)
		assert.True(t, bytes.HasPrefix(png, []byte("\x89PNG")))
	}
	if to := os.Getenv("BENCH_TEST_PLOTS"); to != "" {
		require.NoError(t, r.write(to))
	}
}

func TestReportOfFailure(t *testing.T) {
	r, wanted := sampleReport(t)
	for _, m := range r.Runs {
		if m.Run == "ours-64" {
			m.Load.PerSecond = 20_000
		}
	}
	r.finish(append(wanted[:1:1], wanted[2]), nil)
	assert.False(t, r.OK)
	require.ErrorContains(t, r.err(), "accept ÷ bare, 64 connections is 0.33, and must be ≥ 0.52")

	r, wanted = sampleReport(t)
	r.finish(wanted, nil)
	require.ErrorContains(t, r.err(), "512 connections has a value in 0 of 3 rounds")

	r, wanted = sampleReport(t)
	r.finish(wanted, assert.AnError)
	require.ErrorContains(t, r.err(), assert.AnError.Error())
	for _, w := range r.Rows {
		assert.Equal(t, verdictNone, w.Verdict, "a run that was cut short is not judged")
	}
	assert.Contains(t, r.markdown(), "- **"+assert.AnError.Error()+"**")
}
