package archivefile

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
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
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %s", b.First, b.Last, b.Elements, b.Digest))
	return fmt.Sprintf("%d-%012d-%s", b.Shard, b.Sequence, hex.EncodeToString(sum[:6]))
}

// Renumber returns the id of the same batch under another sequence.
func Renumber(b vote.ArchiveBatch, sequence uint64) string {
	return fmt.Sprintf("%d-%012d%s", b.Shard, sequence, b.ID[strings.LastIndexByte(b.ID, '-'):])
}

// Digest names a run of frames by their headers. A flusher that has sent a
// frame again after a failover may have got another decision under the same id,
// so ids alone do not tell what is in a batch.
type Digest struct{ h hash.Hash }

// NewDigest returns the digest of no frames.
func NewDigest() Digest { return Digest{sha256.New()} }

// Add adds a frame.
func (d Digest) Add(frame []byte) {
	header, _, _ := bytes.Cut(frame, []byte{'\n'})
	d.h.Write(header)
	d.h.Write([]byte{'\n'})
}

// String returns it in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d.h.Sum(nil)[:16]) }

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
	if !ok1 || !ok2 || !ok3 || err1 != nil || err2 != nil || shard < 0 || ManifestName(shard, sequence) != name {
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
	// Digest is that of their headers, which the batch's id holds.
	Digest string `json:"digest"`
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

// ErrDamaged says that what is stored is not what was written.
var ErrDamaged = errors.New("damaged")

// ParseManifest reads a manifest and checks that its parts agree. Its error is
// ErrDamaged.
func ParseManifest(b []byte) (*Manifest, error) {
	m := &Manifest{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("manifest: %w: %w", ErrDamaged, err)
	}
	if m.Version != manifestVersion {
		return nil, fmt.Errorf("manifest: %w: version %d; this program reads %d", ErrDamaged, m.Version, manifestVersion)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("manifest of batch %.80q: %w: %w", m.Batch, ErrDamaged, err)
	}
	return m, nil
}

func (m *Manifest) check() error {
	for _, id := range m.Frames {
		if _, err := vote.ParseFrameID(id); err != nil {
			return err
		}
	}
	if n := len(m.Frames); n == 0 || m.Batch != BatchID(vote.ArchiveBatch{
		Shard: m.Shard, Sequence: m.Sequence, Elements: n, First: m.Frames[0], Last: m.Frames[n-1], Digest: m.Digest,
	}) {
		return errors.New("it is not named after its frames")
	}
	left, last := m.Votes, ""
	for _, o := range m.Objects {
		if err := o.check(len(m.Frames)); err != nil {
			return fmt.Errorf("object %.200q: %w", o.Name, err)
		}
		if o.Name <= last || !strings.HasPrefix(o.Name, VotesRoot+"poll="+o.Poll+"/") ||
			!strings.HasSuffix(o.Name, "/"+m.Batch+".parquet") {
			return fmt.Errorf("object %.200q stands twice, or belongs elsewhere", o.Name)
		}
		last = o.Name
		if left -= o.Rows; left < 0 {
			break
		}
	}
	if left != 0 {
		return fmt.Errorf("it says %d votes, but its objects have others", m.Votes)
	}
	return nil
}

// check never adds up more than Rows says, so no sum can overflow.
func (o *ManifestObject) check(frames int) error {
	if !vote.ValidID(o.Poll) {
		return fmt.Errorf("poll %.80q", o.Poll)
	}
	byFrame, last := o.Rows, int64(-1)
	for _, f := range o.FrameRows {
		if f[0] <= last || f[0] >= int64(frames) || f[1] < 1 || f[1] > byFrame {
			return errors.New("frame_rows are out of order, or more than rows")
		}
		last = f[0]
		byFrame -= f[1]
	}
	byOption := o.Rows
	for _, n := range o.Votes {
		if n < 0 || n > byOption {
			return errors.New("votes are more than rows")
		}
		byOption -= n
	}
	if byFrame != 0 || byOption != 0 {
		return fmt.Errorf("of %d rows, %d are of no frame and %d of no option", o.Rows, byFrame, byOption)
	}
	return nil
}

// ReadManifest reads a manifest from an object.
func ReadManifest(o vote.Object) (*Manifest, error) {
	if o.Size() > MaxManifestBytes {
		return nil, fmt.Errorf("manifest: %w: %d bytes, at most %d are read", ErrDamaged, o.Size(), MaxManifestBytes)
	}
	b := make([]byte, o.Size())
	if _, err := io.ReadFull(io.NewSectionReader(o, 0, o.Size()), b); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return ParseManifest(b)
}
