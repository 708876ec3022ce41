package main

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"paredao/internal/redisstore"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// world is a Redis with polls, an archive, and a cli that is told of both.
type world struct {
	*cli

	redis   *testkit.RedisServer
	rdb     *redis.Client
	store   *redisstore.Store
	shards  int
	archive string // its folder
}

func newWorld(t *testing.T, shards int) *world {
	t.Helper()
	r := testkit.Redis(t)
	w := &world{redis: r, rdb: r.Client(), shards: shards, archive: t.TempDir()}
	w.cli = newCLI(t, "PAREDAO_REDIS_URL="+r.URL(), "PAREDAO_QUEUE_SHARDS="+strconv.Itoa(shards),
		"PAREDAO_ARCHIVE_URL=file:"+w.archive)
	store, err := redisstore.Open(redisstore.Options{URL: r.URL(), Shards: shards})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	w.store = store
	require.NoError(t, store.CheckShards(t.Context()))
	return w
}

// poll defines a poll with options that have no names.
func (w *world) poll(id string, options ...string) {
	w.t.Helper()
	p := vote.Poll{ID: id, Title: "Title of " + id, Results: vote.ResultsLive}
	for _, o := range options {
		p.Options = append(p.Options, vote.Option{ID: o, Name: strings.ToUpper(o)})
	}
	w.apply(p, vote.Window{})
}

func (w *world) apply(p vote.Poll, window vote.Window) {
	w.t.Helper()
	_, err := w.store.ApplyPoll(w.t.Context(), p, window)
	require.NoError(w.t, err)
}

// queue puts votes on a shard's queue, as an api does: a frame for each option.
func (w *world) queue(shard int, poll string, votes map[string]int) {
	w.t.Helper()
	codec, err := vote.NewCodec()
	require.NoError(w.t, err)
	defer codec.Close()
	p, err := w.store.Poll(w.t.Context(), poll)
	require.NoError(w.t, err)
	q := w.store.Queue(0, 0, 0)
	id := vote.FrameID{Flusher: vote.NewFlusherID()}
	require.NoError(w.t, q.Register(w.t.Context(), shard, id.Flusher))
	for _, o := range p.Options {
		n := votes[o.ID]
		if n == 0 {
			continue
		}
		var lines []byte
		for range n {
			v := &vote.Vote{ID: uuid.Must(uuid.NewV7()), Poll: poll, Option: o.ID, Client: "client"}
			lines = vote.AppendVote(lines, v)
		}
		id.Seq++
		out, err := q.Enqueue(w.t.Context(), &vote.Batch{
			Shard: shard, ID: id, Votes: n, Body: codec.Compress(nil, lines, n),
			Polls: []vote.BatchPoll{{Poll: poll, Votes: n, OptionsKey: p.OptionsKey()}},
		})
		require.NoError(w.t, err)
		require.Equal(w.t, []vote.PollOutcome{vote.PollAccepted}, out.Polls)
	}
}

// daemon starts a daemon on the world's Redis.
func (w *world) daemon(name string, args ...string) *testkit.Process {
	w.t.Helper()
	args = append([]string{"--redis-url=" + w.redis.URL(), "--queue-shards=" + strconv.Itoa(w.shards)}, args...)
	if name == "archiver" {
		args = append([]string{"--archive-url=file:" + w.archive, "--archive-max-age=1ms"}, args...)
	}
	return testkit.StartProcess(w.t, name, args...)
}

// drained waits until all is counted and archived.
func (w *world) drained() {
	w.t.Helper()
	testkit.Eventually(w.t, "all is counted and archived", func() bool {
		queues, err := w.store.Queues(context.Background())
		require.NoError(w.t, err)
		for _, q := range queues {
			if q.Frames > 0 || q.AwaitingFrames > 0 {
				return false
			}
		}
		return true
	})
}

// archived puts votes into the queue and has a consumer and an archiver, which
// are gone afterwards, carry them through.
func (w *world) archived(poll string, votes map[string]int) {
	w.t.Helper()
	for shard := range w.shards {
		w.queue(shard, poll, votes)
	}
	daemons := []*testkit.Process{w.daemon("consumer"), w.daemon("archiver")}
	w.drained()
	for _, d := range daemons {
		require.Equal(w.t, 0, d.Term())
	}
}

// fromJSON reads JSON with its numbers as they are written.
func fromJSON(t *testing.T, text string) any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var v any
	require.NoError(t, dec.Decode(&v), text)
	require.False(t, dec.More(), "one value: %s", text)
	return v
}

// fromCSV reads RFC 4180 as records by the head's names.
func fromCSV(t *testing.T, text string) (head []string, rows []map[string]string) {
	t.Helper()
	all := parseCSV(t, text)
	require.NotEmpty(t, all)
	for _, cells := range all[1:] {
		require.Len(t, cells, len(all[0]), "%q", cells)
		row := map[string]string{}
		for i, name := range all[0] {
			row[name] = cells[i]
		}
		rows = append(rows, row)
	}
	return all[0], rows
}

// parseCSV is as strict as RFC 4180, unlike encoding/csv, which also takes bare
// line feeds and changes line breaks in cells.
func parseCSV(t *testing.T, text string) (rows [][]string) {
	t.Helper()
	var row []string
	for rest := text; rest != ""; {
		var cell strings.Builder
		if inner, ok := strings.CutPrefix(rest, `"`); ok {
			for {
				part, after, ok := strings.Cut(inner, `"`)
				require.True(t, ok, "an open quote in %q", text)
				cell.WriteString(part)
				if inner, ok = strings.CutPrefix(after, `"`); !ok {
					rest = after
					break
				}
				cell.WriteByte('"')
			}
		} else {
			end := strings.IndexAny(rest, ",\r\n\"")
			require.GreaterOrEqual(t, end, 0, "no line break at the end of %q", text)
			cell.WriteString(rest[:end])
			rest = rest[end:]
		}
		row = append(row, cell.String())
		if after, ok := strings.CutPrefix(rest, ","); ok {
			rest = after
			continue
		}
		after, ok := strings.CutPrefix(rest, "\r\n")
		require.True(t, ok, "a comma or CRLF must follow before %q", rest)
		rows, row, rest = append(rows, row), nil, after
	}
	require.Nil(t, row, "a comma at the end of %q", text)
	return rows
}

// fromTable reads a table's rows by its columns' places, which the head gives.
func fromTable(t *testing.T, text string) (rows []map[string]string) {
	t.Helper()
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	head := []rune(lines[0])
	var names []string
	var at []int
	for i, r := range head {
		if r != ' ' && (i == 0 || head[i-1] == ' ') {
			names, at = append(names, ""), append(at, i)
		}
		if r != ' ' {
			names[len(names)-1] += string(r)
		}
	}
	for _, line := range lines[1:] {
		cells := []rune(line)
		row := map[string]string{}
		for i, name := range names {
			end := len(cells)
			if i+1 < len(at) {
				end = min(end, at[i+1])
			}
			row[name] = strings.TrimSpace(string(cells[min(at[i], end):end]))
		}
		rows = append(rows, row)
	}
	return rows
}

// keys are the names of a JSON object's members.
func keys(v any) []string {
	var out []string
	for k := range v.(map[string]any) {
		out = append(out, k)
	}
	return out
}
