package httpapi_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/enqueue"
	"paredao/internal/httpapi"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

const asForm = "application/x-www-form-urlencoded"

func TestVoteAccepted(t *testing.T) {
	s := start(t, func(set *settings) { set.http.Privacy = httpapi.PrivacyRaw })
	s.poll("p", "ana", "bruno")
	long := strings.Repeat("é", 300)
	for name, tt := range map[string]struct {
		body, contentType, option, agent string
	}{
		"JSON":                      {`{"option":"ana"}`, "application/json", "ana", "curl/8"},
		"JSON with a charset":       {` {"option" : "bruno"} `, "Application/JSON; charset=utf-8", "bruno", ""},
		"JSON with escapes":         {`{"op\u0074ion":"\u0061na"}`, "application/json", "ana", "é 😀"},
		"a class of null":           {`{"option":"ana","class":null}`, "application/json", "ana", "x"},
		"a form":                    {"option=ana", asForm, "ana", "Mozilla/5.0"},
		"a form with a charset":     {"option=br%75no", asForm + ";charset=UTF-8", "bruno", "x"},
		"a long user agent":         {`{"option":"ana"}`, "application/json", "ana", long},
		"a user agent with escapes": {`{"option":"ana"}`, "application/json", "ana", "a\t\"b\\c</script>"},
	} {
		t.Run(name, func(t *testing.T) {
			s.rdb.Del(context.Background(), "votes:{0}")
			before := time.Now().Add(-time.Minute)
			a := s.send("POST", "/polls/p/votes", tt.body, "Content-Type", tt.contentType, "User-Agent", tt.agent)
			id, at := receipt(t, a, "p", tt.option)
			assert.True(t, at.After(before), at)
			assert.Empty(t, a.Header.Get("Idempotency-Replayed"))
			got := s.only()
			assert.Equal(t, id, got.ID.String())
			assert.Equal(t, "p", got.Poll)
			assert.Equal(t, tt.option, got.Option)
			assert.Equal(t, "127.0.0.1", got.Client)
			if len(tt.agent) > vote.MaxUserAgent {
				assert.True(t, strings.HasPrefix(tt.agent, strings.TrimRight(got.UserAgent, "\ufffd")), got.UserAgent)
				assert.LessOrEqual(t, len(got.UserAgent), vote.MaxUserAgent+2)
			} else {
				assert.Equal(t, tt.agent, got.UserAgent)
			}
		})
	}
	t.Run("chunked", func(t *testing.T) {
		s.rdb.Del(context.Background(), "votes:{0}")
		all := s.raw(post("p", "8\r\n{\"option\r\n8;x=y\r\n\":\"ana\"}\r\n0\r\n\r\n", typeJSON, "Transfer-Encoding: Chunked"))
		require.Len(t, all, 1)
		id, _ := receipt(t, all[0], "p", "ana")
		assert.Equal(t, id, s.only().ID.String())
	})
	assert.Zero(t, testutil.CollectAndCount(s.rejected))
	assert.EqualValues(t, 9, testutil.ToFloat64(s.accepted.WithLabelValues("p")))
}

// refusal is a row of the table of statuses.
type refusal struct {
	name, body string
	headers    []string
	status     int
	code       string
}

func TestVoteRefused(t *testing.T) {
	s := start(t)
	s.poll("p", "ana", "bruno")
	jsonBody := func(name, body string) refusal {
		return refusal{"JSON: " + name, body, []string{"Content-Type", asJSON}, 400, "malformed-body"}
	}
	form := func(name, body string) refusal {
		return refusal{"form: " + name, body, []string{"Content-Type", asForm}, 400, "malformed-body"}
	}
	mediaType := func(contentType string) refusal {
		return refusal{"type " + contentType, `{"option":"ana"}`, []string{"Content-Type", contentType}, 415, "unsupported-media-type"}
	}
	coded := func(encoding ...string) refusal {
		h := []string{"Content-Type", asJSON}
		for _, e := range encoding {
			h = append(h, "Content-Encoding", e)
		}
		return refusal{fmt.Sprintf("encoding %q", encoding), `{"option":"ana"}`, h, 415, "unsupported-content-encoding"}
	}
	key := func(name string, keys ...string) refusal {
		h := []string{"Content-Type", asJSON}
		for _, k := range keys {
			h = append(h, "Idempotency-Key", k)
		}
		return refusal{"key: " + name, `{"option":"ana"}`, h, 400, "bad-idempotency-key"}
	}
	for _, tt := range []refusal{
		jsonBody("empty", ""),
		jsonBody("white space", " \n"),
		jsonBody("null", "null"),
		jsonBody("array", `["ana"]`),
		jsonBody("array of objects", `[{"option":"ana"}]`),
		jsonBody("number", "1"),
		jsonBody("text", `"ana"`),
		jsonBody("no member", "{}"),
		jsonBody("option null", `{"option":null}`),
		jsonBody("option number", `{"option":1}`),
		jsonBody("option array", `{"option":["ana"]}`),
		jsonBody("option object", `{"option":{"id":"ana"}}`),
		jsonBody("unknown member", `{"option":"ana","poll":"p"}`),
		jsonBody("empty member", `{"option":"ana","":1}`),
		jsonBody("prototype", `{"option":"ana","__proto__":{}}`),
		jsonBody("case-folded member", `{"Option":"ana"}`),
		jsonBody("case-folded beside the right one", `{"option":"ana","OPTION":"bruno"}`),
		jsonBody("a K that folds", `{"option":"ana","clas\u017f":"x"}`),
		jsonBody("duplicate member", `{"option":"ana","option":"bruno"}`),
		jsonBody("duplicate by escape", `{"option":"ana","\u006fption":"ana"}`),
		jsonBody("trailing comma", `{"option":"ana",}`),
		jsonBody("trailing data", `{"option":"ana"}x`),
		jsonBody("trailing object", `{"option":"ana"}{"option":"bruno"}`),
		jsonBody("trailing NUL", "{\"option\":\"ana\"}\x00"),
		jsonBody("NUL inside", "{\"option\":\"a\x00na\"}"),
		jsonBody("byte order mark", "\ufeff"+`{"option":"ana"}`),
		jsonBody("UTF-16", "\xff\xfe{\x00\"\x00"),
		jsonBody("invalid UTF-8", "{\"option\":\"ana\xff\"}"),
		jsonBody("overlong UTF-8", "{\"option\":\"an\xc1\xa1\"}"),
		jsonBody("lone surrogate", `{"option":"ana\ud800"}`),
		jsonBody("control character", "{\"option\":\"ana\n\"}"),
		jsonBody("single quotes", `{'option':'ana'}`),
		jsonBody("comment", `{"option":"ana"}//`),
		jsonBody("cut", `{"option":"ana"`),
		jsonBody("nested deep", `{"option":`+strings.Repeat(`[`, 2000)+strings.Repeat(`]`, 2000)+`}`),
		jsonBody("nested deep and unknown", `{"x":`+strings.Repeat(`{"a":`, 600)+"1"+strings.Repeat(`}`, 600)+`}`),
		jsonBody("a form", "option=ana"),
		form("empty", ""),
		form("unknown field", "option=ana&x=1"),
		form("only an unknown field", "vote=ana"),
		form("case-folded field", "Option=ana"),
		form("duplicate field", "option=ana&option=bruno"),
		form("the same twice", "option=ana&option=ana"),
		form("bad escape", "option=an%6"),
		form("bad hexadecimal", "option=an%zz"),
		form("bad escape in a name", "optio%=ana"),
		form("semicolon", "option=ana;class=x"),
		form("invalid UTF-8", "option=ana%ff"),
		form("NUL", "option=ana%00"),
		form("JSON", `{"option":"ana"}`),
		form("array", "option[]=ana"),

		{"unknown option", `{"option":"carla"}`, []string{"Content-Type", asJSON}, 422, "unknown-option"},
		{"empty option", `{"option":""}`, []string{"Content-Type", asJSON}, 422, "unknown-option"},
		{"option in capitals", `{"option":"Ana"}`, []string{"Content-Type", asJSON}, 422, "unknown-option"},
		{"option's name", `{"option":"Option ana"}`, []string{"Content-Type", asJSON}, 422, "unknown-option"},
		{"option with space", `{"option":"ana "}`, []string{"Content-Type", asJSON}, 422, "unknown-option"},
		{"option constructor", `{"option":"constructor"}`, []string{"Content-Type", asJSON}, 422, "unknown-option"},
		{"option with a path", `{"option":"../ana"}`, []string{"Content-Type", asJSON}, 422, "unknown-option"},
		{"option that is a digit", `{"option":"0"}`, []string{"Content-Type", asJSON}, 422, "unknown-option"},
		{"unknown option in a form", "option=%6eobody", []string{"Content-Type", asForm}, 422, "unknown-option"},
		{"empty option in a form", "option", []string{"Content-Type", asForm}, 422, "unknown-option"},
		{"class", `{"option":"ana","class":"unico"}`, []string{"Content-Type", asJSON}, 422, "unknown-class"},
		{"class in a form", "option=ana&class=", []string{"Content-Type", asForm}, 422, "unknown-class"},

		mediaType(""), mediaType("text/plain"), mediaType("text/json"), mediaType("application/jsonp"),
		mediaType("application/problem+json"), mediaType("application"), mediaType("*/*"), mediaType("application/json, text/plain"),
		mediaType("multipart/form-data; boundary=x"), mediaType("application/json;;;"), mediaType("application/xml"),
		coded("gzip"), coded("identity"), coded("br"), coded("deflate"), coded(""), coded("", "gzip"), coded("x, gzip"),

		key("empty", ""), key("256 long", strings.Repeat("k", 256)), key("space", "a b"), key("tab", "a\tb"),
		key("not ASCII", "ké"), key("twice", "a", "b"), key("twice the same", "a", "a"),
		key("one of two empty", "a", ""),
	} {
		t.Run(tt.name, func(t *testing.T) {
			headers := tt.headers
			if len(headers) > 1 && headers[0] == "Content-Type" && headers[1] == "" {
				headers = headers[2:]
			}
			problem(t, s.send("POST", "/polls/p/votes", tt.body, headers...), tt.status, tt.code)
		})
	}
	t.Run("a key with a control character", func(t *testing.T) {
		body := `{"option":"ana"}`
		for _, key := range []string{"a\x01b", "a\x7fb", "\x1b[31m"} {
			all := s.raw(post("p", body, typeJSON, lengthOf(body), "Idempotency-Key: "+key))
			require.Len(t, all, 1)
			// A stricter fasthttp does not even read such a header.
			code := "bad-idempotency-key"
			if strings.Contains(all[0].text(), "malformed-request") {
				code = "malformed-request"
			}
			problem(t, all[0], 400, code)
		}
	})
	assert.Empty(t, s.stored())
	assert.EqualValues(t, 2, testutil.ToFloat64(s.rejected.WithLabelValues("unknown-class")))
	assert.Zero(t, testutil.CollectAndCount(s.accepted))
	s.vote("p", "ana")
	assert.Len(t, s.stored(), 1)
}

func TestNotFound(t *testing.T) {
	s := start(t)
	s.poll("p", "ana")
	body := `{"option":"ana"}`
	for _, path := range []string{
		"/polls/q/votes", "/polls/P/votes", "/polls/p%20/votes", "/polls/p%2fx/votes", "/polls/%70/votes",
		"/polls/" + strings.Repeat("x", 64) + "/votes", "/polls/__proto__/votes", "/polls/%00/votes", "/polls/../votes",
	} {
		problem(t, s.send("POST", path, body, "Content-Type", asJSON), 404, "poll-not-found")
	}
	for _, path := range []string{"/polls/q", "/polls/q/results", "/polls/%ff", "/polls/votes"} {
		problem(t, s.send("GET", path, ""), 404, "poll-not-found")
	}
	for _, path := range []string{
		"/", "/x", "/polls/", "/polls/p/", "/Polls/p", "/polls/p/votes/", "/polls/p/x", "/polls/p/results/x", "//polls/p",
		"/polls/p/votes/1", "/polls//votes", "/metrics", "/livez", "/readyz", "/debug/pprof/", "/openapi.json/",
	} {
		problem(t, s.send("POST", path, body, "Content-Type", asJSON), 404, "not-found")
		problem(t, s.send("GET", path, ""), 404, "not-found")
	}
	assert.Empty(t, s.stored())
}

func TestMethodNotAllowed(t *testing.T) {
	s := start(t)
	s.poll("p", "ana")
	body := `{"option":"ana"}`
	for _, m := range []string{"GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "FOO", "post", "POSTX"} {
		t.Run(m, func(t *testing.T) {
			all := s.raw(m + " /polls/p/votes HTTP/1.1\r\nHost: x\r\n" + typeJSON + "\r\n" + lengthOf(body) + "\r\nConnection: close\r\n\r\n" + body)
			require.Len(t, all, 1)
			problem(t, all[0], 405, "method-not-allowed")
			assert.Equal(t, "POST", all[0].Header.Get("Allow"))
			for _, h := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Methods"} {
				assert.Empty(t, all[0].Header.Get(h))
			}
		})
	}
	t.Run("HEAD", func(t *testing.T) {
		all := s.raw("HEAD /polls/p/votes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		require.Len(t, all, 1)
		assert.Equal(t, 405, all[0].StatusCode)
		assert.Equal(t, "POST", all[0].Header.Get("Allow"))
		assert.Empty(t, all[0].body)
	})
	for _, path := range []string{"/polls", "/polls/p", "/polls/p/results", "/openapi.json"} {
		for _, m := range []string{"POST", "PUT", "DELETE", "PATCH", "OPTIONS", "FOO"} {
			a := s.send(m, path, body, "Content-Type", asJSON)
			problem(t, a, 405, "method-not-allowed")
			assert.Equal(t, "GET, HEAD", a.Header.Get("Allow"), m)
		}
		a := s.send("HEAD", path, "")
		assert.Equal(t, 200, a.StatusCode, path)
		assert.Empty(t, a.body)
		assert.Equal(t, s.send("GET", path, "").Header.Get("Content-Type"), a.Header.Get("Content-Type"))
	}
	// A method is not overridden by a header or a parameter either.
	problem(t, s.send("GET", "/polls/p/votes?_method=POST", "", "X-HTTP-Method-Override", "POST"), 405, "method-not-allowed")
	assert.Empty(t, s.stored())
}

func TestPollWindow(t *testing.T) {
	s := start(t, func(set *settings) { set.shards = 3 })
	ctx := context.Background()
	now, err := s.store.Now(ctx)
	require.NoError(t, err)
	s.apply(s.store, "later", vote.Window{Opens: now.Add(time.Hour)}, "ana")
	s.apply(s.store, "over", vote.Window{Opens: now.Add(-time.Hour), Closes: now.Add(-time.Minute)}, "ana")
	s.poll("p", "ana")
	problem(t, s.vote("later", "ana"), 409, "poll-not-open")
	problem(t, s.vote("later", "ana", "Idempotency-Key", "k"), 409, "poll-not-open")
	problem(t, s.vote("over", "ana"), 409, "poll-closed")
	problem(t, s.vote("over", "ana", "Idempotency-Key", "k"), 409, "poll-closed")
	// A wrong option is told before the window is looked at, an unknown poll
	// before all.
	problem(t, s.vote("over", "carla"), 422, "unknown-option")

	id, at := receipt(t, s.vote("p", "ana", "Idempotency-Key", "k"), "p", "ana")
	require.NoError(t, s.store.ClosePoll(ctx, "p"))
	problem(t, s.vote("p", "ana"), 409, "poll-closed")
	problem(t, s.vote("p", "ana", "Idempotency-Key", "other"), 409, "poll-closed")
	// The answer to a vote that was in time stands.
	again := s.vote("p", "ana", "Idempotency-Key", "k")
	id2, at2 := receipt(t, again, "p", "ana")
	assert.Equal(t, id, id2)
	assert.Equal(t, at, at2)
	assert.Equal(t, "true", again.Header.Get("Idempotency-Replayed"))
	assert.Len(t, s.stored(), 1)

	// A poll that closed by its own window: first Redis says so, then the api
	// knows it by itself, once every shard will stay closed if the clock goes back.
	now, err = s.store.Now(ctx)
	require.NoError(t, err)
	s.apply(s.store, "soon", vote.Window{Closes: now.Add(50 * time.Millisecond)}, "ana")
	testkit.Eventually(t, "the poll closes by itself", func() bool { return s.vote("soon", "ana").StatusCode == 409 })
	testkit.Eventually(t, "late votes no longer reach Redis", func() bool {
		before := s.rdb.Info(ctx, "commandstats").Val()
		problem(t, s.vote("soon", "ana"), 409, "poll-closed")
		return callsOf(s.rdb.Info(ctx, "commandstats").Val(), "evalsha") == callsOf(before, "evalsha")
	})
	for shard := range s.shards {
		window := s.rdb.HGet(ctx, fmt.Sprintf("windows:{%d}", shard), "soon").Val()
		assert.True(t, strings.HasSuffix(window, " closed"), "shard %d: %q", shard, window)
	}
}

func callsOf(stats, command string) string {
	_, rest, _ := strings.Cut(stats, "cmdstat_"+command+":calls=")
	n, _, _ := strings.Cut(rest, ",")
	return n
}

// What another process does to a poll is seen at once: the api's own memory is
// only ever wrong about what Redis decides in the end.
func TestPollsOfAnotherProcess(t *testing.T) {
	s := start(t)
	ctx := context.Background()
	other := s.open(s.redis.URL())
	problem(t, s.vote("new", "ana"), 404, "poll-not-found")
	s.apply(other, "new", vote.Window{}, "ana")
	receipt(t, s.vote("new", "ana"), "new", "ana")

	now, err := s.store.Now(ctx)
	require.NoError(t, err)
	s.apply(other, "later", vote.Window{Opens: now.Add(time.Hour)}, "ana")
	problem(t, s.vote("later", "ana"), 409, "poll-not-open")
	problem(t, s.vote("later", "bia"), 422, "unknown-option")
	// The options of a poll without votes may change, and it opens by hand.
	s.apply(other, "later", vote.Window{Opens: now.Add(time.Hour)}, "ana", "bia")
	problem(t, s.vote("later", "bia"), 409, "poll-not-open")
	require.NoError(t, other.OpenPoll(ctx, "later"))
	receipt(t, s.vote("later", "bia"), "later", "bia")
	require.NoError(t, other.ClosePoll(ctx, "later"))
	problem(t, s.vote("later", "bia"), 409, "poll-closed")

	// An option that has just gone: not counted, and the voter may try again.
	s.apply(other, "swap", vote.Window{}, "ana", "bia")
	assert.Equal(t, 200, s.send("GET", "/polls/swap", "").StatusCode)
	s.apply(other, "swap", vote.Window{}, "bia", "carla")
	testkit.Eventually(t, "the option is gone", func() bool {
		a := s.vote("swap", "ana")
		if a.StatusCode == 503 {
			problem(t, a, 503, "queue-unavailable")
			return false
		}
		problem(t, a, 422, "unknown-option")
		return true
	})
	receipt(t, s.vote("swap", "carla"), "swap", "carla")
	for _, v := range s.stored() {
		assert.False(t, v.Poll == "swap" && v.Option == "ana")
	}
}

func TestIdempotency(t *testing.T) {
	s := start(t, func(set *settings) { set.shards = 2 })
	s.poll("p", "ana", "bruno")
	s.poll("q", "ana", "bruno")
	longest := strings.Repeat("~", 255)
	for _, key := range []string{"1", "!", longest, `"quoted"`, "550e8400-e29b-41d4-a716-446655440000"} {
		first := s.vote("p", "ana", "Idempotency-Key", key)
		id, at := receipt(t, first, "p", "ana")
		assert.Empty(t, first.Header.Get("Idempotency-Replayed"))
		for _, ct := range [][2]string{{asJSON, `{"option":"ana"}`}, {asForm, "option=ana"}} {
			a := s.send("POST", "/polls/p/votes", ct[1], "Content-Type", ct[0], "Idempotency-Key", key)
			id2, at2 := receipt(t, a, "p", "ana")
			assert.Equal(t, id, id2)
			assert.Equal(t, at, at2)
			assert.Equal(t, "true", a.Header.Get("Idempotency-Replayed"))
		}
		problem(t, s.vote("p", "bruno", "Idempotency-Key", key), 409, "idempotency-key-reused")
		// Another poll is another matter.
		id3, _ := receipt(t, s.vote("q", "bruno", "Idempotency-Key", key), "q", "bruno")
		assert.NotEqual(t, id, id3)
	}
	assert.Len(t, s.stored(), 10)
	assert.EqualValues(t, 5, testutil.ToFloat64(s.accepted.WithLabelValues("p")))
	assert.EqualValues(t, 5, testutil.ToFloat64(s.rejected.WithLabelValues("idempotency-key-reused")))
}

// A hundred posts with one key at once, in several batches and within one.
func TestOneKeyAtOnce(t *testing.T) {
	s := start(t, func(set *settings) { set.shards = 2 })
	s.poll("p", "ana", "bruno")
	c := s.client()
	for round := range 5 {
		key := fmt.Sprint("key-", round)
		var mu sync.Mutex
		ids, replayed := map[string]int{}, 0
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				a, err := do(c, "POST", s.url+"/polls/p/votes", `{"option":"ana"}`, "Content-Type", asJSON, "Idempotency-Key", key)
				if !assert.NoError(t, err) {
					return
				}
				id, _ := receipt(t, a, "p", "ana")
				mu.Lock()
				defer mu.Unlock()
				ids[id]++
				if a.Header.Get("Idempotency-Replayed") == "true" {
					replayed++
				}
			})
		}
		wg.Wait()
		assert.Len(t, ids, 1)
		assert.Equal(t, 99, replayed)
		assert.Len(t, s.stored(), round+1)
	}
	// Two options fight for one key: one wins, the other is told.
	for round := range 20 {
		key := fmt.Sprint("fight-", round)
		got := make([]answer, 2)
		var wg sync.WaitGroup
		for i, option := range []string{"ana", "bruno"} {
			wg.Go(func() {
				var err error
				got[i], err = do(c, "POST", s.url+"/polls/p/votes", "option="+option, "Content-Type", asForm, "Idempotency-Key", key)
				assert.NoError(t, err)
			})
		}
		wg.Wait()
		assert.ElementsMatch(t, []int{202, 409}, []int{got[0].StatusCode, got[1].StatusCode})
	}
	assert.Len(t, s.stored(), 25)
	s.consume()
	r, err := s.store.Results(context.Background(), "p")
	require.NoError(t, err)
	assert.EqualValues(t, 25, r.Tally["ana"]+r.Tally["bruno"])
}

// Strings of a request are borrowed from its buffer. Options, keys, user
// agents and addresses of equal length on 64 busy connections: every byte that
// was stored was sent, together.
func TestBorrowedStrings(t *testing.T) {
	s := start(t, func(set *settings) {
		set.shards = 2
		set.http.Privacy = httpapi.PrivacyRaw
		set.http.TrustedProxies = prefixes("127.0.0.0/8")
	})
	const conns, each = 64, 60
	var options []string
	for i := range conns {
		options = append(options, fmt.Sprintf("option-%04d", i))
	}
	s.poll("poll-one", options...)
	s.poll("poll-two", options...)
	type sent struct{ poll, option, agent, client string }
	var mu sync.Mutex
	all := map[string]sent{}
	var wg sync.WaitGroup
	for n := range conns {
		c := s.client()
		wg.Go(func() {
			for i := range each {
				want := sent{
					poll: []string{"poll-one", "poll-two"}[(n+i)%2], option: options[(n*7+i)%conns],
					agent: fmt.Sprintf("agent-%04d-%04d", n, i), client: fmt.Sprintf("10.%d.%d.1", 100+n, 100+i),
				}
				body, ct := `{"option":"`+want.option+`"}`, asJSON
				if i%2 == 0 {
					body, ct = "option="+want.option, asForm
				}
				a, err := do(c, "POST", s.url+"/polls/"+want.poll+"/votes", body, "Content-Type", ct, "User-Agent", want.agent,
					"X-Forwarded-For", want.client, "Idempotency-Key", fmt.Sprintf("key-%04d-%04d", n, i))
				if !assert.NoError(t, err) {
					return
				}
				id, _ := receipt(t, a, want.poll, want.option)
				mu.Lock()
				all[id] = want
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	stored := s.stored()
	require.Len(t, stored, conns*each)
	require.Len(t, all, conns*each)
	for id, want := range all {
		v := stored[id]
		assert.Equal(t, want, sent{v.Poll, v.Option, v.UserAgent, v.Client})
	}
	// The keys are kept as digests of what was sent.
	ctx := context.Background()
	for n := range conns {
		for i := range each {
			poll := []string{"poll-one", "poll-two"}[(n+i)%2]
			d := vote.NewIdempotencyKey(poll, fmt.Sprintf("key-%04d-%04d", n, i))
			shard := (int(d[0])<<8 | int(d[1])) % 2
			got, err := s.rdb.Exists(ctx, fmt.Sprintf("idem:{%d}:%s", shard, base64.RawURLEncoding.EncodeToString(d[:]))).Result()
			require.NoError(t, err)
			require.EqualValues(t, 1, got)
		}
	}
}

// held is a Submitter whose votes wait until the test lets them go.
type held struct {
	next  httpapi.Submitter
	came  chan struct{}
	leave chan struct{}
}

func (*held) Overloaded() error { return nil }

func (h *held) Submit(v *vote.Vote, optionsKey string, key *vote.IdempotencyKey) (vote.Receipt, error) {
	h.came <- struct{}{}
	<-h.leave
	if h.next == nil {
		return vote.Receipt{ID: v.ID, Option: v.Option, AcceptedAt: time.Unix(1, 0)}, nil
	}
	return h.next.Submit(v, optionsKey, key)
}

var _ httpapi.Submitter = (*enqueue.Committer)(nil)

func TestRedisAwayAndBack(t *testing.T) {
	s := start(t, func(set *settings) {
		set.redisArgs = []string{"--appendonly", "yes", "--appendfsync", "always"}
		set.enqueue.Timeout = 300 * time.Millisecond
	})
	s.poll("p", "ana")
	receipt(t, s.vote("p", "ana", "Idempotency-Key", "k"), "p", "ana")
	assert.Equal(t, 200, s.send("GET", "/polls/p/results", "").StatusCode)

	s.redis.Kill()
	problem(t, s.vote("p", "ana"), 503, "queue-unavailable")
	problem(t, s.vote("p", "ana", "Idempotency-Key", "k2"), 503, "queue-unavailable")
	problem(t, s.vote("p", "nobody"), 503, "queue-unavailable")
	problem(t, s.vote("nowhere", "ana"), 503, "queue-unavailable")
	// What was read is served, and says that it is old. What was not can't be.
	testkit.Eventually(t, "the results are marked as stale", func() bool {
		a := s.send("GET", "/polls/p/results", "")
		assert.Equal(t, 200, a.StatusCode)
		return a.Header.Get("Warning") != ""
	})
	for _, path := range []string{"/polls", "/polls/p", "/polls/nowhere", "/polls/nowhere/results"} {
		problem(t, s.send("GET", path, ""), 503, "queue-unavailable")
	}
	assert.Equal(t, 200, s.send("GET", "/openapi.json", "").StatusCode)
	assert.Error(t, s.server.Ready(context.Background()))

	s.redis.Start()
	testkit.Eventually(t, "votes are taken again", func() bool { return s.vote("p", "ana", "Idempotency-Key", "k2").StatusCode == 202 })
	testkit.Eventually(t, "results are back", func() bool {
		return s.send("GET", "/polls/p/results", "").Header.Get("Warning") == "" && s.send("GET", "/polls", "").StatusCode == 200
	})
	require.NoError(t, s.server.Ready(context.Background()))
	a := s.vote("p", "ana", "Idempotency-Key", "k")
	receipt(t, a, "p", "ana")
	assert.Equal(t, "true", a.Header.Get("Idempotency-Replayed"))
	assert.Len(t, s.stored(), 2)
}

// An api that starts before Redis serves as soon as Redis is there.
func TestStartWithoutRedis(t *testing.T) {
	var proxy *testkit.Proxy
	s := start(t, func(set *settings) {
		set.redisURL = func(r *testkit.RedisServer) string {
			proxy = testkit.NewProxy(t, r.Addr())
			proxy.Stall()
			return proxy.URL()
		}
		set.enqueue.Timeout = time.Second
	})
	problem(t, s.vote("p", "ana"), 503, "queue-unavailable")
	problem(t, s.send("GET", "/polls/p", ""), 503, "queue-unavailable")
	s.apply(s.open(s.redis.URL()), "p", vote.Window{}, "ana")
	proxy.Resume()
	testkit.Eventually(t, "votes are taken", func() bool { return s.vote("p", "ana").StatusCode == 202 })
}

func TestOverloadedByVotesInFlight(t *testing.T) {
	var proxy *testkit.Proxy
	s := start(t, func(set *settings) {
		set.redisURL = func(r *testkit.RedisServer) string {
			proxy = testkit.NewProxy(t, r.Addr())
			return proxy.URL()
		}
		set.enqueue.MaxInFlight = 3
	})
	s.poll("p", "ana")
	receipt(t, s.vote("p", "ana"), "p", "ana")

	reached, release := proxy.HoldNext(isEnqueue)
	answers := make(chan answer)
	for range 10 {
		go func() {
			a, err := do(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
				"POST", s.url+"/polls/p/votes", "option=ana", "Content-Type", asForm)
			assert.NoError(t, err)
			answers <- a
		}()
	}
	<-reached
	for range 7 {
		problem(t, <-answers, 503, "overloaded")
	}
	// No vote is even read meanwhile; all else is answered as ever.
	problem(t, s.vote("p", "nobody"), 503, "overloaded")
	assert.Equal(t, 200, s.send("GET", "/polls/p/results", "").StatusCode)
	release()
	for range 3 {
		receipt(t, <-answers, "p", "ana")
	}
	receipt(t, s.vote("p", "ana"), "p", "ana")
	assert.Len(t, s.stored(), 5)
}

// isEnqueue tells the command that puts a frame on the queue.
func isEnqueue(cmd []string) bool {
	return strings.HasPrefix(strings.ToUpper(cmd[0]), "EVAL") && len(cmd) > 7 &&
		strings.HasPrefix(cmd[3], "votes:") && strings.HasPrefix(cmd[6], "windows:")
}

func TestOverloadedByMemory(t *testing.T) {
	s := start(t)
	s.poll("p", "ana")
	ctx := context.Background()
	receipt(t, s.vote("p", "ana"), "p", "ana")
	limit := func(bytes string) { require.NoError(t, s.rdb.ConfigSet(ctx, "maxmemory", bytes).Err()) }

	// Redis itself refuses.
	limit("1mb")
	problem(t, s.vote("p", "ana"), 503, "overloaded")
	// The api refuses well before that: at some share of what Redis may have.
	used, err := s.rdb.InfoMap(ctx, "memory").Result()
	require.NoError(t, err)
	var bytes int64
	_, err = fmt.Sscan(used["Memory"]["used_memory"], &bytes)
	require.NoError(t, err)
	limit(fmt.Sprint(bytes * 110 / 100))
	testkit.Eventually(t, "votes are refused before Redis is full", func() bool {
		a := s.vote("p", "ana")
		if a.StatusCode == 202 {
			return false
		}
		problem(t, a, 503, "overloaded")
		return len(s.log.lines("nearly full")) > 0
	})
	limit("0")
	testkit.Eventually(t, "votes are taken again", func() bool { return s.vote("p", "ana").StatusCode == 202 })
}
