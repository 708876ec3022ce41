package vote

import (
	"strconv"
	"testing"
)

// Compare with -benchmem: what a vote costs is in the vote/s and ns/vote
// columns, what a frame allocates in allocs/op.

func report(b *testing.B, votes int) {
	total := float64(b.N) * float64(votes)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/total, "ns/vote")
	b.ReportMetric(total/b.Elapsed().Seconds(), "votes/s")
}

func benchVotes(n int) []Vote {
	out := votes(n)
	for i := range out {
		out[i].UserAgent = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/128.0.0.0 Safari/537.36"
	}
	return out
}

func BenchmarkAppendVote(b *testing.B) {
	for name, agent := range map[string]string{"plain": benchVotes(1)[0].UserAgent, "escaped": `a "quoted" \agent`} {
		b.Run(name, func(b *testing.B) {
			v := aVote(0)
			v.UserAgent = agent
			buf := make([]byte, 0, 4096)
			b.ReportAllocs()
			for b.Loop() {
				buf = AppendVote(buf[:0], &v)
			}
			report(b, 1)
		})
	}
}

func BenchmarkCompress(b *testing.B) {
	for _, n := range []int{4, 16, 100, MaxFrameVotes} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			c := codec(b)
			body := lines(benchVotes(n))
			buf := make([]byte, 0, len(body)+1024)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				buf = c.Compress(buf[:0], body, n)
			}
			report(b, n)
			b.ReportMetric(float64(len(buf))/float64(n), "stored-B/vote")
		})
	}
}

func BenchmarkRead(b *testing.B) {
	for _, n := range []int{1, 4, 16, 100, MaxFrameVotes} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			c := codec(b)
			f := frame(c, header(n), lines(benchVotes(n)))
			count := 0
			each := func(*RawVote) { count++ }
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Read(f, each); err != nil {
					b.Fatal(err)
				}
			}
			if count != n*b.N {
				b.Fatalf("%d votes in %d frames of %d", count, b.N, n)
			}
			report(b, n)
		})
	}
}

// The scan alone, without inflating; and the fallback, for comparison.
func BenchmarkScan(b *testing.B) {
	for name, agent := range map[string]string{"layout": "Mozilla/5.0", "fallback": `Mozilla "5.0"`} {
		b.Run(name, func(b *testing.B) {
			all := votes(100)
			for i := range all {
				all[i].UserAgent = agent
			}
			body := lines(all)
			h := header(100)
			var v RawVote
			each := func(*RawVote) {}
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if err := scan(h, body, &v, each); err != nil {
					b.Fatal(err)
				}
			}
			report(b, 100)
		})
	}
}

// A vote in the known layout costs no allocation, however many a frame holds.
func TestScanAllocatesNothing(t *testing.T) {
	c := codec(t)
	each := func(*RawVote) {}
	perFrame := func(n int) float64 {
		f := frame(c, header(n), lines(benchVotes(n)))
		return testing.AllocsPerRun(10, func() {
			if _, err := c.Read(f, each); err != nil {
				t.Fatal(err)
			}
		})
	}
	// Two: the header's text and its polls. The race detector adds a few.
	if n := perFrame(MaxFrameVotes); n > 8 {
		t.Errorf("a frame of %d votes takes %.0f allocations", MaxFrameVotes, n)
	}
	body, h := lines(votes(100)), header(100)
	var raw RawVote
	if n := testing.AllocsPerRun(10, func() { _ = scan(h, body, &raw, each) }); n != 0 {
		t.Errorf("scan takes %.0f allocations", n)
	}
	buf := make([]byte, 0, 4096)
	v := benchVotes(1)[0]
	if n := testing.AllocsPerRun(10, func() { buf = AppendVote(buf[:0], &v) }); n != 0 {
		t.Errorf("AppendVote takes %.0f allocations", n)
	}
}
