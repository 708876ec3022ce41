package vote

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

func aPoll() Poll {
	return Poll{
		ID: "paredao-07", Title: "Quem você quer eliminar?",
		Options: []Option{{"ana", "Ana"}, {"bruno", "Bruno"}}, Results: ResultsLive,
	}
}

func TestPollValidate(t *testing.T) {
	many := func(n int) []Option {
		out := make([]Option, n)
		for i := range out {
			out[i].ID = fmt.Sprintf("o%d", i)
		}
		return out
	}
	for name, c := range map[string]struct {
		change func(*Poll)
		wants  []string // a part of the error for each; none: valid
	}{
		"whole":                   {func(*Poll) {}, nil},
		"one option":              {func(p *Poll) { p.Options = p.Options[:1] }, nil},
		"most options":            {func(p *Poll) { p.Options = many(MaxOptions) }, nil},
		"longest title":           {func(p *Poll) { p.Title = strings.Repeat("😀", MaxTextLength) }, nil},
		"right to left":           {func(p *Poll) { p.Title = "مرحبا \u202eabc" }, nil},
		"markup is text":          {func(p *Poll) { p.Title = "<script>alert(1)</script>" }, nil},
		"id":                      {func(p *Poll) { p.ID = "A" }, []string{`id "A"`}},
		"no id":                   {func(p *Poll) { p.ID = "" }, []string{`id ""`}},
		"no title":                {func(p *Poll) { p.Title = "" }, []string{"title is missing"}},
		"title too long":          {func(p *Poll) { p.Title = strings.Repeat("é", MaxTextLength+1) }, []string{"title has 201 characters"}},
		"title is no UTF-8":       {func(p *Poll) { p.Title = "a\xff" }, []string{"title is not valid Unicode"}},
		"title has a NUL":         {func(p *Poll) { p.Title = "a\x00" }, []string{"title is not valid Unicode"}},
		"no options":              {func(p *Poll) { p.Options = nil }, []string{"has 0 options"}},
		"too many options":        {func(p *Poll) { p.Options = many(MaxOptions + 1) }, []string{"has 1001 options"}},
		"option twice":            {func(p *Poll) { p.Options[1].ID = "ana" }, []string{`option "ana" stands twice`}},
		"option id":               {func(p *Poll) { p.Options[1].ID = "__proto__" }, []string{`option id "__proto__"`}},
		"option name too long":    {func(p *Poll) { p.Options[1].Name = strings.Repeat("x", 201) }, []string{`name of option "bruno" has 201`}},
		"option name is no UTF-8": {func(p *Poll) { p.Options[1].Name = "\xc3\x28" }, []string{`name of option "bruno" is not valid`}},
		"sealed":                  {func(p *Poll) { p.Results = "sealed" }, []string{`results "sealed"`}},
		"no results":              {func(p *Poll) { p.Results = "" }, []string{`results ""`}},
		"all of it at once": {func(p *Poll) { *p = Poll{Options: []Option{{ID: "-"}}} },
			[]string{"id \"\"", "title is missing", "option id", "results"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := aPoll()
			c.change(&p)
			err := p.Validate()
			if len(c.wants) == 0 && err != nil {
				t.Errorf("Validate() = %v, want nil", err)
			}
			for _, want := range c.wants {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Validate() = %v, want a word on: %s", err, want)
				}
			}
		})
	}
}

func TestHasOption(t *testing.T) {
	p := aPoll()
	for id, want := range map[string]bool{"ana": true, "bruno": true, "carla": false, "": false, "Ana": false} {
		if got := p.HasOption(id); got != want {
			t.Errorf("HasOption(%q) = %v, want %v", id, got, want)
		}
	}
}

func TestOptionsKey(t *testing.T) {
	base := aPoll()
	key := base.OptionsKey()
	if strings.ContainsAny(key, " \n") || key == "" || key == "frozen" {
		t.Errorf("key %q has no place in a window", key)
	}
	same := aPoll()
	same.Title, same.Options[0].Name, same.ID = "Other", "Other", "other"
	if same.OptionsKey() != key {
		t.Error("names and titles are part of the key")
	}
	for name, options := range map[string][]Option{
		"one less":    {{ID: "ana"}},
		"one more":    {{ID: "ana"}, {ID: "bruno"}, {ID: "carla"}},
		"other order": {{ID: "bruno"}, {ID: "ana"}},
		"other cut":   {{ID: "anab"}, {ID: "runo"}},
		"none":        nil,
	} {
		if (&Poll{Options: options}).OptionsKey() == key {
			t.Errorf("%s: the same key", name)
		}
	}
}

func TestWindow(t *testing.T) {
	now := time.Date(2026, 1, 20, 22, 0, 0, 0, time.UTC)
	before, after := now.Add(-time.Millisecond), now.Add(time.Millisecond)
	var never time.Time
	for _, c := range []struct {
		opens, closes time.Time
		want          Status
	}{
		{never, never, StatusOpen},
		{before, never, StatusOpen},
		{now, never, StatusOpen}, // from opens on
		{after, never, StatusScheduled},
		{never, after, StatusOpen},
		{never, now, StatusClosed}, // until before closes
		{never, before, StatusClosed},
		{before, after, StatusOpen},
		{after, after.Add(1), StatusScheduled},
		{after, before, StatusClosed}, // closed by hand before it opened
	} {
		if got := (Window{Opens: c.opens, Closes: c.closes}).Status(now); got != c.want {
			t.Errorf("window %v to %v at %v: %s, want %s", c.opens, c.closes, now, got, c.want)
		}
	}
	// Sealed is closed, whatever the clock.
	if got := (Window{Opens: after, Closes: after, Sealed: true}).Status(now); got != StatusClosed {
		t.Errorf("sealed: %s, want closed", got)
	}
	// The same instant in another time zone is the same instant.
	zone := time.FixedZone("-03", -3*3600)
	if got := (Window{Closes: now.In(zone)}).Status(now); got != StatusClosed {
		t.Errorf("in another zone: %s, want closed", got)
	}
	for _, c := range []struct {
		w  Window
		ok bool
	}{
		{Window{}, true}, {Window{Opens: now}, true}, {Window{Closes: now}, true},
		{Window{Opens: before, Closes: after}, true}, {Window{Opens: now, Closes: now}, false}, {Window{Opens: after, Closes: before}, false},
	} {
		if err := c.w.Validate(); (err == nil) != c.ok {
			t.Errorf("Validate of %v to %v: %v", c.w.Opens, c.w.Closes, err)
		}
	}
}

func TestPollStateJSON(t *testing.T) {
	at := time.Date(2026, 1, 20, 22, 0, 0, 0, time.FixedZone("", -3*3600))
	p := aPoll()
	p.Title = `</script>"`
	for _, c := range []struct {
		state PollState
		want  string
	}{
		{PollState{Poll: p, Status: StatusOpen},
			`{"id":"paredao-07","title":"\u003c/script\u003e\"","options":[{"id":"ana","name":"Ana"},{"id":"bruno","name":"Bruno"}],"results":"live","status":"open"}`},
		{PollState{Poll: Poll{ID: "p"}, Window: Window{Opens: at}, Status: StatusScheduled},
			`{"id":"p","title":"","options":null,"results":"","opens_at":"2026-01-20T22:00:00-03:00","status":"scheduled"}`},
		{PollState{Poll: Poll{ID: "p"}, Window: Window{Opens: at.UTC(), Closes: at.UTC().Add(1500 * time.Millisecond)}, Status: StatusFinal},
			`{"id":"p","title":"","options":null,"results":"","opens_at":"2026-01-21T01:00:00Z","closes_at":"2026-01-21T01:00:01.5Z","status":"final"}`},
	} {
		for _, v := range []any{c.state, &c.state} {
			got, err := json.Marshal(v)
			if err != nil || string(got) != c.want {
				t.Errorf("got  %s (%v)\nwant %s", got, err, c.want)
			}
		}
	}
}
