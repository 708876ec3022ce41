package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"paredao/internal/config"
	"paredao/internal/daemon"
	"paredao/internal/pollfile"
	"paredao/internal/redisstore"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

const pollsFile = `polls:
  - id: final
    options: [{id: ana, name: Ana}, {id: bruno}]
  - id: ended
    options: [{id: x}]
    closes_at: 2020-01-01T00:00:00Z
`

// A Redis that was set up with another number of shards ends the daemon, with
// the name of the setting.
func TestShardsMismatch(t *testing.T) {
	server := testkit.Redis(t)
	if err := open(t, settings(t, "--redis-url", server.URL(), "--queue-shards", "3").Redis).CheckShards(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := settings(t, "--redis-url", server.URL())
	b, _ := newBase(t, c)
	setup, err := b.Setup(file(t, pollsFile))
	if err != nil {
		t.Fatal(err)
	}
	usage(t, setup.Run(t.Context()), "queue-shards is 2", "set queue-shards to 3")
	// The whole daemon ends with it, with the exit code.
	err = b.Run(t.Context(), c.Daemon, setup, Consumer(b, c.Count, c.Owner))
	usage(t, err, "queue-shards")
	if !strings.HasPrefix(err.Error(), "setup: ") {
		t.Errorf("got %v", err)
	}
	if ids, _, err := b.Store.KnownPolls(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("polls %v were applied, %v", ids, err)
	}
	if err := b.redisCheck().Check(t.Context()); !errors.Is(err, vote.ErrShardsMismatch) {
		t.Errorf("ready: %v", err)
	}
}

// A daemon starts without Redis and does its work as soon as there is one.
func TestSetupWaitsForRedis(t *testing.T) {
	server := testkit.Redis(t)
	server.Kill()
	b, log := newBase(t, settings(t, "--redis-url", server.URL()))
	setup, err := b.Setup(file(t, pollsFile))
	if err != nil {
		t.Fatal(err)
	}
	stop, ended := background(setup.Run)
	testkit.Eventually(t, "Redis was looked for", func() bool { return strings.Contains(log.String(), "can't be asked") })
	select {
	case <-b.agreed:
		t.Error("agreed without Redis")
	case err := <-ended:
		t.Fatalf("ended without Redis: %v", err)
	default:
	}
	server.Start()
	testkit.Eventually(t, "the polls are applied", func() bool {
		ids, _, err := b.Store.KnownPolls(t.Context())
		return err == nil && len(ids) == 2
	})
	<-b.agreed
	for shard := range 2 {
		if n := server.Client().HLen(t.Context(), fmt.Sprintf("windows:{%d}", shard)).Val(); n != 2 {
			t.Errorf("shard %d has %d polls", shard, n)
		}
	}
	p, err := b.Store.Poll(t.Context(), "final")
	if err != nil || len(p.Options) != 2 {
		t.Errorf("%+v, %v", p, err)
	}
	testkit.Eventually(t, "the log says so", func() bool {
		return strings.Contains(log.String(), `msg="poll applied" poll=ended change=created`)
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A stop while Redis is still away is no failure, and takes all parts along.
func TestStopWithoutRedis(t *testing.T) {
	server := testkit.Redis(t)
	server.Kill()
	c := settings(t, "--redis-url", server.URL())
	b, log := newBase(t, c)
	setup, err := b.Setup("")
	if err != nil {
		t.Fatal(err)
	}
	stop, _ := background(func(ctx context.Context) error {
		return b.Run(ctx, c.Daemon, setup, Consumer(b, c.Count, c.Owner))
	})
	admin := "http://" + log.after(t, `"admin listens" addr=`)
	if code, text := get(t, admin+"/readyz"); code != 503 || !strings.Contains(text, "redis") {
		t.Errorf("%d %s", code, text)
	}
	if code, _ := get(t, admin+"/livez"); code != 200 {
		t.Errorf("not alive: %d", code)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestBadPollsFile(t *testing.T) {
	b, _ := newBase(t, settings(t, "--redis-url", "redis://127.0.0.1:1"))
	missing := filepath.Join(t.TempDir(), "none.yaml")
	_, err := b.Setup(missing)
	usage(t, err, "polls-file", missing, "no such file")
	for name, text := range map[string]string{
		"no YAML":       "polls: [",
		"no polls":      "polls: []",
		"a bad id":      "polls:\n  - id: A b\n    options: [{id: x}]\n",
		"unknown field": "polls:\n  - id: a\n    colour: red\n",
	} {
		f := file(t, text)
		_, err := b.Setup(f)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		usage(t, err, "polls-file", f)
	}
}

// The options of a poll with votes can't change: that is a wrong file, and the
// daemon says so instead of trying for ever.
func TestPollsFileAgainstVotes(t *testing.T) {
	server := testkit.Redis(t)
	b, _ := newBase(t, settings(t, "--redis-url", server.URL()))
	poll := vote.Poll{ID: "final", Title: "Who?", Results: vote.ResultsLive, Options: []vote.Option{{ID: "ana"}}}
	if err := ApplyPolls(t.Context(), b.Store, []pollfile.Definition{{Poll: poll}}, func(string, redisstore.Applied) {}); err != nil {
		t.Fatal(err)
	}
	sendVote(t, b.Store, 0, poll)
	setup, err := b.Setup(file(t, pollsFile))
	if err != nil {
		t.Fatal(err)
	}
	usage(t, setup.Run(t.Context()), "polls-file", "final", "can't change")
}

// sendVote puts a vote for the first option on a shard.
func sendVote(t *testing.T, s *redisstore.Store, shard int, p vote.Poll) {
	t.Helper()
	q, id := s.Queue(time.Hour, 0, 0), vote.FrameID{Flusher: vote.NewFlusherID(), Seq: 1}
	v := vote.Vote{ID: uuid.Must(uuid.NewV7()), Poll: p.ID, Option: p.Options[0].ID}
	out, err := vote.BatchOutcome{}, q.Register(t.Context(), shard, id.Flusher)
	if err == nil {
		out, err = q.Enqueue(t.Context(), &vote.Batch{
			Shard: shard, ID: id, Votes: 1, Body: vote.AppendVote(nil, &v),
			Polls: []vote.BatchPoll{{Poll: p.ID, Votes: 1, OptionsKey: p.OptionsKey()}},
		})
	}
	if err != nil || out.Polls[0] != vote.PollAccepted {
		t.Fatalf("%+v, %v", out, err)
	}
}

type submitter struct{ n int }

func (*submitter) Overloaded() error { return nil }

func (s *submitter) Submit(*vote.Vote, string, *vote.IdempotencyKey) (vote.Receipt, error) {
	s.n++
	return vote.Receipt{Option: "ana"}, nil
}

// No vote goes to a Redis that may have another number of shards.
func TestNoVotesBeforeTheAgreement(t *testing.T) {
	server := testkit.Redis(t)
	c := settings(t, "--redis-url", server.URL())
	b, _ := newBase(t, c)
	next := &submitter{}
	g := gate{b, next}
	if _, err := g.Submit(&vote.Vote{}, "", nil); !errors.Is(err, vote.ErrUnavailable) || next.n != 0 {
		t.Errorf("got %v, %d votes went through", err, next.n)
	}

	// The same over HTTP: 503 until Setup has run.
	poll := vote.Poll{ID: "final", Title: "Who?", Results: vote.ResultsLive, Options: []vote.Option{{ID: "ana"}}}
	if _, err := b.Store.ApplyPoll(t.Context(), poll, vote.Window{}); err != nil {
		t.Fatal(err)
	}
	api, addr, err := API(b, c.HTTP, c.Enqueue)
	if err != nil {
		t.Fatal(err)
	}
	stop, _ := background(func(ctx context.Context) error {
		return daemon.Run(ctx, daemon.Options{Log: b.Log}, api.Parts...)
	})
	if code, text := post(t, addr, "final", "ana"); code != 503 || !strings.Contains(text, "queue-unavailable") {
		t.Errorf("%d %s", code, text)
	}
	if n := server.Client().LLen(t.Context(), "votes:{0}").Val() + server.Client().LLen(t.Context(), "votes:{1}").Val(); n != 0 {
		t.Errorf("%d frames on the queue", n)
	}
	setup, err := b.Setup("")
	if err != nil {
		t.Fatal(err)
	}
	stopSetup, _ := background(setup.Run)
	<-b.agreed
	if code, text := post(t, addr, "final", "ana"); code != 202 {
		t.Errorf("%d %s", code, text)
	}
	if r, err := g.Submit(&vote.Vote{}, "", nil); err != nil || r.Option != "ana" || next.n != 1 {
		t.Errorf("%+v, %v, %d", r, err, next.n)
	}
	if err := errors.Join(stop(), stopSetup()); err != nil {
		t.Error(err)
	}
}

// Wrong addresses are wrong use, and their secrets stay out of the message.
func TestWrongAddresses(t *testing.T) {
	// What config lets through and the store refuses: no URL at all, and what
	// only the store looks at.
	_, err := OpenStore(config.Redis{Shards: 1})
	usage(t, err, "is no URL")

	for name, a := range map[string]config.Archive{
		"no credentials":     {URL: config.ArchiveURL{Container: "votes"}},
		"a bad container":    {URL: config.ArchiveURL{Container: "UPPER"}, Azure: azure(t, "AccountName=a;AccountKey=c2VjcmV0LXNlY3JldA==")},
		"a bad connection":   {URL: config.ArchiveURL{Container: "votes"}, Azure: azure(t, "AccountName=a;AccountKey=!!c2VjcmV0!!")},
		"a bad endpoint":     {URL: config.ArchiveURL{Container: "votes"}, Azure: config.Azure{Account: "a", Endpoint: "https://a.example/?sig=c2VjcmV0"}},
		"no connection text": {URL: config.ArchiveURL{Container: "votes"}, Azure: azure(t, "c2VjcmV0")},
	} {
		_, err := OpenArchive(t.Context(), a)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		usage(t, err)
		if strings.Contains(err.Error(), "c2VjcmV0") {
			t.Errorf("%s: the secret stands in %v", name, err)
		}
	}
	s, err := OpenArchive(t.Context(), config.Archive{URL: config.ArchiveURL{Dir: "/srv/archive"}})
	if err != nil || s.String() != "file:/srv/archive" {
		t.Errorf("%v, %v", s, err)
	}
}

// azure are the settings with a connection string.
func azure(t *testing.T, connection string) config.Azure {
	t.Helper()
	c, _, err := config.ParseArchiver([]string{"--archive-url", "azblob://votes"},
		[]string{"AZURE_STORAGE_CONNECTION_STRING=" + connection}, "test", os.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	return c.Archive.Azure
}

// What keeps the api from starting names the setting.
func TestAPISettings(t *testing.T) {
	api := func(change func(*config.Allinone)) error {
		c := settings(t, "--redis-url", "redis://127.0.0.1:1")
		b, _ := newBase(t, c)
		change(&c)
		s, _, err := API(b, c.HTTP, c.Enqueue)
		if err == nil {
			stop, _ := background(func(ctx context.Context) error {
				return daemon.Run(ctx, daemon.Options{Log: b.Log}, s.Parts...)
			})
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
		return err
	}
	short, long := file(t, "123456789012345\r\n\n"), file(t, "1234567890123456\n")
	usage(t, api(func(c *config.Allinone) { c.HTTP.IPHMACKeyFile = short }), "ip-hmac-key-file", short, "15 bytes", "at least 16")
	usage(t, api(func(c *config.Allinone) { c.HTTP.IPHMACKeyFile = short + "x" }), "ip-hmac-key-file", short+"x", "no such file")
	usage(t, api(func(c *config.Allinone) { c.HTTP.IPPrivacy = "some" }), "some")
	if err := api(func(c *config.Allinone) { c.HTTP.IPHMACKeyFile = long }); err != nil {
		t.Error(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	err = api(func(c *config.Allinone) { c.HTTP.Listen = taken.Addr().String() })
	if err == nil || !strings.Contains(err.Error(), taken.Addr().String()) || strings.Contains(err.Error(), "usage") {
		t.Errorf("got %v", err)
	}
	c := settings(t, "--redis-url", "redis://127.0.0.1:1", "--admin-listen", taken.Addr().String())
	b, _ := newBase(t, c)
	if err := b.Run(t.Context(), c.Daemon, daemon.Part{}); err == nil || !strings.Contains(err.Error(), "admin-listen") {
		t.Errorf("got %v", err)
	}
}

// The gauges of the queue say what is there, and nothing while that can't be
// known.
func TestQueueGauges(t *testing.T) {
	server := testkit.Redis(t)
	c := settings(t, "--redis-url", server.URL())
	b, _ := newBase(t, c)
	_ = Consumer(b, c.Count, c.Owner)
	blobs, err := OpenArchive(t.Context(), c.Archive)
	if err != nil {
		t.Fatal(err)
	}
	_ = Archiver(b, blobs, c.Batch, c.Owner)
	gauges := func() map[string]float64 {
		t.Helper()
		families, err := b.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			switch name := f.GetName(); name {
			case "paredao_queue_votes", "paredao_queue_frames", "paredao_oldest_pending_seconds", "paredao_archive_pending_votes":
				got[name] = f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return got
	}
	check := func(votes, frames, archive float64, old bool) {
		t.Helper()
		got := gauges()
		if len(got) != 4 || got["paredao_queue_votes"] != votes || got["paredao_queue_frames"] != frames ||
			got["paredao_archive_pending_votes"] != archive || got["paredao_oldest_pending_seconds"] > 0 != old {
			t.Errorf("got %v", got)
		}
	}
	check(0, 0, 0, false)
	poll := vote.Poll{ID: "final", Title: "Who?", Results: vote.ResultsLive, Options: []vote.Option{{ID: "ana"}}}
	if _, err := b.Store.ApplyPoll(t.Context(), poll, vote.Window{}); err != nil {
		t.Fatal(err)
	}
	for shard := range 2 {
		sendVote(t, b.Store, shard, poll)
	}
	sendVote(t, b.Store, 1, poll)
	testkit.Eventually(t, "the votes grow old", func() bool { return gauges()["paredao_oldest_pending_seconds"] > 0 })
	check(3, 3, 0, true)
	elements, err := b.Store.ReadQueue(t.Context(), 1, vote.ReadLimit{Votes: 10, Bytes: 1 << 20, Elements: 10})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Store.CommitCount(t.Context(), &vote.CountCommit{
		Shard: 1, Token: "t", Elements: 2, Digest: vote.ElementsDigest(elements),
		First: vote.ElementID([]byte(elements[0])), Last: vote.ElementID([]byte(elements[1])),
		Counts: map[string]vote.Tally{"final": {"ana": 2}},
	}); err != nil {
		t.Fatal(err)
	}
	check(1, 1, 2, true)

	server.Kill()
	if got := gauges(); len(got) != 0 {
		t.Errorf("without Redis the gauges say %v", got)
	}
	server.Start() // empty
	testkit.Eventually(t, "the gauges are back", func() bool { return len(gauges()) == 4 })
	check(0, 0, 0, false)
}

// Descriptions must not collide, whichever services share a process.
func TestServicesShareARegistry(t *testing.T) {
	c := settings(t, "--redis-url", "redis://127.0.0.1:1")
	b, _ := newBase(t, c)
	b.Registry = prometheus.NewPedanticRegistry()
	_ = Consumer(b, c.Count, c.Owner)
	_ = Archiver(b, nopArchive(t), c.Batch, c.Owner)
	if _, err := b.Registry.Gather(); err != nil {
		t.Error(err)
	}
}
