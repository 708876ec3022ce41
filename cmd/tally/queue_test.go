package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
)

var queueColumns = []string{
	"shard", "queued_votes", "queued_frames", "oldest", "owner", "archiver", "awaiting_archive", "dead", "dead_votes",
}

func TestQueue(t *testing.T) {
	w := newWorld(t, 3)
	w.poll("demo", "a", "b")
	w.poll("other", "a")
	w.queue(1, "demo", map[string]int{"a": 3, "b": 2})
	w.queue(1, "other", map[string]int{"a": 1})
	read := func(t *testing.T) []any {
		t.Helper()
		return fromJSON(t, w.in(t).run("queue", "-o", "json").ok(t)).([]any)
	}
	got := read(t)
	require.Len(t, got, 3)
	empty := func(shard string) map[string]any {
		return map[string]any{
			"shard": shard, "queued_votes": "0", "queued_frames": "0", "oldest_seconds": nil, "owner": "", "archiver": "",
			"awaiting_archive": "0", "dead": "0", "dead_votes": "0",
		}
	}
	text := func(v any) map[string]any { // numbers as text
		m := v.(map[string]any)
		for k, v := range m {
			if n, ok := v.(fmt.Stringer); ok {
				m[k] = n.String()
			}
		}
		return m
	}
	require.Equal(t, empty("0"), text(got[0]))
	require.Equal(t, empty("2"), text(got[2]))
	busy := text(got[1])
	require.Regexp(t, `^\d+(\.\d+)?$`, busy["oldest_seconds"])
	delete(busy, "oldest_seconds")
	want := empty("1")
	delete(want, "oldest_seconds")
	want["queued_votes"], want["queued_frames"] = "6", "3"
	require.Equal(t, want, busy)

	t.Run("csv and table", func(t *testing.T) {
		c := w.in(t)
		head, rows := fromCSV(t, c.run("queue", "-o", "csv").ok(t))
		require.Equal(t, queueColumns, head)
		for _, rows := range [][]map[string]string{rows, fromTable(t, c.run("queue").ok(t))} {
			require.Len(t, rows, 3)
			require.Regexp(t, `^[0-9.µmsh]+$`, rows[1]["oldest"])
			delete(rows[1], "oldest")
			require.Equal(t, map[string]string{
				"shard": "1", "queued_votes": "6", "queued_frames": "3", "owner": "", "archiver": "",
				"awaiting_archive": "0", "dead": "0", "dead_votes": "0",
			}, rows[1])
			require.Empty(t, rows[0]["oldest"])
		}
	})
	t.Run("owners, awaiting archive, dead", func(t *testing.T) {
		w.brokenFrame(2, "demo", 4)
		consumer := w.daemon("consumer")
		testkit.Eventually(t, "the votes are counted", func() bool { return text(read(t)[1])["awaiting_archive"] == "6" })
		testkit.Eventually(t, "what can't be read is dead", func() bool { return text(read(t)[2])["dead"] == "1" })
		require.Equal(t, "4", text(read(t)[2])["dead_votes"])
		for shard := range 3 {
			require.NotEmpty(t, text(read(t)[shard])["owner"])
			require.Empty(t, text(read(t)[shard])["archiver"])
		}
		archiver := w.daemon("archiver")
		testkit.Eventually(t, "the archiver owns the shards and is done", func() bool {
			for _, q := range read(t) {
				if text(q)["archiver"] == "" || text(q)["awaiting_archive"] != "0" {
					return false
				}
			}
			return true
		})
		require.Equal(t, 0, consumer.Term())
		require.Equal(t, 0, archiver.Term())
		require.Empty(t, text(read(t)[0])["owner"], "handed back")
		_, rows := fromCSV(t, w.in(t).run("queue", "-o", "csv").ok(t))
		require.Equal(t, "4", rows[2]["dead_votes"])
		require.Equal(t, "1", rows[2]["dead"])
	})
}

// brokenFrame puts a frame on the queue whose header is well and whose votes
// can't be read, and returns its id.
func (w *world) brokenFrame(shard int, poll string, votes int64) string {
	w.t.Helper()
	ctx := w.t.Context()
	now, err := w.store.Now(ctx)
	require.NoError(w.t, err)
	id := fmt.Sprintf("broken%d-%d", shard, w.rdb.LLen(ctx, fmt.Sprintf("dead:{%d}", shard)).Val()+1)
	frame := fmt.Sprintf("P1 %s %d %d - %s:%d\n\x28\xb5\x2f\xfdno zstd", id, now.UnixMilli(), votes, poll, votes)
	require.NoError(w.t, w.rdb.HIncrBy(ctx, fmt.Sprintf("ledger:{%d}", shard), "accepted:"+poll, votes).Err())
	require.NoError(w.t, w.rdb.RPush(ctx, fmt.Sprintf("votes:{%d}", shard), frame).Err())
	return id
}

func TestDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.poll("demo", "a", "b")
	for _, args := range []string{"requeue", "drop"} {
		require.Equal(t, "id  done\n", w.run("dead", args, "--all").ok(t))
		require.Equal(t, map[string]any{args: []any{}}, fromJSON(t, w.run("dead", args, "--all", "-o", "json").ok(t)))
		require.Equal(t, "id,done\r\n", w.run("dead", args, "--all", "-o", "csv").ok(t))
	}
	require.Equal(t, "id  shard  bytes  votes  reason\n", w.run("dead", "list").ok(t))
	require.Equal(t, "[]\n", w.run("dead", "list", "-o", "json").ok(t))

	w.queue(0, "demo", map[string]int{"a": 1})
	broken := w.brokenFrame(1, "demo", 3)
	// What is no frame at all, with something for the terminal in it.
	require.NoError(t, w.rdb.RPush(t.Context(), "votes:{1}", "garbage", "P1 \x1b[31mred,=1+1 x", "P1 =x\n").Err())
	consumer := w.daemon("consumer")
	dead := func() int64 { return w.rdb.LLen(t.Context(), "dead:{1}").Val() }
	testkit.Eventually(t, "four elements are dead", func() bool { return dead() == 4 })
	require.Equal(t, 0, consumer.Term())
	require.Contains(t, w.run("polls", "close", "demo").ok(t), "closed", "dead votes are pending")
	require.Contains(t, w.run("demo").ok(t), "3 pending, not final")

	const garbage = "sha1:78c67c126575c20c6b468447355e9bd20d221202"
	list := fromJSON(t, w.run("dead", "list", "-o", "json").ok(t)).([]any)
	require.Len(t, list, 4)
	require.ElementsMatch(t, []string{"id", "shard", "bytes", "votes", "reason"}, keys(list[0]))
	first := list[0].(map[string]any)
	require.Equal(t, broken, first["id"])
	require.Equal(t, "3", fmt.Sprint(first["votes"].(map[string]any)["demo"]))
	require.NotEmpty(t, first["reason"])
	require.Equal(t, garbage, list[1].(map[string]any)["id"])
	require.Empty(t, list[1].(map[string]any)["votes"])

	head, rows := fromCSV(t, w.run("dead", "list", "-o", "csv").ok(t))
	require.Equal(t, []string{"id", "shard", "bytes", "votes", "reason"}, head)
	require.Len(t, rows, 4)
	require.Equal(t, "demo:3", rows[0]["votes"])
	require.Equal(t, "1", rows[0]["shard"])
	table := w.run("dead", "list").ok(t)
	require.NotContains(t, table, "\x1b")
	require.Contains(t, table, garbage)

	// The audit knows them.
	_, audit := fromCSV(t, w.run("audit", "-o", "csv").ok(t))
	require.Equal(t, "3", audit[0]["dead"])
	require.Equal(t, "true", audit[0]["ok"])

	// No such element: nothing is done; with others, those are done and shown.
	for _, what := range []string{"requeue", "drop"} {
		w.run("dead", what, "nosuch-1").fails(t, 1, "no dead element nosuch-1")
		got := w.run("dead", what, "\x1b[31mx")
		got.fails(t, 1, "no dead element")
		require.NotContains(t, got.stderr, "\x1b")
	}
	require.EqualValues(t, 4, dead())
	got := w.run("dead", "drop", garbage, "nosuch-1", garbage)
	got.says(t, 1, "no dead element nosuch-1")
	require.Equal(t, []map[string]string{{"id": garbage, "done": "drop"}}, fromTable(t, got.stdout))
	require.EqualValues(t, 3, dead())

	// Requeued, and still unreadable: they come back.
	require.Equal(t, []any{broken}, fromJSON(t, w.run("dead", "requeue", broken, "-o", "json").ok(t)).(map[string]any)["requeue"])
	require.EqualValues(t, 2, dead())
	_, queue := fromCSV(t, w.run("queue", "-o", "csv").ok(t))
	require.Equal(t, "3", queue[1]["queued_votes"])
	consumer = w.daemon("consumer")
	testkit.Eventually(t, "it is dead again", func() bool { return dead() == 3 })
	require.Equal(t, 0, consumer.Term())
	_, rows = fromCSV(t, w.run("dead", "requeue", "--all", "-o", "csv").ok(t))
	require.Len(t, rows, 3)
	for _, row := range rows {
		require.Equal(t, "requeue", row["done"])
		require.NotRegexp(t, `^[=+@-]`, row["id"])
	}
	require.Zero(t, dead())
	consumer = w.daemon("consumer")
	testkit.Eventually(t, "all are dead again", func() bool { return dead() == 3 })
	require.Equal(t, 0, consumer.Term())

	// Given up: the poll can be final, and the ledger says what was given up.
	table = w.run("dead", "drop", "--all").ok(t)
	require.Equal(t, 4, strings.Count(table, "\n"), table)
	require.NotContains(t, table, "\x1b")
	require.Zero(t, dead())
	_, audit = fromCSV(t, w.run("audit", "-o", "csv").ok(t))
	for name, want := range map[string]string{"accepted": "4", "counted": "1", "dead": "0", "dropped": "3", "queued": "0", "ok": "true"} {
		require.Equal(t, want, audit[0][name], name)
	}
	require.Contains(t, w.run("demo", "--final").ok(t), "0 pending, final")
}

// More than one page of them.
func TestManyDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var elements []any
	for i := range 250 {
		elements = append(elements, fmt.Sprint("garbage ", i))
	}
	require.NoError(t, w.rdb.RPush(t.Context(), "dead:{0}", elements...).Err())
	_, rows := fromCSV(t, w.run("dead", "list", "-o", "csv").ok(t))
	require.Len(t, rows, 250)
	got := fromJSON(t, w.run("dead", "drop", rows[3]["id"], rows[200]["id"], "-o", "json").ok(t))
	require.ElementsMatch(t, []any{rows[3]["id"], rows[200]["id"]}, got.(map[string]any)["drop"])
	_, left := fromCSV(t, w.run("dead", "requeue", "--all", "-o", "csv").ok(t))
	require.Len(t, left, 248)
	require.EqualValues(t, 248, w.rdb.LLen(t.Context(), "votes:{0}").Val())
}
