package audit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"paredao/internal/archivefile"
	"paredao/internal/vote"
)

// Source is what the audit looks at.
type Source interface {
	// Snapshot reads on in the three lists of a shard; see vote.SnapshotPage.
	Snapshot(ctx context.Context, shard int, polls []string, from [3]int64) (vote.SnapshotPage, error)
	// Batches tells which archive batches Redis knows.
	Batches(ctx context.Context, shard int, sequences []uint64) (vote.Batches, error)
}

// Params configure an audit.
type Params struct {
	Source Source
	Shards int
	// Polls to audit.
	Polls []string
	// All says that Polls is every poll that Redis knows: then votes of any other
	// are a difference, and so is each of Undefined, which Redis has votes or a
	// window of but no whole definition.
	All       bool
	Undefined []string
	// Options of polls by id: votes for any other are a difference. A poll that
	// is not in it may have votes for whatever.
	Options map[string][]string
	// Recount also reads the archive, from Blobs.
	Recount  bool
	Blobs    Blobs
	Progress Progress
}

// PollAudit is one poll's side of the equations, summed over shards.
type PollAudit struct {
	Poll     string `json:"poll"`
	Accepted int64  `json:"accepted"`
	Counted  int64  `json:"counted"`
	Queued   int64  `json:"queued"`
	Dead     int64  `json:"dead"`
	Dropped  int64  `json:"dropped"`
	Archived int64  `json:"archived"`
	Awaiting int64  `json:"awaiting_archive"`
	// Recounted is what the archive's rows add up to; null without a recount.
	Recounted *int64 `json:"recounted"`
	OK        bool   `json:"ok"`
}

// Report is the outcome of an audit.
type Report struct {
	AsOf  time.Time   `json:"as_of"`
	Polls []PollAudit `json:"polls"`
	// Differences name what does not add up; none is the proof.
	Differences []Difference `json:"differences"`
	// Unreadable is the most elements of one queue that can't be read and that
	// no consumer has looked at yet.
	Unreadable int64 `json:"unreadable_elements"`
	// Repeated frames were archived more than once, and counted once.
	Repeated int `json:"repeated_frames"`
}

// OK tells whether everything adds up.
func (r *Report) OK() bool { return len(r.Differences) == 0 }

// Difference is a thing that does not add up.
type Difference struct {
	Poll  string `json:"poll,omitempty"`
	Shard int    `json:"shard"`
	What  string `json:"what"`
	// Frames are the ids of frames that are in the archive and that Redis does
	// not know.
	Frames []string `json:"frames,omitempty"`
}

// groupPolls is how many polls one snapshot covers, so that reading their
// tallies is no long command.
const groupPolls = 50

// errRestored says that the snapshot can't tell any more which batches were
// known at its instant.
var errRestored = errors.New("archive batches were restored meanwhile; audit again when tally restore has ended")

// Audit checks every shard and poll.
func Audit(ctx context.Context, p Params) (*Report, error) {
	const tries = 5
	for try := 1; ; try++ {
		report, err := audit(ctx, p)
		if errors.Is(err, errRestored) && try < tries {
			continue
		}
		return report, err
	}
}

func audit(ctx context.Context, p Params) (*Report, error) {
	report := &Report{Polls: []PollAudit{}, Differences: []Difference{}}
	groups := slices.Collect(slices.Chunk(p.Polls, groupPolls))
	if len(groups) == 0 {
		// A Redis that knows no poll may have lost them all: the archive tells.
		groups = [][]string{{}}
	}
	for _, id := range p.Undefined {
		report.Differences = append(report.Differences, Difference{
			Poll: id, What: "it has no definition on every shard, though Redis knows it",
		})
	}
	var done int64
	for _, polls := range groups {
		group := p
		group.Polls = polls
		a := &auditor{p: group, all: p.Polls, polls: map[string]*PollAudit{}, report: report, done: done}
		if err := a.run(ctx); err != nil {
			return nil, err
		}
		done = a.done
	}
	// A difference of no poll in particular is one of every poll.
	for i := range report.Polls {
		id := report.Polls[i].Poll
		report.Polls[i].OK = !slices.ContainsFunc(report.Differences, func(d Difference) bool { return d.Poll == id || d.Poll == "" })
	}
	return report, nil
}

// auditor audits a group of the polls.
type auditor struct {
	p      Params
	all    []string // the polls of all groups
	polls  map[string]*PollAudit
	report *Report
	done   int64 // votes read, for the progress over all groups
}

func (a *auditor) run(ctx context.Context) error {
	for _, id := range a.p.Polls {
		a.polls[id] = &PollAudit{Poll: id}
	}
	snaps := make([]*shardSnapshot, a.p.Shards)
	for shard := range snaps {
		keep := keepVotes
		if a.p.Recount {
			keep = keepOptions
		}
		snap, err := takeSnapshot(ctx, a.p.Source, shard, a.p.Polls, keep)
		if err != nil {
			return err
		}
		snaps[shard] = snap
		a.conservation(snap)
	}
	if a.p.Recount {
		if err := a.recount(ctx, snaps); err != nil {
			return err
		}
	}
	for _, id := range a.p.Polls {
		a.report.Polls = append(a.report.Polls, *a.polls[id])
	}
	return nil
}

func (a *auditor) differ(shard int, poll, format string, args ...any) {
	a.note(Difference{Poll: poll, Shard: shard, What: fmt.Sprintf(format, args...)})
}

// note adds a difference. One of the archive is met once for each group of
// polls, and named once.
func (a *auditor) note(d Difference) {
	if !slices.ContainsFunc(a.report.Differences, func(o Difference) bool {
		return o.Poll == d.Poll && o.Shard == d.Shard && o.What == d.What
	}) {
		a.report.Differences = append(a.report.Differences, d)
	}
}

// stranger notes votes of a poll that Redis does not know.
func (a *auditor) stranger(shard int, poll, where string) {
	if a.p.All && !slices.Contains(a.all, poll) {
		a.differ(shard, poll, "%s has votes of it, but Redis does not know this poll", where)
	}
}

// conservation checks the equations of one shard.
func (a *auditor) conservation(s *shardSnapshot) {
	if s.now.After(a.report.AsOf) {
		a.report.AsOf = s.now
	}
	if s.damaged > 0 {
		a.differ(s.shard, "", "%d elements of the list that awaits archiving can't be read", s.damaged)
	}
	for _, list := range []struct {
		where string
		sum   listSum
	}{{"the queue", s.queue}, {"the list that awaits archiving", s.awaiting}, {"the dead list", s.dead}} {
		for _, poll := range slices.Sorted(maps.Keys(list.sum.votes)) {
			a.stranger(s.shard, poll, list.where)
		}
	}
	a.report.Unreadable = max(a.report.Unreadable, s.unreadable)
	for i, id := range a.p.Polls {
		l := s.ledgers[id]
		queued, awaiting, dead := s.queue.votes[id], s.awaiting.votes[id], s.dead.votes[id]
		if sum := l.Counted + queued + dead + l.Dropped; l.Accepted != sum {
			a.differ(s.shard, id, "accepted is %d, but counted %d + queued %d + dead %d + dropped %d is %d",
				l.Accepted, l.Counted, queued, dead, l.Dropped, sum)
		}
		if sum := l.Archived + awaiting; l.Counted != sum {
			a.differ(s.shard, id, "counted is %d, but archived %d + awaiting archive %d is %d",
				l.Counted, l.Archived, awaiting, sum)
		}
		if l.Dead != dead {
			a.differ(s.shard, id, "the ledger has %d dead votes, but the dead list has %d", l.Dead, dead)
		}
		var tally int64
		for _, n := range s.tallies[i] {
			tally += n
		}
		if tally != l.Counted {
			a.differ(s.shard, id, "counted is %d, but the tally adds up to %d", l.Counted, tally)
		}
		a.options(s.shard, id, "the tally", s.tallies[i])
		poll := a.polls[id]
		poll.Accepted += l.Accepted
		poll.Counted += l.Counted
		poll.Queued += queued
		poll.Dead += dead
		poll.Dropped += l.Dropped
		poll.Archived += l.Archived
		poll.Awaiting += awaiting
	}
}

// options notes votes for options that a poll does not have: no api takes them,
// and its results leave them out.
func (a *auditor) options(shard int, poll, where string, t vote.Tally) {
	have, ok := a.p.Options[poll]
	if !ok {
		return
	}
	for _, field := range slices.Sorted(maps.Keys(t)) {
		if t[field] != 0 && !slices.Contains(have, field) {
			a.differ(shard, poll, "%s has %d votes for %.80q, which is no option of it", where, t[field], field)
		}
	}
}

// recount compares the archive's rows with the tallies, option by option.
func (a *auditor) recount(ctx context.Context, snaps []*shardSnapshot) error {
	plan, err := a.plan(ctx, snaps)
	if err != nil {
		return err
	}
	c := &recounter{blobs: a.p.Blobs, polls: a.p.Polls, seen: frameSet{}, progress: a.p.Progress, done: a.done, total: plan.votes, hashes: true,
		damaged: func(shard int, err error) { a.differ(shard, "", "archive: %v", err) }}
	repeated := 0
	for shard, snap := range snaps {
		totals := newTotals()
		for _, name := range slices.Backward(plan.known[shard]) {
			m, err := readManifest(ctx, a.p.Blobs, name)
			if err != nil {
				return err
			}
			if err := c.batch(ctx, m, totals); err != nil {
				return err
			}
		}
		repeated += totals.Repeated
		a.compare(snap, totals)
	}
	a.done = c.done
	// Each group of polls reads the same frames.
	a.report.Repeated = max(a.report.Repeated, repeated)
	// Only now are all known frames seen.
	for shard := range snaps {
		for _, name := range plan.unknown[shard] {
			if err := a.ahead(ctx, shard, name, c.seen, snaps); err != nil {
				return err
			}
		}
	}
	return nil
}

// plan sorts the manifests by whether Redis knew the batch at the snapshot.
type plan struct {
	known, unknown map[int][]string
	// votes of all audited polls in the known batches, for the progress alone.
	votes int64
}

func (a *auditor) plan(ctx context.Context, snaps []*shardSnapshot) (plan, error) {
	p := plan{known: map[int][]string{}, unknown: map[int][]string{}}
	names, foreign, err := manifestNames(ctx, a.p.Blobs)
	if err != nil {
		return p, err
	}
	for _, name := range foreign {
		a.differ(0, "", "archive: %s is no manifest", name)
	}
	sequences := map[int][]uint64{}
	for _, name := range names {
		shard, sequence, err := archivefile.ParseManifestName(name)
		if err != nil {
			return p, err
		}
		if shard >= len(snaps) {
			return p, fmt.Errorf("%s: there are %d shards (queue-shards)", name, len(snaps))
		}
		sequences[shard] = append(sequences[shard], sequence)
	}
	for shard := range snaps {
		list := sequences[shard]
		batches, err := a.p.Source.Batches(ctx, shard, list)
		if err != nil {
			return p, err
		}
		if batches.Late != snaps[shard].lateBatches {
			return p, errRestored
		}
		for _, sequence := range list {
			name := archivefile.ManifestName(shard, sequence)
			m, err := readManifest(ctx, a.p.Blobs, name)
			if err != nil && isDamage(err) {
				a.differ(shard, "", "archive: %v", err)
				continue
			}
			if err != nil {
				return p, err
			}
			switch {
			case batches.Committed[sequence] != m.Batch:
				if m.Batch != batches.Fixed {
					p.unknown[shard] = append(p.unknown[shard], name)
				}
			case sequence <= snaps[shard].lastBatch:
				p.known[shard] = append(p.known[shard], name)
				p.votes += votesOf(m, a.all)
				for _, o := range m.Objects {
					a.stranger(shard, o.Poll, "the archive")
				}
			}
		}
	}
	return p, nil
}

func (a *auditor) compare(s *shardSnapshot, totals *Totals) {
	for i, id := range a.p.Polls {
		var sum int64
		options := map[string]bool{}
		for _, t := range []vote.Tally{s.tallies[i], totals.Votes[id], s.awaiting.options[id]} {
			for option := range t {
				options[option] = true
			}
		}
		for _, option := range slices.Sorted(maps.Keys(options)) {
			counted, archived, awaiting := s.tallies[i][option], totals.Votes[id][option], s.awaiting.options[id][option]
			sum += archived
			if counted != archived+awaiting {
				a.differ(s.shard, id, "option %s: the tally is %d, but the archive has %d and %d await it",
					option, counted, archived, awaiting)
			}
		}
		if l := s.ledgers[id]; sum != l.Archived {
			a.differ(s.shard, id, "archived is %d, but the archive has %d", l.Archived, sum)
		}
		a.options(s.shard, id, "the archive", totals.Votes[id])
		poll := a.polls[id]
		if poll.Recounted == nil {
			poll.Recounted = new(int64)
		}
		*poll.Recounted += sum
	}
}

// ahead names the frames of a batch that Redis does not know: it lost them
// after they were archived.
func (a *auditor) ahead(ctx context.Context, shard int, name string, seen frameSet, snaps []*shardSnapshot) error {
	m, err := readManifest(ctx, a.p.Blobs, name)
	if err != nil {
		return err
	}
	var frames []string
	for _, id := range m.Frames {
		inRedis := slices.ContainsFunc(snaps, func(s *shardSnapshot) bool { return s.has(id) })
		if !inRedis && !seen.has(id) {
			frames = append(frames, id)
		}
	}
	if len(frames) == 0 {
		return nil
	}
	what := fmt.Sprintf("batch %s is in the archive, but Redis does not know it: %d of its %d frames are nowhere in Redis (tally restore adds them)",
		m.Batch, len(frames), len(m.Frames))
	a.note(Difference{Shard: shard, Frames: frames, What: what})
	return nil
}

// shardSnapshot is a shard at one instant.
type shardSnapshot struct {
	shard                 int
	now                   time.Time
	queue, awaiting, dead listSum
	unreadable            int64 // of the queue
	damaged               int64 // of the list that awaits archiving
	ledgers               map[string]vote.PollLedger
	tallies               []vote.Tally
	lastBatch             uint64
	lateBatches           int64
}

// has tells whether a list holds the frame. The ids must have been kept.
func (s *shardSnapshot) has(id string) bool {
	return s.queue.frames.has(id) || s.awaiting.frames.has(id) || s.dead.frames.has(id)
}

// listSum is what the frames of a list add up to.
type listSum struct {
	votes   map[string]int64
	options map[string]vote.Tally
	frames  frameSet
}

// keep says what a snapshot keeps of the elements.
type keep int

const (
	keepVotes   keep = iota // their votes by poll
	keepOptions             // also by option, and the ids of the frames
	keepIDs                 // the ids alone, as the headers tell them
)

var errRestart = errors.New("the lists were changed by an operator or a failover meanwhile")

// takeSnapshot reads a shard's lists page by page, up to the page that comes
// with the ledger of the same instant.
func takeSnapshot(ctx context.Context, src Source, shard int, polls []string, what keep) (*shardSnapshot, error) {
	const tries = 5
	var err error
	for range tries {
		var s *shardSnapshot
		if s, err = trySnapshot(ctx, src, shard, polls, what); err == nil {
			return s, nil
		}
		if !errors.Is(err, errRestart) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("snapshot of shard %d: %w", shard, err)
}

func trySnapshot(ctx context.Context, src Source, shard int, polls []string, what keep) (*shardSnapshot, error) {
	codec, err := vote.NewCodec()
	if err != nil {
		return nil, err
	}
	defer codec.Close()
	queue := &listReader{codec: codec, options: what == keepOptions, headersOnly: what == keepIDs}
	archive := &listReader{codec: codec, options: what == keepOptions, headersOnly: what == keepIDs}
	dead := &listReader{codec: codec, headersOnly: true}
	first := true
	for {
		page, err := src.Snapshot(ctx, shard, polls, [3]int64{queue.next(), archive.next(), dead.next()})
		if err != nil {
			return nil, err
		}
		if !first && dead.head != page.Dead.Head {
			return nil, errRestart
		}
		first = false
		for _, l := range []struct {
			r *listReader
			p vote.ListPage
		}{{queue, page.Queue}, {archive, page.Archive}, {dead, page.Dead}} {
			if err := l.r.add(l.p); err != nil {
				return nil, err
			}
		}
		if !page.Complete {
			continue
		}
		s := &shardSnapshot{
			shard: shard, now: page.Now, ledgers: page.Ledgers, tallies: page.Tallies,
			lastBatch: page.LastBatch, lateBatches: page.LateBatches,
			queue: queue.sum(), awaiting: archive.sum(), dead: dead.sum(),
		}
		for _, e := range queue.elements {
			if !e.readable {
				s.unreadable++
			}
		}
		for _, e := range archive.elements {
			if !e.readable {
				s.damaged++
			}
		}
		if what == keepVotes {
			return s, nil
		}
		for _, l := range []struct {
			sum *listSum
			r   *listReader
		}{{&s.queue, queue}, {&s.awaiting, archive}, {&s.dead, dead}} {
			if l.sum.frames, err = l.r.frames(); err != nil {
				return nil, err
			}
		}
		return s, nil
	}
}

// listReader keeps what the elements of a list hold, by their places.
type listReader struct {
	codec       *vote.Codec
	headersOnly bool
	options     bool // keep what the votes are for
	head        int64
	elements    []element // from head on
}

// element is what one element adds.
type element struct {
	id       string // empty without a readable header
	readable bool
	polls    []vote.PollVotes
	options  map[string]vote.Tally
}

func (r *listReader) next() int64 { return r.head + int64(len(r.elements)) }

// add takes a page. What has left the head since the last one is forgotten.
func (r *listReader) add(p vote.ListPage) error {
	gone := p.Head - r.head
	switch {
	case gone < 0:
		return errRestart
	case gone >= int64(len(r.elements)):
		r.elements = r.elements[:0]
	default:
		r.elements = r.elements[gone:]
	}
	r.head = p.Head
	if p.From != r.next() {
		return errRestart
	}
	for _, text := range p.Elements {
		r.elements = append(r.elements, r.read([]byte(text)))
	}
	return nil
}

// read counts the votes in an element.
func (r *listReader) read(b []byte) element {
	if r.headersOnly {
		h, _, err := vote.ParseHeader(b)
		return element{id: h.ID, readable: err == nil, polls: h.Polls}
	}
	var options map[string]vote.Tally
	if r.options {
		options = map[string]vote.Tally{}
	}
	h, err := r.codec.Read(b, func(v *vote.RawVote) {
		if options == nil {
			return
		}
		t := options[string(v.Poll)]
		if t == nil {
			t = vote.Tally{}
			options[string(v.Poll)] = t
		}
		t[vote.TallyField(string(v.Class), string(v.Option))]++
	})
	if err != nil {
		// As the consumer will: by its header, if it has one.
		return element{id: h.ID, polls: h.Polls}
	}
	// Read has counted the votes: they are what the header says.
	return element{id: h.ID, readable: true, polls: h.Polls, options: options}
}

// frames are the ids of the elements that have one.
func (r *listReader) frames() (frameSet, error) {
	set := frameSet{}
	for _, e := range r.elements {
		if e.id == "" {
			continue
		}
		if _, err := set.add(e.id); err != nil {
			return nil, err
		}
	}
	return set, nil
}

func (r *listReader) sum() listSum {
	s := listSum{votes: map[string]int64{}, options: map[string]vote.Tally{}}
	for _, e := range r.elements {
		for _, p := range e.polls {
			s.votes[p.Poll] += p.Votes
		}
		for poll, t := range e.options {
			if s.options[poll] == nil {
				s.options[poll] = vote.Tally{}
			}
			for option, n := range t {
				s.options[poll][option] += n
			}
		}
	}
	return s
}
