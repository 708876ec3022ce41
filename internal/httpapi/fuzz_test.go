package httpapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"paredao/internal/vote"
)

// asContext makes a handler's context of a request, for one call of f.
func asContext(app *fiber.App, req *fasthttp.Request, f func(*fiber.Ctx)) {
	var rc fasthttp.RequestCtx
	req.CopyTo(&rc.Request)
	c := app.AcquireCtx(&rc)
	defer app.ReleaseCtx(c)
	f(c)
}

// FuzzVoteBody: what the body of a vote says is what another reader, written
// apart from this one, makes of it; what that one refuses is refused, and the
// other way round.
func FuzzVoteBody(f *testing.F) {
	const form = "application/x-www-form-urlencoded"
	for _, s := range [][2]string{
		{"application/json", `{"option":"ana"}`},
		{"application/json", `{"option":"ana","class":"unico"}`},
		{"application/json; charset=utf-8", ` { "class" : null , "option":"\u0061\ud83d\ude00" } `},
		{"application/json", `{"option":"ana","option":"bruno"}`},
		{"application/json", `{"Option":"ana"}`},
		{"application/json", `{"option":"ana"}{}`},
		{"application/json", `{"option":"\ud800"}`},
		{"application/json", "{\"option\":\"\xff\"}"},
		{"application/json", "{\"option\":\"a\x00\"}"},
		{"application/json", `{"option":` + strings.Repeat("[", 100)},
		{"application/json", `null`},
		{form, "option=ana&class=unico"},
		{form, "option=%61n+a&&"},
		{form, "option=a=b"},
		{form, "option=%ff"},
		{form, "option=a;class=b"},
		{form + ";charset=UTF-8", "%6fption"},
		{"text/plain", "option=ana"},
		{"multipart/form-data; boundary=x", "--x"},
		{"", ""},
	} {
		f.Add(s[0], s[1])
	}
	app := fiber.New()
	f.Fuzz(func(t *testing.T, contentType, body string) {
		var req fasthttp.Request
		req.Header.SetMethod("POST")
		req.Header.SetContentType(contentType)
		req.SetBodyString(body)
		asContext(app, &req, func(c *fiber.Ctx) {
			option, classed, err := parseChoice(c)
			media := string(c.Request().Header.ContentType())
			switch kind, _, _ := strings.Cut(media, ";"); strings.ToLower(strings.TrimSpace(kind)) {
			case "application/json":
				checkBody(t, media, body, option, classed, err, strictJSON)
			case form:
				checkBody(t, media, body, option, classed, err, strictForm)
			default:
				if err == nil {
					t.Errorf("%q was taken", media)
				}
			}
		})
	})
}

// checkBody compares what was read with what strict reads.
func checkBody(t *testing.T, media, body, option string, classed bool, err error, strict func(string) (choice, bool)) {
	t.Helper()
	var p *problem
	if err != nil && (!errors.As(err, &p) || p.Status != http.StatusBadRequest && p.Status != http.StatusUnsupportedMediaType) {
		t.Fatalf("%q, %q: %v", media, body, err)
	}
	want, ok := strict(body)
	switch {
	case err == nil && !ok:
		t.Errorf("%q, %q was taken as %q", media, body, option)
	case err == nil && (option != *want.Option || classed != (want.Class != nil)):
		t.Errorf("%q, %q: option %q, want %q; a class: %v", media, body, option, *want.Option, classed)
	case ok && err != nil && p.Code == "malformed-body":
		t.Errorf("%q, %q was refused: %v", media, body, err)
	}
}

// strictJSON reads a body with encoding/json, token by token.
func strictJSON(body string) (choice, bool) {
	var got choice
	if !utf8.ValidString(body) || !json.Valid([]byte(body)) {
		return got, false
	}
	dec := json.NewDecoder(strings.NewReader(body))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return got, false
	}
	seen := map[string]bool{}
	for dec.More() {
		name, _ := dec.Token()
		text, _ := name.(string)
		value, err := dec.Token()
		if err != nil || seen[text] || text != "option" && text != "class" {
			return got, false
		}
		seen[text] = true
		s, isText := value.(string)
		switch {
		case value == nil:
			continue
		case !isText:
			return got, false
		case text == "option":
			got.Option = &s
		default:
			got.Class = &s
		}
	}
	// encoding/json puts U+FFFD in the place of half a surrogate pair, and says
	// nothing: two readers could see different options.
	if strings.Count(body, "\ufffd")+strings.Count(strings.ToLower(body), `\ufffd`) < replaced(got.Option)+replaced(got.Class) {
		return got, false
	}
	return got, got.Option != nil
}

func replaced(s *string) int {
	if s == nil {
		return 0
	}
	return strings.Count(*s, "\ufffd")
}

// strictForm reads a form as the URL standard says, and no form that says a
// thing twice.
func strictForm(body string) (choice, bool) {
	var got choice
	for pair := range strings.SplitSeq(body, "&") {
		if pair == "" {
			continue
		}
		rawName, rawValue, _ := strings.Cut(pair, "=")
		name, ok1 := unescapeForm(rawName)
		value, ok2 := unescapeForm(rawValue)
		// A semicolon was once another way to write &.
		if !ok1 || !ok2 || strings.Contains(pair, ";") || !utf8.ValidString(value) || strings.Contains(value, "\x00") {
			return got, false
		}
		switch {
		case name == "option" && got.Option == nil:
			got.Option = &value
		case name == "class" && got.Class == nil:
			got.Class = &value
		default:
			return got, false
		}
	}
	return got, got.Option != nil
}

func unescapeForm(s string) (string, bool) {
	const digits = "0123456789abcdef0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '+':
			b.WriteByte(' ')
		case s[i] != '%':
			b.WriteByte(s[i])
		case i+2 >= len(s):
			return "", false
		default:
			high, low := strings.IndexByte(digits, s[i+1]), strings.IndexByte(digits, s[i+2])
			if high < 0 || low < 0 {
				return "", false
			}
			b.WriteByte(byte(high%16<<4 | low%16))
			i += 2
		}
	}
	return b.String(), true
}

// FuzzHeaders: a header that passes is read alike by net/http, as a proxy in
// front might be written in: where the body ends, which key the vote has, whom
// it was forwarded for. What net/http refuses never comes through such a proxy.
func FuzzHeaders(f *testing.F) {
	for _, s := range []string{
		"Host: x\r\nContent-Length: 16\r\nIdempotency-Key: k\r\n",
		"Host: x\r\nTransfer-Encoding: chunked\r\nX-Forwarded-For: 6.6.6.6, 9.9.9.9\r\nX-Forwarded-For: 10.0.0.1\r\n",
		"Host: x\r\nIdempotency-Key: a\r\nidempotency-key: b\r\n",
		"Host: x\r\nIdempotency-Key:  a b \r\nX-Request-ID: \x7f\r\n",
		"Host: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n",
		"Host: x\r\nContent-Length: 05\r\nContent-Encoding: gzip\r\n",
		"Host: x\nContent-Length: 5\n",
		"Host:0\n\r\n",
		"Host: x\r\nX: y\r\n z\r\n",
		"Host: x\r\nIdempotency-Key: \t\r\nExpect: 100-continue\r\n",
		"Host: x\r\nIdempotency-Key: " + strings.Repeat("k", 255) + "\r\n",
		"",
	} {
		f.Add(s)
	}
	app := fiber.New()
	f.Fuzz(func(t *testing.T, fields string) {
		raw := "POST /polls/p/votes HTTP/1.1\r\n" + fields + "\r\n"
		var req fasthttp.Request
		if req.Header.Read(bufio.NewReaderSize(strings.NewReader(raw), headerLimit)) != nil {
			return
		}
		h := &req.Header
		if string(h.Method()) != "POST" || string(h.RequestURI()) != "/polls/p/votes" {
			t.Fatalf("%q became %s %s", fields, h.Method(), h.RequestURI())
		}
		framing := readFraming(h.RawHeaders(), h.IsHTTP11())
		if framing.bad != "" {
			return
		}
		other, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
		if err == nil {
			sameHeader(t, fields, h, framing, other)
		}
		asContext(app, &req, func(c *fiber.Ctx) {
			sent := h.PeekAll("Idempotency-Key")
			key, err := idempotencyKey(c, "p")
			var p *problem
			switch {
			case err != nil && (!errors.As(err, &p) || p.Code != "bad-idempotency-key" || key != nil):
				t.Errorf("%q: %v, %v", sent, key, err)
			case err == nil && (key == nil) != (len(sent) == 0):
				t.Errorf("%q: %v", sent, key)
			case key != nil && (len(sent) != 1 || len(sent[0]) < 1 || len(sent[0]) > 255 || !visible(sent[0]) ||
				*key != vote.NewIdempotencyKey("p", string(sent[0]))):
				t.Errorf("%q was taken as %x", sent, *key)
			}
			if id := requestID(c); len(id) == 0 || len(id) > 128 || !visible([]byte(id)) {
				t.Errorf("request id %q", id)
			}
			if agent := userAgent(c); len(agent) > vote.MaxUserAgent {
				t.Errorf("%d bytes of a user agent", len(agent))
			}
		})
		// A chunked request's header is read a second time: as the same, or not
		// at all, which is a refusal.
		if dropTrailers(h) != nil {
			return
		}
		if again := readFraming(h.RawHeaders(), h.IsHTTP11()); again != framing {
			t.Errorf("%q is read again as %+v, was %+v", fields, again, framing)
		}
		if err == nil {
			sameHeader(t, fields, h, framing, other)
		}
	})
}

// sameHeader compares what matters for a vote.
func sameHeader(t *testing.T, fields string, h *fasthttp.RequestHeader, f framing, other *http.Request) {
	t.Helper()
	if chunked := slices.Equal(other.TransferEncoding, []string{"chunked"}); chunked != f.chunked {
		t.Errorf("%q: chunked is %v, net/http says %v", fields, f.chunked, chunked)
	}
	if n := int64(max(h.ContentLength(), 0)); !f.chunked && n != other.ContentLength {
		t.Errorf("%q: a body of %d, net/http says %d", fields, n, other.ContentLength)
	}
	for _, name := range []string{"Idempotency-Key", "X-Forwarded-For", "X-Request-Id", "Content-Encoding"} {
		var got []string
		for _, v := range h.PeekAll(name) {
			got = append(got, string(bytes.TrimSpace(v)))
		}
		var want []string
		for _, v := range other.Header.Values(name) {
			want = append(want, strings.TrimSpace(v))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %s is %q, net/http says %q", fields, name, got, want)
		}
	}
	_, _ = io.Copy(io.Discard, other.Body) // there is none
}
