package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
)

const twoPolls = `polls:
  - {id: demo, options: [{id: a}, {id: b}]}
  - {id: other, options: [{id: x}]}
`

// A Redis is lost whole: the real binaries bring it back, from the archive.
func TestRestoreWipedRedis(t *testing.T) {
	w := newWorld(t, 2)
	settled := []string{"restore", "--settle", "10ms"}
	w.run("restore").fails(t, 1, "archive", "holds no batches", "--archive-url")
	require.Equal(t, 0, w.runWith(twoPolls, "polls", "apply", "-f", "-").code)
	w.archived("demo", map[string]int{"a": 20, "b": 1})
	w.archived("other", map[string]int{"x": 2})
	require.Regexp(t, `^Nothing to restore: Redis knows all \d+ batches of the archive\.\n$`, w.run(settled...).ok(t))
	head, rows := fromCSV(t, w.run("restore", "-o", "csv").ok(t))
	require.Equal(t, []string{"poll", "option", "votes", "poll_frames", "dry_run"}, head)
	require.Empty(t, rows)
	recount := w.run("recount", "-o", "json").ok(t)

	require.NoError(t, w.rdb.FlushAll(t.Context()).Err())
	w.run("audit", "--recount").says(t, 3, "tally restore adds them")
	for _, args := range [][]string{settled, {"restore", "--dry-run"}} {
		w.run(args...).fails(t, 1, "polls that Redis does not have", "demo, other", "tally polls apply -f FILE")
	}
	require.Equal(t, 0, w.runWith(strings.Replace(twoPolls, "b}", "c}", 1), "polls", "apply", "-f", "-").code)
	w.run(settled...).fails(t, 1, `"b" of poll demo`, "tally polls apply -f FILE")
	require.Equal(t, 0, w.runWith(twoPolls, "polls", "apply", "-f", "-").code)
	require.Equal(t, 0, w.run("polls", "close", "other").code)
	// Votes come in before it is restored, and are counted.
	w.archived("demo", map[string]int{"b": 5})

	dry := w.run("restore", "--dry-run").ok(t)
	require.Regexp(t, `\nNothing was written. To be restored are 46 votes in \d+ frames of \d+ batches; 0 more of their frames Redis had already\.\n$`, dry)
	_, rows = fromCSV(t, w.run("restore", "--dry-run", "-o", "csv").ok(t))
	require.Equal(t, "true", rows[0]["dry_run"])

	got := w.run(append(settled, "-o", "json")...)
	require.Equal(t, 0, got.code, got.stderr)
	report := fromJSON(t, got.stdout).(map[string]any)
	require.ElementsMatch(t, []string{"dry_run", "batches", "polls", "waiting", "archived_batches"}, keys(report))
	require.NotEmpty(t, report["batches"])
	var totals []string
	for _, p := range asText(report["polls"]).([]any) {
		p := p.(map[string]any)
		totals = append(totals, fmt.Sprint(p["poll"], p["total"], p["options"]))
	}
	require.Equal(t, []string{"demo42[map[id:a votes:40] map[id:b votes:2]]", "other4[map[id:x votes:4]]"}, totals)

	w.run(settled...).ok(t)
	w.run("audit", "--recount").ok(t)
	require.NotEqual(t, recount, w.run("recount", "-o", "json").ok(t), "new votes are in it")
	final := asText(fromJSON(t, w.run("totals", "-o", "json").ok(t))).([]any)
	require.Equal(t, "52", final[0].(map[string]any)["total"])
	require.Equal(t, "4", final[1].(map[string]any)["total"])
	require.Equal(t, true, final[1].(map[string]any)["final"])
	w.archived("demo", map[string]int{"a": 1})
	w.run("audit", "--recount").ok(t)
}

// Redis is killed and comes back with older data, while the stages go on. The
// restore waits for them, says so, and can be interrupted.
func TestRestoreOldRedis(t *testing.T) {
	w := newWorld(t, 1)
	w.poll("demo", "a", "b")
	w.archived("demo", map[string]int{"a": 2})
	w.queue(0, "demo", map[string]int{"a": 3})
	require.NoError(t, w.rdb.Save(t.Context()).Err())
	old, err := os.ReadFile(w.redis.Dir + "/dump.rdb")
	require.NoError(t, err)
	w.queue(0, "demo", map[string]int{"b": 4})
	daemons := []*testkit.Process{w.daemon("consumer"), w.daemon("archiver")}
	w.drained()
	for _, d := range daemons {
		require.Equal(t, 0, d.Term())
	}
	w.redis.Kill()
	require.NoError(t, os.WriteFile(w.redis.Dir+"/dump.rdb", old, 0o600))
	w.redis.Start()

	got := w.run("restore", "--settle", "1ms", "--timeout", "1ms")
	require.Equal(t, 1, got.code, got.stderr)
	require.Contains(t, got.stderr, "consumers and archivers must run")
	require.Regexp(t, `(?m)^waiting: batch 0-\d+-\w+: of its \d+ frames, which Redis has again, 1 wait to be counted`, got.stderr)

	run := w.start(w.command("restore", "--settle", "1ms", "-o", "csv"))
	run.stderr.await(t, "waiting: ", 1)
	w.daemon("consumer")
	run.stderr.await(t, "await archiving (an archiver must run)", 1)
	w.daemon("archiver")
	end := run.wait()
	require.Equal(t, 0, end.code, end.stderr)
	_, rows := fromCSV(t, end.stdout)
	require.Equal(t, []map[string]string{{"poll": "demo", "option": "b", "votes": "4", "poll_frames": "1", "dry_run": "false"}}, rows)
	w.run("audit", "--recount").ok(t)
	require.Contains(t, w.run("restore").ok(t), "Nothing to restore")
}
