package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"paredao/internal/vote"
)

const pollsYAML = `
polls:
  - id: paredao-07
    title: Quem você quer eliminar?
    options:
      - {id: ana, name: Ana}
      - {id: bruno, name: Bruno}
  - id: later
    title: Later
    options: [{id: x}, {id: y}]
    opens_at: 2999-01-20T22:00:00-03:00
    closes_at: 2999-01-22T23:30:00.5-03:00
`

const pollsJSON = `{"polls": [
	{"id": "paredao-07", "title": "Quem você quer eliminar?", "options": [{"id": "ana", "name": "Ana"}, {"id": "bruno", "name": "Bruno"}]},
	{"id": "later", "title": "Later", "options": [{"id": "x"}, {"id": "y"}],
	 "opens_at": "2999-01-21T01:00:00Z", "closes_at": "2999-01-23T02:30:00.500Z"}
]}`

// write puts a file into the cli's folder.
func (c *cli) write(name, text string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	require.NoError(c.t, os.WriteFile(path, []byte(text), 0o600))
	return name
}

func TestPollsApply(t *testing.T) {
	w := newWorld(t, 2)
	w.write("polls.yaml", pollsYAML)
	w.write("polls.json", pollsJSON)

	require.Equal(t, "poll        change\nparedao-07  created\nlater       created\n",
		w.run("polls", "apply", "-f", "polls.yaml").ok(t))
	// The same polls again, written in another way, change nothing.
	require.Equal(t, []any{
		map[string]any{"poll": "paredao-07", "change": "same"}, map[string]any{"poll": "later", "change": "same"},
	}, fromJSON(t, w.run("polls", "apply", "-f", "polls.json", "-o", "json").ok(t)))
	require.Equal(t, "poll,change\r\nparedao-07,same\r\nlater,same\r\n",
		w.runWith(pollsJSON, "polls", "apply", "-f", "-", "-o", "csv").ok(t))
	require.Equal(t, w.run("polls", "apply", "-f", "polls.json").ok(t), w.runWith(pollsYAML, "polls", "apply", "--file=-").ok(t))

	// All shards have them.
	shards, err := w.store.ShardPolls(t.Context())
	require.NoError(t, err)
	require.Len(t, shards, 2)
	require.Equal(t, shards[0].Windows, shards[1].Windows)
	require.Len(t, shards[0].Windows, 2)

	t.Run("a change", func(t *testing.T) {
		got := w.in(t).runWith(strings.Replace(pollsYAML, "title: Later", "title: Still later", 1), "polls", "apply", "-f", "-")
		require.Equal(t, "poll        change\nparedao-07  same\nlater       changed\n", got.ok(t))
	})
	t.Run("what has happened stays", func(t *testing.T) {
		again := strings.Replace(pollsYAML, "      - {id: bruno, name: Bruno}\n", "      - {id: bruno, name: Bruno}\n    opens_at: 2999-01-01T00:00:00Z\n", 1)
		got := w.in(t).runWith(again, "polls", "apply", "-f", "-", "-o", "csv")
		require.Equal(t, 0, got.code)
		require.Contains(t, got.stdout, "paredao-07,kept\r\n")
		require.Equal(t, 1, strings.Count(got.stderr, "\n"), got.stderr)
		require.Contains(t, got.stderr, "paredao-07")
	})
	t.Run("options of a poll with votes", func(t *testing.T) {
		w.poll("busy", "a", "b")
		w.queue(1, "busy", map[string]int{"a": 1})
		c := w.in(t)
		const file = "polls: [{id: new, options: [{id: a}]}, {id: busy, options: [{id: a}, {id: c}]}, {id: never, options: [{id: a}]}]"
		for i, change := range []string{"created", "same"} {
			got := c.runWith(file, "polls", "apply", "-f", "-", "-o", forms[2-i])
			got.says(t, 1, "poll busy", "options of a poll with votes can't change")
			require.Contains(t, got.stdout, "new", "what was written is shown")
			require.Contains(t, got.stdout, change)
			require.NotContains(t, got.stdout, "busy")
		}
		c.run("polls", "show", "never").fails(t, 1, "poll not found")
		// It takes votes as before.
		w.queue(0, "busy", map[string]int{"b": 1})
		w.queue(1, "busy", map[string]int{"b": 1})
		// Names may change.
		require.Contains(t, c.runWith("polls: [{id: busy, title: New, options: [{id: a, name: X}, {id: b}]}]", "polls", "apply", "-f", "-").ok(t), "changed")
	})
}

// A file with a fault writes nothing at all, and one line says what is wrong.
func TestPollsApplyInvalid(t *testing.T) {
	w := newWorld(t, 1)
	long := strings.Repeat("ã", 201)
	for name, test := range map[string]struct{ text, want string }{
		"empty":            {"", "empty"},
		"no polls":         {"polls: []", "no polls"},
		"no YAML":          {"polls: [", ""},
		"no YAML, quoted":  {"polls:\n  - id: a\n    title: \"\x1b[31m\n", ""},
		"a list":           {"- id: a", ""},
		"unknown field":    {"polls: [{id: a, options: [{id: a}], colour: red}]", "colour"},
		"wrong id":         {"polls: [{id: good, options: [{id: a}]}, {id: Bad, options: [{id: a}]}]", `"Bad"`},
		"wrong option":     {"polls: [{id: a, options: [{id: ../x}]}]", "../x"},
		"no options":       {"polls: [{id: a, options: []}]", "0 options"},
		"twice":            {"polls: [{id: a, options: [{id: a}]}, {id: a, options: [{id: a}]}]", "twice"},
		"option twice":     {"polls: [{id: a, options: [{id: a}, {id: a}]}]", "twice"},
		"long title":       {"polls: [{id: a, title: " + long + ", options: [{id: a}]}]", "201 characters"},
		"time":             {"polls: [{id: a, options: [{id: a}], closes_at: tomorrow}]", "closes_at"},
		"closes before":    {"polls: [{id: a, options: [{id: a}], opens_at: 2999-01-02T00:00:00Z, closes_at: 2999-01-01T00:00:00Z}]", "closes_at"},
		"sealed":           {"polls: [{id: a, options: [{id: a}], results: sealed}]", "sealed"},
		"limit":            {"polls: [{id: a, options: [{id: a}], limit: {votes: 1, per: 1m, by: ip}}]", "limit"},
		"ballots":          {"polls: [{id: a, options: [{id: a}], ballots: [{class: x}]}]", "ballots"},
		"many documents":   {"polls: [{id: a, options: [{id: a}]}]\n---\npolls: []", "document"},
		"an escape in ids": {"polls: [{id: \"\\e[31m\", options: [{id: a}]}]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := w.in(t)
			c.write("polls.yaml", test.text)
			for _, form := range forms {
				got := c.run("polls", "apply", "-f", "polls.yaml", "-o", form)
				got.fails(t, 1, test.want)
				require.NotContains(t, got.stderr, "\x1b")
				got = c.runWith(test.text, "polls", "apply", "-f", "-", "-o", form)
				got.fails(t, 1, test.want)
			}
			require.Zero(t, w.rdb.HLen(t.Context(), "polls:{0}").Val())
		})
	}
	w.run("polls", "apply", "-f", "nosuch.yaml").fails(t, 1, "nosuch.yaml")
	w.run("polls", "apply", "-f", w.dir).fails(t, 1, "directory")
	w.run("polls", "apply", "-f", "").fails(t, 2, "-f")
	// A file that is wrong is told also where Redis is down.
	w.runWith("polls: []", "polls", "apply", "-f", "-", "--redis-url", "redis://"+refused).fails(t, 1, "no polls")
}

func TestPolls(t *testing.T) {
	w := newWorld(t, 2)
	require.Equal(t, "poll  status  opens_at  closes_at  options  title\n", w.run("polls", "list").ok(t))
	require.Equal(t, "[]\n", w.run("polls", "list", "-o", "json").ok(t))
	require.Equal(t, "poll,status,opens_at,closes_at,options,title\r\n", w.run("polls", "list", "-o", "csv").ok(t))

	require.Equal(t, 0, w.runWith(pollsYAML, "polls", "apply", "-f", "-").code)
	later := map[string]any{
		"id": "later", "title": "Later", "results": "live", "status": "scheduled",
		"opens_at": "2999-01-21T01:00:00Z", "closes_at": "2999-01-23T02:30:00.5Z",
		"options": []any{map[string]any{"id": "x", "name": "x"}, map[string]any{"id": "y", "name": "y"}},
	}
	paredao := map[string]any{
		"id": "paredao-07", "title": "Quem você quer eliminar?", "results": "live", "status": "open",
		"options": []any{map[string]any{"id": "ana", "name": "Ana"}, map[string]any{"id": "bruno", "name": "Bruno"}},
	}
	t.Run("list", func(t *testing.T) {
		c := w.in(t)
		require.Equal(t, []any{later, paredao}, fromJSON(t, c.run("polls", "list", "-o", "json").ok(t)))
		_, rows := fromCSV(t, c.run("polls", "list", "-o", "csv").ok(t))
		want := []map[string]string{
			{"poll": "later", "status": "scheduled", "opens_at": "2999-01-21T01:00:00Z", "closes_at": "2999-01-23T02:30:00.5Z", "options": "2", "title": "Later"},
			{"poll": "paredao-07", "status": "open", "opens_at": "", "closes_at": "", "options": "2", "title": "Quem você quer eliminar?"},
		}
		require.Equal(t, want, rows)
		require.Equal(t, want, fromTable(t, c.run("polls", "list").ok(t)))
	})
	t.Run("show", func(t *testing.T) {
		c := w.in(t)
		require.Equal(t, later, fromJSON(t, c.run("polls", "show", "later", "-o", "json").ok(t)))
		_, rows := fromCSV(t, c.run("polls", "show", "paredao-07", "-o", "csv").ok(t))
		want := []map[string]string{
			{"poll": "paredao-07", "title": "Quem você quer eliminar?", "status": "open", "opens_at": "", "closes_at": "", "option": "ana", "name": "Ana"},
			{"poll": "paredao-07", "title": "Quem você quer eliminar?", "status": "open", "opens_at": "", "closes_at": "", "option": "bruno", "name": "Bruno"},
		}
		require.Equal(t, want, rows)
		require.Equal(t, want, fromTable(t, c.run("polls", "show", "paredao-07").ok(t)))
	})
	t.Run("as over HTTP", func(t *testing.T) {
		c := w.in(t)
		api := w.daemon("api").Ready()
		require.Equal(t, get(t, api.URL()+"/polls").(map[string]any)["polls"], fromJSON(t, c.run("polls", "list", "-o", "json").ok(t)))
		require.Equal(t, get(t, api.URL()+"/polls/later"), fromJSON(t, c.run("polls", "show", "later", "-o", "json").ok(t)))
	})
	t.Run("no such poll", func(t *testing.T) {
		for _, what := range []string{"show", "open", "close"} {
			for _, id := range []string{"nosuch", "Bad", "", "../x", "\x1b[31mx", "a\nb", strings.Repeat("x", 500)} {
				got := w.in(t).run("polls", what, id)
				got.fails(t, 1, "poll not found")
				require.NotContains(t, got.stderr, "\x1b")
				require.Less(t, len(got.stderr), 200)
			}
		}
	})
}

func TestOpenAndClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	future := time.Now().Add(1000 * time.Hour).Truncate(time.Second)
	for _, id := range []string{"one", "two", "three"} {
		w.apply(vote.Poll{ID: id, Title: id, Results: vote.ResultsLive, Options: []vote.Option{{ID: "a", Name: "A"}}}, vote.Window{Opens: future})
	}
	status := func(id string) string {
		var p struct{ Status string }
		require.NoError(t, json.Unmarshal([]byte(w.run("polls", "show", id, "-o", "json").ok(t)), &p))
		return p.Status
	}
	require.Equal(t, "scheduled", status("one"))
	require.Equal(t, "poll  status\none   open\n", w.run("polls", "open", "one").ok(t))
	require.Equal(t, "open", status("one"))
	require.Equal(t, "poll,status\r\none,open\r\n", w.run("polls", "open", "one", "-o", "csv").ok(t), "once more is no fault")
	require.Equal(t, map[string]any{"poll": "two", "status": "open"}, fromJSON(t, w.run("polls", "open", "two", "-o", "json").ok(t)))

	// With votes to count it is closed, without any it is final.
	w.queue(1, "one", map[string]int{"a": 3})
	require.Equal(t, "poll  status\none   closed\n", w.run("polls", "close", "one").ok(t))
	require.Equal(t, map[string]any{"poll": "two", "status": "final"}, fromJSON(t, w.run("polls", "close", "two", "-o", "json").ok(t)))
	require.Equal(t, "poll,status\r\nthree,final\r\n", w.run("polls", "close", "three", "-o", "csv").ok(t), "a poll that never opened")
	require.Equal(t, "poll,status\r\nthree,final\r\n", w.run("polls", "close", "three", "-o", "csv").ok(t), "once more is no fault")
	require.Equal(t, "closed", status("one"))

	// Once closed, no shard takes a vote, and it stays so.
	for shard := range 2 {
		shards, err := w.store.ShardPolls(t.Context())
		require.NoError(t, err)
		require.Equal(t, vote.StatusClosed, shards[shard].Windows["one"].Status(shards[shard].Now))
	}
	for _, form := range forms {
		w.run("polls", "open", "one", "-o", form).fails(t, 1, "poll one", "never opens again")
	}
	got := w.runWith("polls: [{id: one, title: one, options: [{id: a, name: A}]}]", "polls", "apply", "-f", "-")
	require.Equal(t, 0, got.code)
	require.Equal(t, "closed", status("one"))
}
