package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/blobstore"
	"paredao/internal/lab"
	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// vote posts one vote and returns the status, and the answer's header and text.
func (s *stack) vote(api *testkit.Process, poll, option string) (int, http.Header, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, api.URL()+"/polls/"+poll+"/votes",
		strings.NewReader(`{"option":"`+option+`"}`))
	require.NoError(s.t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	text := make([]byte, 4096)
	n, _ := resp.Body.Read(text)
	return resp.StatusCode, resp.Header, string(text[:n])
}

// Redis refuses to work, in each of its own ways, under load. Voters are told
// so (503, and when to come again), nobody crashes, and when Redis works again
// all go on: the same processes, over the same connections where those stand.
func TestRedisRefuses(t *testing.T) {
	s := newStack(t, 2, "--appendonly", "yes", "--appendfsync", "always", "--key-load-delay", "1000",
		"--loading-process-events-interval-bytes", "1024")
	consumer, archiver, api := s.start("consumer", ""), s.start("archiver", ""), s.start("api", "")
	pids := func() [3]int { return [3]int{consumer.Pid(), archiver.Pid(), api.Pid()} }
	before := pids()
	l := s.load(steady, api)
	s.grow(l, 500)

	// The test's own connection is made before others are refused.
	rdb := redis.NewClient(&redis.Options{Addr: s.redis.Addr(), PoolSize: 1, MinIdleConns: 1, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	do := func(args ...any) {
		t.Helper()
		require.NoError(t, rdb.Do(t.Context(), args...).Err(), args)
	}
	refused := func(code string) {
		t.Helper()
		testkit.Eventually(t, "votes are refused", func() bool {
			status, header, text := s.vote(api, openPoll, "ana")
			if status != http.StatusServiceUnavailable {
				return false
			}
			assert.Contains(t, text, code)
			assert.NotEmpty(t, header.Get("Retry-After"))
			return true
		})
	}
	for _, fault := range []struct {
		name       string
		begin, end func()
		code       string
	}{
		{"NOSCRIPT", func() {
			// A storm: no script lives long enough to be relied on.
			for range 100 {
				do("SCRIPT", "FLUSH")
				s.grow(l, 3)
			}
		}, nil, ""},
		{"READONLY", func() { do("REPLICAOF", "127.0.0.1", "1") }, func() { do("REPLICAOF", "NO", "ONE") }, "queue-unavailable"},
		{"MISCONF", func() {
			require.NoError(t, os.Mkdir(filepath.Join(s.redis.Dir, "dump.rdb"), 0o700))
			do("CONFIG", "SET", "save", "3600 1")
			testkit.Eventually(t, "a snapshot fails", func() bool {
				_ = rdb.BgSave(t.Context()).Err() // one may run
				return strings.Contains(rdb.Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
			})
		}, func() {
			require.NoError(t, os.Remove(filepath.Join(s.redis.Dir, "dump.rdb")))
			testkit.Eventually(t, "a snapshot is made", func() bool {
				_ = rdb.BgSave(t.Context()).Err()
				return strings.Contains(rdb.Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:ok")
			})
			do("CONFIG", "SET", "save", "")
		}, "queue-unavailable"},
		{"OOM", func() { do("CONFIG", "SET", "maxmemory", "1mb") }, func() { do("CONFIG", "SET", "maxmemory", "0") }, "overloaded"},
		{"maxclients", func() {
			do("CONFIG", "SET", "maxclients", "1")
			do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		}, func() { do("CONFIG", "SET", "maxclients", "1000") }, "queue-unavailable"},
		{"LOADING", func() {
			// Each key takes a millisecond to load.
			_, err := rdb.Pipelined(t.Context(), func(p redis.Pipeliner) error {
				for i := range 3000 {
					p.Set(t.Context(), "ballast:"+strconv.Itoa(i), i, 0)
				}
				return nil
			})
			require.NoError(t, err)
			s.redis.Kill()
			require.NoError(t, s.redis.Launch())
			testkit.Eventually(t, "Redis loads", func() bool {
				err := rdb.LLen(t.Context(), "votes:{0}").Err()
				return err != nil && strings.HasPrefix(err.Error(), "LOADING")
			})
		}, func() {
			testkit.Eventually(t, "Redis has loaded", func() bool { return rdb.LLen(t.Context(), "votes:{0}").Err() == nil })
		}, "queue-unavailable"},
	} {
		s.grow(l, 200)
		fault.begin()
		if fault.code != "" {
			refused(fault.code)
		}
		if fault.end != nil {
			fault.end()
		}
		s.grow(l, 500)
		require.Equal(t, before, pids(), "%s: a process was restarted", fault.name)
		testkit.Eventually(t, "votes are counted again", func() bool {
			queued, _ := s.pending()
			return queued < 2000
		})
		t.Logf("%s: went on", fault.name)
	}
	s.judge(l)
	for _, p := range []*testkit.Process{consumer, archiver, api} {
		require.Equal(t, 0, p.Term())
	}
}

// skewSource moves the clock of a program that asks the C library for the time.
// (libfaketime does the same, but needs care with redis-server's allocator.)
const skewSource = `
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int gettimeofday(struct timeval *restrict tv, void *restrict tz) {
	int r = syscall(SYS_gettimeofday, tv, tz);
	if (r == 0 && tv) tv->tv_sec += SKEW;
	return r;
}
int clock_gettime(clockid_t id, struct timespec *ts) {
	int r = syscall(SYS_clock_gettime, id, ts);
	if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) ts->tv_sec += SKEW;
	return r;
}
time_t time(time_t *t) {
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (t) *t = ts.tv_sec;
	return ts.tv_sec;
}
`

// skewed is the environment of a program whose clock is moved.
func skewed(t *testing.T, skew time.Duration) []string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil || runtime.GOOS != "linux" {
		t.Skipf("a C compiler and Linux are needed to move redis-server's clock: %v", err)
	}
	dir := t.TempDir()
	source, library := filepath.Join(dir, "skew.c"), filepath.Join(dir, "skew.so")
	require.NoError(t, os.WriteFile(source, []byte(skewSource), 0o600))
	out, err := exec.Command(cc, "-shared", "-fPIC", "-O2", fmt.Sprintf("-DSKEW=%d", int(skew.Seconds())), "-o", library, source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	return []string{"LD_PRELOAD=" + library}
}

// Redis's clock is ten minutes before or behind that of every process of ours.
// (A Go program asks the kernel for the time without the C library, so its own
// clock can't be faked; the difference is the same.) What is in time, what is
// stamped on a vote, who owns a shard and when a batch is due all go by Redis.
func TestClockSkew(t *testing.T) {
	for _, skew := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		t.Run(skew.String(), func(t *testing.T) {
			r, err := lab.StartRedisEnv(context.Background(), skewed(t, skew), t.TempDir())
			require.NoError(t, err)
			t.Cleanup(r.Kill)
			s := newStackOn(t, r.URL(), 2)
			now, err := s.store.Now(t.Context())
			require.NoError(t, err)
			require.InDelta(t, skew.Seconds(), time.Until(now).Seconds(), 60, "Redis's clock was not moved")

			consumer, archiver, api := s.start("consumer"), s.start("archiver"), s.start("api")
			// By our clock each of these windows is another: over, or not yet
			// begun, or the other way round.
			for id, w := range map[string]vote.Window{
				"now":   {Opens: now.Add(-time.Minute), Closes: now.Add(5 * time.Minute)},
				"later": {Opens: now.Add(5 * time.Minute), Closes: now.Add(time.Hour)},
				"over":  {Opens: now.Add(-time.Hour), Closes: now.Add(-time.Minute)},
				"ends":  {Closes: now.Add(4 * time.Second)},
			} {
				_, err := s.store.ApplyPoll(t.Context(), vote.Poll{
					ID: id, Title: id, Results: vote.ResultsLive, Options: []vote.Option{{ID: "ana", Name: "Ana"}},
				}, w)
				require.NoError(t, err)
			}
			l := s.load(steady, api)
			status, _, text := s.vote(api, "now", "ana")
			require.Equal(t, http.StatusAccepted, status, text)
			stamp, err := time.Parse(time.RFC3339, strings.TrimSuffix(text[strings.Index(text, `"accepted_at":"`)+len(`"accepted_at":"`):], `"}`))
			require.NoError(t, err, text)
			require.InDelta(t, skew.Seconds(), time.Until(stamp).Seconds(), 60, "a vote is stamped with Redis's time")
			status, _, text = s.vote(api, "later", "ana")
			require.Equal(t, http.StatusConflict, status)
			require.Contains(t, text, "poll-not-open")
			status, _, text = s.vote(api, "over", "ana")
			require.Equal(t, http.StatusConflict, status)
			require.Contains(t, text, "poll-closed")
			testkit.Eventually(t, "the poll closes by Redis's clock", func() bool {
				status, _, text := s.vote(api, "ends", "ana")
				after, err := s.store.Now(t.Context())
				require.NoError(t, err)
				if status == http.StatusAccepted {
					require.True(t, after.Before(now.Add(time.Minute)))
					return false
				}
				require.Contains(t, text, "poll-closed")
				require.True(t, after.After(now.Add(4*time.Second)), "closed before its time")
				return true
			})

			// Shards change hands when their owner is silent, and batches are
			// written when they are old, as ever.
			s.grow(l, 500)
			consumer.Stop()
			other := s.start("consumer")
			testkit.Eventually(t, "another consumer takes over", func() bool { return other.MetricOrZero("paredao_votes_counted_total") > 0 })
			consumer.Cont()
			testkit.Eventually(t, "batches are written", func() bool { return archiver.MetricOrZero("paredao_votes_archived_total") > 0 })
			const sum, n = "paredao_accept_to_count_seconds_sum", "paredao_accept_to_count_seconds_count"
			mean := other.Metric(sum) / other.Metric(n)
			require.Less(t, mean, 120.0, "seconds to count a frame")
			require.GreaterOrEqual(t, mean, 0.0, "seconds to count a frame")
			// (It is 0 where none waits, and an age below 0 would be, too.)
			var oldest float64
			testkit.Eventually(t, "a vote is seen to wait", func() bool {
				oldest = other.MetricOrZero("paredao_oldest_pending_seconds") // none while Redis is slow
				return oldest > 0
			})
			require.Less(t, oldest, 120.0, "seconds")
			s.judge(l)
		})
	}
}

// The archive's disk is full for a while. Voting and counting go on, nothing is
// lost, and the archiver goes on when there is room.
func TestArchiveDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("can't mount a file system of a few kilobytes here: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	s := newStack(t, 1)
	s.archiveURL = "file:" + filepath.Join(dir, "archive")
	s.openArchive(blobstore.AzureCredentials{})
	consumer, archiver, api := s.start("consumer", ""), s.start("archiver", ""), s.start("api", "")
	l := s.load(steady, api)
	testkit.Eventually(t, "the disk is full", func() bool { return archiver.Logged("no space left on device") })
	counted := consumer.Metric("paredao_votes_counted_total")
	s.grow(l, 500)
	testkit.Eventually(t, "counting goes on", func() bool { return consumer.MetricOrZero("paredao_votes_counted_total") >= counted+500 })
	require.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=256m"))
	archived := archiver.Metric("paredao_votes_archived_total")
	testkit.Eventually(t, "the archive goes on", func() bool { return archiver.MetricOrZero("paredao_votes_archived_total") > archived })
	s.judge(l)
}
