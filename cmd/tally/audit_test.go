package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var auditColumns = []string{
	"poll", "accepted", "counted", "queued", "dead", "dropped", "archived", "awaiting_archive", "recounted", "ok", "differences",
}

// files are an archive's files with that ending.
func (w *world) files(ending string) (paths []string) {
	w.t.Helper()
	require.NoError(w.t, filepath.WalkDir(w.archive, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ending) {
			paths = append(paths, path)
		}
		return err
	}))
	require.NotEmpty(w.t, paths)
	return paths
}

// auditedWorld has votes in all places but the dead list: archived, awaiting
// archive, and queued, on two shards.
func auditedWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 2)
	w.poll("demo", "a", "b")
	w.poll("other", "x")
	w.archived("demo", map[string]int{"a": 20, "b": 1})
	w.archived("other", map[string]int{"x": 2})
	w.queue(0, "demo", map[string]int{"a": 3})
	consumer := w.daemon("consumer")
	require.Eventually(t, func() bool { return w.rdb.LLen(t.Context(), "archive:{0}").Val() == 1 }, patience, pollEvery/100)
	require.Equal(t, 0, consumer.Term())
	w.queue(1, "demo", map[string]int{"b": 5})
	return w
}

func TestAudit(t *testing.T) {
	newWorld(t, 1).run("audit").fails(t, 1, "no polls")
	w := auditedWorld(t)
	row := map[string]string{
		"poll": "demo", "accepted": "50", "counted": "45", "queued": "5", "dead": "0", "dropped": "0", "archived": "42",
		"awaiting_archive": "3", "recounted": "", "ok": "true",
	}
	for _, args := range []string{"audit", "audit --recount", "audit demo other", "audit demo --recount", "audit demo demo"} {
		t.Run(args, func(t *testing.T) {
			c := w.in(t)
			words := strings.Fields(args)
			want := map[string]string{}
			for k, v := range row {
				want[k] = v
			}
			if strings.Contains(args, "recount") {
				want["recounted"] = "42"
			}
			table := c.run(words...).ok(t)
			require.Regexp(t, `\nEverything adds up\. As of \d{4}-\S+Z\.\n$`, table)
			require.Equal(t, want, fromTable(t, table)[0])
			head, rows := fromCSV(t, c.run(append(words, "-o", "csv")...).ok(t))
			require.Equal(t, auditColumns, head)
			require.Empty(t, rows[0]["differences"])
			delete(rows[0], "differences")
			require.Equal(t, want, rows[0])
			require.Len(t, rows, map[bool]int{true: 1, false: 2}[strings.Contains(args, "demo") && !strings.Contains(args, "other")])

			report := fromJSON(t, c.run(append(words, "-o", "json")...).ok(t)).(map[string]any)
			require.ElementsMatch(t, []string{"as_of", "polls", "differences", "unreadable_elements", "repeated_frames"}, keys(report))
			require.Empty(t, report["differences"])
			poll := report["polls"].([]any)[0].(map[string]any)
			for name, value := range want {
				if name == "recounted" && value == "" {
					require.Nil(t, poll[name])
					continue
				}
				require.Equal(t, value, fmt.Sprint(poll[name]), name)
			}
		})
	}
	w.run("audit", "nosuch").fails(t, 1, "poll nosuch: poll not found")
	w.run("audit", "demo", "nosuch", "--recount", "-o", "csv").fails(t, 1, "poll nosuch")
	w.run("audit", "\x1b[31m").fails(t, 1, "poll not found")
	w.run("audit", "--recount", "--archive-url", "azblob://votes").fails(t, 2, "AZURE_STORAGE_CONNECTION_STRING")
}

// Whatever was tampered with, the exit code is 3, and the data says what it is.
func TestAuditDifference(t *testing.T) {
	w := auditedWorld(t)
	ctx := t.Context()
	// differs runs the audit in each form.
	differs := func(t *testing.T, poll, what string, args ...string) {
		t.Helper()
		c := w.in(t)
		for _, form := range forms {
			got := c.run(append(append([]string{"audit"}, args...), "-o", form)...)
			got.says(t, 3, "the audit found a difference")
			switch form {
			case "table":
				require.Contains(t, got.stdout, "DIFFERENCE: ")
				require.Contains(t, got.stdout, what)
				require.Regexp(t, `\nIt does not add up\. As of \S+\n$`, got.stdout)
			case "csv":
				_, rows := fromCSV(t, got.stdout)
				require.Equal(t, poll, rows[0]["poll"])
				require.Equal(t, "false", rows[0]["ok"])
				require.Contains(t, rows[0]["differences"], what)
			case "json":
				report := fromJSON(t, got.stdout).(map[string]any)
				require.Contains(t, fmt.Sprint(report["differences"]), what)
				for _, p := range report["polls"].([]any) {
					if p := p.(map[string]any); p["poll"] == poll {
						require.Equal(t, false, p["ok"])
					}
				}
			}
		}
	}
	fine := func(t *testing.T, args ...string) {
		t.Helper()
		w.in(t).run(append([]string{"audit"}, args...)...).ok(t)
	}
	t.Run("a vote more in the tally", func(t *testing.T) {
		require.NoError(t, w.rdb.HIncrBy(ctx, "tally:{0}:demo", "a", 1).Err())
		differs(t, "demo", "counted is 24, but the tally adds up to 25")
		differs(t, "demo", "option a", "demo", "--recount")
		fine(t, "other")
		require.NoError(t, w.rdb.HIncrBy(ctx, "tally:{0}:demo", "a", -1).Err())
		fine(t)
	})
	t.Run("a vote moved to another option", func(t *testing.T) {
		require.NoError(t, w.rdb.HIncrBy(ctx, "tally:{0}:demo", "a", -1).Err())
		require.NoError(t, w.rdb.HIncrBy(ctx, "tally:{0}:demo", "b", 1).Err())
		fine(t) // only the recount can see it
		differs(t, "demo", "option a: the tally is 22", "--recount")
		require.NoError(t, w.rdb.HIncrBy(ctx, "tally:{0}:demo", "a", 1).Err())
		require.NoError(t, w.rdb.HIncrBy(ctx, "tally:{0}:demo", "b", -1).Err())
	})
	t.Run("an option that the poll does not have", func(t *testing.T) {
		require.NoError(t, w.rdb.HSet(ctx, "tally:{1}:demo", "\x1b[31mnobody", 1).Err())
		got := w.in(t).run("audit", "--recount")
		require.Equal(t, 3, got.code)
		require.NotContains(t, got.stdout+got.stderr, "\x1b")
		require.NoError(t, w.rdb.HDel(ctx, "tally:{1}:demo", "\x1b[31mnobody").Err())
	})
	t.Run("accepted votes that are nowhere", func(t *testing.T) {
		require.NoError(t, w.rdb.HIncrBy(ctx, "ledger:{1}", "accepted:demo", 2).Err())
		differs(t, "demo", "accepted is 28, but counted 21 + queued 5")
		require.NoError(t, w.rdb.HIncrBy(ctx, "ledger:{1}", "accepted:demo", -2).Err())
		fine(t)
	})
	t.Run("a frame that was taken off the queue", func(t *testing.T) {
		frame, err := w.rdb.LPop(ctx, "votes:{1}").Result()
		require.NoError(t, err)
		differs(t, "demo", "queued 0")
		require.NoError(t, w.rdb.LPush(ctx, "votes:{1}", frame).Err())
		fine(t)
	})
	t.Run("an object with other bytes", func(t *testing.T) {
		path := w.files(".parquet")[0]
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, content := range [][]byte{make([]byte, len(whole)), whole[:len(whole)/2], {}} {
			require.NoError(t, os.WriteFile(path, content, 0o600))
			fine(t)
			differs(t, "demo", "archive", "--recount")
			w.in(t).run("recount").fails(t, 1, "the recount could not be done")
		}
		require.NoError(t, os.Remove(path))
		differs(t, "demo", "archive", "--recount")
		w.in(t).run("recount", "-o", "csv").fails(t, 1, "the recount could not be done")
		require.NoError(t, os.WriteFile(path, whole, 0o600))
		fine(t, "--recount")
	})
	t.Run("a manifest that is gone", func(t *testing.T) {
		path := w.files(".json")[0]
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, os.Remove(path))
		differs(t, "demo", "archived is 21, but the archive has 0", "--recount")
		require.NoError(t, os.WriteFile(path, whole, 0o600))
		fine(t, "--recount")
	})
	t.Run("a poll that has lost its window", func(t *testing.T) {
		window, err := w.rdb.HGet(ctx, "windows:{0}", "other").Result()
		require.NoError(t, err)
		require.NoError(t, w.rdb.HDel(ctx, "windows:{0}", "other").Err())
		c := w.in(t)
		for _, form := range forms {
			got := c.run("audit", "-o", form)
			got.says(t, 3, "difference", "other")
			require.Contains(t, got.stdout, "other")
			require.Contains(t, got.stdout, "definition")
		}
		_, rows := fromCSV(t, c.run("audit", "-o", "csv").stdout)
		require.Equal(t, "other", rows[len(rows)-1]["poll"])
		require.Equal(t, "false", rows[len(rows)-1]["ok"])
		require.NoError(t, w.rdb.HSet(ctx, "windows:{0}", "other", window).Err())
		fine(t)
	})
	t.Run("a foreign file among the manifests", func(t *testing.T) {
		path := filepath.Join(w.archive, "manifest", "0", "note\x1b[31m.txt")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		fine(t)
		differs(t, "demo", "is no manifest", "--recount")
		require.NoError(t, os.Remove(path))
		fine(t, "--recount")
	})
	t.Run("the whole archive is gone", func(t *testing.T) {
		got := w.in(t).run("audit", "--recount", "--archive-url", "file:"+t.TempDir())
		got.says(t, 3, "difference")
		require.Contains(t, got.stdout, "archived is ")
	})
	t.Run("Redis has lost what is archived", func(t *testing.T) {
		require.NoError(t, w.rdb.FlushAll(ctx).Err())
		w.in(t).run("audit").fails(t, 1, "no polls")
		differs(t, "", "Redis does not know", "--recount")
		w.poll("demo", "a", "b")
		differs(t, "demo", "Redis does not know", "--recount")
	})
}

func TestRecount(t *testing.T) {
	t.Parallel()
	w := auditedWorld(t)
	w.redis.Kill() // it needs none
	c := newCLI(t, "PAREDAO_ARCHIVE_URL=file:"+w.archive)
	demo := map[string]any{"poll": "demo", "total": "42", "options": []any{
		map[string]any{"id": "a", "votes": "40", "percent": "95.24"}, map[string]any{"id": "b", "votes": "2", "percent": "4.76"},
	}}
	other := map[string]any{"poll": "other", "total": "4", "options": []any{map[string]any{"id": "x", "votes": "4", "percent": "100.00"}}}
	require.Equal(t, []any{demo, other}, asText(fromJSON(t, c.run("recount", "-o", "json").ok(t))))
	require.Equal(t, []any{other}, asText(fromJSON(t, c.run("recount", "other", "-o", "json").ok(t))))
	require.Equal(t, "poll,option,votes,percent\r\ndemo,a,40,95.24\r\ndemo,b,2,4.76\r\nother,x,4,100.00\r\n", c.run("recount", "-o", "csv").ok(t))
	table := c.run("recount", "demo", "demo").ok(t)
	require.True(t, strings.HasPrefix(table, "poll  option  votes  percent\ndemo  a       40     95.24\ndemo  b       2      4.76\n"), table)
	require.Regexp(t, `\n\d+ batches, \d+ objects, \d+ frames; 0 frames were archived more than once and counted once\.\n$`, table)

	// A folder can be named in each way, and nothing is made of one that is not there.
	require.NoError(t, os.Symlink(w.archive, filepath.Join(c.dir, "archive")))
	require.NoError(t, os.Mkdir(filepath.Join(c.dir, "data"), 0o700))
	require.NoError(t, os.Symlink(w.archive, filepath.Join(c.dir, "data", "archive")))
	for _, url := range []string{"file:./archive", "file:archive", "file://" + w.archive, "file:./data/archive"} {
		require.Equal(t, table, c.run("recount", "demo", "--archive-url", url).ok(t), url)
	}
	c.env = nil
	require.Equal(t, table, c.run("recount", "demo").ok(t), "where allinone has it")
	for _, form := range forms {
		c.run("recount", "nosuch", "-o", form).fails(t, 1, "poll nosuch has no votes in the archive", "poll not found")
		c.run("recount", "demo", "nosuch", "-o", form).fails(t, 1, "poll nosuch")
		c.run("recount", "--archive-url", "file:./nosuch", "-o", form).fails(t, 1, "holds no batches", "--archive-url")
	}
	c.run("recount", "../demo").fails(t, 1, "poll not found")
	require.NoFileExists(t, filepath.Join(c.dir, "nosuch"))
	c.write("file", "x")
	c.run("recount", "--archive-url", "file:./file").fails(t, 1)
	c.run("recount", "--archive-url", "azblob://votes").fails(t, 2, "AZURE_STORAGE_CONNECTION_STRING")
}

// asText turns all numbers into text.
func asText(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = asText(v[k])
		}
	case []any:
		for i := range v {
			v[i] = asText(v[i])
		}
	case fmt.Stringer:
		return v.String()
	}
	return v
}
