package redisstore

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"paredao/internal/vote"
)

var scriptTime = regexp.MustCompile(`cmdstat_evalsha:calls=\d+,usec=(\d+)`)

// redisTime is how long Redis has run scripts since the last reset.
func redisTime(b *testing.B, c *redis.Client) float64 {
	b.Helper()
	m := scriptTime.FindStringSubmatch(c.Info(b.Context(), "commandstats").Val())
	if m == nil {
		return 0
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// BenchmarkCount counts chunks of about 2,000 votes, in frames of one vote, 16,
// and 100. redis-us/vote is Redis's own time for read and commit.
func BenchmarkCount(b *testing.B) {
	for _, n := range []int{1, 16, 100} {
		for _, digest := range []bool{true, false} {
			b.Run(fmt.Sprintf("%d a frame, digest %v", n, digest), func(b *testing.B) {
				benchCount(b, n, digest)
			})
		}
	}
}

func benchCount(b *testing.B, n int, digest bool) {
	ctx := b.Context()
	rdb := redis.NewClient(&redis.Options{Addr: shared.Addr()})
	defer rdb.Close()
	s, err := Open(Options{URL: shared.URL(), Shards: 1, Timeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	codec, err := vote.NewCodec()
	if err != nil {
		b.Fatal(err)
	}
	defer codec.Close()
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		b.Fatal(err)
	}
	var lines []byte
	for range n {
		lines = vote.AppendVote(lines, &vote.Vote{ID: uuid.New(), Poll: "p", Option: "ana", Client: "10.0.0.1", UserAgent: "Mozilla/5.0"})
	}
	body := string(codec.Compress(nil, lines, n))
	frames := 2000 / n
	seq, votes := 0, 0
	var spent float64
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		pipe := rdb.Pipeline()
		pipe.Del(ctx, "archive:{0}")
		for range frames {
			seq++
			pipe.RPush(ctx, "votes:{0}", fmt.Sprintf("P1 f-%d 1768957201234 %d - p:%d\n", seq, n, n)+body)
		}
		pipe.ConfigResetStat(ctx)
		if _, err := pipe.Exec(ctx); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		elements, err := s.ReadQueue(ctx, 0, vote.ReadLimit{Votes: 2000, Bytes: 8 << 20, Elements: 8192})
		if err != nil || len(elements) != frames {
			b.Fatalf("%d frames, %v", len(elements), err)
		}
		c := &vote.CountCommit{
			Token: strconv.Itoa(seq), Elements: len(elements),
			First: vote.ElementID([]byte(elements[0])), Last: vote.ElementID([]byte(elements[len(elements)-1])),
		}
		if digest {
			c.Digest = vote.ElementsDigest(elements)
		}
		count := int64(0)
		for _, e := range elements {
			if _, err := codec.Read([]byte(e), func(*vote.RawVote) { count++ }); err != nil {
				b.Fatal(err)
			}
		}
		c.Counts = map[string]vote.Tally{"p": {"ana": count}}
		if status, _, err := s.CommitCount(ctx, c); err != nil || status != vote.CommitDone {
			b.Fatal(status, err)
		}
		b.StopTimer()
		votes += int(count)
		spent += redisTime(b, rdb)
		b.StartTimer()
	}
	b.ReportMetric(spent/float64(votes), "redis-us/vote")
	b.ReportMetric(float64(votes)/b.Elapsed().Seconds(), "votes/s")
}
