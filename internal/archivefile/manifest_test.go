package archivefile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/vote"
)

// manifest is a whole one: three frames, two objects.
func manifest() *Manifest {
	m := &Manifest{
		Shard: 2, Sequence: 17, Votes: 9, Frames: []string{"abc-1", "abc-2", "xyz-9"},
	}
	m.Batch = BatchID(vote.ArchiveBatch{Shard: 2, Sequence: 17, Elements: 3, First: "abc-1", Last: "xyz-9"})
	m.Objects = []ManifestObject{
		{
			Name: ObjectName(m.Batch, "p", noon), Poll: "p", Bytes: 100, SHA256: strings.Repeat("0", 64), Rows: 6,
			Votes: vote.Tally{"a": 5, "unico/b": 1}, FrameRows: [][2]int64{{0, 4}, {2, 2}},
		},
		{
			Name: ObjectName(m.Batch, "q", noon), Poll: "q", Bytes: 100, SHA256: strings.Repeat("1", 64), Rows: 3,
			Votes: vote.Tally{"x": 3}, FrameRows: [][2]int64{{1, 3}},
		},
	}
	return m
}

func TestNames(t *testing.T) {
	assert.Equal(t, "manifest/2/000000000017.json", ManifestName(2, 17))
	// The hour is UTC's, wherever the machine stands.
	saoPaulo := time.FixedZone("", -3*3600)
	assert.Equal(t, "votes/poll=p/date=2026-01-21/hour=01/B.parquet",
		ObjectName("B", "p", time.Date(2026, 1, 20, 22, 59, 59, 0, saoPaulo)))

	b := vote.ArchiveBatch{Shard: 1, Sequence: 5, First: "a-1", Last: "a-9", Elements: 9}
	assert.Regexp(t, `^1-000000000005-[0-9a-f]{12}$`, BatchID(b))
	for name, other := range map[string]vote.ArchiveBatch{
		"shard":    {Shard: 2, Sequence: 5, First: "a-1", Last: "a-9", Elements: 9},
		"sequence": {Shard: 1, Sequence: 6, First: "a-1", Last: "a-9", Elements: 9},
		"first":    {Shard: 1, Sequence: 5, First: "a-2", Last: "a-9", Elements: 9},
		"last":     {Shard: 1, Sequence: 5, First: "a-1", Last: "a-8", Elements: 9},
		"elements": {Shard: 1, Sequence: 5, First: "a-1", Last: "a-9", Elements: 8},
	} {
		assert.NotEqual(t, BatchID(b), BatchID(other), name)
	}
}

func TestParseManifestName(t *testing.T) {
	shard, sequence, err := ParseManifestName("manifest/12/000000000345.json")
	require.NoError(t, err)
	assert.Equal(t, 12, shard)
	assert.EqualValues(t, 345, sequence)
	// Beyond twelve digits names grow.
	_, sequence, err = ParseManifestName(ManifestName(0, 1<<63))
	require.NoError(t, err)
	assert.EqualValues(t, uint64(1<<63), sequence)

	for _, name := range []string{
		"", "manifest/", "manifest/0/1.json", "manifest/0/000000000001", "manifest/0/000000000001.JSON",
		"votes/0/000000000001.json", "manifest/00/000000000001.json", "manifest/+0/000000000001.json",
		"manifest/-1/000000000001.json", "manifest/0/0000000000001.json", "manifest/0/000000000001.json.json",
		"manifest/0/x/000000000001.json", "manifest/0/notes.txt", "manifest/0/00000000000x.json",
		"manifest/0/99999999999999999999.json", "/manifest/0/000000000001.json",
	} {
		_, _, err := ParseManifestName(name)
		assert.Error(t, err, name)
	}
}

func TestManifestComesBack(t *testing.T) {
	m := manifest()
	b, err := m.Encode()
	require.NoError(t, err)
	got, err := ParseManifest(b)
	require.NoError(t, err)
	assert.Equal(t, m, got)
	again, err := got.Encode()
	require.NoError(t, err)
	assert.Equal(t, string(b), string(again))

	got, err = ReadManifest(inMemory(b))
	require.NoError(t, err)
	assert.Equal(t, m, got)
}

// A manifest that does not agree with itself is not believed.
func TestParseManifestRefuses(t *testing.T) {
	for name, spoil := range map[string]func(m *Manifest){
		"another version":          nil, // below
		"another shard":            func(m *Manifest) { m.Shard = 1 },
		"another sequence":         func(m *Manifest) { m.Sequence = 18 },
		"another batch":            func(m *Manifest) { m.Batch = "2-000000000017-000000000000" },
		"no frames":                func(m *Manifest) { m.Frames = nil },
		"a frame less":             func(m *Manifest) { m.Frames = m.Frames[:2] },
		"a frame that is none":     func(m *Manifest) { m.Frames[1] = "abc" },
		"more votes":               func(m *Manifest) { m.Votes++ },
		"fewer votes":              func(m *Manifest) { m.Votes-- },
		"negative votes":           func(m *Manifest) { m.Votes = -9 },
		"an object less":           func(m *Manifest) { m.Objects = m.Objects[:1] },
		"an object twice":          func(m *Manifest) { m.Votes += 6; m.Objects = append(m.Objects[:1], m.Objects...) },
		"another order":            func(m *Manifest) { m.Objects[0], m.Objects[1] = m.Objects[1], m.Objects[0] },
		"another batch's object":   func(m *Manifest) { m.Objects[0].Name = ObjectName("other", "p", noon) },
		"another poll's object":    func(m *Manifest) { m.Objects[0].Poll = "q" },
		"a poll that is none":      func(m *Manifest) { m.Objects[0].Poll = "../p" },
		"more rows":                func(m *Manifest) { m.Objects[0].Rows++; m.Votes++ },
		"votes moved":              func(m *Manifest) { m.Objects[0].Votes["a"]++ },
		"votes against each other": func(m *Manifest) { m.Objects[0].Votes = vote.Tally{"a": 7, "b": -1} },
		"votes that overflow": func(m *Manifest) {
			m.Objects[0].Votes = vote.Tally{"a": 1 << 62, "b": 1 << 62, "c": 1 << 62, "d": 1<<62 + 6}
		},
		"frame rows missing":       func(m *Manifest) { m.Objects[0].FrameRows = m.Objects[0].FrameRows[:1] },
		"frame rows out of order":  func(m *Manifest) { f := m.Objects[0].FrameRows; f[0], f[1] = f[1], f[0] },
		"frame rows of no frame":   func(m *Manifest) { m.Objects[0].FrameRows[1][0] = 3 },
		"frame rows before all":    func(m *Manifest) { m.Objects[0].FrameRows[0][0] = -1 },
		"no frame rows":            func(m *Manifest) { m.Objects[0].FrameRows = [][2]int64{{0, 6}, {2, 0}} },
		"frame rows that overflow": func(m *Manifest) { m.Objects[0].FrameRows = [][2]int64{{0, 1<<63 - 1}, {1, 1<<63 - 1}, {2, 8}} },
	} {
		t.Run(name, func(t *testing.T) {
			m := manifest()
			if spoil != nil {
				spoil(m)
			}
			b, err := m.Encode()
			require.NoError(t, err)
			if spoil == nil {
				b = bytes.Replace(b, []byte(`"version":1`), []byte(`"version":2`), 1)
			}
			_, err = ParseManifest(b)
			require.ErrorIs(t, err, ErrDamaged)
		})
	}
	b, err := manifest().Encode()
	require.NoError(t, err)
	for _, bad := range []string{"", "null", "[]", "{}", string(b[:len(b)/2]), string(b) + "x", string(b) + string(b)} {
		_, err := ParseManifest([]byte(bad))
		require.ErrorIs(t, err, ErrDamaged, "%.40q", bad)
	}
}

// huge says that it is large, and is not read.
type huge struct{ vote.Object }

func (huge) Size() int64 { return MaxManifestBytes + 1 }

func TestReadManifestBounds(t *testing.T) {
	_, err := ReadManifest(huge{})
	require.ErrorIs(t, err, ErrDamaged)

	b, err := manifest().Encode()
	require.NoError(t, err)
	_, err = ReadManifest(&failing{inMemory(b), 0})
	require.ErrorIs(t, err, errAway)
	require.NotErrorIs(t, err, ErrDamaged)
}

func FuzzParseManifest(f *testing.F) {
	b, err := manifest().Encode()
	require.NoError(f, err)
	f.Add(b)
	f.Add([]byte(`{"version":1}`))
	f.Add([]byte(`{"version":1,"votes":0,"frames":["a-0"],"objects":[{"votes":{"a":-1}}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseManifest(b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) || m != nil {
				t.Errorf("%v, %v", m, err)
			}
			return
		}
		var rows int64
		for _, o := range m.Objects {
			var votes, byFrame int64
			for _, n := range o.Votes {
				votes += n
			}
			for _, r := range o.FrameRows {
				byFrame += r[1]
			}
			if votes != o.Rows || byFrame != o.Rows || o.Rows < 0 {
				t.Errorf("object %+v does not add up", o)
			}
			rows += o.Rows
		}
		if rows != m.Votes {
			t.Errorf("%d rows, %d votes", rows, m.Votes)
		}
		again, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		second, err := ParseManifest(again)
		if err != nil {
			t.Fatalf("%v\n%s", err, again)
		}
		if third, _ := json.Marshal(second); !reflect.DeepEqual(append(third, '\n'), again) {
			t.Errorf("%s\n%s", again, third)
		}
	})
}

func FuzzParseManifestName(f *testing.F) {
	f.Add("manifest/0/000000000001.json")
	f.Add("manifest/12/18446744073709551615.json")
	f.Add("manifest/-0/00000000000+.json")
	f.Fuzz(func(t *testing.T, name string) {
		shard, sequence, err := ParseManifestName(name)
		if err == nil && (ManifestName(shard, sequence) != name || shard < 0) {
			t.Errorf("%q is read as %d, %d", name, shard, sequence)
		}
	})
}

func ExampleObjectName() {
	batch := BatchID(vote.ArchiveBatch{Shard: 0, Sequence: 1, First: "a-1", Last: "a-2", Elements: 2})
	fmt.Println(ObjectName(batch, "paredao-07", time.Date(2026, 1, 21, 1, 30, 0, 0, time.UTC)))
	// Output: votes/poll=paredao-07/date=2026-01-21/hour=01/0-000000000001-0c9b557b0ebf.parquet
}
