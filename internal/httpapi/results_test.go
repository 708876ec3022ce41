package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/httpapi"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// results is GET /polls/{poll}/results, with the numbers as they were written.
type results struct {
	Poll    string      `json:"poll"`
	Title   string      `json:"title"`
	Status  string      `json:"status"`
	Final   bool        `json:"final"`
	AsOf    time.Time   `json:"as_of"`
	Total   json.Number `json:"total"`
	Pending json.Number `json:"pending"`
	Options []struct {
		ID      string      `json:"id"`
		Name    string      `json:"name"`
		Votes   json.Number `json:"votes"`
		Percent json.Number `json:"percent"`
	} `json:"options"`
}

func (s *stack) results(poll string) results {
	s.t.Helper()
	a := s.send("GET", "/polls/"+poll+"/results", "")
	require.Equal(s.t, 200, a.StatusCode, a.text())
	var r results
	dec := json.NewDecoder(strings.NewReader(a.text()))
	dec.DisallowUnknownFields()
	require.NoError(s.t, dec.Decode(&r), a.text())
	return r
}

// percentages adds the percentages up, exactly.
func percentages(t testing.TB, r results) (sum string, each []string) {
	t.Helper()
	total := new(big.Rat)
	for _, o := range r.Options {
		p, ok := new(big.Rat).SetString(o.Percent.String())
		require.True(t, ok)
		total.Add(total, p)
		assert.Regexp(t, `^\d+\.\d\d$`, o.Percent.String())
		each = append(each, o.Percent.String())
	}
	return total.FloatString(4), each
}

func fresh(set *settings) { set.http.ResultsMaxAge = 0 }

func TestResultsOfAPoll(t *testing.T) {
	s := start(t, fresh, func(set *settings) { set.shards = 2 })
	ctx := context.Background()
	s.poll("p", "ana", "bruno", "carla")

	r := s.results("p")
	assert.Equal(t, []string{"p", "Poll p", "open", "0", "0"}, []string{r.Poll, r.Title, r.Status, r.Total.String(), r.Pending.String()})
	sum, each := percentages(t, r)
	assert.Equal(t, "0.0000", sum)
	assert.Equal(t, []string{"0.00", "0.00", "0.00"}, each)
	assert.WithinRange(t, r.AsOf, time.Now().Add(-time.Minute), time.Now().Add(time.Minute))

	for i := range 14 {
		receipt(t, s.vote("p", []string{"ana", "bruno", "ana"}[i%3], "Idempotency-Key", fmt.Sprint(i)), "p", []string{"ana", "bruno", "ana"}[i%3])
	}
	r = s.results("p")
	assert.Equal(t, []string{"open", "0", "14"}, []string{r.Status, r.Total.String(), r.Pending.String()}, "no consumer runs")
	s.consume()
	r = s.results("p")
	assert.Equal(t, []string{"open", "14", "0"}, []string{r.Status, r.Total.String(), r.Pending.String()})
	var ids, names []string
	var votes []string
	for _, o := range r.Options {
		ids, names, votes = append(ids, o.ID), append(names, o.Name), append(votes, o.Votes.String())
	}
	assert.Equal(t, []string{"ana", "bruno", "carla"}, ids)
	assert.Equal(t, []string{"Option ana", "Option bruno", "Option carla"}, names)
	assert.Equal(t, []string{"9", "5", "0"}, votes)
	sum, each = percentages(t, r)
	assert.Equal(t, "100.0000", sum)
	assert.Equal(t, []string{"64.29", "35.71", "0.00"}, each)
	assert.False(t, r.Final)

	// Closed with votes pending is not final; final is not taken back.
	s.vote("p", "carla")
	require.NoError(t, s.store.ClosePoll(ctx, "p"))
	r = s.results("p")
	assert.Equal(t, []string{"closed", "14", "1"}, []string{r.Status, r.Total.String(), r.Pending.String()})
	assert.False(t, r.Final)
	s.consume()
	r = s.results("p")
	assert.Equal(t, []string{"final", "15", "0"}, []string{r.Status, r.Total.String(), r.Pending.String()})
	assert.True(t, r.Final)
	problem(t, s.vote("p", "ana"), 409, "poll-closed")
	assert.Error(t, s.store.OpenPoll(ctx, "p"))
	assert.True(t, s.results("p").Final)
}

// Whatever the counts are, the percentages add up to 100.00 and ties stay ties
// in the poll's order.
func TestPercentagesOverTheWire(t *testing.T) {
	s := start(t, fresh)
	ctx := context.Background()
	for i, tt := range []struct{ votes, want string }{
		{"1 1 1", "33.34 33.33 33.33"},
		{"1 1", "50.00 50.00"},
		{"0 0 1", "0.00 0.00 100.00"},
		{"1 1 1 1 1 1", "16.67 16.67 16.67 16.67 16.66 16.66"},
		{"9007199254740993 9007199254740993", "50.00 50.00"},
		{"1 99999", "0.00 100.00"},
		{"422597 421342 421611", "33.39 33.29 33.32"},
	} {
		id := fmt.Sprint("p", i)
		var options []string
		for j, n := range strings.Fields(tt.votes) {
			o := fmt.Sprint("o", j)
			options = append(options, o)
			require.NoError(t, s.rdb.HSet(ctx, "tally:{0}:"+id, o, n).Err())
		}
		s.poll(id, options...)
		r := s.results(id)
		sum, each := percentages(t, r)
		assert.Equal(t, "100.0000", sum)
		assert.Equal(t, tt.want, strings.Join(each, " "))
		for j, n := range strings.Fields(tt.votes) {
			assert.Equal(t, n, r.Options[j].Votes.String())
		}
	}
	// A thousand options that share a prime number of votes.
	var options []string
	for i := range 1000 {
		options = append(options, "o"+strconv.Itoa(i))
		require.NoError(t, s.rdb.HSet(ctx, "tally:{0}:many", options[i], 7919+i*i%13).Err())
	}
	s.poll("many", options...)
	sum, _ := percentages(t, s.results("many"))
	assert.Equal(t, "100.0000", sum)
}

func TestPollsAndTheirStatus(t *testing.T) {
	s := start(t, fresh, func(set *settings) { set.shards = 2 })
	ctx := context.Background()
	assert.JSONEq(t, `{"polls":[]}`, s.send("GET", "/polls", "").text())
	now, err := s.store.Now(ctx)
	require.NoError(t, err)
	opens, closes := now.Add(time.Hour).Truncate(time.Millisecond), now.Add(2*time.Hour).Truncate(time.Millisecond)
	s.apply(s.store, "b-later", vote.Window{Opens: opens, Closes: closes}, "x")
	s.poll("a-open", "x", "y")
	s.poll("d-closed", "x")
	s.vote("d-closed", "x")
	require.NoError(t, s.store.ClosePoll(ctx, "d-closed"))
	s.poll("c-final", "x")
	require.NoError(t, s.store.ClosePoll(ctx, "c-final"))

	a := s.send("GET", "/polls", "")
	require.Equal(t, 200, a.StatusCode)
	assert.Equal(t, asJSON, a.Header.Get("Content-Type"))
	var list struct{ Polls []map[string]any }
	require.NoError(t, json.Unmarshal(a.body, &list))
	var got []string
	for _, p := range list.Polls {
		got = append(got, fmt.Sprint(p["id"], " ", p["status"]))
		one := s.send("GET", "/polls/"+p["id"].(string), "")
		require.Equal(t, 200, one.StatusCode)
		var single map[string]any
		require.NoError(t, json.Unmarshal(one.body, &single))
		assert.Equal(t, p, single)
		assert.Equal(t, p["status"], s.results(p["id"].(string)).Status)
	}
	assert.Equal(t, []string{"a-open open", "b-later scheduled", "c-final final", "d-closed closed"}, got)
	assert.Equal(t, map[string]any{
		"id": "b-later", "title": "Poll b-later", "status": "scheduled", "results": "live",
		"options":  []any{map[string]any{"id": "x", "name": "Option x"}},
		"opens_at": opens.Format(time.RFC3339Nano), "closes_at": closes.Format(time.RFC3339Nano),
	}, list.Polls[1])
	assert.NotContains(t, list.Polls[0], "opens_at")
}

// Any text comes back as it is, and can't end a script element where a page
// puts it into one.
func TestTextsAreData(t *testing.T) {
	s := start(t, fresh)
	nasty := `</script><script>alert(1)</script> & "x" 😀 é ` + "e\u0301 \u2028 اختبار"
	p := definition("p", "constructor", "x")
	p.Title, p.Options[0].Name = nasty, nasty
	_, err := s.store.ApplyPoll(context.Background(), p, vote.Window{})
	require.NoError(t, err)
	for _, path := range []string{"/polls", "/polls/p", "/polls/p/results"} {
		a := s.send("GET", path, "")
		assert.NotContains(t, a.text(), "<script>")
		assert.NotContains(t, a.text(), "</script>")
		assert.Contains(t, a.text(), "😀")
	}
	r := s.results("p")
	assert.Equal(t, nasty, r.Title)
	assert.Equal(t, nasty, r.Options[0].Name)
	receipt(t, s.vote("p", "constructor"), "p", "constructor")
}

func TestETag(t *testing.T) {
	s := start(t, func(set *settings) { set.http.ResultsMaxAge = time.Nanosecond })
	s.poll("p", "ana")
	for _, path := range []string{"/polls", "/polls/p", "/polls/p/results"} {
		a := s.send("GET", path, "")
		tag := a.Header.Get("ETag")
		require.Regexp(t, `^W/"[0-9a-f]{16}"$`, tag)
		assert.Equal(t, "public, max-age=0", a.Header.Get("Cache-Control"))
		for _, match := range []string{tag, `"x", ` + tag, strings.TrimPrefix(tag, "W/"), "*", tag + `,"y"`} {
			b := s.send("GET", path, "", "If-None-Match", match)
			assert.Equal(t, 304, b.StatusCode, match)
			assert.Empty(t, b.body)
			assert.Equal(t, tag, b.Header.Get("ETag"))
			assert.Equal(t, "public, max-age=0", b.Header.Get("Cache-Control"))
		}
		for _, other := range []string{`"x"`, `W/"` + strings.Repeat("0", 16) + `"`, "", strings.Trim(tag, `W/"`)} {
			assert.Equal(t, 200, s.send("GET", path, "", "If-None-Match", other).StatusCode, other)
		}
		assert.Equal(t, 304, s.send("HEAD", path, "", "If-None-Match", tag).StatusCode)
	}
	tag := s.send("GET", "/polls/p/results", "").Header.Get("ETag")
	s.vote("p", "ana")
	a := s.send("GET", "/polls/p/results", "", "If-None-Match", tag)
	assert.Equal(t, 200, a.StatusCode, "another vote is pending")
	assert.NotEqual(t, tag, a.Header.Get("ETag"))
}

func TestCacheControl(t *testing.T) {
	s := start(t, func(set *settings) { set.http.ResultsMaxAge = 3500 * time.Millisecond })
	s.poll("p", "ana")
	assert.Equal(t, "public, max-age=3", s.send("GET", "/polls/p/results", "").Header.Get("Cache-Control"))
	assert.Equal(t, "public, max-age=3", s.send("GET", "/polls", "").Header.Get("Cache-Control"))
}

// Two hundred viewers at once cost Redis a look or two.
func TestStampede(t *testing.T) {
	var looks, shardLooks atomic.Int64
	s := start(t, func(set *settings) {
		set.http.ResultsMaxAge = time.Hour
		set.http.Polls = &wrappedPolls{
			results: func(ctx context.Context, next httpapi.Polls, poll string) (vote.Results, error) {
				looks.Add(1)
				return next.Results(ctx, poll)
			},
			shards: func(ctx context.Context, next httpapi.Polls) ([]vote.ShardPolls, error) {
				shardLooks.Add(1)
				return next.ShardPolls(ctx)
			},
		}
	})
	s.poll("p", "ana")
	receipt(t, s.vote("p", "ana"), "p", "ana")
	c := s.client()
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			a, err := do(c, "GET", s.url+[]string{"/polls/p/results", "/polls", "/polls/p"}[i%3], "")
			assert.NoError(t, err)
			assert.Equal(t, 200, a.StatusCode)
		})
	}
	wg.Wait()
	// One more where the definitions were read again meanwhile.
	assert.LessOrEqual(t, looks.Load(), int64(2))
	assert.EqualValues(t, 1, shardLooks.Load())
}

// So do those who ask about polls and options that are not there.
func TestStampedeOfUnknownPolls(t *testing.T) {
	var looks atomic.Int64
	var block atomic.Bool
	release := make(chan struct{})
	s := start(t, func(set *settings) {
		set.http.Polls = &wrappedPolls{now: func(ctx context.Context, next httpapi.Polls) (time.Time, error) {
			looks.Add(1)
			if block.Load() {
				<-release
			}
			return next.Now(ctx)
		}}
	})
	s.poll("p", "ana")
	receipt(t, s.vote("p", "ana"), "p", "ana")
	block.Store(true)
	before := looks.Load()
	c := s.client()
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			a, err := do(c, "GET", s.url+fmt.Sprintf("/polls/nowhere-%d", i), "")
			assert.NoError(t, err)
			problem(t, a, 404, "poll-not-found")
		})
	}
	testkit.Eventually(t, "a look has begun", func() bool { return looks.Load() > before })
	block.Store(false)
	close(release)
	wg.Wait()
	assert.Less(t, looks.Load()-before, int64(150))
}

// While Redis can't be read, the last answer is served, and says that it is old.
// Without one there is an error; a poll that is gone has none.
func TestResultsErrors(t *testing.T) {
	var mode atomic.Value
	mode.Store("")
	s := start(t, fresh, func(set *settings) {
		set.http.Polls = &wrappedPolls{
			results: func(ctx context.Context, next httpapi.Polls, poll string) (vote.Results, error) {
				switch mode.Load() {
				case "broken":
					return vote.Results{}, errors.New("WRONGTYPE")
				case "gone":
					return vote.Results{}, vote.ErrPollNotFound
				}
				return next.Results(ctx, poll)
			},
			shards: func(ctx context.Context, next httpapi.Polls) ([]vote.ShardPolls, error) {
				if mode.Load() == "broken" {
					return nil, errors.New("WRONGTYPE")
				}
				return next.ShardPolls(ctx)
			},
		}
	})
	s.poll("p", "ana")
	s.vote("p", "ana")
	mode.Store("broken")
	for _, path := range []string{"/polls/p/results", "/polls", "/polls/p"} {
		a := s.send("GET", path, "")
		problem(t, a, 503, "queue-unavailable")
		assert.NotContains(t, a.text(), "WRONGTYPE")
	}
	mode.Store("")
	before := map[string]answer{}
	for _, path := range []string{"/polls/p/results", "/polls", "/polls/p"} {
		testkit.Eventually(t, "it is read again", func() bool {
			before[path] = s.send("GET", path, "")
			return before[path].StatusCode == 200
		})
		assert.Empty(t, before[path].Header.Get("Warning"))
	}
	mode.Store("broken")
	for path, was := range before {
		a := s.send("GET", path, "")
		assert.Equal(t, 200, a.StatusCode)
		assert.Equal(t, was.text(), a.text())
		assert.Equal(t, was.Header.Get("ETag"), a.Header.Get("ETag"))
		assert.Equal(t, `110 - "Response is Stale"`, a.Header.Get("Warning"))
		assert.Regexp(t, `^[0-9]+$`, a.Header.Get("Age"))
	}
	mode.Store("gone")
	testkit.Eventually(t, "a poll that is gone has no results", func() bool {
		return s.send("GET", "/polls/p/results", "").StatusCode == 404
	})
	mode.Store("")
	s.results("p")
}

// A poll that came after the list was read has a status all the same.
func TestPollNewerThanTheOverview(t *testing.T) {
	s := start(t, func(set *settings) { set.http.ResultsMaxAge = time.Hour })
	s.poll("a", "x")
	require.Equal(t, 200, s.send("GET", "/polls", "").StatusCode)
	s.poll("b", "x")
	a := s.send("GET", "/polls/b", "")
	require.Equal(t, 200, a.StatusCode)
	assert.Contains(t, a.text(), `"status":"open"`)
}
