package pollfile

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/vote"
)

// The contract's own example, less what this version does not know.
const full = `
polls:
  - id: paredao-07
    title: Quem você quer eliminar?
    options:
      - {id: ana, name: Ana}
      - {id: bruno, name: Bruno}
    opens_at: 2026-01-20T22:00:00-03:00     # optional: at once
    closes_at: 2026-01-22T23:30:00-03:00    # optional: open until closed by hand
    results: live
`

func wanted() Definition {
	return Definition{
		Poll: vote.Poll{
			ID: "paredao-07", Title: "Quem você quer eliminar?", Results: vote.ResultsLive,
			Options: []vote.Option{{ID: "ana", Name: "Ana"}, {ID: "bruno", Name: "Bruno"}},
		},
		Window: vote.Window{
			Opens:  time.Date(2026, 1, 21, 1, 0, 0, 0, time.UTC),
			Closes: time.Date(2026, 1, 23, 2, 30, 0, 0, time.UTC),
		},
	}
}

func TestParseYAMLAndJSON(t *testing.T) {
	asJSON := `{
	"polls": [
		{
			"id": "paredao-07",
			"title": "Quem voc\u00ea quer eliminar?",
			"options": [{"id":"ana","name":"Ana"},{"id":"bruno","name":"Bruno"}],
			"opens_at": "2026-01-20T22:00:00-03:00",
			"closes_at": "2026-01-22T23:30:00.0009-03:00"
		}
	]
}`
	for name, text := range map[string]string{
		"YAML":                      full,
		"YAML with Windows's lines": strings.ReplaceAll(full, "\n", "\r\n"),
		"YAML with a mark before":   "\ufeff" + full[1:],
		"JSON indented with tabs":   asJSON,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(strings.NewReader(text))
			require.NoError(t, err)
			assert.Equal(t, []Definition{wanted()}, got)
		})
	}
}

func TestParseFillsIn(t *testing.T) {
	got, err := Parse(strings.NewReader("polls: [{id: a, options: [{id: x}, {id: y, name: ''}], opens_at: null}]"))
	require.NoError(t, err)
	assert.Equal(t, []Definition{{Poll: vote.Poll{
		ID: "a", Title: "a", Results: "live",
		Options: []vote.Option{{ID: "x", Name: "x"}, {ID: "y", Name: "y"}},
	}}}, got)
}

// YAML reads some ids as numbers. They stay what the file says.
func TestParseKeepsIDsAsWritten(t *testing.T) {
	for _, id := range []string{"0", "1", "2", "007", "0x10", "1_000", "1e3", "0b1", "0o17", "no", "true", "yes", "2026-01-20", "9223372036854775808"} {
		got, err := Parse(strings.NewReader("polls: [{id: p, options: [{id: " + id + "}]}]"))
		require.NoError(t, err, id)
		assert.Equal(t, id, got[0].Poll.Options[0].ID)
	}
	got, err := Parse(strings.NewReader("polls: [{id: p, title: 1.50, options: [{id: x, name: 'it''s'}]}]"))
	require.NoError(t, err)
	assert.Equal(t, "1.50", got[0].Poll.Title)
	assert.Equal(t, "it's", got[0].Poll.Options[0].Name)
}

func TestParseKeepsAnyUnicode(t *testing.T) {
	for _, name := range []string{"😀", "é", "e\u0301", "اختبار", "<script>alert(1)</script>", "__proto__", "=1+1", "../x"} {
		text := fmt.Sprintf(`{"polls":[{"id":"a","options":[{"id":"x","name":%q}]}]}`, name)
		got, err := Parse(strings.NewReader(text))
		require.NoError(t, err, name)
		assert.Equal(t, name, got[0].Poll.Options[0].Name)
	}
}

func TestParseRefuses(t *testing.T) {
	poll := func(rest string) string { return "polls:\n  - id: a\n    options: [{id: x}]\n    " + rest + "\n" }
	tests := map[string]struct{ text, says string }{
		"an empty file":                     {"", "empty"},
		"comments only":                     {"# nothing\n", "empty"},
		"no polls":                          {"polls: []", "has no polls"},
		"polls without a list":              {"polls:\n", "has no polls"},
		"a list":                            {"- a", "mapping is expected"},
		"a number":                          {"1", "mapping is expected"},
		"not YAML":                          {"polls: [", "not found"},
		"a tab as indentation":              {"polls:\n\t- id: a\n", "cannot start any token"},
		"not UTF-8":                         {"polls: [{id: a, title: \xff, options: [{id: x}]}]", "not UTF-8"},
		"two documents":                     {poll("") + "---\n" + poll(""), "more than one document"},
		"behind JSON":                       {`{"polls":[{"id":"a","options":[{"id":"x"}]}]} x`, "not allowed"},
		"an unknown field":                  {poll("colour: red"), `unknown field "colour"`},
		"another case":                      {poll("Title: x"), `unknown field "Title"`},
		"a field twice":                     {poll("id: b"), "already defined"},
		"an option as text":                 {"polls: [{id: a, options: [x, y]}]", "mapping is expected"},
		"a list as a title":                 {poll("title: [x]"), "cannot unmarshal"},
		"a poll of null":                    {"polls: [null]", "has 0 options"},
		"no id":                             {"polls: [{options: [{id: x}]}]", "id \"\" does not match"},
		"a bad id":                          {"polls: [{id: Ana Maria, options: [{id: x}]}]", `id "Ana Maria" does not match`},
		"no options":                        {"polls: [{id: a}]", "has 0 options"},
		"an option twice":                   {"polls: [{id: a, options: [{id: x}, {id: x}]}]", `option "x" stands twice`},
		"an option without id":              {"polls: [{id: a, options: [{name: X}]}]", `option id "" does not match`},
		"a long title":                      {poll("title: " + strings.Repeat("é", 201)), "has 201 characters"},
		"NUL":                               {poll(`title: "a\0b"`), "not valid Unicode text"},
		"a poll twice":                      {"polls: [{id: a, options: [{id: x}]}, {id: a, options: [{id: x}]}]", "the id stands twice"},
		"sealed results":                    {poll("results: sealed"), `results "sealed"`},
		"limits":                            {poll("limit: {votes: 10, per: 1m, by: ip}"), "limit is not supported"},
		"ballots":                           {poll("ballots: []"), "ballots are not supported"},
		"a time without zone":               {poll("opens_at: 2026-01-20T22:00:00"), "no time with a zone"},
		"a time with a space":               {poll("opens_at: 2026-01-20 22:00:00-03:00"), "no time with a zone"},
		"a date":                            {poll("closes_at: 2026-01-20"), "no time with a zone"},
		"before time began":                 {poll("closes_at: 1969-12-31T23:59:59Z"), "out of range"},
		"an empty window":                   {poll("opens_at: 2026-01-20T22:00:00Z\n    closes_at: 2026-01-20T22:00:00Z"), "is not after"},
		"closing in the year 10000 by zone": {poll("closes_at: 9999-12-31T23:59:59-03:00"), ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			defs, err := Parse(strings.NewReader(tt.text))
			if tt.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.says)
			assert.Nil(t, defs)
			assertOneLine(t, err)
			assert.True(t, strings.HasPrefix(err.Error(), "the polls file"), err)
		})
	}
}

func assertOneLine(t testing.TB, err error) {
	t.Helper()
	if strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 }) {
		t.Errorf("not one plain line: %q", err)
	}
}

// Everything that is wrong stands in the one line.
func TestParseSaysItAll(t *testing.T) {
	_, err := Parse(strings.NewReader(`
polls:
  - id: Big
    title: "a\0"
    options: [{id: x}, {id: x}, {id: ""}]
    opens_at: soon
    closes_at: later
    results: never
    limit: 1
  - id: fine
    options: [{id: x}]
  - id: small
    options: []
`))
	require.Error(t, err)
	assertOneLine(t, err)
	for _, part := range []string{
		`poll 1 ("Big")`, "id \"Big\"", "Unicode", `option "x" stands twice`, `option id ""`, "opens_at \"soon\"",
		"closes_at \"later\"", "results \"never\"", "limit is not", `poll 3 ("small")`, "has 0 options",
	} {
		assert.ErrorContains(t, err, part)
	}
	assert.NotContains(t, err.Error(), "poll 2")
}

// What the file says may reach a terminal through the error.
func TestParseErrorIsPlain(t *testing.T) {
	for _, text := range []string{
		"polls: [{id: a, options: [{id: x}], \"b\x1b[31m\": 1}]",
		"polls: [{id: \"a\\u2028b\", options: [{id: \"\\e[31m\"}]}]",
		"polls: [{id: \"a\\nb\", options: [{id: x}]}]",
	} {
		_, err := Parse(strings.NewReader(text))
		require.Error(t, err)
		assertOneLine(t, err)
	}
}

func TestParseReadError(t *testing.T) {
	broken := errors.New("broken disk")
	_, err := Parse(iotest.ErrReader(broken))
	require.ErrorIs(t, err, broken)
}

// endless is a file without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '#'
	}
	return len(p), nil
}

func TestParseBoundsTheFile(t *testing.T) {
	_, err := Parse(endless{})
	require.ErrorContains(t, err, "larger than")
}

func FuzzParse(f *testing.F) {
	f.Add(full)
	f.Add(`{"polls":[{"id":"a","options":[{"id":"x","name":"\ud83d\ude00"}]}]}`)
	f.Add("polls: [{id: 007, title: &t 1.50, options: [{id: *t}], <<: {results: live}}]")
	f.Add("polls:\n- id: a\n  title: |\n    b\n  options: [{id: !!str 1}]\n---\n...")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4<<10 {
			return
		}
		defs, err := Parse(strings.NewReader(text))
		if err != nil {
			assertOneLine(t, err)
			if defs != nil {
				t.Error("definitions beside an error")
			}
			return
		}
		if len(defs) == 0 {
			t.Error("nothing, and no error")
		}
		for _, d := range defs {
			if err := errors.Join(d.Poll.Validate(), d.Window.Validate()); err != nil {
				t.Errorf("%+v: %v", d, err)
			}
		}
	})
}
