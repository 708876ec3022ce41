package pollfile

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"paredao/internal/vote"
)

// jsonFile is a polls file as encoding/json reads it.
type jsonFile struct {
	Polls []struct {
		ID       string `json:"id"`
		Title    string `json:"title"`
		OpensAt  string `json:"opens_at"`
		ClosesAt string `json:"closes_at"`
		Results  string `json:"results"`
		Options  []struct {
			ID   string `json:"id"`
			Name string `json:"name"`
		} `json:"options"`
	} `json:"polls"`
}

func (f *jsonFile) definitions() []Definition {
	var defs []Definition
	for _, p := range f.Polls {
		def := Definition{
			Poll:   vote.Poll{ID: p.ID, Title: orElse(p.Title, p.ID), Results: orElse(p.Results, vote.ResultsLive)},
			Window: vote.Window{Opens: at(p.OpensAt), Closes: at(p.ClosesAt)},
		}
		for _, o := range p.Options {
			def.Poll.Options = append(def.Poll.Options, vote.Option{ID: o.ID, Name: orElse(o.Name, o.ID)})
		}
		defs = append(defs, def)
	}
	return defs
}

// concat is all of a file's text.
func concat(f jsonFile) string {
	b, err := json.Marshal(f)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func at(s string) time.Time {
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return time.Time{}
	}
	return t.UTC().Truncate(time.Millisecond)
}

// FuzzParseJSON: a file that is JSON means to the YAML reader what it means to a
// JSON reader, or it is refused.
func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{
		`{"polls":[{"id":"a","options":[{"id":"x","name":"\ud83d\ude00"}]}]}`,
		`{"polls":[{"id":"a","title":"\/\b\f\n\r\t\"\\\u0041","options":[{"id":"x"},{"id":"y","name":"é"}],"opens_at":"2026-01-20T22:00:00-03:00"}]}`,
		`{"polls":[{"id":"a","title":"a  b","options":[{"id":"x","name":" # no: comment"}]},{"id":"b","options":[{"id":"007"}]}]}`,
		"{\"polls\":\n[{\"id\":\"a\",\t\"options\":[{\"id\":\"x\",\"name\":\"\u2028\u202e\u0085\"}]}]}",
		`{"polls":[{"id":"a","options":[{"id":"x","name":"' - !!str &a *a | > %"}],"results":"live"}]}`,
		`{"polls":[{"id":"a","options":[{"id":1}]}]}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4<<10 {
			return
		}
		got, err := Parse(strings.NewReader(text))
		if err != nil {
			return
		}
		var want jsonFile
		dec := json.NewDecoder(strings.NewReader(text))
		dec.DisallowUnknownFields()
		if dec.Decode(&want) != nil || dec.More() {
			return // it is YAML, and no JSON
		}
		if strings.Contains(strings.ToLower(text), `\ud`) && !strings.Contains(text, "\ufffd") && strings.Contains(concat(want), "\ufffd") {
			return // half a surrogate pair has no meaning that could be kept
		}
		assert.Equal(t, want.definitions(), got, "%q", text)
	})
}

// FuzzParseCost: what a file costs grows with its length, whatever is in it:
// aliases of aliases, deep nesting, long lines, many errors. It is measured in
// memory, which a machine's load does not change.
func FuzzParseCost(f *testing.F) {
	f.Add("polls: [{id: a, options: [{id: x}]}]", 1)
	f.Add("- &a [x]\n- &b [*a,*a,*a,*a]\n- &c [*b,*b,*b,*b]\n- &d [*c,*c,*c,*c]\n- &e [*d,*d,*d,*d]\n- &f [*e,*e,*e,*e]\n- &g [*f,*f,*f,*f]\n- [*g,*g,*g,*g]\n", 1)
	f.Add("polls: &p [{id: a, options: [{id: x}]}]\nx: *p\n", 1)
	f.Add("[", 2000)
	f.Add("{a: ", 1000)
	f.Add("- ", 2000)
	f.Add("? ", 2000)
	f.Add("\"", 3000)
	f.Add("a: b\n", 800)
	f.Add("&a ", 1000)
	f.Add("!!str ", 600)
	f.Add("  - {id: x}\n", 300)
	f.Add(" |\n  x\n", 500)
	f.Add("#\n", 2000)
	f.Add("---\n", 1000)
	f.Fuzz(func(t *testing.T, piece string, n int) {
		n = 1 + (n%4000+4000)%4000
		if len(piece) == 0 || len(piece)*n > 8<<10 {
			return
		}
		text := strings.Repeat(piece, n)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse(strings.NewReader(text))
		runtime.ReadMemStats(&after)
		// A file of the usual kind takes about 200 bytes for each of its own.
		if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20+uint64(len(text))*2048 {
			t.Errorf("%d bytes of %.100q took %d KiB (%v)", len(text), text, took>>10, err != nil)
		}
		if err != nil {
			assertOneLine(t, err)
			assert.Less(t, len(err.Error()), 2*maxError)
		}
	})
}

// What a reader would pay for more than once is refused, and the error stays
// short, however much is wrong.
func TestParseBoundsTheCost(t *testing.T) {
	options := "[" + strings.Repeat("{id: x},", 1000) + "]"
	for name, tt := range map[string]struct{ text, says string }{
		"brackets":         {strings.Repeat("[", 1<<17), "nested deeper"},
		"braces":           {"polls: " + strings.Repeat("{a: ", 1<<16), "nested deeper"},
		"dashes":           {strings.Repeat("- ", 1<<17), "nested deeper"},
		"aliases":          {"polls: [{id: a, options: &o " + options + "}" + strings.Repeat(", {id: a, options: *o}", 1000) + "]", "more than 100 aliases"},
		"aliases, allowed": {"polls: [{id: a, options: &o " + options + "}" + strings.Repeat(", {id: a, options: *o}", 90) + "]", "stands twice"},
		"many errors":      {"polls: [" + strings.Repeat("{id: A, options: []},", 10000) + "]", "and more"},
	} {
		_, err := Parse(strings.NewReader(tt.text))
		if assert.ErrorContains(t, err, tt.says, name) {
			assert.Less(t, len(err.Error()), 2*maxError, name)
			assertOneLine(t, err)
		}
	}
	// What is allowed, and more than anyone writes.
	defs, err := Parse(strings.NewReader("polls: [{id: a, options: &o [{id: x}]}, {id: b, options: *o, title: '" + strings.Repeat("[", 200) + "'}]"))
	if assert.NoError(t, err) {
		assert.Equal(t, defs[0].Poll.Options, defs[1].Poll.Options)
	}
}
