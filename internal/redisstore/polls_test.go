package redisstore

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"paredao/internal/vote"
)

func (e *env) poll(id string) vote.PollState {
	e.Helper()
	p, err := e.Poll(e.ctx(), id)
	e.must(err)
	return p
}

// windows returns a poll's window on each shard.
func (e *env) windows(poll string) []vote.Window {
	e.Helper()
	shards, err := e.ShardPolls(e.ctx())
	e.must(err)
	var out []vote.Window
	for _, s := range shards {
		out = append(out, s.Windows[poll])
	}
	return out
}

func TestApplyPoll(t *testing.T) {
	onBoth(t, 3, func(e *env) {
		now := e.now().Truncate(time.Millisecond)
		soon, later, past := now.Add(time.Hour), now.Add(2*time.Hour), now.Add(-time.Hour)
		named := definition("p")
		named.Title, named.Options[0].Name = "Quem? \u202e😀\x01", `</script>"`
		var never time.Time
		for _, step := range []struct {
			name string
			poll vote.Poll
			w    vote.Window
			want Applied
		}{
			{"new", definition("p"), vote.Window{Opens: soon, Closes: later}, Applied{"created", vote.Window{Opens: soon, Closes: later}}},
			{"again", definition("p"), vote.Window{Opens: soon, Closes: later}, Applied{"same", vote.Window{Opens: soon, Closes: later}}},
			{"other names", named, vote.Window{Opens: soon, Closes: later}, Applied{"changed", vote.Window{Opens: soon, Closes: later}}},
			{"other names again", named, vote.Window{Opens: soon, Closes: later}, Applied{"same", vote.Window{Opens: soon, Closes: later}}},
			{"not open yet, may move", named, vote.Window{Opens: later}, Applied{"changed", vote.Window{Opens: later}}},
			{"other options", definition("p", "x", "y"), vote.Window{Opens: later}, Applied{"changed", vote.Window{Opens: later}}},
			{"opens", definition("p"), vote.Window{Opens: past}, Applied{"changed", vote.Window{Opens: past}}},
			{"open, opens elsewhere", definition("p"), vote.Window{Opens: past.Add(time.Minute)}, Applied{"same", vote.Window{Opens: past}}},
			{"open, at once", definition("p"), vote.Window{}, Applied{"same", vote.Window{Opens: past}}},
			{"open, can't be scheduled", definition("p"), vote.Window{Opens: soon}, Applied{"kept", vote.Window{Opens: past}}},
			{"open, scheduled with a close", definition("p"), vote.Window{Opens: soon, Closes: later}, Applied{"kept", vote.Window{Opens: past, Closes: later}}},
			{"open, close moves", definition("p"), vote.Window{Opens: past, Closes: soon}, Applied{"changed", vote.Window{Opens: past, Closes: soon}}},
			{"open, never closes", definition("p"), vote.Window{Opens: past, Closes: never}, Applied{"changed", vote.Window{Opens: past}}},
			{"closes", definition("p"), vote.Window{Opens: past, Closes: now}, Applied{"changed", vote.Window{Opens: past, Closes: now}}},
			{"closed, again", definition("p"), vote.Window{Opens: past, Closes: now}, Applied{"same", vote.Window{Opens: past, Closes: now}}},
			{"closed stays closed", definition("p"), vote.Window{Opens: past}, Applied{"kept", vote.Window{Opens: past, Closes: now}}},
			{"closed stays closed, later", definition("p"), vote.Window{Opens: soon, Closes: later}, Applied{"kept", vote.Window{Opens: past, Closes: now}}},
			{"closed, other names", named, vote.Window{Opens: past, Closes: now}, Applied{"changed", vote.Window{Opens: past, Closes: now}}},
		} {
			rev, err := e.PollsRevision(e.ctx())
			e.must(err)
			before := e.dump()
			got, err := e.ApplyPoll(e.ctx(), step.poll, step.w)
			if err != nil || got != step.want {
				e.Errorf("%s: %+v (%v), want %+v", step.name, got, err, step.want)
			}
			if step.want.Change == "same" {
				e.unchanged(before, step.name)
			} else if now, err := e.PollsRevision(e.ctx()); step.want.Change != "kept" && (err != nil || now == rev) {
				e.Errorf("%s: the revision stayed (%v)", step.name, err)
			}
			// What is seen closed is sealed.
			want := step.want.Window
			want.Sealed = want.Status(e.now()) == vote.StatusClosed
			if p := e.poll("p"); !reflect.DeepEqual(p.Poll, step.poll) || p.Window != want {
				e.Errorf("%s: Redis has %+v", step.name, p)
			}
			for shard, w := range e.windows("p") {
				if w != want {
					e.Errorf("%s: shard %d has %+v", step.name, shard, w)
				}
			}
			// The second run of the same.
			before = e.dump()
			if got, err := e.ApplyPoll(e.ctx(), step.poll, step.w); err != nil || got.Window != step.want.Window || got.Change == "changed" || got.Change == "created" {
				e.Errorf("%s, again: %+v (%v)", step.name, got, err)
			}
			e.unchanged(before, step.name+", again")
		}
	})
}

// The options of a poll with votes are fixed, whichever shard has the votes;
// and the attempt leaves every shard as it was.
func TestOptionsAreFixed(t *testing.T) {
	long := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	far := time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)
	for shard := range 3 {
		for _, w := range []vote.Window{{}, {Closes: long}, {Opens: far}, {Opens: long, Closes: far}} {
			onBoth(t, 3, func(e *env) {
				e.apply("p")
				e.send(e.batch(shard, "f", 1, ballot{"p", "ana", ""}))
				before := e.dump()
				if _, err := e.ApplyPoll(e.ctx(), definition("p", "ana", "bruno"), w); !errors.Is(err, vote.ErrOptionsFixed) {
					e.Errorf("votes on shard %d: %v", shard, err)
				}
				// The undo is a change and back: only the revision tells.
				for s := range 3 {
					key := shardKeys(s).pollsRev()
					e.must(e.rdb.Del(e.ctx(), key).Err())
					delete(before, key)
				}
				e.unchanged(before, fmt.Sprintf("votes on shard %d, applied with %+v", shard, w))
				for s := range 3 {
					if out := e.send(e.batch(s, "g", 1, ballot{"p", "ana", ""})); out.Polls[0] != vote.PollAccepted {
						e.Errorf("votes on shard %d: shard %d answers %q", shard, s, out.Polls)
					}
				}
				// Names may change.
				named := definition("p")
				named.Options[0].Name = "Ana Maria"
				if got, err := e.ApplyPoll(e.ctx(), named, vote.Window{}); err != nil || got.Change != "changed" {
					e.Errorf("other names: %+v (%v)", got, err)
				}
				e.conserved("p")
			})
		}
	}
}

// An apply that died half-way, at any step, is finished by the next one; until
// then no shard takes votes for options that another does not have.
func TestApplyDiedHalfWay(t *testing.T) {
	changed := definition("p", "x", "y")
	for died := range 6 {
		onBoth(t, 3, func(e *env) {
			e.apply("p")
			old := e.poll("p")
			def := []byte(`{"id":"p","title":"Who?","options":[{"id":"x","name":"x"},{"id":"y","name":"y"}],"results":"live"}`)
			step := 0
			for shard := 0; shard < 3 && step < died; shard, step = shard+1, step+1 {
				_, err := e.applyPoll(e.ctx(), shard, changed, vote.Window{}, def, "1")
				e.must(err)
			}
			for shard := 2; shard >= 0 && step < died; shard, step = shard-1, step+1 {
				_, err := e.applyPoll(e.ctx(), shard, changed, vote.Window{}, def, "0")
				e.must(err)
			}
			for shard := range 3 {
				b := e.batch(shard, "old", 1, ballot{"p", "ana", ""})
				if out := e.send(b); died > 0 && shard < min(died, 3) && out.Polls[0] != vote.PollStale {
					e.Errorf("died at %d: shard %d takes the old options: %q", died, shard, out.Polls)
				}
			}
			taken := int64(0)
			for shard := range 3 {
				taken += e.ledger(shard, "p").Accepted
			}
			if taken == 0 {
				if _, err := e.ApplyPoll(e.ctx(), changed, vote.Window{}); err != nil {
					e.Errorf("died at %d: %v", died, err)
				}
				if p := e.poll("p"); !reflect.DeepEqual(p.Poll, changed) {
					e.Errorf("died at %d: %+v", died, p)
				}
				for shard := range 3 {
					b := e.batch(shard, "new", 1, ballot{"p", "x", ""})
					b.Polls[0].OptionsKey = changed.OptionsKey()
					if out := e.send(b); out.Polls[0] != vote.PollAccepted {
						e.Errorf("died at %d: shard %d answers %q", died, shard, out.Polls)
					}
				}
				return
			}
			// Votes for the old options came in: those stay.
			if _, err := e.ApplyPoll(e.ctx(), changed, vote.Window{}); !errors.Is(err, vote.ErrOptionsFixed) {
				e.Errorf("died at %d, with votes: %v", died, err)
			}
			if _, err := e.ApplyPoll(e.ctx(), old.Poll, old.Window); err != nil {
				e.Errorf("died at %d, back: %v", died, err)
			}
			for shard := range 3 {
				if out := e.send(e.batch(shard, "back", 1, ballot{"p", "ana", ""})); out.Polls[0] != vote.PollAccepted {
					e.Errorf("died at %d: shard %d answers %q", died, shard, out.Polls)
				}
			}
			e.conserved("p")
		})
	}
}

func TestOpenAndClose(t *testing.T) {
	onBoth(t, 3, func(e *env) {
		for _, f := range []func() error{
			func() error { return e.OpenPoll(e.ctx(), "nope") },
			func() error { return e.ClosePoll(e.ctx(), "nope") },
		} {
			if err := f(); !errors.Is(err, vote.ErrPollNotFound) {
				e.Errorf("no such poll: %v", err)
			}
		}
		soon := e.now().Add(time.Hour).Truncate(time.Millisecond)
		e.applyIn("p", vote.Window{Opens: soon, Closes: soon.Add(time.Hour)})
		send := func(seq uint64, want vote.PollOutcome) {
			e.Helper()
			for shard := range 3 {
				if out := e.send(e.batch(shard, "f", seq, ballot{"p", "ana", ""})); out.Polls[0] != want {
					e.Errorf("shard %d answers %q, want %q", shard, out.Polls, want)
				}
			}
		}
		send(1, vote.PollNotOpen)
		rev, err := e.PollsRevision(e.ctx())
		e.must(err)
		before := e.now().Truncate(time.Millisecond)
		e.must(e.OpenPoll(e.ctx(), "p"))
		if r, err := e.PollsRevision(e.ctx()); err != nil || r == rev {
			e.Errorf("the revision stayed (%v)", err)
		}
		for _, w := range e.windows("p") {
			if w.Opens.Before(before) || w.Opens.After(e.now()) || !w.Closes.Equal(soon.Add(time.Hour)) {
				e.Errorf("window %+v", w)
			}
		}
		data := e.dump()
		e.must(e.OpenPoll(e.ctx(), "p"))
		e.unchanged(data, "opened again")
		send(2, vote.PollAccepted)

		before = e.now().Truncate(time.Millisecond)
		e.must(e.ClosePoll(e.ctx(), "p"))
		for _, w := range e.windows("p") {
			if w.Closes.Before(before) || w.Closes.After(e.now()) {
				e.Errorf("window %+v", w)
			}
		}
		data = e.dump()
		e.must(e.ClosePoll(e.ctx(), "p"))
		e.unchanged(data, "closed again")
		send(3, vote.PollClosed)
		data = e.dump()
		if err := e.OpenPoll(e.ctx(), "p"); !errors.Is(err, vote.ErrPollClosed) {
			e.Errorf("open after the close: %v", err)
		}
		e.unchanged(data, "opened after the close")

		// A poll that is closed before it opened never opens.
		e.applyIn("q", vote.Window{Opens: soon})
		e.must(e.ClosePoll(e.ctx(), "q"))
		if w := e.poll("q").Window; w.Opens.After(w.Closes) || w.Status(e.now()) != vote.StatusClosed {
			e.Errorf("closed before it opened: %+v", w)
		}
		if err := e.OpenPoll(e.ctx(), "q"); !errors.Is(err, vote.ErrPollClosed) {
			e.Errorf("open after an early close: %v", err)
		}
		// One that is open by itself stays as it is.
		e.apply("r")
		data = e.dump()
		e.must(e.OpenPoll(e.ctx(), "r"))
		e.unchanged(data, "an open poll opened")
	})
}

func TestPolls(t *testing.T) {
	onBoth(t, 2, func(e *env) {
		polls, err := e.Polls(e.ctx())
		if err != nil || len(polls) != 0 {
			e.Errorf("no polls: %v (%v)", polls, err)
		}
		if rev, err := e.PollsRevision(e.ctx()); err != nil || rev != "" {
			e.Errorf("no revision: %q (%v)", rev, err)
		}
		if _, err := e.Poll(e.ctx(), "p1"); !errors.Is(err, vote.ErrPollNotFound) {
			e.Errorf("no poll: %v", err)
		}
		var want []string
		for i := range 45 {
			id := fmt.Sprintf("p%d", i)
			want = append(want, id)
			e.apply(id)
		}
		slices.Sort(want)
		polls, err = e.Polls(e.ctx())
		e.must(err)
		var got []string
		for _, p := range polls {
			got = append(got, p.ID)
			if !reflect.DeepEqual(p.Poll, definition(p.ID)) {
				e.Errorf("poll %+v", p)
			}
		}
		ids, _, err := e.KnownPolls(e.ctx())
		if err != nil || !slices.Equal(got, want) || !slices.Equal(ids, want) {
			e.Errorf("polls %v, ids %v (%v)", got, ids, err)
		}
		// What can't be read is an error, and names the poll.
		for name, spoil := range map[string]error{
			"definition": e.rdb.HSet(e.ctx(), "polls:{0}", "p1", "{").Err(),
			"window":     e.rdb.HSet(e.ctx(), "windows:{0}", "p2", "1 2").Err(),
		} {
			e.must(spoil)
			id := map[string]string{"definition": "p1", "window": "p2"}[name]
			if _, err := e.Poll(e.ctx(), id); err == nil || !strings.Contains(err.Error(), id) {
				e.Errorf("%s: %v", name, err)
			}
			if _, err := e.Polls(e.ctx()); err == nil {
				e.Errorf("%s: Polls says nothing", name)
			}
		}
		for _, w := range []string{"", "1 2", "x 0 k", "0 x k", "0 0 k l"} {
			e.must(e.rdb.HSet(e.ctx(), "windows:{0}", "p2", w).Err())
			if _, err := e.ShardPolls(e.ctx()); err == nil {
				e.Errorf("window %q: ShardPolls says nothing", w)
			}
			if _, err := e.Results(e.ctx(), "p2"); err == nil {
				e.Errorf("window %q: Results says nothing", w)
			}
		}
	})
}

func TestResults(t *testing.T) {
	onBoth(t, 3, func(e *env) {
		if _, err := e.Results(e.ctx(), "p"); !errors.Is(err, vote.ErrPollNotFound) {
			e.Errorf("no such poll: %v", err)
		}
		e.apply("p", "q")
		results := func(want vote.Results) {
			e.Helper()
			before := e.now().Truncate(time.Millisecond)
			r, err := e.Results(e.ctx(), "p")
			e.must(err)
			if r.AsOf.Before(before) || r.AsOf.After(e.now()) {
				e.Errorf("as of %v, which is not now", r.AsOf)
			}
			if !reflect.DeepEqual(r.Tally, want.Tally) || r.Ledger != want.Ledger || r.Final != want.Final {
				e.Errorf("got %+v, want %+v", r, want)
			}
		}
		results(vote.Results{Tally: vote.Tally{}})
		for shard := range 3 {
			e.send(e.batch(shard, "f", 1, append(some("p", 3*(shard+1)), some("q", 7)...)...))
		}
		results(vote.Results{Tally: vote.Tally{}, Ledger: vote.PollLedger{Accepted: 18}})
		e.count(0)
		e.count(2)
		results(vote.Results{Tally: vote.Tally{"ana": 4, "bruno": 4, "carla": 4}, Ledger: vote.PollLedger{Accepted: 18, Counted: 12}})
		// Closed is not final while a vote waits on any shard.
		e.must(e.ClosePoll(e.ctx(), "p"))
		results(vote.Results{Tally: vote.Tally{"ana": 4, "bruno": 4, "carla": 4}, Ledger: vote.PollLedger{Accepted: 18, Counted: 12}})
		e.count(1)
		want := vote.Results{Tally: vote.Tally{"ana": 6, "bruno": 6, "carla": 6}, Ledger: vote.PollLedger{Accepted: 18, Counted: 18}, Final: true}
		results(want)
		// Nothing takes it back: no vote, no open, no file.
		for shard := range 3 {
			e.send(e.batch(shard, "f", 2, some("p", 3)...))
		}
		if err := e.OpenPoll(e.ctx(), "p"); err == nil {
			e.Error("a final poll was opened")
		}
		e.applyIn("p", vote.Window{Closes: e.now().Add(time.Hour)})
		results(want)
		e.archiveAll(0)
		want.Ledger.Archived = 3
		results(want)
		e.conserved("p", "q")

		// Not final where one shard says open, or does not know the poll.
		e.must(e.rdb.HSet(e.ctx(), "windows:{1}", "p", "0 0 k").Err())
		want.Final = false
		results(want)
		e.must(e.rdb.HDel(e.ctx(), "windows:{1}", "p").Err())
		if _, err := e.Results(e.ctx(), "p"); !errors.Is(err, vote.ErrPollNotFound) {
			e.Errorf("one shard does not know the poll: %v", err)
		}
		// Numbers that are none are errors.
		e.must(e.rdb.HSet(e.ctx(), "ledger:{0}", "counted:q", "many").Err())
		if _, err := e.Results(e.ctx(), "q"); !errors.Is(err, errAnswer) {
			e.Errorf("a ledger of words: %v", err)
		}
		if _, err := e.ShardPolls(e.ctx()); !errors.Is(err, errAnswer) {
			e.Errorf("a ledger of words: %v", err)
		}
		e.must(e.rdb.HDel(e.ctx(), "ledger:{0}", "counted:q").Err())
		e.must(e.rdb.HSet(e.ctx(), "tally:{0}:q", "ana", "many").Err())
		if _, err := e.Results(e.ctx(), "q"); !errors.Is(err, errAnswer) {
			e.Errorf("a tally of words: %v", err)
		}
	})
}
