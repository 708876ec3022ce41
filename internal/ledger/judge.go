package ledger

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"paredao/internal/audit"
	"paredao/internal/redisstore"
	"paredao/internal/vote"
)

// Result is the judgement. All of it is about the client's own polls, but for
// Problems.
type Result struct {
	// Sent votes, and what they were answered. Unknown and unsettled ones never
	// were; Taken is how many of them are in the archive. Unsent ones found no api.
	Sent      int64 `json:"sent"`
	Acked     int64 `json:"acked"`
	Replayed  int64 `json:"replayed"`
	Refused   int64 `json:"refused"`
	Unknown   int64 `json:"unknown"`
	Unsettled int64 `json:"unsettled"`
	Unsent    int64 `json:"unsent"`
	Taken     int64 `json:"taken"`
	// Counted is the sum of the tallies, Archived that of the archive's rows.
	Counted  int64 `json:"counted"`
	Archived int64 `json:"archived"`

	// Lost votes were acked and are not in the archive. Doubled rows are there
	// once more than they should. Invented rows have an id that was never acked,
	// also those of refused votes and the twins of acked ones, and are more than
	// the votes that had no answer, those with a key and those without apart.
	// WrongOption rows have another option than was voted for. LostInWindow
	// votes are lost within a LossWindow.
	Lost         int64 `json:"lost"`
	LostInWindow int64 `json:"lost_in_window"`
	Doubled      int64 `json:"doubled"`
	Invented     int64 `json:"invented"`
	WrongOption  int64 `json:"wrong_option"`
	// WronglyRefused votes should have been taken, WronglyTaken ones refused.
	WronglyRefused int64 `json:"wrongly_refused"`
	WronglyTaken   int64 `json:"wrongly_taken"`
	// LossCoverage is the share, from 0 to 1, of the time from the first
	// acknowledgement to the last in which votes may be lost, with the margins: in
	// the rest of it none may. At 1 the judgement says nothing of lost votes.
	LossCoverage float64 `json:"loss_coverage"`
	// Undercounted and Overcounted sum up by how much the tallies differ from
	// the acked votes, and those without an answer that are in the archive.
	Undercounted int64 `json:"undercounted"`
	Overcounted  int64 `json:"overcounted"`
	// SharedIDs are receipts that were given to more than one vote.
	SharedIDs int64 `json:"shared_ids"`
	// WrongAcks acknowledged another vote than the one sent, or had no receipt.
	WrongAcks int64 `json:"wrong_acks"`

	// RepeatedFrames were archived again and are read once, UnlistedObjects lie
	// in the archive and no manifest lists them: faults, but for
	// JudgeParams.MayRepeat.
	RepeatedFrames  int64 `json:"repeated_frames"`
	UnlistedObjects int64 `json:"unlisted_objects"`

	Options []OptionResult `json:"options"`
	// Answers counts what settled nothing, and the refusals, by what they were.
	Answers map[string]int64 `json:"answers"`
	// Examples show what was lost, doubled, invented, or wrong.
	Examples []string `json:"examples"`
	// Problems are all that does not hold, one line each; none is the proof.
	Problems []string `json:"problems"`
	// Drained is how long it took until everything was counted and archived.
	Drained time.Duration `json:"drained_ns"`
}

// OptionResult is one choice's line.
type OptionResult struct {
	Poll   string `json:"poll"`
	Option string `json:"option"`
	Sums
	Counted      int64 `json:"counted"`
	Archived     int64 `json:"archived"`
	Taken        int64 `json:"taken"`
	LostInWindow int64 `json:"lost_in_window"`
}

// OK tells whether the ledger holds.
func (r *Result) OK() bool { return len(r.Problems) == 0 }

// String is the whole judgement for people.
func (r *Result) String() string {
	var b strings.Builder
	width := len("option")
	for _, o := range r.Options {
		width = max(width, len(o.Poll)+1+len(o.Option))
	}
	line := "%-*s %10v %10v %10v %10v %10v %10v %10v\n"
	fmt.Fprintf(&b, line, width, "option", "sent", "acked", "refused", "unknown", "unsettled", "counted", "archived")
	for _, o := range r.Options {
		fmt.Fprintf(&b, line, width, o.Poll+"/"+o.Option, o.Sent, o.Acked, o.Refused, o.Unknown, o.Unsettled, o.Counted, o.Archived)
	}
	fmt.Fprintf(&b, line, width, "all", r.Sent, r.Acked, r.Refused, r.Unknown, r.Unsettled, r.Counted, r.Archived)
	fmt.Fprintf(&b, "lost %d, doubled %d, invented %d, wrong option %d; tallies: %d too few, %d too many\n",
		r.Lost, r.Doubled, r.Invented, r.WrongOption, r.Undercounted, r.Overcounted)
	if r.LossCoverage > 0 || r.LostInWindow > 0 {
		fmt.Fprintf(&b, "%d more are lost within a window where that is allowed; the windows cover %.1f %% of the time of posting\n",
			r.LostInWindow, 100*r.LossCoverage)
	}
	fmt.Fprintf(&b, "%d answers said that an earlier attempt had been taken; %d votes without an answer had been\n", r.Replayed, r.Taken)
	if r.Unsent > 0 {
		fmt.Fprintf(&b, "%d votes without a key found no api\n", r.Unsent)
	}
	if r.RepeatedFrames > 0 || r.UnlistedObjects > 0 {
		fmt.Fprintf(&b, "%d frames were archived again, %d objects are in no manifest\n", r.RepeatedFrames, r.UnlistedObjects)
	}
	fmt.Fprintf(&b, "drained in %s\n", r.Drained.Round(time.Millisecond))
	for _, what := range slices.Sorted(maps.Keys(r.Answers)) {
		fmt.Fprintf(&b, "  answer %q: %d times\n", what, r.Answers[what])
	}
	for _, e := range r.Examples {
		fmt.Fprintf(&b, "  %s\n", e)
	}
	if r.OK() {
		b.WriteString("the ledger holds\n")
		return b.String()
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "PROBLEM: %s\n", p)
	}
	b.WriteString("THE LEDGER DOES NOT HOLD\n")
	return b.String()
}

func (r *Result) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// JudgeParams configure a judgement.
type JudgeParams struct {
	Store *redisstore.Store
	// Blobs is the archive.
	Blobs  audit.Blobs
	Record *Record
	// LossWindows are when acknowledged votes may have been lost. Those that
	// were are counted, and no problem. They should be as short as the fault:
	// Result.LossCoverage.
	LossWindows []LossWindow
	// MayRepeat says that Redis may have forgotten writes that it had
	// acknowledged, and so the commit of a batch, or that one was fixed: what it
	// had been about is archived again, under another number. Else a batch has one
	// name from its beginning to its commit, whoever dies meanwhile.
	MayRepeat bool
	// Timeout is how long the drain may take. Redis may be away meanwhile.
	Timeout time.Duration
	// Progress, if set, is told in words how far it is, not more than once a
	// second.
	Progress func(string)
}

// Judge waits until everything is counted and archived, and then judges. An
// error says that it could not; a drain that does not end is a problem of the
// result. Nothing else may use the queue meanwhile.
func Judge(ctx context.Context, p JudgeParams) (*Result, error) {
	j := &judge{p: p, r: &Result{Answers: p.Record.Answers(), Examples: []string{}, Problems: []string{}, Options: []OptionResult{}}}
	var err error
	if j.windows, err = p.Record.spans(p.LossWindows); err != nil {
		return nil, err
	}
	if err := j.drain(ctx); err != nil {
		return nil, err
	}
	j.client()
	if err := j.archive(ctx); err != nil {
		return nil, err
	}
	if err := j.tallies(ctx); err != nil {
		return nil, err
	}
	if err := j.audit(ctx); err != nil {
		return nil, err
	}
	j.expectations()
	j.sumUp()
	return j.r, nil
}

type judge struct {
	p       JudgeParams
	r       *Result
	windows []span
	told    time.Time
}

func (j *judge) tell(format string, args ...any) {
	if j.p.Progress == nil || time.Since(j.told) < time.Second {
		return
	}
	j.told = time.Now()
	j.p.Progress(fmt.Sprintf(format, args...))
}

// drain waits until queue and archive list are empty.
func (j *judge) drain(ctx context.Context) error {
	start := time.Now()
	queues, err := drain(ctx, j.p.Store, j.p.Timeout, func(left string) { j.tell("drain: %s", left) })
	j.r.Drained = time.Since(start)
	if late := (*notDrainedError)(nil); errors.As(err, &late) {
		j.r.problem("not drained after %s: %s", j.p.Timeout, late.left)
		return nil
	}
	if err != nil {
		return err
	}
	return j.dead(queues)
}

// Drain waits until everything is counted and archived, at most for timeout.
// Redis may be away meanwhile. progress, if set, is told what is left, not more
// than once a second.
func Drain(ctx context.Context, store *redisstore.Store, timeout time.Duration, progress func(left string)) error {
	var told time.Time
	_, err := drain(ctx, store, timeout, func(left string) {
		if progress != nil && time.Since(told) >= time.Second {
			told = time.Now()
			progress(left)
		}
	})
	return err
}

// notDrainedError says that the time was up.
type notDrainedError struct {
	timeout time.Duration
	left    string
}

func (e *notDrainedError) Error() string {
	return fmt.Sprintf("not drained after %s: %s", e.timeout, e.left)
}

func drain(ctx context.Context, store *redisstore.Store, timeout time.Duration, tell func(left string)) ([]redisstore.ShardQueue, error) {
	wait, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var left string
	for {
		queues, err := store.Queues(wait)
		switch {
		case err == nil:
			var frames, votes, awaiting, awaitingVotes int64
			for _, q := range queues {
				frames, votes = frames+q.Frames, votes+q.Votes
				awaiting, awaitingVotes = awaiting+q.AwaitingFrames, awaitingVotes+q.AwaitingVotes
			}
			if frames == 0 && awaiting == 0 {
				return queues, nil
			}
			left = fmt.Sprintf("%d votes (%d frames) to be counted, %d (%d frames) to be archived",
				votes, frames, awaitingVotes, awaiting)
		case wait.Err() == nil:
			left = err.Error()
		}
		tell(left)
		select {
		case <-wait.Done():
			if ctx.Err() != nil {
				return nil, fmt.Errorf("drain: %w", ctx.Err())
			}
			return nil, &notDrainedError{timeout, left}
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (j *judge) dead(queues []redisstore.ShardQueue) error {
	for _, q := range queues {
		if q.Dead > 0 {
			j.r.problem("shard %d: %d elements are in the dead list", q.Shard, q.Dead)
		}
	}
	return nil
}

// client takes over what the client recorded.
func (j *judge) client() {
	for i, c := range j.p.Record.Choices() {
		s := j.p.Record.Sums(i)
		j.r.Options = append(j.r.Options, OptionResult{Poll: c.Poll, Option: c.Option, Sums: s})
		j.r.Sent += s.Sent
		j.r.Acked += s.Acked
		j.r.Replayed += s.Replayed
		j.r.Refused += s.Refused
		j.r.Unknown += s.Unknown
		j.r.Unsettled += s.Unsettled
		j.r.Unsent += s.Unsent
	}
	var examples []string
	if j.r.WrongAcks, examples = j.p.Record.Wrong(); j.r.WrongAcks > 0 {
		j.r.Examples = append(j.r.Examples, examples...)
	}
}

// polls are the client's, sorted.
func (j *judge) polls() []string {
	var polls []string
	for _, c := range j.p.Record.Choices() {
		polls = append(polls, c.Poll)
	}
	slices.Sort(polls)
	return slices.Compact(polls)
}

// archive compares the archive's rows with the acked votes, one by one.
func (j *judge) archive(ctx context.Context) error {
	m := newMatcher(j.p.Record, j.windows, j.r)
	reader := &archiveReader{
		blobs: j.p.Blobs, wanted: map[string]bool{}, seen: frames{}, each: m.row,
		progress: func(rows int64) { j.tell("archive: %d of about %d rows compared", rows, j.r.Acked) },
	}
	for _, poll := range j.polls() {
		reader.wanted[poll] = true
	}
	if err := reader.read(ctx); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	m.end()
	unlisted, err := reader.unlisted(ctx)
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	j.r.RepeatedFrames, j.r.UnlistedObjects = reader.repeated, int64(len(unlisted))
	if j.p.MayRepeat {
		return nil
	}
	if reader.repeated > 0 {
		j.r.problem("%d frames were archived more than once", reader.repeated)
	}
	if len(unlisted) > 0 {
		j.r.problem("%d objects are in no manifest, the first is %s", len(unlisted), unlisted[0])
	}
	return nil
}

// tallies compares what was counted with the acked votes, option by option.
func (j *judge) tallies(ctx context.Context) error {
	choices := j.p.Record.Choices()
	for _, poll := range j.polls() {
		results, err := j.p.Store.Results(ctx, poll)
		if errors.Is(err, vote.ErrPollNotFound) {
			results, err = vote.Results{}, nil
		}
		if err != nil {
			return fmt.Errorf("tally: %w", err)
		}
		if n := results.Ledger.Pending(); n != 0 {
			j.r.problem("poll %s: %d votes are pending", poll, n)
		}
		left := maps.Clone(results.Tally)
		for i, c := range choices {
			if c.Poll != poll {
				continue
			}
			counted := left[c.Option]
			delete(left, c.Option)
			j.r.Options[i].Counted = counted
			j.r.Counted += counted
			o := &j.r.Options[i]
			// What had no answer may have been taken: then it is archived too.
			j.compare(c, o.Acked-o.LostInWindow+o.Taken, counted)
		}
		for _, option := range slices.Sorted(maps.Keys(left)) {
			j.r.Counted += left[option]
			j.compare(Choice{poll, option}, 0, left[option])
		}
	}
	return nil
}

func (j *judge) compare(c Choice, want, counted int64) {
	j.r.Undercounted += max(0, want-counted)
	j.r.Overcounted += max(0, counted-want)
	if want != counted {
		j.r.problem("tally of %s: %d, but it should be %d", c, counted, want)
	}
}

func (j *judge) audit(ctx context.Context) error {
	report, err := audit.Audit(ctx, audit.Params{
		Source: j.p.Store, Shards: j.p.Store.Shards(), Polls: j.polls(), Recount: true, Blobs: j.p.Blobs,
		Progress: func(done, total int64) { j.tell("audit: %d of %d votes recounted", done, total) },
	})
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	for _, d := range report.Differences {
		j.r.problem("audit: shard %d, poll %q: %s", d.Shard, d.Poll, d.What)
	}
	if report.Unreadable > 0 {
		j.r.problem("audit: %d elements of the queue can't be read", report.Unreadable)
	}
	return nil
}

// expectations compares what became of each choice's votes with what must.
func (j *judge) expectations() {
	for i, c := range j.p.Record.Choices() {
		o := &j.r.Options[i]
		switch j.p.Record.entries[i].expect {
		case mustTake:
			if o.Refused > 0 {
				j.r.WronglyRefused += o.Refused
				j.r.problem("%d votes for %s were refused, which must be taken", o.Refused, c)
			}
		case mustRefuse:
			// Also what had no answer.
			if n := max(o.Acked, o.Archived, o.Counted); n > 0 {
				j.r.WronglyTaken += n
				j.r.problem("%d votes for %s were taken, which must be refused", n, c)
			}
		case mayRefuse:
		}
	}
}

// sumUp makes a problem of everything that must be zero.
func (j *judge) sumUp() {
	for _, n := range []struct {
		votes int64
		what  string
	}{
		{j.r.Lost, "acknowledged votes are not in the archive (lost)"},
		{j.r.Doubled, "rows of the archive are there once too often (doubled)"},
		{j.r.Invented, "rows of the archive have an id that was never acknowledged (invented)"},
		{j.r.WrongOption, "rows of the archive have another option than was voted for"},
		{j.r.SharedIDs, "receipts were given to more than one vote"},
		{j.r.WrongAcks, "acknowledgements were for another vote than the one sent, or without a receipt"},
		{j.r.Unsettled, "votes had no answer to the end, so that nothing can be said of them"},
	} {
		if n.votes > 0 {
			j.r.problem("%d %s", n.votes, n.what)
		}
	}
	if settled := j.r.Acked + j.r.Refused + j.r.Unknown + j.r.Unsettled + j.r.Unsent; j.r.Sent != settled {
		j.r.problem("%d votes were sent, but %d were settled or given up: the client still runs", j.r.Sent, settled)
	}
}
