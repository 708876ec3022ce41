package main

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// get reads JSON from an api.
func get(t *testing.T, url string) any {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, resp.StatusCode, string(text))
	return fromJSON(t, string(text))
}

// withoutTime takes off when results were read.
func withoutTime(t *testing.T, results any) map[string]any {
	t.Helper()
	m := results.(map[string]any)
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$`, m["as_of"])
	delete(m, "as_of")
	return m
}

func TestTotals(t *testing.T) {
	w := newWorld(t, 2)
	require.Equal(t, "No polls. Define some with: tally polls apply -f FILE\n", w.run().ok(t))
	require.Equal(t, "[]\n", w.run("-o", "json").ok(t))
	require.Equal(t, "poll,title,status,final,as_of,total,pending,option,name,votes,percent\r\n", w.run("-o", "csv").ok(t))

	w.poll("thirds", "a", "b", "c", "none")
	w.poll("fresh", "x")
	w.archived("thirds", map[string]int{"a": 5, "b": 5, "c": 5}) // on each of two shards
	w.queue(0, "thirds", map[string]int{"a": 7})                 // pending

	const table = `fresh  Title of fresh  [open]
  option  votes  percent
  x (X)   0      0.00 %
  total   0        0 pending, not final

thirds  Title of thirds  [open]
  option       votes  percent
  a (A)        10     33.34 %  ██████████
  b (B)        10     33.33 %  █████████
  c (C)        10     33.33 %  █████████
  none (NONE)  0      0.00 %
  total        30       7 pending, not final
`
	for _, args := range []string{"", "totals", "fresh thirds", "totals fresh thirds", "-o table", "totals --output=table"} {
		require.Equal(t, table, w.run(strings.Fields(args)...).ok(t), args)
	}
	_, want, _ := strings.Cut(table, "\n\n")
	require.Equal(t, want, w.run("thirds").ok(t))
	require.Equal(t, want, w.run("totals", "thirds").ok(t))

	t.Run("json is as over HTTP", func(t *testing.T) {
		c := w.in(t)
		api := w.daemon("api").Ready()
		var over []any
		for _, poll := range []string{"fresh", "thirds"} {
			over = append(over, withoutTime(t, get(t, api.URL()+"/polls/"+poll+"/results")))
		}
		text := c.run("totals", "-o", "json").ok(t)
		got := fromJSON(t, text).([]any)
		require.Len(t, got, 2)
		for i := range got {
			require.Equal(t, over[i], withoutTime(t, got[i]))
		}
		require.ElementsMatch(t, []string{"poll", "title", "status", "final", "total", "pending", "options"}, keys(got[1]))
		require.Contains(t, text, `"percent": 33.34`)
		require.Contains(t, text, `"percent": 0.00`)
	})
	t.Run("csv", func(t *testing.T) {
		head, rows := fromCSV(t, w.in(t).run("totals", "thirds", "-o", "csv").ok(t))
		require.Equal(t, []string{"poll", "title", "status", "final", "as_of", "total", "pending", "option", "name", "votes", "percent"}, head)
		require.Len(t, rows, 4)
		for i, want := range []string{"33.34", "33.33", "33.33", "0.00"} {
			require.Equal(t, want, rows[i]["percent"])
		}
		require.NotEmpty(t, rows[0]["as_of"])
		delete(rows[0], "as_of")
		require.Equal(t, map[string]string{
			"poll": "thirds", "title": "Title of thirds", "status": "open", "final": "false", "total": "30", "pending": "7",
			"option": "a", "name": "A", "votes": "10", "percent": "33.34",
		}, rows[0])
	})
	t.Run("no such poll", func(t *testing.T) {
		c := w.in(t)
		for _, form := range forms {
			c.run("totals", "nosuch", "-o", form).fails(t, 1, "poll nosuch: poll not found")
			c.run("totals", "thirds", "nosuch", "-o", form).fails(t, 1, "poll nosuch")
			c.run("thirds", "nosuch", "-o", form).fails(t, 1, "poll nosuch")
			// The first word may have been meant for a command.
			c.run("nosuch", "-o", form).fails(t, 2, `"nosuch" is neither a command nor a poll`)
			c.run("nosuch", "thirds", "-o", form).fails(t, 2, `"nosuch" is neither`)
		}
		for _, id := range []string{"", "Bad", "\x1b[31mx", "a\nb"} {
			got := c.run("totals", id)
			got.fails(t, 1, "poll not found")
			require.NotContains(t, got.stderr, "\x1b")
			c.run(id).fails(t, 2, "neither a command nor a poll")
		}
		c.run("totals", "thirds", "nosuch", "--watch").fails(t, 1, "poll nosuch")
		c.run("totals", "thirds", "nosuch", "--final").fails(t, 1, "poll nosuch")
	})
}

// No number is rounded on its way, and the percentages add up.
func TestLargeNumbers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.poll("large", "a", "b", "c")
	const a, b, c = "9007199254740993", "9007199254740995", "1" // 2^53 + 1 and + 3
	ctx := t.Context()
	require.NoError(t, w.rdb.HSet(ctx, "tally:{0}:large", "a", a, "c", c).Err())
	require.NoError(t, w.rdb.HSet(ctx, "tally:{1}:large", "b", b).Err())
	for shard, n := range map[string]string{"0": "9007199254740994", "1": b} {
		require.NoError(t, w.rdb.HSet(ctx, "ledger:{"+shard+"}", "accepted:large", "9007199254740999", "counted:large", n, "archived:large", n).Err())
	}
	const total, pending = "18014398509481989", "9"
	got := fromJSON(t, w.run("-o", "json").ok(t)).([]any)[0].(map[string]any)
	require.Equal(t, total, fmt.Sprint(got["total"]))
	require.Equal(t, pending, fmt.Sprint(got["pending"]))
	_, rows := fromCSV(t, w.run("-o", "csv").ok(t))
	table := w.run().ok(t)
	require.Regexp(t, `(?m)^  total +`+total+` `, table)
	require.Contains(t, table, pending+" pending")
	sum := 0
	for i, want := range []string{a, b, c} {
		require.Equal(t, want, fmt.Sprint(got["options"].([]any)[i].(map[string]any)["votes"]))
		require.Equal(t, want, rows[i]["votes"])
		require.Equal(t, total, rows[i]["total"])
		require.Regexp(t, rows[i]["name"]+`\) +`+want+" ", table)
		sum += hundredths(t, rows[i]["percent"])
	}
	require.Equal(t, 10000, sum)
	_, rows = fromCSV(t, w.run("audit", "-o", "csv").stdout)
	require.Equal(t, "18014398509481998", rows[0]["accepted"])
	require.Equal(t, total, rows[0]["counted"])

	// A number that is none is no zero.
	require.NoError(t, w.rdb.HSet(ctx, "tally:{0}:large", "a", "9223372036854775808").Err())
	for _, form := range forms {
		w.run("-o", form).fails(t, 1, "large")
	}
	require.NoError(t, w.rdb.HSet(ctx, "tally:{0}:large", "a", "1.5").Err())
	w.run("large").fails(t, 1, "large")
	require.NoError(t, w.rdb.Del(ctx, "tally:{0}:large").Err())
	require.NoError(t, w.rdb.Set(ctx, "tally:{0}:large", "7", 0).Err())
	w.run().fails(t, 1, "WRONGTYPE")
}

// hundredths of a percentage as it is printed.
func hundredths(t *testing.T, percent string) int {
	t.Helper()
	require.Regexp(t, `^\d+\.\d\d$`, percent)
	n, err := strconv.Atoi(strings.Replace(percent, ".", "", 1))
	require.NoError(t, err)
	return n
}

func TestPercentages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	polls := map[string][]int{
		"sixths": {1, 1, 1, 1, 1, 1}, "sevenths": {1, 1, 1, 1, 1, 1, 1}, "all": {5, 0, 0}, "odd": {1, 2, 3, 5, 7, 11, 13},
		"tie": {2, 2}, "replay": {421611, 421342, 422597},
	}
	for id, votes := range polls {
		var options []string
		for i, n := range votes {
			options = append(options, fmt.Sprint("o", i))
			require.NoError(t, w.rdb.HSet(t.Context(), "tally:{0}:"+id, options[i], n).Err())
		}
		w.poll(id, options...)
	}
	for id, votes := range polls {
		_, rows := fromCSV(t, w.run(id, "-o", "csv").ok(t))
		sum := 0
		for i, row := range rows {
			require.Equal(t, fmt.Sprint("o", i), row["option"], "the poll's order")
			require.Equal(t, strconv.Itoa(votes[i]), row["votes"])
			sum += hundredths(t, row["percent"])
		}
		require.Equal(t, 10000, sum, id)
	}
	table := w.run("replay").ok(t)
	for _, n := range []string{"421611", "421342", "422597", "1265550"} {
		require.Contains(t, table, n)
	}
}

// Titles and names are any text, a line break included: it is shown as text
// everywhere, and steers neither a terminal nor a spreadsheet.
func TestText(t *testing.T) {
	w := newWorld(t, 1)
	texts := []string{
		"=1+1", "@SUM(A1)", "-1", "+1", "\t=1", "\r\n=1", `say "hi", 'you'`, "one\ntwo\r\nthree\rfour", "\x1b[31mred\x1b[0m\x1b[2J",
		"\x1b]0;owned\a", "\u009b31m", "👨\u200d👩\u200d👧 🎉", "שלום עולם", "\u202Etxt.exe", "{{.}} <script>alert(1)</script> %s %d \\",
		"日本\u3000語", strings.Repeat("ã", 200), "  blanks  ", "constructor", "__proto__", "e\u0301 é", ",", "''",
	}
	p := vote.Poll{ID: "text", Title: "\x1b[31m=A1\n\"x\",y", Results: vote.ResultsLive}
	for i, text := range texts {
		p.Options = append(p.Options, vote.Option{ID: fmt.Sprint("o", i), Name: text})
	}
	w.apply(p, vote.Window{})
	// Beginning with a sign of a formula.
	w.apply(vote.Poll{ID: "formula", Title: "=HYPERLINK(\"http://x\")", Results: vote.ResultsLive, Options: p.Options[:1]}, vote.Window{})

	for _, args := range []string{"text", "totals formula text", "polls show text", "polls list"} {
		t.Run(args, func(t *testing.T) {
			c := w.in(t)
			words := strings.Fields(args)
			table := c.run(words...).ok(t)
			for _, r := range table {
				require.False(t, r < ' ' && r != '\n' || r >= 0x7f && r <= 0x9f || r == '\u202E', "%U in %q", r, table)
			}
			csv := c.run(append(words, "-o", "csv")...).ok(t)
			_, rows := fromCSV(t, csv)
			for _, row := range rows {
				for _, cell := range row {
					require.False(t, cell != "" && strings.ContainsAny(cell[:1], "=+-@\t\r\n"), "%q", cell)
				}
			}
			if args == "polls list" {
				require.Equal(t, "'"+"=HYPERLINK(\"http://x\")", rows[0]["title"])
				require.Equal(t, p.Title, rows[1]["title"])
				return
			}
			rows = rows[len(rows)-len(texts):]
			for i, text := range texts {
				require.Equal(t, inert(text), rows[i]["name"])
				require.Equal(t, p.Title, rows[i]["title"])
				// One line each, whatever the text holds.
				require.Regexp(t, fmt.Sprintf(`(?m)^.*\bo%d\b.*$`, i), table)
			}
			require.LessOrEqual(t, strings.Count(table, "\n"), len(texts)+8)
		})
	}
	// JSON is exact.
	options := fromJSON(t, w.run("text", "-o", "json").ok(t)).([]any)[0].(map[string]any)["options"].([]any)
	for i, text := range texts {
		require.Equal(t, text, options[i].(map[string]any)["name"])
	}
}

func TestFinal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.run("--final").fails(t, 1, "no polls")
	w.poll("demo", "a", "b")
	w.queue(0, "demo", map[string]int{"a": 2, "b": 1})
	w.queue(1, "demo", map[string]int{"a": 1})
	for _, form := range forms {
		w.run("--final", "--timeout", "1ms", "-o", form).fails(t, 1, "not final after 1ms")
	}
	w.run("totals", "demo", "--final", "--timeout", "300ms").fails(t, 1, "not final after 300ms: demo is open with 4 pending")

	// It waits for the close, and for the votes that are still to be counted.
	var runs []*running
	for _, form := range forms {
		runs = append(runs, w.start(w.command("totals", "demo", "--final", "-o", form)))
	}
	require.Contains(t, w.run("polls", "close", "demo").ok(t), "closed")
	w.run("totals", "demo", "--final", "--timeout", "1s").fails(t, 1, "demo is closed with 4 pending")
	for _, r := range runs {
		require.Empty(t, r.stdout.String())
	}
	w.daemon("consumer")
	table := runs[0].wait().ok(t)
	require.Contains(t, table, "demo  Title of demo  [final]\n")
	require.Contains(t, table, "0 pending, final")
	got := fromJSON(t, runs[1].wait().ok(t)).([]any)[0].(map[string]any)
	require.Equal(t, true, got["final"])
	require.Equal(t, "final", got["status"])
	require.Equal(t, "4", fmt.Sprint(got["total"]))
	_, rows := fromCSV(t, runs[2].wait().ok(t))
	require.Equal(t, "3", rows[0]["votes"])
	require.Equal(t, "true", rows[0]["final"])
	require.Equal(t, table, w.run("--final", "--timeout", "1h").ok(t))

	// All of several must be final.
	w.poll("open", "a")
	w.run("--final", "--timeout", "1s").fails(t, 1, "open is open with 0 pending")
	require.Contains(t, w.run("demo", "--final").ok(t), "[final]")
}

// Whoever waits for the final totals and is interrupted has none.
func TestFinalInterrupted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.poll("demo", "a")
	proxy := testkit.NewProxy(t, w.redis.Addr())
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		third := watchReads(proxy, 3) // so it waits
		run := w.start(w.command("--final", "--redis-url", proxy.URL()))
		<-third
		run.signal(s).wait().fails(t, 1, "interrupted")
	}
}

// watchReads returns a channel that is closed when results are read for the
// nth time from now.
func watchReads(proxy *testkit.Proxy, n int) <-chan struct{} {
	seen := 0
	held, release := proxy.HoldNext(func(cmd []string) bool {
		// EVALSHA script 3 tally:{0}:demo ledger:{0} windows:{0} demo
		if len(cmd) > 3 && strings.EqualFold(cmd[0], "EVALSHA") && strings.HasPrefix(cmd[3], "tally:") {
			seen++
		}
		return seen == n
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-held
		release()
	}()
	return done
}

var positiveRate = regexp.MustCompile(` [1-9][0-9]* votes/s`)

func TestWatch(t *testing.T) {
	w := newWorld(t, 1)
	w.poll("demo", "a", "b")
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		for _, form := range forms {
			t.Run(form+" "+s.String(), func(t *testing.T) {
				c := w.in(t)
				run := c.start(c.command("--watch", "-o", form))
				first := map[string]string{"table": "[open]", "json": `"poll": "demo"`, "csv": "poll,title"}[form]
				run.stdout.await(t, first, 2)
				text := run.signal(s).wait().ok(t)
				require.NotContains(t, text, "\x1b", "no terminal, no drawing")
				switch form {
				case "table":
					require.Contains(t, text, "votes/s")
				case "csv":
					states := strings.Split(strings.TrimPrefix(text, "poll,"), "\npoll,")
					for _, state := range states {
						_, rows := fromCSV(t, "poll,"+state+map[bool]string{true: "\n"}[!strings.HasSuffix(state, "\n")])
						require.Len(t, rows, 2)
					}
				}
			})
		}
	}
	t.Run("votes a second", func(t *testing.T) {
		c := w.in(t)
		consumer := w.daemon("consumer")
		run := c.start(c.command("totals", "demo", "--watch"))
		run.stdout.await(t, "0 votes/s", 1)
		w.queue(0, "demo", map[string]int{"a": 900})
		testkit.Eventually(t, "a rate above 0 is shown", func() bool {
			return strings.Contains(run.stdout.String(), "900") && positiveRate.MatchString(run.stdout.String())
		})
		run.signal(syscall.SIGINT).wait().ok(t)
		require.Equal(t, 0, consumer.Term())
	})
	t.Run("Redis goes away", func(t *testing.T) {
		proxy := testkit.NewProxy(t, w.redis.Addr())
		c := w.in(t)
		run := c.start(c.command("--watch", "--redis-url", proxy.URL()))
		run.stdout.await(t, "[open]", 1)
		proxy.Close()
		run.wait().says(t, 1, "can't read Redis")
	})
}
