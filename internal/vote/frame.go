package vote

import (
	"bytes"
	"crypto/rand"
	"crypto/sha1"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/klauspost/compress/zstd"
)

// The frame, an element of the queue:
//
//	P1 <id> <accepted ms> <votes> <refused> <polls>\n
//	<body>
//
//	P1        the format's version
//	id        flusher id, "-", sequence number
//	accepted  Redis's time at the enqueue, milliseconds since 1970 UTC
//	votes     number of votes in the body, refused ones included
//	refused   "-", or the places in the body (from 0, ascending, comma between)
//	          of votes that were refused one by one
//	polls     poll:votes (comma between): what this frame adds to the accepted
//	          ledger. Votes in the body for a poll that is not named here were
//	          refused as a whole, because the poll was not open.
//	body      one JSON object a line; or all of that as one zstd frame, told by
//	          its magic bytes
//
// The script enqueue.lua writes the header, since only it knows the time and
// what was refused; so the api can compress the body before.
const (
	frameMagic = "P1 "
	zstdMagic  = "\x28\xb5\x2f\xfd"
	// MaxFrameVotes is the most votes a frame may hold.
	MaxFrameVotes = 1024
	// MaxFrameBytes is the size of the uncompressed body above which a batch
	// is closed, and so bounds what one frame may cost in memory.
	MaxFrameBytes = 512 << 10
	// rawVotes is up to how many votes a body stays readable: below it zstd
	// saves little and costs a reader.
	rawVotes = 4
	// maxBody bounds what a reader inflates: the largest batch, and one vote
	// over it.
	maxBody = MaxFrameBytes + 64<<10
)

// NewFlusherID returns a new flusher's id, unique for ever: 80 random bits in
// base32.
func NewFlusherID() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}

// FrameID names a frame: who made it, and which of theirs it is.
type FrameID struct {
	Flusher string
	Seq     uint64
}

// String returns the id as it stands in the header.
func (id FrameID) String() string {
	return id.Flusher + "-" + strconv.FormatUint(id.Seq, 10)
}

// ParseFrameID reads an id written by String. It returns ErrBadFrame for
// anything else.
func ParseFrameID(s string) (FrameID, error) {
	flusher, seq, ok := strings.Cut(s, "-")
	n, err := strconv.ParseUint(seq, 10, 64)
	if !ok || err != nil || flusher == "" || len(flusher) > 64 || strconv.FormatUint(n, 10) != seq {
		return FrameID{}, fmt.Errorf("%w: id %.80q", ErrBadFrame, s)
	}
	return FrameID{Flusher: flusher, Seq: n}, nil
}

// ElementID names an element of a list: a frame by its id, anything else by
// its SHA-1. The scripts name elements in the same way.
func ElementID(element []byte) string {
	if rest, ok := bytes.CutPrefix(element, []byte(frameMagic)); ok {
		if id, _, ok := bytes.Cut(rest, []byte{' '}); ok && len(id) > 0 && len(id) <= 100 {
			return string(id)
		}
	}
	return string(appendSHA1([]byte("sha1:"), element))
}

// ElementsDigest tells a run of elements from any other: the SHA-1 of their
// headers, or of what has none, by pages of 128. commit.lua computes it in the
// same way.
func ElementsDigest(elements []string) string {
	var pages, page []byte
	for chunk := range slices.Chunk(elements, 128) {
		page = page[:0]
		for _, e := range chunk {
			end := strings.IndexByte(e, '\n')
			if end >= 0 && strings.HasPrefix(e, frameMagic) {
				page = append(page, e[:end+1]...)
				continue
			}
			page = append(appendSHA1(page, []byte(e)), '\n')
		}
		pages = appendSHA1(pages, page)
	}
	return string(appendSHA1(nil, pages))
}

func appendSHA1(dst, b []byte) []byte {
	sum := sha1.Sum(b)
	return hex.AppendEncode(dst, sum[:])
}

// PollVotes is a number of votes of one poll.
type PollVotes struct {
	Poll  string
	Votes int64
}

// Header is the first line of a frame.
type Header struct {
	ID         string
	AcceptedAt time.Time
	// Votes is the number of lines in the body, refused votes included.
	Votes int
	// Refused are the places of votes that were refused one by one, ascending.
	Refused []int
	// Polls says what the frame adds to the accepted ledger.
	Polls []PollVotes
}

// Accepted is the number of votes in the frame that count.
func (h Header) Accepted() int64 {
	var n int64
	for _, p := range h.Polls {
		n += p.Votes
	}
	return n
}

// ParseHeader reads a frame's header and returns it with the body, still
// compressed. It returns ErrBadFrame if the element has no such header.
func ParseHeader(frame []byte) (Header, []byte, error) {
	head, body, ok := bytes.Cut(frame, []byte{'\n'})
	if !ok || !bytes.HasPrefix(head, []byte(frameMagic)) {
		return Header{}, nil, fmt.Errorf("%w: no header", ErrBadFrame)
	}
	var f [5]string
	n := 0
	for s := range strings.SplitSeq(string(head[len(frameMagic):]), " ") {
		if n < len(f) {
			f[n] = s
		}
		n++
	}
	if n != len(f) {
		return Header{}, nil, fmt.Errorf("%w: header has %d fields, not 5", ErrBadFrame, n)
	}
	if _, err := ParseFrameID(f[0]); err != nil {
		return Header{}, nil, err
	}
	ms, ok := parseNumber(f[1])
	if !ok || ms > 1<<52 {
		return Header{}, nil, fmt.Errorf("%w: time %.40q", ErrBadFrame, f[1])
	}
	votes, ok := parseNumber(f[2])
	if !ok || votes < 1 || votes > MaxFrameVotes {
		return Header{}, nil, fmt.Errorf("%w: number of votes %.40q", ErrBadFrame, f[2])
	}
	refused, err := parseRefused(f[3], int(votes))
	if err != nil {
		return Header{}, nil, err
	}
	polls, err := parsePolls(f[4], votes)
	if err != nil {
		return Header{}, nil, err
	}
	return Header{f[0], time.UnixMilli(ms).UTC(), int(votes), refused, polls}, body, nil
}

// parseNumber reads digits and nothing else: no sign, no leading zero. The
// scripts read a header's numbers as digits too.
func parseNumber(s string) (int64, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' || s[0] == '0' && len(s) > 1 {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

func parseRefused(s string, votes int) ([]int, error) {
	if s == "-" {
		return nil, nil
	}
	var refused []int
	last := -1
	for p := range strings.SplitSeq(s, ",") {
		i, ok := parseNumber(p)
		if !ok || i >= int64(votes) || int(i) <= last {
			return nil, fmt.Errorf("%w: refused vote %.40q", ErrBadFrame, p)
		}
		last = int(i)
		refused = append(refused, last)
	}
	return refused, nil
}

func parsePolls(s string, votes int64) ([]PollVotes, error) {
	polls := make([]PollVotes, 0, 1)
	var sum int64
	for p := range strings.SplitSeq(s, ",") {
		poll, num, _ := strings.Cut(p, ":")
		n, ok := parseNumber(num)
		if !ok || n < 1 || n > votes || !ValidID(poll) {
			return nil, fmt.Errorf("%w: poll %.80q", ErrBadFrame, p)
		}
		if slices.ContainsFunc(polls, func(q PollVotes) bool { return q.Poll == poll }) {
			return nil, fmt.Errorf("%w: poll %q twice", ErrBadFrame, poll)
		}
		polls = append(polls, PollVotes{poll, n})
		if sum += n; sum > votes {
			return nil, fmt.Errorf("%w: more votes accepted than held", ErrBadFrame)
		}
	}
	return polls, nil
}

// line is a vote's place in a body, in the order of the known layout.
type line struct {
	ID        string `json:"id"`
	Poll      string `json:"poll"`
	Class     string `json:"class"`
	Option    string `json:"option"`
	Client    string `json:"client"`
	UserAgent string `json:"user_agent"`
	Voter     string `json:"voter"`
}

// AppendVote appends a vote's line to a body. The layout is fixed, so that
// readers can scan it. Invalid UTF-8 becomes U+FFFD.
func AppendVote(b []byte, v *Vote) []byte {
	b = append(b, `{"id":"`...)
	b = appendUUID(b, v.ID)
	b = append(b, `","poll":"`...)
	b = append(b, v.Poll...)
	if v.Class != "" {
		b = append(b, `","class":"`...)
		b = append(b, v.Class...)
	}
	b = append(b, `","option":"`...)
	b = append(b, v.Option...)
	b = append(b, '"')
	b = appendMember(b, `,"client":`, v.Client)
	b = appendMember(b, `,"user_agent":`, v.UserAgent)
	b = appendMember(b, `,"voter":`, v.Voter)
	return append(b, "}\n"...)
}

func appendUUID(b []byte, id uuid.UUID) []byte {
	b = append(hex.AppendEncode(b, id[:4]), '-')
	b = append(hex.AppendEncode(b, id[4:6]), '-')
	b = append(hex.AppendEncode(b, id[6:8]), '-')
	b = append(hex.AppendEncode(b, id[8:10]), '-')
	return hex.AppendEncode(b, id[10:])
}

func appendMember(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	b = append(b, name...)
	// The error says that invalid UTF-8 was replaced, which is what is wanted.
	b, _ = jsontext.AppendQuote(b, value)
	return b
}

// Codec compresses and reads bodies. It holds scratch memory: one for each
// goroutine.
type Codec struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
	buf []byte
	// vote is what Read hands out.
	vote RawVote
}

// NewCodec returns a codec for one goroutine. Close it when done.
func NewCodec() (*Codec, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(MaxFrameBytes))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxMemory(maxBody))
	if err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	return &Codec{enc: enc, dec: dec}, nil
}

// Close frees what the codec holds.
func (c *Codec) Close() {
	c.dec.Close()
	_ = c.enc.Close() // an encoder that writes to nothing has nothing to lose
}

// Compress appends the body of votes lines to dst, as it is for a few votes
// and as one zstd frame for more.
func (c *Codec) Compress(dst, lines []byte, votes int) []byte {
	if votes <= rawVotes {
		return append(dst, lines...)
	}
	return c.enc.EncodeAll(lines, dst)
}

// RawVote is a vote in a frame's own bytes: valid until the codec is used
// again. The strings that may be escaped are given as they stand in JSON.
type RawVote struct {
	ID, Poll, Class, Option  []byte
	Client, UserAgent, Voter []byte
}

// Vote returns a copy that stays.
func (r *RawVote) Vote() (Vote, error) {
	v := Vote{Poll: string(r.Poll), Class: string(r.Class), Option: string(r.Option)}
	var err error
	if v.ID, err = uuid.ParseBytes(r.ID); err != nil {
		return v, fmt.Errorf("%w: vote id %.40q", ErrBadFrame, r.ID)
	}
	for _, s := range []struct {
		dst *string
		src []byte
	}{{&v.Client, r.Client}, {&v.UserAgent, r.UserAgent}, {&v.Voter, r.Voter}} {
		if *s.dst, err = unescape(s.src); err != nil {
			return v, err
		}
	}
	return v, nil
}

func unescape(s []byte) (string, error) {
	if bytes.IndexByte(s, '\\') < 0 {
		return string(s), nil
	}
	quoted := append(append([]byte{'"'}, s...), '"')
	out, err := jsontext.AppendUnquote(nil, quoted)
	if err != nil {
		return "", fmt.Errorf("%w: string %.40q", ErrBadFrame, s)
	}
	return string(out), nil
}

// Read parses a whole frame and calls each for every vote in it that counts,
// in order. ErrBadFrame says that the frame is not whole: what each was given
// must then be thrown away. The header is returned even then, if it could be
// read (its ID is not empty).
func (c *Codec) Read(frame []byte, each func(*RawVote)) (Header, error) {
	h, body, err := ParseHeader(frame)
	if err != nil {
		return h, err
	}
	if bytes.HasPrefix(body, []byte(zstdMagic)) {
		if c.buf, err = c.dec.DecodeAll(body, c.buf[:0]); err != nil {
			return h, fmt.Errorf("%w: %w", ErrBadFrame, err)
		}
		body = c.buf
	}
	if len(body) > maxBody {
		return h, fmt.Errorf("%w: body of %d bytes", ErrBadFrame, len(body))
	}
	return h, scan(h, body, &c.vote, each)
}

func scan(h Header, body []byte, v *RawVote, each func(*RawVote)) error {
	refused := h.Refused
	left := make([]int64, 0, 8)
	for _, p := range h.Polls {
		left = append(left, p.Votes)
	}
	last := 0
	for i := range h.Votes {
		end := bytes.IndexByte(body, '\n')
		if end < 0 {
			return fmt.Errorf("%w: %d votes in the body, %d in the header", ErrBadFrame, i, h.Votes)
		}
		if !scanLine(body[:end], v) {
			if err := decodeLine(body[:end], v); err != nil {
				return err
			}
		}
		body = body[end+1:]
		if len(refused) > 0 && refused[0] == i {
			refused = refused[1:]
			continue
		}
		if last >= len(h.Polls) || string(v.Poll) != h.Polls[last].Poll {
			if last = slices.IndexFunc(h.Polls, func(p PollVotes) bool { return p.Poll == string(v.Poll) }); last < 0 {
				last = 0
				continue // a vote for a poll that was refused as a whole
			}
		}
		left[last]--
		each(v)
	}
	if len(body) > 0 {
		return fmt.Errorf("%w: more votes in the body than the %d in the header", ErrBadFrame, h.Votes)
	}
	for i, n := range left {
		if n != 0 {
			return fmt.Errorf("%w: body and header differ by %d votes of poll %q", ErrBadFrame, -n, h.Polls[i].Poll)
		}
	}
	return nil
}

// scanLine reads the layout that AppendVote writes, four times as fast as a
// full decode. False: try decodeLine.
func scanLine(b []byte, v *RawVote) bool {
	const head = len(`{"id":"`)
	if len(b) < head+36 || string(b[:head]) != `{"id":"` {
		return false
	}
	v.ID, b = b[head:head+36], b[head+36:]
	if !uuidShape(v.ID) {
		return false
	}
	var ok bool
	if v.Poll, b, ok = member(b, `","poll":"`); !ok || !validID(v.Poll) {
		return false
	}
	if v.Class, b, ok = member(b, `","class":"`); ok && !validID(v.Class) {
		return false
	}
	if v.Option, b, ok = member(b, `","option":"`); !ok || !validID(v.Option) {
		return false
	}
	v.Client, b, _ = member(b, `","client":"`)
	v.UserAgent, b, _ = member(b, `","user_agent":"`)
	v.Voter, b, _ = member(b, `","voter":"`)
	return string(b) == `"}` && plain(v.Client) && plain(v.UserAgent) && plain(v.Voter)
}

// member cuts a string member off b, which begins at the closing quote of the
// one before. The closing quote of this one is left. A value with an escape is
// no match: decodeLine takes it.
func member(b []byte, name string) (value, rest []byte, ok bool) {
	if len(b) < len(name) || string(b[:len(name)]) != name {
		return nil, b, false
	}
	b = b[len(name):]
	end := bytes.IndexByte(b, '"')
	if end < 0 {
		return nil, b, false
	}
	return b[:end], b[end:], true
}

// plain tells whether s is valid JSON text without any escape.
func plain(s []byte) bool {
	ascii := true
	for _, c := range s {
		if c < 0x20 || c == '\\' {
			return false
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	return ascii || utf8.Valid(s)
}

func uuidShape(id []byte) bool {
	for i, c := range id {
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

// decodeLine is the fallback: any JSON object with the right members, each at
// most once and with its exact name, so that every reader reads the same vote.
func decodeLine(b []byte, v *RawVote) error {
	var l line
	if err := json.Unmarshal(b, &l, json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("%w: vote is not one JSON object of the known members", ErrBadFrame)
	}
	if !ValidID(l.Poll) || !ValidID(l.Option) || l.Class != "" && !ValidID(l.Class) {
		return fmt.Errorf("%w: poll %.80q, class %.80q, option %.80q", ErrBadFrame, l.Poll, l.Class, l.Option)
	}
	if len(l.ID) != 36 || !uuidShape([]byte(l.ID)) {
		return fmt.Errorf("%w: vote id %.80q", ErrBadFrame, l.ID)
	}
	v.ID, v.Poll, v.Class, v.Option = []byte(l.ID), []byte(l.Poll), []byte(l.Class), []byte(l.Option)
	v.Client, v.UserAgent, v.Voter = escape(l.Client), escape(l.UserAgent), escape(l.Voter)
	return nil
}

// escape returns s as the inside of a JSON string.
func escape(s string) []byte {
	b, _ := jsontext.AppendQuote(nil, s) // decoded text is valid UTF-8
	return b[1 : len(b)-1]
}
