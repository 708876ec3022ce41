package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/config"
	"paredao/internal/ledger"
)

func TestReport(t *testing.T) {
	dir := t.TempDir()
	r := newReport(&options{scenario: "mix", seconds: 60, seed: 7, shards: 2, connections: 8, fsync: "always", votes: 2_000_000, bin: "elsewhere"})
	r.conceal("/secret/place", "DIR")
	f := r.fault(faultRecord{At: 2 * time.Second, For: time.Second, Name: "kill | -9", Target: "api 0", Took: true})
	r.fault(faultRecord{At: time.Second, Name: "first", Target: "redis-server"})
	d := 1500 * time.Millisecond
	r.change(func() { f.Recovery = &d })
	r.judged(&ledger.Result{Sent: 1234567, Acked: 1234000, Lost: 0}, nil)
	r.command("tally audit", []byte("fine in /secret/place\n"), nil)
	require.NoError(t, r.err())
	require.NoError(t, r.write(dir))

	md, err := os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	for _, want := range []string{
		"make chaos SCENARIO=mix SECONDS=60 SEED=7 CONNECTIONS=8 FSYNC=always\n",
		"Nothing was lost", "| votes sent | 1,234,567 |\n", "| lost | 0 |\n", "fine in DIR\n", "## `tally audit`, exit code 0\n",
		"| 2.0 s | kill \\| -9 | api 0 | 1.0 s | yes | after 1.500 s |  |  |\n",
	} {
		assert.Contains(t, string(md), want)
	}
	assert.NotContains(t, string(md), "elsewhere")
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	require.NoError(t, err)
	assert.NotContains(t, string(text), "/secret")
	var data reportData
	require.NoError(t, json.Unmarshal(text, &data))
	assert.True(t, data.OK)
	assert.Equal(t, "first", data.Faults[0].Name, "in order")
	assert.Equal(t, int64(1234567), data.Result.Sent)

	r.fail("%v", errors.New("a vote is lost"))
	require.ErrorContains(t, r.err(), "a vote is lost")
	require.NoError(t, r.write(dir))
	md, err = os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	assert.Contains(t, string(md), "**It does not hold:**\n\n- a vote is lost\n")
	assert.NotContains(t, string(md), "Nothing was lost")
}

// The rows of two loads are told apart, and no judgement takes another's place.
func TestReportHasStages(t *testing.T) {
	dir := t.TempDir()
	r := newReport(&options{scenario: "restore"})
	for i, stage := range []string{"first", "second"} {
		r.begins(stage)
		r.judged(&ledger.Result{Sent: int64(i + 1), Unknown: 5, Unsettled: 2, Taken: 6}, nil)
		r.command("tally audit", nil, nil)
	}
	require.NoError(t, r.write(dir))
	md, err := os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	for _, want := range []string{
		"| first: votes sent | 1 |\n", "| second: votes sent | 2 |\n", "## first: `tally audit`", "## second: `tally audit`",
		"| first: unknown, without a key | 5 |\n| first: without an answer to the end, with a key | 2 |\n| first: of these two, in the archive | 6 |\n",
	} {
		assert.Contains(t, string(md), want)
	}
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	require.NoError(t, err)
	var data reportData
	require.NoError(t, json.Unmarshal(text, &data))
	assert.Equal(t, int64(2), data.Result.Sent)
	require.Len(t, data.Earlier, 1)
	assert.Equal(t, int64(1), data.Earlier[0].Sent)
}

func TestHuman(t *testing.T) {
	for want, v := range map[string]any{
		"0": 0, "999": int64(999), "1,000": 1000, "-1,234,567": int64(-1234567), "0.50": 0.5, "2.500 s": 2500 * time.Millisecond, "x": "x",
	} {
		assert.Equal(t, want, human(v))
	}
}

func TestMonitor(t *testing.T) {
	var acked atomic.Int64
	m := newMonitor(acked.Load)
	m.stop() // from here on the test looks itself
	at := func(ms int) time.Time { return m.start.Add(time.Duration(ms) * time.Millisecond) }
	m.look(at(100), 1)
	m.look(at(200), 2)
	acked.Store(2)
	var recovered []time.Duration
	m.recovered(func(d time.Duration) { recovered = append(recovered, d) })
	m.look(at(900), 2)
	assert.Empty(t, recovered)
	m.look(at(1000), 3)
	m.look(at(1100), 9)
	assert.Len(t, recovered, 1, "once")
	stop, begun := m.longestStop()
	assert.Equal(t, 800*time.Millisecond, stop)
	assert.Equal(t, 200*time.Millisecond, begun)
	assert.Equal(t, 800*time.Millisecond, m.stopped())
	m.look(at(3000), 9)
	stop, _ = m.longestStop()
	assert.Equal(t, 1900*time.Millisecond, stop, "one that has not ended counts too")
}

func TestOptions(t *testing.T) {
	o, err := parse([]string{"--scenario", "mix", "--seed", "5", "--appendfsync", "no"}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, uint64(5), o.seed)
	for _, args := range [][]string{
		{"--seconds", "1"}, {"--connections", "1"}, {"--queue-shards", "0"}, {"--appendfsync", "x"}, {"--archive", "x"}, {"--what"}, {"mix"}, {"--rate", "NaN"}, {"--bin", ""},
	} {
		_, err := parse(args, io.Discard)
		var usage *config.UsageError
		require.ErrorAs(t, err, &usage, "%v", args)
	}
	sc, err := find("deep-queue")
	require.NoError(t, err)
	o, err = parse([]string{"--seed=1", "--rate=5", "--votes=5000"}, io.Discard)
	require.NoError(t, err)
	assert.Equal(t, []string{"rate"}, sc.ignored(o.given))
	_, err = find("nothing")
	require.Error(t, err)
}

func TestConcealsOnlyWhatTells(t *testing.T) {
	dir := t.TempDir()
	r := newReport(&options{scenario: "mix"})
	for _, text := range []string{"", ".", "./", "/", "bin/"} {
		r.conceal(text, "HIDDEN")
	}
	r.row("a/b.c", 1.5)
	require.NoError(t, r.write(dir))
	md, err := os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	assert.Contains(t, string(md), "| a/b.c | 1.50 |\n")
	assert.NotContains(t, string(md), "HIDDEN")
}

// A report says from the start that its run has not ended.
func TestReportBegins(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	r := newReport(&options{scenario: "mix"})
	require.NoError(t, r.begin(dir))
	md, err := os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	assert.Contains(t, string(md), "- the run has not ended\n")
	require.NoError(t, r.err())
	require.Error(t, r.begin(filepath.Join(dir, "report.md")), "a file is there")
}

func TestIdleKinds(t *testing.T) {
	r := newReport(&options{scenario: "mix"})
	r.fault(faultRecord{Kind: "a"})
	r.fault(faultRecord{Kind: "a", Took: true})
	r.fault(faultRecord{Kind: "b"})
	r.fault(faultRecord{Kind: "c", Skipped: true})
	idle, kinds := r.idle()
	assert.Equal(t, []string{"b"}, idle)
	assert.Equal(t, 2, kinds)
}

func TestMostWaiting(t *testing.T) {
	start := time.Now()
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	const ms = time.Millisecond
	w := &waitWatch{}
	_, known := w.sum()
	assert.False(t, known)
	for _, l := range []waitLook{{at(0), 0}, {at(10), 0}, {at(20), 0}, {at(100), 0}, {at(200), 70 * ms}, {at(300), 70 * ms}} {
		w.note(l)
	}
	assert.Len(t, w.looks, 4, "nothing was waited in between")
	sum, known := w.sum()
	assert.True(t, known)
	assert.Equal(t, 70*ms, sum)
	assert.Equal(t, 70*ms, w.most(at(0), at(300), 100*ms))
	assert.Equal(t, 35*ms, w.most(at(0), at(300), 50*ms), "half of it")
	assert.Zero(t, w.most(at(200), at(300), 100*ms))
	assert.Equal(t, 35*ms, w.most(at(0), at(150), 100*ms), "it ends before")
}

// What a dead run has left is removed, and nothing of one that lives.
func TestLeftovers(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var mine, theirs leftovers
	dir, err := mine.folder()
	require.NoError(t, err)
	dead, err := theirs.folder()
	require.NoError(t, err)
	require.NoError(t, theirs.owner.Close(), "it has died")
	cleared, err := clearDead()
	require.NoError(t, err)
	assert.Equal(t, []string{dead}, cleared)
	assert.NoDirExists(t, dead)
	assert.DirExists(t, dir)
	require.NoError(t, mine.clear())
	assert.NoDirExists(t, dir)
	require.NoError(t, mine.clear(), "again")
}
