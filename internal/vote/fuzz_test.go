package vote

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func FuzzParseFrameID(f *testing.F) {
	for _, s := range []string{"f-1", "", "-", "f-01", "f-18446744073709551615", "a-b-1", "\n-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseFrameID(s)
		switch {
		case err != nil && !errors.Is(err, ErrBadFrame):
			t.Errorf("%v is no ErrBadFrame", err)
		case err == nil && id.String() != s:
			t.Errorf("%q came back as %q", s, id)
		}
	})
}

// frames are what the fuzzers begin with.
func seeds(f *testing.F) [][]byte {
	c := codec(f)
	escaped := aVote(0)
	escaped.UserAgent = "\"\\\x00"
	return [][]byte{
		frame(c, header(1), lines(votes(1))),
		frame(c, header(4), lines(votes(4))),
		frame(c, header(20), lines(votes(20))),
		frame(c, header(1), AppendVote(nil, &escaped)),
		frame(c, Header{ID: "f-1", AcceptedAt: acceptedAt, Votes: 3, Refused: []int{0, 2}, Polls: []PollVotes{{"p", 1}}}, lines(votes(3))),
		frame(c, Header{ID: "f-1", AcceptedAt: acceptedAt, Votes: 1, Polls: []PollVotes{{"q", 1}}}, lines(votes(1))),
		[]byte(encodeHeader(header(1)) + `{"option":"ana","poll":"p","id":"019be000-0000-7000-8000-000000000000"}` + "\n"),
		[]byte(encodeHeader(header(1)) + zstdMagic),
		[]byte("P1 f-1 1 1 - p:1\n"),
		[]byte(`{"option":"ana"}`),
		nil,
	}
}

// What ParseHeader takes is consistent in itself, and written again it is the
// same to the byte.
func FuzzParseHeader(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		h, body, err := ParseHeader(frame)
		if err != nil {
			if !errors.Is(err, ErrBadFrame) || h.ID != "" {
				t.Errorf("%+v, %v", h, err)
			}
			return
		}
		if again := append([]byte(encodeHeader(h)), body...); !bytes.Equal(again, frame) {
			t.Errorf("%q came back as %q", frame, again)
		}
		if id := ElementID(frame); id != h.ID {
			t.Errorf("ElementID = %q, header says %q", id, h.ID)
		}
		if n := h.Accepted(); n < 1 || n > int64(h.Votes) || h.Votes > MaxFrameVotes {
			t.Errorf("%d accepted of %d", n, h.Votes)
		}
		if !slices.IsSorted(h.Refused) || len(h.Refused) > 0 && (h.Refused[0] < 0 || h.Refused[len(h.Refused)-1] >= h.Votes) {
			t.Errorf("refused are %v of %d", h.Refused, h.Votes)
		}
	})
}

// What Read takes adds up to the header, and its votes written again are read
// as the same votes.
func FuzzRead(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	c := codec(f)
	f.Fuzz(func(t *testing.T, element []byte) {
		h, got, err := readAll(c, element)
		if err != nil {
			if !errors.Is(err, ErrBadFrame) {
				t.Errorf("%v is no ErrBadFrame", err)
			}
			return
		}
		sums := map[string]int64{}
		for _, v := range got {
			sums[v.Poll]++
			if !ValidID(v.Poll) || !ValidID(v.Option) || v.Class != "" && !ValidID(v.Class) {
				t.Errorf("vote %+v", v)
			}
		}
		for _, p := range h.Polls {
			if sums[p.Poll] != p.Votes {
				t.Errorf("%d votes of poll %s, header says %d", sums[p.Poll], p.Poll, p.Votes)
			}
		}
		if int64(len(got)) != h.Accepted() {
			t.Errorf("%d votes, header says %d", len(got), h.Accepted())
		}
		_, again, err := readAll(c, frame(c, Header{ID: h.ID, AcceptedAt: h.AcceptedAt, Votes: len(got), Polls: h.Polls}, lines(got)))
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%+v came back as %+v (%v)", got, again, err)
		}
	})
}

// Any text that a client sends is stored as it was, but for invalid UTF-8.
func FuzzAppendVote(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), "10.0.0.1", "Mozilla/5.0", "", 1)
	f.Add([]byte(""), "\x00\xff", "\"}\n{\"id\":\"", "\\", 5)
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), "\u2028", "\u202e😀", "P1 f-1 1 1 - p:1\n", 1024)
	c := codec(f)
	f.Fuzz(func(t *testing.T, id []byte, client, agent, voter string, n int) {
		v := Vote{Poll: "p", Class: "c", Option: "o"}
		copy(v.ID[:], id)
		v.Client, v.UserAgent, v.Voter = cut(client), cut(agent), cut(voter)
		n = 1 + (n%20+20)%20
		body := bytes.Repeat(AppendVote(nil, &v), n)
		if bytes.Count(body, []byte{'\n'}) != n {
			t.Fatalf("%q is not %d lines", body, n)
		}
		want := v
		want.Client, want.UserAgent, want.Voter = valid(v.Client), valid(v.UserAgent), valid(v.Voter)
		_, got, err := readAll(c, frame(c, header(n), body))
		if err != nil || len(got) != n || got[0] != want || got[n-1] != want {
			t.Fatalf("%+v came back as %+v (%v)", want, got, err)
		}
		var l line
		if err := json.Unmarshal(body[:len(body)/n], &l); err != nil {
			t.Fatalf("encoding/json: %v", err)
		}
		if other := (Vote{uuid.MustParse(l.ID), l.Poll, l.Class, l.Option, l.Client, l.UserAgent, l.Voter}); other != want {
			t.Errorf("encoding/json reads %+v, want %+v", other, want)
		}
	})
}

// cut keeps a body of twenty votes within the bound of a frame.
func cut(s string) string { return s[:min(len(s), 1024)] }

// valid replaces each byte that is no UTF-8.
func valid(s string) string { return strings.Map(func(r rune) rune { return r }, s) }
