package vote

import (
	"bytes"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
)

// aVote is the i-th of a series of votes that all differ.
func aVote(i int) Vote {
	return Vote{
		ID:   uuid.MustParse(fmt.Sprintf("019be000-0000-7000-8000-%012x", i)),
		Poll: "p", Option: []string{"ana", "bruno", "carla"}[i%3],
		Client: fmt.Sprintf("10.0.0.%d", i%256), UserAgent: "Mozilla/5.0", Voter: "",
	}
}

func votes(n int) []Vote {
	out := make([]Vote, n)
	for i := range out {
		out[i] = aVote(i)
	}
	return out
}

func lines(votes []Vote) []byte {
	var b []byte
	for i := range votes {
		b = AppendVote(b, &votes[i])
	}
	return b
}

// encodeHeader writes a header as enqueue.lua does.
func encodeHeader(h Header) string {
	refused := "-"
	if len(h.Refused) > 0 {
		var s []string
		for _, i := range h.Refused {
			s = append(s, strconv.Itoa(i))
		}
		refused = strings.Join(s, ",")
	}
	var polls []string
	for _, p := range h.Polls {
		polls = append(polls, fmt.Sprintf("%s:%d", p.Poll, p.Votes))
	}
	return fmt.Sprintf("P1 %s %d %d %s %s\n", h.ID, h.AcceptedAt.UnixMilli(), h.Votes, refused, strings.Join(polls, ","))
}

var acceptedAt = time.UnixMilli(1768957201234).UTC()

// header is that of n accepted votes for poll p.
func header(n int) Header {
	return Header{ID: "f-1", AcceptedAt: acceptedAt, Votes: n, Polls: []PollVotes{{"p", int64(n)}}}
}

func codec(tb testing.TB) *Codec {
	tb.Helper()
	c, err := NewCodec()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// frame puts a header before the compressed lines.
func frame(c *Codec, h Header, lines []byte) []byte {
	return c.Compress([]byte(encodeHeader(h)), lines, h.Votes)
}

// readAll reads a frame and copies its votes.
func readAll(c *Codec, frame []byte) (Header, []Vote, error) {
	var out []Vote
	var bad error
	h, err := c.Read(frame, func(r *RawVote) {
		v, err := r.Vote()
		bad = errors.Join(bad, err)
		out = append(out, v)
	})
	return h, out, errors.Join(err, bad)
}

func TestRoundTrip(t *testing.T) {
	c := codec(t)
	for _, n := range []int{1, 2, rawVotes, rawVotes + 1, 16, 100, MaxFrameVotes} {
		want := votes(n)
		h := header(n)
		f := frame(c, h, lines(want))
		raw := bytes.Contains(f, []byte(`{"id":"`))
		if raw != (n <= rawVotes) {
			t.Errorf("%d votes: readable is %v", n, raw)
		}
		gotHeader, got, err := readAll(c, f)
		if err != nil {
			t.Fatalf("%d votes: %v", n, err)
		}
		if !reflect.DeepEqual(gotHeader, h) || !reflect.DeepEqual(got, want) {
			t.Errorf("%d votes came back otherwise", n)
		}
		if gotHeader.Accepted() != int64(n) {
			t.Errorf("Accepted() = %d, want %d", gotHeader.Accepted(), n)
		}
		if id := ElementID(f); id != h.ID {
			t.Errorf("ElementID = %q, want %q", id, h.ID)
		}
	}
}

// A body that is zstd for few votes, or raw for many, is as good.
func TestReadersTellByTheMagicBytes(t *testing.T) {
	c := codec(t)
	few := c.enc.EncodeAll(lines(votes(1)), []byte(encodeHeader(header(1))))
	many := append([]byte(encodeHeader(header(100))), lines(votes(100))...)
	// Two zstd frames, one after the other, are one body.
	two := c.enc.EncodeAll(lines(votes(2)[:1]), []byte(encodeHeader(header(2))))
	two = c.enc.EncodeAll(lines(votes(2)[1:]), two)
	for n, f := range map[int][]byte{1: few, 100: many, 2: two} {
		if _, got, err := readAll(c, f); err != nil || !reflect.DeepEqual(got, votes(n)) {
			t.Errorf("%d votes: %v", n, err)
		}
	}
}

func TestHostileText(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"plain":            {"Mozilla/5.0 (X11; Linux x86_64)", ""},
		"quote":            {`say "hi"`, ""},
		"backslash":        {`C:\dir\`, ""},
		"only a backslash": {`\`, ""},
		"only a quote":     {`"`, ""},
		"looks escaped":    {`\u0041\n`, ""},
		"member":           {`","option":"bruno`, ""},
		"end of line":      {"\"}\n{\"id\":\"", ""},
		"newline":          {"a\nb\r\n", ""},
		"tab":              {"a\tb", ""},
		"NUL":              {"a\x00b", ""},
		"control":          {"\x01\x1f\x7f", ""},
		"markup":           {"<script>alert('&')</script>", ""},
		"emoji":            {"😀👩‍👩‍👧", ""},
		"right to left":    {"\u202eמרחבא", ""},
		"line separators":  {"a\u2028b\u2029", ""},
		"NFD":              {"joa\u0303o", ""},
		"replacement":      {"\ufffd", ""},
		"noncharacter":     {"\uffff\U0010ffff", ""},
		"invalid":          {"a\xffb", "a\ufffdb"},
		"cut rune":         {"ol\xc3", "ol\ufffd"},
		"surrogate":        {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"},
		"overlong":         {"\xc0\xaf", "\ufffd\ufffd"},
		"invalid, escaped": {"\"\xfe\\", "\"\ufffd\\"},
		"zstd magic":       {zstdMagic, "(\ufffd/\ufffd"},
		"header":           {"P1 f-1 1 1 - p:1\n", ""},
		"longest":          {strings.Repeat("\x00", MaxUserAgent), ""},
	} {
		t.Run(name, func(t *testing.T) {
			if c.want == "" {
				c.want = c.in
			}
			for _, n := range []int{1, 8} {
				in, want := votes(n), votes(n)
				for i := range in {
					in[i].Client, in[i].UserAgent, in[i].Voter = c.in, c.in, c.in
					want[i].Client, want[i].UserAgent, want[i].Voter = c.want, c.want, c.want
				}
				body := lines(in)
				if got := bytes.Count(body, []byte{'\n'}); got != n {
					t.Fatalf("%d lines for %d votes", got, n)
				}
				cod := codec(t)
				_, got, err := readAll(cod, frame(cod, header(n), body))
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("got %+v (%v)\nwant %+v", got, err, want)
				}
				// Anyone else's JSON parser reads the same.
				var l line
				if err := json.Unmarshal(bytes.SplitN(body, []byte{'\n'}, 2)[0], &l); err != nil || l.UserAgent != c.want {
					t.Errorf("encoding/json reads %q (%v)", l.UserAgent, err)
				}
			}
		})
	}
}

func TestRefusedVotes(t *testing.T) {
	c := codec(t)
	for _, n := range []int{3, 10, 100} {
		all := votes(n)
		for i := range all {
			all[i].Poll = []string{"p", "q", "gone"}[i%3]
		}
		body := lines(all)
		// Vote 0 (p) and 4 (q) were refused one by one, those of gone as a
		// whole; so was 2, on top.
		h := Header{ID: "f-1", AcceptedAt: acceptedAt, Votes: n, Refused: []int{0, 2}}
		if n > 4 {
			h.Refused = append(h.Refused, 4)
		}
		var want []Vote
		sums := map[string]int64{}
		for i, v := range all {
			if v.Poll != "gone" && !slices.Contains(h.Refused, i) {
				want = append(want, v)
				sums[v.Poll]++
			}
		}
		for _, p := range []string{"q", "p"} { // the order is free
			if sums[p] > 0 {
				h.Polls = append(h.Polls, PollVotes{p, sums[p]})
			}
		}
		got, read, err := readAll(c, frame(c, h, body))
		if err != nil || !reflect.DeepEqual(read, want) || !reflect.DeepEqual(got, h) {
			t.Errorf("%d votes: read %d, want %d (%v)", n, len(read), len(want), err)
		}
		if got.Accepted() != int64(len(want)) {
			t.Errorf("Accepted() = %d, want %d", got.Accepted(), len(want))
		}
	}
}

// More polls than the scratch array of scan has room for.
func TestManyPollsInAFrame(t *testing.T) {
	c := codec(t)
	all := votes(40)
	h := Header{ID: "f-1", AcceptedAt: acceptedAt, Votes: 40}
	for i := range all {
		all[i].Poll = fmt.Sprintf("p%d", i%20)
	}
	for i := range 20 {
		h.Polls = append(h.Polls, PollVotes{fmt.Sprintf("p%d", i), 2})
	}
	if _, got, err := readAll(c, frame(c, h, lines(all))); err != nil || !reflect.DeepEqual(got, all) {
		t.Errorf("%d votes, %v", len(got), err)
	}
}

func TestClassAndVoter(t *testing.T) {
	c := codec(t)
	in := votes(2)
	in[0].Class, in[0].Voter = "unico", "ab12"
	in[1].Client, in[1].UserAgent = "", ""
	body := lines(in)
	const second = `{"id":"019be000-0000-7000-8000-000000000001","poll":"p","option":"bruno"}` + "\n"
	if !strings.HasSuffix(string(body), second) {
		t.Errorf("empty members are written: %s", body)
	}
	if _, got, err := readAll(c, frame(c, header(2), body)); err != nil || !reflect.DeepEqual(got, in) {
		t.Errorf("got %+v (%v)", got, err)
	}
}

// Another writer may order the members otherwise, or space them out.
func TestFallback(t *testing.T) {
	want := aVote(0)
	want.Class, want.UserAgent = "unico", "ü\"\\"
	id := want.ID.String()
	c := codec(t)
	for name, l := range map[string]string{
		"known layout": string(bytes.TrimSuffix(AppendVote(nil, &want), []byte{'\n'})),
		"other order":  `{"option":"ana","user_agent":"ü\"\\","class":"unico","client":"10.0.0.0","poll":"p","id":"` + id + `"}`,
		"spaces":       ` { "id" : "` + id + `" , "poll":"p","class":"unico","option":"ana","client":"10.0.0.0","user_agent":"ü\"\\"} `,
		"escapes":      `{"id":"` + id + `","poll":"\u0070","class":"unico","option":"an\u0061","client":"10.0.0.0","user_agent":"\u00fc\u0022\u005c"}`,
		"empty members": `{"id":"` + id + `","poll":"p","class":"unico","option":"ana","client":"10.0.0.0",` +
			`"user_agent":"ü\"\\","voter":""}`,
		"tab and CR": "{\"id\":\"" + id + "\",\t\"poll\":\"p\",\"class\":\"unico\",\"option\":\"ana\",\"client\":\"10.0.0.0\",\"user_agent\":\"ü\\\"\\\\\"}\r",
	} {
		_, got, err := readAll(c, []byte(encodeHeader(header(1))+l+"\n"))
		if err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s: %+v (%v)", name, got, err)
		}
	}
	// A null is no value, as in every JSON reader of ours.
	_, got, err := readAll(c, []byte(encodeHeader(header(1))+`{"id":"`+id+`","poll":"p","option":"ana","client":null}`+"\n"))
	if err != nil || got[0].Client != "" {
		t.Errorf("null: %+v (%v)", got, err)
	}
}

// Whatever is damaged, the frame is unreadable as a whole; the header is known
// as far as it could be read.
func TestDamage(t *testing.T) {
	c := codec(t)
	good := string(frame(c, header(2), lines(votes(2))))
	big := string(frame(c, header(100), lines(votes(100))))
	body := string(lines(votes(2)))
	one := string(lines(votes(1)))
	with := func(fields string) string { return "P1 " + fields + "\n" + body }
	line := func(l string) string { return encodeHeader(header(1)) + l + "\n" }
	const id = `"id":"019be000-0000-7000-8000-000000000000"`

	noHeader := map[string]string{
		"empty":                  "",
		"only a header":          strings.TrimSuffix(encodeHeader(header(1)), "\n"),
		"JSON":                   `{"option":"ana"}`,
		"a line of JSON":         one,
		"other version":          "P2" + good[2:],
		"longer version":         "P11" + good[2:],
		"lower case":             "p1" + good[2:],
		"space before":           " " + good,
		"zstd without a header":  big[strings.IndexByte(big, '\n')+1:],
		"four fields":            with("f-1 1 2 -"),
		"six fields":             with("f-1 1 2 - p:2 x"),
		"two spaces":             with("f-1  1 2 - p:2"),
		"space behind":           with("f-1 1 2 - p:2 "),
		"no id":                  with(" 1 2 - p:2"),
		"id without a number":    with("f 1 2 - p:2"),
		"id without a flusher":   with("-1 1 2 - p:2"),
		"id with a sign":         with("f-+1 1 2 - p:2"),
		"id with a zero":         with("f-01 1 2 - p:2"),
		"id above 64 bits":       with("f-18446744073709551616 1 2 - p:2"),
		"id too long":            with(strings.Repeat("f", 65) + "-1 1 2 - p:2"),
		"two dashes":             with("f-a-1 1 2 - p:2"),
		"time no number":         with("f-1 x 2 - p:2"),
		"time negative":          with("f-1 -1 2 - p:2"),
		"time with a sign":       with("f-1 +1 2 - p:2"),
		"time with a zero":       with("f-1 01 2 - p:2"),
		"time with a point":      with("f-1 1.0 2 - p:2"),
		"time beyond years":      with("f-1 9007199254740993 2 - p:2"),
		"time above 64 bits":     with("f-1 9223372036854775808 2 - p:2"),
		"no votes":               with("f-1 1 0 - p:2"),
		"votes negative":         with("f-1 1 -2 - p:2"),
		"votes with a sign":      with("f-1 1 +2 - p:2"),
		"votes with a zero":      with("f-1 1 02 - p:2"),
		"votes in hex":           with("f-1 1 0x2 - p:2"),
		"votes empty":            with("f-1 1  - p:2"),
		"too many votes":         with("f-1 1 1025 - p:2"),
		"refused empty":          with("f-1 1 2  p:2"),
		"refused no number":      with("f-1 1 2 x p:1"),
		"refused negative":       with("f-1 1 2 -1 p:1"),
		"refused zero negative":  with("f-1 1 2 -0 p:1"),
		"refused with a sign":    with("f-1 1 2 +1 p:1"),
		"refused with a zero":    with("f-1 1 2 01 p:1"),
		"refused outside":        with("f-1 1 2 2 p:1"),
		"refused twice":          with("f-1 1 2 1,1 p:1"),
		"refused descending":     with("f-1 1 2 1,0 p:1"),
		"refused comma":          with("f-1 1 2 0, p:1"),
		"refused above 64 bits":  with("f-1 1 2 18446744073709551616 p:1"),
		"no polls":               with("f-1 1 2 - "),
		"dash for polls":         with("f-1 1 2 - -"),
		"poll without a number":  with("f-1 1 2 - p"),
		"poll with none":         with("f-1 1 2 - p:0"),
		"poll with less":         with("f-1 1 2 - p:-1"),
		"poll with a sign":       with("f-1 1 2 - p:+2"),
		"poll with a zero":       with("f-1 1 2 - p:02"),
		"poll with two numbers":  with("f-1 1 2 - p:1:1"),
		"poll id":                with("f-1 1 2 - P:2"),
		"poll empty":             with("f-1 1 2 - :2"),
		"polls comma":            with("f-1 1 2 - p:2,"),
		"poll twice":             with("f-1 1 2 - p:1,p:1"),
		"more accepted than are": with("f-1 1 2 - p:3"),
		"more in sum":            with("f-1 1 2 - p:2,q:1"),
		"sum overflows":          with("f-1 1 2 - p:9223372036854775807,q:9223372036854775807"),
	}
	badBody := map[string]string{
		"no body":                   encodeHeader(header(1)),
		"body cut":                  good[:len(good)-1],
		"body cut at a line":        good[:strings.LastIndexByte(good[:len(good)-1], '\n')+1],
		"extra line":                good + one,
		"extra empty line":          good + "\n",
		"extra bytes":               good + "x",
		"empty line":                line(""),
		"fewer votes in the body":   encodeHeader(header(3)) + body,
		"more votes in the body":    encodeHeader(header(1)) + body,
		"none of that poll":         with("f-1 1 2 - q:2"),
		"fewer of that poll":        with("f-1 1 2 - p:1,q:1"),
		"fewer by a refusal":        with("f-1 1 2 0 p:2"),
		"more than accepted":        with("f-1 1 2 - p:1"),
		"two values on a line":      line(one[:len(one)-1] + one[:len(one)-1]),
		"a value and a brace":       line(one[:len(one)-1] + "}"),
		"two values, spaced":        line(`{` + id + `,"poll":"p","option":"ana"} {}`),
		"a string":                  line(`"x"`),
		"a list":                    line(`[{` + id + `,"poll":"p","option":"ana"}]`),
		"null":                      line("null"),
		"a number":                  line("1"),
		"nothing in it":             line("{}"),
		"unknown member":            line(`{` + id + `,"poll":"p","option":"ana","weight":"2"}`),
		"member in other case":      line(`{` + id + `,"poll":"p","Option":"ana"}`),
		"member twice":              line(`{` + id + `,"poll":"p","option":"ana","option":"bruno"}`),
		"member twice in order":     line(`{` + id + `,"poll":"p","option":"ana","client":"a","client":"b"}`),
		"option is a number":        line(`{` + id + `,"poll":"p","option":0}`),
		"option is null":            line(`{` + id + `,"poll":"p","option":null}`),
		"no option":                 line(`{` + id + `,"poll":"p"}`),
		"no poll":                   line(`{` + id + `,"option":"ana"}`),
		"no id":                     line(`{"poll":"p","option":"ana"}`),
		"option is no id":           line(`{` + id + `,"poll":"p","option":"Ana"}`),
		"option is escaped text":    line(`{` + id + `,"poll":"p","option":"a\u0000"}`),
		"poll is no id":             line(`{` + id + `,"poll":"../p","option":"ana"}`),
		"class is no id":            line(`{` + id + `,"poll":"p","class":"a b","option":"ana"}`),
		"id upper case":             line(`{"id":"019BE000-0000-7000-8000-00000000000A","poll":"p","option":"ana"}`),
		"id in braces":              line(`{"id":"{019be000-0000-7000-8000-000000000000}","poll":"p","option":"ana"}`),
		"id without dashes":         line(`{"id":"019be0000000700080000000000000000000","poll":"p","option":"ana"}`),
		"id too short":              line(`{"id":"019be000-0000-7000-8000-00000000000","poll":"p","option":"ana"}`),
		"client without an end":     line(`{` + id + `,"poll":"p","option":"ana","client":"x}`),
		"control byte in a client":  line(`{` + id + `,"poll":"p","option":"ana","client":"` + "\x01" + `"}`),
		"invalid UTF-8 in a client": line(`{` + id + `,"poll":"p","option":"ana","client":"` + "\xff" + `"}`),
		"half a surrogate":          line(`{` + id + `,"poll":"p","option":"ana","client":"\ud800"}`),
		"zstd, but no frame":        encodeHeader(header(1)) + zstdMagic,
		"zstd of too few":           encodeHeader(header(101)) + big[strings.IndexByte(big, '\n')+1:],
		"zstd and a line":           big + one,
		"zstd of nothing":           encodeHeader(header(1)) + string(c.enc.EncodeAll(nil, nil)),
		"zstd of zstd":              encodeHeader(header(100)) + string(c.enc.EncodeAll([]byte(big[strings.IndexByte(big, '\n')+1:]), nil)),
		"body beyond the bound":     encodeHeader(header(1)) + strings.Repeat(" ", maxBody) + one,
	}
	for name, f := range noHeader {
		h, _, err := readAll(c, []byte(f))
		if !errors.Is(err, ErrBadFrame) || h.ID != "" {
			t.Errorf("%s: %v, header %+v", name, err, h)
		}
		if _, _, err := ParseHeader([]byte(f)); !errors.Is(err, ErrBadFrame) {
			t.Errorf("%s: ParseHeader says %v", name, err)
		}
	}
	for name, f := range badBody {
		h, _, err := readAll(c, []byte(f))
		if !errors.Is(err, ErrBadFrame) || h.ID != "f-1" {
			t.Errorf("%s: %v, header %+v", name, err, h)
		}
	}
	// The codec is as good as new after all that.
	if _, got, err := readAll(c, []byte(big)); err != nil || len(got) != 100 {
		t.Errorf("after bad frames: %d votes, %v", len(got), err)
	}
}

// A frame that was cut anywhere is bad, and so is one with any byte changed,
// unless what it says has stayed the same.
func TestCutAndFlippedAnywhere(t *testing.T) {
	c := codec(t)
	for _, n := range []int{2, 20} {
		want := votes(n)
		f := frame(c, header(n), lines(want))
		for i := range f {
			if _, _, err := readAll(c, f[:i]); !errors.Is(err, ErrBadFrame) {
				t.Fatalf("%d votes cut at %d: %v", n, i, err)
			}
		}
		r := rand.New(rand.NewPCG(1, uint64(n)))
		body := bytes.IndexByte(f, '\n') + 1
		for i := range f {
			g := bytes.Clone(f)
			g[i] ^= 1 << r.IntN(8)
			h, got, err := readAll(c, g)
			switch {
			case err != nil && !errors.Is(err, ErrBadFrame):
				t.Fatalf("byte %d: %v", i, err)
			case err == nil && int64(len(got)) != h.Accepted():
				t.Fatalf("byte %d: %d votes, header says %d", i, len(got), h.Accepted())
			case err == nil && n > rawVotes && i >= body && !reflect.DeepEqual(got, want):
				t.Fatalf("byte %d: the checksum let a change through", i)
			}
		}
	}
}

// What inflates beyond the bound is refused, and before it has taken the memory.
func TestBomb(t *testing.T) {
	zeros := make([]byte, 16<<20)
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer enc.Close()
	var stream bytes.Buffer // has no content size in its header
	enc.Reset(&stream)
	if _, err := enc.Write(zeros); err != nil {
		t.Fatal(err)
	}
	if err := enc.Close(); err != nil {
		t.Fatal(err)
	}
	half := enc.EncodeAll(zeros[:maxBody/2], nil)
	c := codec(t)
	for name, body := range map[string][]byte{
		"one frame":        enc.EncodeAll(zeros, nil),
		"a stream":         stream.Bytes(),
		"many frames":      bytes.Repeat(half, 100),
		"one over the top": enc.EncodeAll(zeros[:maxBody+1], nil),
		"a large window":   {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 0x01, 0x00, 0x00},
	} {
		f := append([]byte(encodeHeader(header(1))), body...)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := readAll(c, f)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrBadFrame) {
			t.Errorf("%s: %v", name, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 16*maxBody {
			t.Errorf("%s: took %d MB", name, took>>20)
		}
	}
	if cap(c.buf) > 4*maxBody {
		t.Errorf("the codec keeps %d bytes", cap(c.buf))
	}
}

// The largest batch that may be made can be read.
func TestLargestFrame(t *testing.T) {
	c := codec(t)
	var body []byte
	n := 0
	v := aVote(0)
	v.UserAgent, v.Client, v.Voter = strings.Repeat("\x00", MaxUserAgent), strings.Repeat("\x01", 64), strings.Repeat("f", 64)
	for n < MaxFrameVotes && len(body) <= MaxFrameBytes {
		body = AppendVote(body, &v)
		n++
	}
	if _, got, err := readAll(c, frame(c, header(n), body)); err != nil || len(got) != n {
		t.Errorf("%d votes in %d bytes: read %d, %v", n, len(body), len(got), err)
	}
}

func TestRawVoteOfAnotherMake(t *testing.T) {
	id := []byte("019be000-0000-7000-8000-000000000000")
	for name, r := range map[string]RawVote{
		"id":          {ID: []byte("x")},
		"client":      {ID: id, Client: []byte(`\`)},
		"user agent":  {ID: id, UserAgent: []byte(`\x`)},
		"voter":       {ID: id, Voter: []byte(`\u00`)},
		"quote early": {ID: id, Voter: []byte(`a"\n`)},
	} {
		if v, err := r.Vote(); !errors.Is(err, ErrBadFrame) {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
}

func TestFrameID(t *testing.T) {
	for _, id := range []FrameID{{"f", 0}, {"f", 1}, {NewFlusherID(), 1<<64 - 1}, {strings.Repeat("x", 64), 12}} {
		got, err := ParseFrameID(id.String())
		if err != nil || got != id {
			t.Errorf("%v came back as %v (%v)", id, got, err)
		}
	}
	for _, s := range []string{"", "-", "f", "f-", "-1", "f-x", "f--1", "f-+1", "f-1 ", "f- 1", "f-00", "f-1-1", "f-1e3",
		"f-18446744073709551616", strings.Repeat("x", 65) + "-1"} {
		if got, err := ParseFrameID(s); !errors.Is(err, ErrBadFrame) || got != (FrameID{}) {
			t.Errorf("ParseFrameID(%q) = %v, %v", s, got, err)
		}
	}
}

func TestNewFlusherID(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewFlusherID()
		if seen[id] {
			t.Fatal("the same id twice")
		}
		seen[id] = true
		raw, err := base32.StdEncoding.DecodeString(strings.ToUpper(id))
		if err != nil || len(raw) != 10 || !ValidID(id) {
			t.Fatalf("id %q: %v", id, err)
		}
	}
}

func TestElementID(t *testing.T) {
	const garbage = "sha1:2ef7bde608ce5404e97d5f042f95f89f1c232871" // of "Hello World!"
	if got := ElementID([]byte("Hello World!")); got != garbage {
		t.Errorf("garbage: %s", got)
	}
	for element, want := range map[string]string{
		"P1 f-1 1 1 - p:1\n{}":                 "f-1",
		"P1 x ":                                "x",
		"P1 a\nb c":                            "a\nb",
		"P1 " + strings.Repeat("x", 100) + " ": strings.Repeat("x", 100),
	} {
		if got := ElementID([]byte(element)); got != want {
			t.Errorf("ElementID(%q) = %q, want %q", element, got, want)
		}
	}
	seen := map[string]bool{}
	for _, element := range []string{"", "P1", "P1 ", "P1 x", "P1  x", "P2 f-1 1 1 - p:1\n", " P1 x ", "p1 x ",
		"P1 " + strings.Repeat("x", 101) + " "} {
		got := ElementID([]byte(element))
		if !strings.HasPrefix(got, "sha1:") || len(got) != 45 || seen[got] {
			t.Errorf("ElementID(%q) = %q", element, got)
		}
		seen[got] = true
	}
}

// Runs of elements that differ in a header, in the order, or in garbage have
// different digests; a body is told by its frame's id.
func TestElementsDigest(t *testing.T) {
	many := make([]string, 300)
	for i := range many {
		many[i] = fmt.Sprintf("P1 f-%d 1 1 - p:1\nbody", i)
	}
	swapped := slices.Clone(many)
	swapped[10], swapped[200] = swapped[200], swapped[10]
	seen := map[string]int{}
	for i, run := range [][]string{
		nil, {""}, {"", ""}, {"x"}, {"x", "x"}, {"y"}, {"P1 f-1 1 1 - p:1\nb"}, {"P1 f-1 2 1 - p:1\nb"}, {"P1 f-1 1 1 0 p:1\nb"},
		{"P1 f-1 1 1 - p:1"}, {"P1 f-1 1 1 - p:1\nb", "x"}, {"x", "P1 f-1 1 1 - p:1\nb"}, many, many[:128], many[:129], swapped,
		{"P2 f-1 1 1 - p:1\nb"}, {"\n"}, {"\n", ""},
	} {
		d := ElementsDigest(run)
		if other, ok := seen[d]; ok || len(d) != 40 {
			t.Errorf("run %d has the digest of run %d: %s", i, other, d)
		}
		seen[d] = i
	}
	if ElementsDigest([]string{"P1 f-1 1 1 - p:1\na"}) != ElementsDigest([]string{"P1 f-1 1 1 - p:1\nb"}) {
		t.Error("the body is part of the digest")
	}
}
