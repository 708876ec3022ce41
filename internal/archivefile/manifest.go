package archivefile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"paredao/internal/vote"
)

// Roots of the archive's two parts.
const (
	VotesRoot    = "votes/"
	ManifestRoot = "manifest/"
)

// BatchID names a batch after its shard, its sequence, and a digest of what is
// in it: two batches of one sequence (after a failover) have different names.
func BatchID(b vote.ArchiveBatch) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", b.First, b.Last, b.Elements))
	return fmt.Sprintf("%d-%012d-%s", b.Shard, b.Sequence, hex.EncodeToString(sum[:6]))
}

// ObjectName is the name of a batch's object for a poll and an hour (UTC).
func ObjectName(batch, poll string, hour time.Time) string {
	return VotesRoot + "poll=" + poll + hour.UTC().Format("/date=2006-01-02/hour=15/") + batch + ".parquet"
}

// ManifestName is the name of a shard's manifest. Names sort by sequence.
func ManifestName(shard int, sequence uint64) string {
	return fmt.Sprintf("%s%d/%012d.json", ManifestRoot, shard, sequence)
}

// ParseManifestName reads a name that ManifestName wrote.
func ParseManifestName(name string) (shard int, sequence uint64, err error) {
	rest, ok1 := strings.CutPrefix(name, ManifestRoot)
	rest, ok2 := strings.CutSuffix(rest, ".json")
	dir, file, ok3 := strings.Cut(rest, "/")
	shard, err1 := strconv.Atoi(dir)
	sequence, err2 := strconv.ParseUint(file, 10, 64)
	if !ok1 || !ok2 || !ok3 || err1 != nil || err2 != nil || ManifestName(shard, sequence) != name {
		return 0, 0, fmt.Errorf("%q is no manifest's name", name)
	}
	return shard, sequence, nil
}

// Manifest lists a batch's objects and frames.
type Manifest struct {
	Version  int    `json:"version"`
	Batch    string `json:"batch"`
	Shard    int    `json:"shard"`
	Sequence uint64 `json:"sequence"`
	// Votes is the sum of the objects' rows.
	Votes int64 `json:"votes"`
	// Frames are the ids of the batch's frames, in their order.
	Frames []string `json:"frames"`
	// Objects are sorted by name.
	Objects []ManifestObject `json:"objects"`
}

// ManifestObject describes an object.
type ManifestObject struct {
	Name   string `json:"name"`
	Poll   string `json:"poll"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Rows   int64  `json:"rows"`
	// Votes by option, or class/option.
	Votes vote.Tally `json:"votes"`
	// FrameRows says where the rows came from: pairs of a place in Frames and a
	// number of rows, in the order of the rows. So a frame that was archived
	// twice can be counted once.
	FrameRows [][2]int64 `json:"frame_rows"`
}

// MaxManifestBytes bounds what a reader takes for a manifest.
const MaxManifestBytes = 64 << 20

const manifestVersion = 1

// Encode returns the manifest's bytes.
func (m *Manifest) Encode() ([]byte, error) {
	m.Version = manifestVersion
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("manifest of batch %s: %w", m.Batch, err)
	}
	return append(b, '\n'), nil
}

// ParseManifest reads a manifest and checks that its parts agree.
func ParseManifest(b []byte) (*Manifest, error) {
	m := &Manifest{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if m.Version != manifestVersion {
		return nil, fmt.Errorf("manifest: version %d; this program reads %d", m.Version, manifestVersion)
	}
	var rows int64
	for _, o := range m.Objects {
		rows += o.Rows
		if err := o.check(len(m.Frames)); err != nil {
			return nil, fmt.Errorf("manifest of batch %s: object %s: %w", m.Batch, o.Name, err)
		}
	}
	if rows != m.Votes {
		return nil, fmt.Errorf("manifest of batch %s: %d votes, but its objects have %d", m.Batch, m.Votes, rows)
	}
	for _, id := range m.Frames {
		if _, err := vote.ParseFrameID(id); err != nil {
			return nil, fmt.Errorf("manifest of batch %s: %w", m.Batch, err)
		}
	}
	return m, nil
}

func (o *ManifestObject) check(frames int) error {
	var rows, votes int64
	last := int64(-1)
	for _, f := range o.FrameRows {
		if f[0] <= last || f[0] >= int64(frames) || f[1] < 1 {
			return errors.New("frame_rows are out of order")
		}
		last = f[0]
		rows += f[1]
	}
	for _, n := range o.Votes {
		votes += n
	}
	if rows != o.Rows || votes != o.Rows {
		return fmt.Errorf("%d rows, but %d by frame and %d by option", o.Rows, rows, votes)
	}
	if !vote.ValidID(o.Poll) {
		return fmt.Errorf("poll %.80q", o.Poll)
	}
	return nil
}

// ReadManifest reads a manifest from an object.
func ReadManifest(o vote.Object) (*Manifest, error) {
	if o.Size() > MaxManifestBytes {
		return nil, fmt.Errorf("manifest: %d bytes, at most %d are read", o.Size(), MaxManifestBytes)
	}
	b := make([]byte, o.Size())
	if _, err := io.ReadFull(io.NewSectionReader(o, 0, o.Size()), b); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return ParseManifest(b)
}
