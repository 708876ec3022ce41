package archivefile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/vote"
)

// write makes an object of votes.
func write(t testing.TB, votes ...vote.Vote) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	for i, v := range votes {
		require.NoError(t, w.Add(v, noon.Add(time.Duration(i)*time.Millisecond), 3))
	}
	require.NoError(t, w.Close())
	return b.Bytes()
}

// The columns are a contract: other people's engines read them.
func TestSchemaIsTheContract(t *testing.T) {
	f, err := parquet.OpenFile(bytes.NewReader(write(t, ballot(1, "p", "a"))), int64(len(write(t, ballot(1, "p", "a")))))
	require.NoError(t, err)
	var got []string
	for _, e := range f.Metadata().Schema[1:] {
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s %v %v %v", e.Name, e.RepetitionType.V, e.Type.V, &e.LogicalType)))
	}
	assert.Equal(t, []string{
		"id REQUIRED BYTE_ARRAY STRING",
		"poll REQUIRED BYTE_ARRAY STRING",
		"class OPTIONAL BYTE_ARRAY STRING",
		"option REQUIRED BYTE_ARRAY STRING",
		"accepted_at REQUIRED INT64 TIMESTAMP(isAdjustedToUTC=true,unit=MILLIS)",
		"shard REQUIRED INT32 INT(32,true)",
		"client OPTIONAL BYTE_ARRAY STRING",
		"user_agent OPTIONAL BYTE_ARRAY STRING",
		"voter OPTIONAL BYTE_ARRAY STRING",
	}, got)
	for _, g := range f.Metadata().RowGroups {
		for _, c := range g.Columns {
			assert.Equal(t, format.Zstd, c.MetaData.Codec, c.MetaData.PathInSchema)
		}
	}
}

func TestRowsComeBack(t *testing.T) {
	all := ballot(2, "p", "b")
	all.Class, all.Client, all.UserAgent, all.Voter = "unico", "1.2.3.0/24", "UA \u2028 \"x\" 😀", "hash"
	b := write(t, ballot(1, "p", "a"), all)

	rows, err := parquet.Read[row](bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	assert.Equal(t, []row{
		{ID: ballot(1, "", "").ID.String(), Poll: "p", Option: "a", AcceptedAt: noon.UnixMilli(), Shard: 3},
		{
			ID: all.ID.String(), Poll: "p", Class: &all.Class, Option: "b", AcceptedAt: noon.UnixMilli() + 1, Shard: 3,
			Client: &all.Client, UserAgent: &all.UserAgent, Voter: &all.Voter,
		},
	}, rows)
}

// counted is what Count says, as text.
func counted(o vote.Object, runs []Run) (map[string]int64, error) {
	got := map[string]int64{}
	err := Count(o, runs, func(poll, field string, n int64) { got[poll+" "+field] += n })
	return got, err
}

func TestCountPassesRunsOver(t *testing.T) {
	classy := ballot(3, "p", "a")
	classy.Class = "unico"
	b := write(t, ballot(0, "p", "a"), ballot(1, "p", "b"), ballot(2, "q", "a"), classy)

	for _, tt := range []struct {
		runs []Run
		want map[string]int64
	}{
		{[]Run{{4, false}}, map[string]int64{"p a": 1, "p b": 1, "q a": 1, "p unico/a": 1}},
		{[]Run{{1, true}, {0, true}, {3, false}}, map[string]int64{"p b": 1, "q a": 1, "p unico/a": 1}},
		{[]Run{{1, false}, {2, true}, {1, false}}, map[string]int64{"p a": 1, "p unico/a": 1}},
		{[]Run{{4, true}}, map[string]int64{}},
	} {
		got, err := counted(inMemory(b), tt.runs)
		require.NoError(t, err)
		assert.Equal(t, tt.want, got)
	}
	for _, runs := range [][]Run{nil, {{3, false}}, {{5, false}}, {{3, true}, {2, false}}} {
		_, err := counted(inMemory(b), runs)
		require.ErrorIs(t, err, ErrDamaged, "%v", runs)
	}
	got, err := counted(inMemory(write(t)), nil)
	require.NoError(t, err)
	assert.Empty(t, got)
}

// More rows than a row group holds, and more different texts than a dictionary
// takes: whatever the pages are, the count is right, and the bytes are the same
// when they are written again.
func TestManyRows(t *testing.T) {
	const n = groupRows + 12_345
	var votes []vote.Vote
	want := map[string]int64{}
	for i := range n {
		v := ballot(i, "p", []string{"a", "b", "c"}[i%3])
		v.UserAgent = fmt.Sprintf("%064d", i)
		v.Client = fmt.Sprintf("%032d", i/2)
		votes = append(votes, v)
		want["p "+v.Option]++
	}
	b := write(t, votes...)
	f, err := parquet.OpenFile(bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	assert.Len(t, f.RowGroups(), 2)

	got, err := counted(inMemory(b), []Run{{n, false}})
	require.NoError(t, err)
	assert.Equal(t, want, got)

	got, err = counted(inMemory(b), []Run{{groupRows - 1, true}, {n - groupRows + 1, false}})
	require.NoError(t, err)
	assert.EqualValues(t, n-groupRows+1, got["p a"]+got["p b"]+got["p c"])

	assert.True(t, bytes.Equal(b, write(t, votes...)), "the same rows gave other bytes")
}

// failing is a store that goes away while it is read.
type failing struct {
	vote.Object
	after int
}

var errAway = errors.New("the store is away")

func (f *failing) ReadAt(p []byte, off int64) (int, error) {
	if f.after--; f.after < 0 {
		return 0, errAway
	}
	return f.Object.ReadAt(p, off)
}

// A store that is away is no damage: the two lead to different exit codes.
func TestCountTellsAwayFromDamaged(t *testing.T) {
	b := write(t, ballot(1, "p", "a"))
	reads := 0
	for ; ; reads++ {
		_, err := counted(&failing{inMemory(b), reads}, []Run{{1, false}})
		if err == nil {
			break
		}
		require.ErrorIs(t, err, errAway)
		require.NotErrorIs(t, err, ErrDamaged)
	}
	assert.Positive(t, reads)

	for name, bad := range map[string][]byte{
		"empty": {}, "text": []byte("nothing like it"), "magic only": []byte("PAR1PAR1"),
		"cut at the end": b[:len(b)-1], "cut at the front": b[1:], "without its middle": slices.Concat(b[:8], b[len(b)-8:]),
	} {
		_, err := counted(inMemory(bad), []Run{{1, false}})
		require.ErrorIs(t, err, ErrDamaged, name)
	}
	other := write(t, ballot(1, "p", "a"), ballot(2, "p", "a"))
	_, err := counted(inMemory(other), []Run{{1, false}})
	require.ErrorIs(t, err, ErrDamaged)

	var foreign bytes.Buffer
	w := parquet.NewGenericWriter[struct {
		Poll string `parquet:"poll"`
	}](&foreign)
	_, err = w.Write(make([]struct {
		Poll string `parquet:"poll"`
	}, 1))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	_, err = counted(inMemory(foreign.Bytes()), []Run{{1, false}})
	require.ErrorContains(t, err, `no column "class"`)
}

// Every byte of an object changed in turn: it is counted as before, or counted
// otherwise (which a comparison finds), or named damaged. Never a crash.
func TestCountSurvivesAnyChangedByte(t *testing.T) {
	var votes []vote.Vote
	for i := range 40 {
		v := ballot(i, "poll", []string{"ana", "bruno", "carla"}[i%3])
		v.UserAgent = "UA"
		votes = append(votes, v)
	}
	b := write(t, votes...)
	want, err := counted(inMemory(b), []Run{{40, false}})
	require.NoError(t, err)
	var same, other, damaged int
	for i := range b {
		for _, flip := range []byte{0x01, 0x80, 0xff} {
			bad := bytes.Clone(b)
			bad[i] ^= flip
			switch got, err := counted(inMemory(bad), []Run{{40, false}}); {
			case errors.Is(err, ErrDamaged):
				damaged++
			case err != nil:
				t.Fatalf("byte %d: %v", i, err)
			case assert.ObjectsAreEqual(want, got):
				same++
			default:
				other++
			}
		}
	}
	t.Logf("%d bytes: %d changes without effect on the count, %d with another count, %d damaged", len(b), same, other, damaged)
}

// full is a disk without room.
type full struct{ room int }

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

func TestWriterSaysThatTheDiskIsFull(t *testing.T) {
	whole := len(write(t, ballot(1, "p", "a")))
	for room := 0; room < whole; room += 101 {
		w := NewWriter(&full{room})
		err := errors.Join(w.Add(ballot(1, "p", "a"), noon, 0), w.Close())
		require.ErrorIs(t, err, io.ErrShortWrite, "room for %d of %d bytes", room, whole)
	}
	w := NewWriter(&full{0})
	var err error
	for i := 0; err == nil; i++ {
		require.Less(t, i, 2*groupRows)
		err = w.Add(ballot(i, "p", "a"), noon, 0)
	}
	require.ErrorIs(t, err, io.ErrShortWrite)
}

func BenchmarkCount(b *testing.B) {
	const n = 100_000
	var votes []vote.Vote
	for i := range n {
		v := ballot(i, "poll", []string{"ana", "bruno"}[i%2])
		v.UserAgent = "Mozilla/5.0"
		votes = append(votes, v)
	}
	data := write(b, votes...)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := counted(inMemory(data), []Run{{n, false}}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "votes/s")
}
