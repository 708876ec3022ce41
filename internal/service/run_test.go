package service

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"paredao/internal/audit"
	"paredao/internal/blobstore"
	"paredao/internal/config"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

func nopArchive(t *testing.T) blobstore.Store {
	t.Helper()
	s, err := OpenArchive(t.Context(), config.Archive{URL: config.ArchiveURL{Dir: t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The metrics of the public contract, with their types.
var contract = map[string]string{
	"votes_accepted_total":      "counter",
	"votes_rejected_total":      "counter",
	"enqueue_batch_votes":       "histogram",
	"enqueue_seconds":           "histogram",
	"votes_counted_total":       "counter",
	"votes_archived_total":      "counter",
	"dead_votes_total":          "counter",
	"queue_votes":               "gauge",
	"queue_frames":              "gauge",
	"oldest_pending_seconds":    "gauge",
	"accept_to_count_seconds":   "histogram",
	"accept_to_archive_seconds": "histogram",
	"archive_pending_votes":     "gauge",
	"archive_objects_total":     "counter",
	"shards_owned":              "gauge",
	"commits_refused_total":     "counter",
	"build_info":                "gauge",
}

// All three services in one process, on a real Redis: a vote is accepted,
// counted and archived; every metric is there; the stop is in order.
func TestAllTogether(t *testing.T) {
	server := testkit.Redis(t)
	c := settings(t, "--redis-url", server.URL(), "--polls-file", file(t, pollsFile))
	b, log := newBase(t, c)
	setup, err := b.Setup(c.HTTP.PollsFile)
	if err != nil {
		t.Fatal(err)
	}
	blobs, err := OpenArchive(t.Context(), c.Archive)
	if err != nil {
		t.Fatal(err)
	}
	api, addr, err := API(b, c.HTTP, c.Enqueue)
	if err != nil {
		t.Fatal(err)
	}
	stop, ended := background(func(ctx context.Context) error {
		return b.Run(ctx, c.Daemon, setup, api, Consumer(b, c.Count, c.Owner), Archiver(b, blobs, c.Batch, c.Owner))
	})
	admin := "http://" + log.after(t, `"admin listens" addr=`)
	testkit.Eventually(t, "it is ready", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("ended: %v", err)
		default:
		}
		code, _ := get(t, admin+"/readyz")
		return code == 200
	})
	testkit.Eventually(t, "the polls are applied", func() bool {
		ids, _, err := b.Store.KnownPolls(t.Context())
		return err == nil && len(ids) == 2
	})

	for range 5 {
		if code, text := post(t, addr, "final", "ana"); code != 202 {
			t.Fatalf("%d %s", code, text)
		}
	}
	if code, _ := post(t, addr, "final", "nobody"); code != 422 {
		t.Errorf("an unknown option: %d", code)
	}
	if code, _ := post(t, addr, "ended", "x"); code != 409 {
		t.Errorf("a closed poll: %d", code)
	}
	if err := server.Client().RPush(t.Context(), "votes:{0}", "garbage").Err(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "all is counted and archived", func() bool {
		polls, err := b.Store.ShardPolls(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var l vote.PollLedger
		for _, s := range polls {
			l.Add(s.Ledgers["final"])
		}
		dead := server.Client().LLen(t.Context(), "dead:{0}").Val()
		return l.Counted == 5 && l.Archived == 5 && dead == 1
	})
	if code, text := get(t, "http://"+addr.String()+"/polls/final/results"); code != 200 || !strings.Contains(text, `"id":"ana"`) {
		t.Errorf("%d %s", code, text)
	}
	report, err := audit.Audit(t.Context(), audit.Params{
		Source: b.Store, Shards: 2, Polls: []string{"ended", "final"}, Recount: true, Blobs: blobs,
	})
	if err != nil || !report.OK() || *report.Polls[1].Recounted != 5 {
		t.Errorf("%+v, %v", report, err)
	}
	if names, err := filepath.Glob(filepath.Join(c.Data, "archive/votes/poll=final/*/*/*.parquet")); err != nil || len(names) == 0 {
		t.Errorf("the archive has %v, %v", names, err)
	}

	// The worker notes a commit just after Redis has it.
	var metrics string
	testkit.Eventually(t, "the metrics say so", func() bool {
		_, metrics = get(t, admin+"/metrics")
		return strings.Contains(metrics, "\nparedao_votes_archived_total 5\n") &&
			strings.Contains(metrics, `paredao_dead_votes_total{reason="unreadable"} 1`)
	})
	for name, kind := range contract {
		if !strings.Contains(metrics, "\n# TYPE paredao_"+name+" "+kind+"\n") {
			t.Errorf("there is no %s paredao_%s", kind, name)
		}
	}
	for _, m := range regexp.MustCompile(`# TYPE paredao_(\S+) `).FindAllStringSubmatch(metrics, -1) {
		if contract[m[1]] == "" {
			t.Errorf("paredao_%s is not in the contract", m[1])
		}
	}
	for _, line := range []string{
		`paredao_votes_accepted_total{poll="final"} 5`,
		`paredao_votes_counted_total{poll="final"} 5`,
		`paredao_votes_rejected_total{reason="unknown-option"} 1`,
		`paredao_votes_rejected_total{reason="poll-closed"} 1`,
		`paredao_shards_owned{role="consumer"} 2`,
		`paredao_shards_owned{role="archiver"} 2`,
		`paredao_queue_votes 0`,
		`paredao_queue_frames 0`,
		`paredao_archive_pending_votes 0`,
		`paredao_oldest_pending_seconds 0`,
		`paredao_commits_refused_total 0`,
	} {
		if !strings.Contains(metrics, "\n"+line+"\n") {
			t.Errorf("the metrics lack %s", line)
		}
	}

	if err := stop(); err != nil {
		t.Errorf("the stop: %v", err)
	}
	var order []string
	for _, m := range regexp.MustCompile(`msg="part stopped" part=(\S+)`).FindAllStringSubmatch(log.String(), -1) {
		order = append(order, m[1])
	}
	if want := []string{"http", "committer", "consumer", "archiver", "setup", "admin"}; !slices.Equal(order, want) {
		t.Errorf("stopped %v, want %v", order, want)
	}
	if keys := server.Client().Keys(context.Background(), "owner:*").Val(); len(keys) != 0 {
		t.Errorf("shards are still owned: %v", keys)
	}
	if _, err := os.Stat(c.Data); err != nil {
		t.Error(err)
	}
}

// Readiness says what fails; checks of one name are asked once.
func TestReadiness(t *testing.T) {
	server := testkit.Redis(t)
	c := settings(t, "--redis-url", server.URL())
	b, log := newBase(t, c)
	setup, err := b.Setup("")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "archive")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // no folder
		t.Fatal(err)
	}
	blobs, err := OpenArchive(t.Context(), config.Archive{URL: config.ArchiveURL{Dir: dir}})
	if err != nil {
		t.Fatal(err)
	}
	rdb := server.Client()
	if err := rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	stop, _ := background(func(ctx context.Context) error {
		return b.Run(ctx, c.Daemon, setup, Consumer(b, c.Count, c.Owner), Archiver(b, blobs, c.Batch, c.Owner))
	})
	admin := "http://" + log.after(t, `"admin listens" addr=`)
	code, text := get(t, admin+"/readyz")
	if code != 503 || !strings.Contains(text, "maxmemory-policy is allkeys-lru") || !strings.Contains(text, `"archive"`) {
		t.Errorf("%d %s", code, text)
	}
	if err := rdb.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it is ready", func() bool {
		code, _ := get(t, admin+"/readyz")
		return code == 200
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
}
