package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"paredao/internal/blobstore"
	"paredao/internal/ledger"
	"paredao/internal/redisstore"
	"paredao/internal/testkit"
)

// What README promises to someone who has just cloned.
func TestFirstTry(t *testing.T) {
	p := newPlace(t)
	data := filepath.Join(p.dir, "data")
	a := p.allinone().ready()
	hello := a.greeting()
	require.Equal(t, "curl -X POST "+a.url()+"/polls/demo/votes -d option=ana", hello["vote"])
	require.Equal(t, "curl "+a.url()+"/polls/demo/results", hello["results"])
	require.Equal(t, filepath.Join(bin.dir, "tally"), hello["totals"])
	require.Equal(t, 200, a.get(strings.TrimPrefix(hello["results"], "curl ")))

	a.vote("demo", form, "option=ana", "")
	a.vote("demo", jsonType, `{"option":"bruno"}`, "")
	id, replayed := a.vote("demo", form, "option=ana", "key")
	require.False(t, replayed)
	p.counted("demo", "ana", 2)
	p.counted("demo", "bruno", 1)
	// The very line that the greeting shows.
	text := p.start(p.command("/bin/sh", "-c", hello["totals"])).ok()
	require.Contains(t, text, "Quem você quer eliminar?")
	require.Regexp(t, `ana \(Ana\) +2 +66\.67 %`, text)
	for _, args := range []string{"queue", "polls list", "dead list", "audit", "audit --recount"} {
		p.tally(strings.Fields(args)...).ok()
	}
	info, err := os.Stat(filepath.Join(data, "redis.url"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	require.False(t, free(t, data))

	redis, socket := a.redisPid(), socketOf(t, data)
	require.Equal(t, 0, a.interrupt())
	gone(t, redis)
	require.True(t, free(t, data))
	require.NoFileExists(t, filepath.Join(data, "redis.url"))
	require.NoDirExists(t, filepath.Dir(socket))

	// Again: all is still there, the idempotency keys as well.
	a = p.allinone().ready()
	p.counted("demo", "ana", 2)
	again, replayed := a.vote("demo", form, "option=ana", "key")
	require.True(t, replayed)
	require.Equal(t, id, again)
	a.vote("demo", form, "option=carla", "")
	p.counted("demo", "carla", 1)
	p.counted("demo", "ana", 2)
	require.Equal(t, 0, a.interrupt())
	require.Equal(t, "", leftovers(t, data))
}

// socketOf is the socket that the folder's file names.
func socketOf(t *testing.T, data string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(data, "redis.url"))
	require.NoError(t, err)
	socket, ok := strings.CutPrefix(strings.TrimSpace(string(text)), "unix://")
	require.True(t, ok, string(text))
	return socket
}

// leftovers are files in a data folder that an orderly stop should not leave.
func leftovers(t *testing.T, data string) string {
	t.Helper()
	files, err := os.ReadDir(data)
	require.NoError(t, err)
	var names []string
	for _, f := range files {
		if name := f.Name(); name != "redis" && name != "archive" && name != "lock" {
			names = append(names, name)
		}
	}
	return strings.Join(names, " ")
}

// Killed with kill -9 in the middle of load, again and again: its redis-server
// ends by itself, the folder can be used at once, and every vote that was
// acknowledged is counted once.
func TestKilled(t *testing.T) {
	p := newPlace(t)
	data := filepath.Join(p.dir, "data")
	args := []string{"--listen=" + freeAddr(t), "--archive-max-age=200ms", "--owner-ttl=1s"}
	a := p.allinone(args...).ready()

	source, err := ledger.Draw([]int{50, 30, 16, 2}, 0, 1)
	require.NoError(t, err)
	client, err := ledger.NewClient(ledger.Params{
		URLs: []string{a.url()}, Source: source, Connections: 100, Rate: 3000, Timeout: 5 * time.Second, Patience: patience,
		Choices: []ledger.Choice{{Poll: "demo", Option: "ana"}, {Poll: "demo", Option: "bruno"}, {Poll: "demo", Option: "carla"}, {Poll: "demo", Option: "nobody"}},
		Refuse:  []ledger.Choice{{Poll: "demo", Option: "nobody"}},
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		client.Run(ctx)
	}()
	defer func() {
		stop()
		<-ended
	}()
	more := func(n int64) {
		t.Helper()
		target := client.Record().Acked() + n
		testkit.Eventually(t, "more votes are acknowledged", func() bool { return client.Record().Acked() >= target })
	}
	for round := range 3 {
		more(1000)
		// In the middle of it all, everything adds up.
		for range 5 {
			p.tally("audit").ok()
			p.tally("audit", "--recount").ok()
		}
		redis, socket := a.redisPid(), socketOf(t, data)
		a.kill()
		if round == 0 {
			gone(t, redis)
			require.NotContains(t, p.tally().stderr.String(), socket, "tally takes a dead one's word")
		}
		a = p.allinone(args...) // else at once, while the old redis-server may still be ending
		a.ready()
		gone(t, redis)
		require.NoDirExists(t, filepath.Dir(socket), "what the killed one left is removed")
	}
	more(1000)
	stop()
	<-ended

	text, err := os.ReadFile(filepath.Join(data, "redis.url"))
	require.NoError(t, err)
	store, err := redisstore.Open(redisstore.Options{URL: strings.TrimSpace(string(text)), Shards: 1})
	require.NoError(t, err)
	defer store.Close()
	blobs, err := blobstore.Open(t.Context(), "file:"+filepath.Join(data, "archive"), blobstore.AzureCredentials{})
	require.NoError(t, err)
	judgement, err := ledger.Judge(t.Context(), ledger.JudgeParams{
		Store: store, Blobs: blobs, Record: client.Record(), Timeout: patience, Progress: func(what string) { t.Log(what) },
	})
	require.NoError(t, err)
	t.Logf("%s", judgement)
	require.True(t, judgement.OK(), "the ledger does not hold")
	require.Positive(t, judgement.Refused)
	p.tally("audit", "--recount").ok()
	for _, o := range judgement.Options[:3] {
		p.counted("demo", o.Option, int(o.Acked))
	}
	require.Equal(t, 0, a.interrupt())
	require.Equal(t, "", leftovers(t, data))
}

// One folder belongs to one allinone.
func TestSecond(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	data := filepath.Join(p.dir, "data")
	first := p.allinone().ready()
	first.vote("demo", form, "option=ana", "")

	second := p.allinone()
	impatient := p.allinone("--data=./data/")
	impatient.logged("the data folder is in use; waiting for it", "lock")
	require.Equal(t, 0, impatient.interrupt(), "told to stop while it waited")
	require.Equal(t, 1, second.wait())
	require.Empty(t, second.stdout.String())
	require.Regexp(t, `\nallinone: data "\./data" is in use by another allinone[^\n]+\n$`, second.stderr.String())

	// The first one did not notice.
	first.vote("demo", form, "option=ana", "")
	p.counted("demo", "ana", 2)
	other := p.allinone("--data=other").ready() // another folder is no problem
	require.Equal(t, 0, other.interrupt())
	// It need not wait for long when the folder becomes free.
	next := p.allinone()
	next.logged("the data folder is in use; waiting for it", "lock")
	require.Equal(t, 0, first.interrupt())
	next.ready()
	p.counted("demo", "ana", 2)
	require.Equal(t, 0, next.interrupt())
	require.True(t, free(t, data))
}

// A redis-server that ends by itself ends allinone, with a clear line.
func TestRedisEnds(t *testing.T) {
	t.Parallel()
	for signal, how := range map[syscall.Signal]string{syscall.SIGKILL: "signal: killed", syscall.SIGTERM: "exit status 0"} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			data := filepath.Join(p.dir, "data")
			a := p.allinone().ready()
			a.vote("demo", form, "option=ana", "")
			socket := socketOf(t, data)
			require.NoError(t, syscall.Kill(a.redisPid(), signal))
			require.Equal(t, 1, a.wait())
			require.Regexp(t, `\nallinone: redis: redis-server ended by itself: `+how+` \(see \S+/data/redis/redis\.log\)\n$`, a.stderr.String())
			require.Equal(t, "", leftovers(t, data))
			require.NoDirExists(t, filepath.Dir(socket))
			require.True(t, free(t, data))

			a = p.allinone().ready()
			p.counted("demo", "ana", 1)
			require.Equal(t, 0, a.interrupt())
		})
	}
}

// A redis-server that hangs can't keep allinone from ending.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a := p.allinone("--shutdown-timeout=1m").ready()
	a.vote("demo", form, "option=ana", "")
	p.counted("demo", "ana", 1)
	redis := a.redisPid()
	require.NoError(t, syscall.Kill(redis, syscall.SIGSTOP))
	a.interrupt()
	gone(t, redis)
	require.True(t, free(t, filepath.Join(p.dir, "data")))
	a = p.allinone().ready()
	p.counted("demo", "ana", 1)
	require.Equal(t, 0, a.interrupt())
}

// Whoever presses Ctrl-C again and again ends it at once, and its redis-server
// with it.
func TestImpatient(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	a := p.allinone("--drain-delay=1h", "--shutdown-timeout=2h").ready()
	a.vote("demo", form, "option=ana", "")
	redis := a.redisPid()
	require.NoError(t, a.cmd.Process.Signal(os.Interrupt))
	a.logged("stopping", "reason")
	testkit.Eventually(t, "it ends", func() bool {
		select {
		case <-a.done:
			return true
		default:
			return a.cmd.Process.Signal(os.Interrupt) != nil
		}
	})
	require.Equal(t, 1, a.wait())
	require.Contains(t, a.stderr.String(), "exiting at once")
	gone(t, redis)
	a = p.allinone().ready()
	p.counted("demo", "ana", 1)
	require.Equal(t, 0, a.interrupt())
}

// What is wrong is said in one line, before anything is started or made.
func TestWrongSettings(t *testing.T) {
	p := newPlace(t)
	write := func(name, text string) string {
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600))
		return name
	}
	bad, empty := write("bad.yaml", "polls: [{id: X, options: []}]"), write("empty.yaml", "")
	escape := write("escape.yaml", "polls: [{id: \"\\e[31m\", options: [{id: a}]}]")
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--polls-file=" + bad}, `polls-file "bad.yaml"`},
		{[]string{"--polls-file=" + empty}, "polls-file"},
		{[]string{"--polls-file=" + escape}, "polls-file"},
		{[]string{"--polls-file=nosuch.yaml"}, "--polls-file"},
		{[]string{"--polls-file=."}, "--polls-file"},
		{[]string{"--data="}, "--data"},
		{[]string{"--data=" + bad}, "--data"},
		{[]string{"--data=~/data"}, "~ is not expanded"},
		{[]string{"--archive-url=azblob://votes"}, "--archive-url"},
		{[]string{"--archive-url=s3://votes"}, "--archive-url"},
		{[]string{"--redis-url=redis://:s3cr3t@h/x"}, "--redis-url"},
		{[]string{"--listen=8080"}, "--listen"},
		{[]string{"--listen=:70000"}, "--listen"},
		{[]string{"--listen=:8080", "--admin-listen=127.0.0.1:8080"}, "--admin-listen"},
		{[]string{"--queue-shards=0"}, "--queue-shards"},
		{[]string{"--nope"}, "--nope"},
		{[]string{"demo"}, `"demo"`},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			p := &place{t: t, dir: p.dir}
			a := p.allinone(test.args...)
			a.fails(2, test.want)
			require.NotContains(t, a.stderr.String(), "s3cr3t")
			require.NotContains(t, a.stderr.String(), "\x1b")
			for _, name := range []string{"data", "~", "nosuch"} {
				require.NoFileExists(t, filepath.Join(p.dir, name))
				require.NoDirExists(t, filepath.Join(p.dir, name))
			}
		})
	}
	t.Run("a key that is too short", func(t *testing.T) {
		p := newPlace(t)
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, "key"), []byte("short\n"), 0o600))
		p.allinone("--ip-hmac-key-file=key").fails(2, "ip-hmac-key-file", "at least 16")
		require.True(t, free(t, filepath.Join(p.dir, "data")))
		require.Equal(t, "", leftovers(t, filepath.Join(p.dir, "data")))
	})
	t.Run("help and version", func(t *testing.T) {
		require.Contains(t, p.allinone("--help").ok(), "--data DIR")
		require.Regexp(t, `^allinone \S+ \(`, p.allinone("--version").ok())
	})
}

// An address that can't be taken: one line that names the setting, and nothing
// is left running. It greets nobody.
func TestTakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	for setting, addr := range map[string]string{
		"listen": taken.Addr().String(), "admin-listen": taken.Addr().String(),
	} {
		t.Run(setting, func(t *testing.T) {
			p := newPlace(t)
			a := p.allinone("--" + setting + "=" + addr)
			a.fails(1, setting, addr, "address already in use")
			data := filepath.Join(p.dir, "data")
			require.True(t, free(t, data), "its redis-server still runs")
			require.Equal(t, "", leftovers(t, data))
		})
	}
}

// A redis-server that can't be used.
func TestRedisDoesNotStart(t *testing.T) {
	t.Run("a broken file", func(t *testing.T) {
		p := newPlace(t)
		data := filepath.Join(p.dir, "data")
		dir := filepath.Join(data, "redis", "appendonlydir")
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "appendonly.aof.manifest"), []byte("nonsense"), 0o600))
		p.allinone().fails(1, "redis-server ended at once", filepath.Join(data, "redis", "redis.log"), "exit status 1")
		require.True(t, free(t, data))
		require.Equal(t, "", leftovers(t, data))
	})
	t.Run("no program", func(t *testing.T) {
		p := newPlace(t)
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, "redis-server"), []byte("nonsense"), 0o700))
		p.env = append(p.env, "PATH="+p.dir)
		p.allinone().fails(1, "start redis-server")
		require.True(t, free(t, filepath.Join(p.dir, "data")))
	})
	t.Run("no folder for temporary files", func(t *testing.T) {
		p := newPlace(t, "TMPDIR=/nosuch")
		p.allinone().fails(1, "socket")
	})
}

// The folder may have any name, and the greeting's command works from anywhere.
func TestFolders(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	long := strings.Repeat("x", 200) + "/" + strings.Repeat("ã", 100)
	for _, data := range []string{"a b", long, ".", "./data", filepath.Join(p.dir, "absolute"), "q\"'$HOME`ls`", "ü#%41?@é", "-x", "../" + filepath.Base(p.dir) + "/up"} {
		t.Run(data[:min(len(data), 40)], func(t *testing.T) {
			t.Parallel()
			p := &place{t: t, dir: p.dir}
			a := p.allinone("--data="+data, "--archive-max-age=10ms").ready()
			a.vote("demo", form, "option=bruno", "")
			elsewhere := newPlace(t)
			totals := a.greeting()["totals"]
			if data == "./data" {
				elsewhere = p
				require.Equal(t, filepath.Join(bin.dir, "tally"), totals)
			}
			sh := func(command string) string { return elsewhere.start(elsewhere.command("/bin/sh", "-c", command)).ok() }
			tally, settings, _ := strings.Cut(totals, " ")
			testkit.Eventually(t, "the vote is counted", func() bool {
				return strings.Contains(sh(tally+" totals -o csv "+settings), ",bruno,Bruno,1,100.00\r\n")
			})
			testkit.Eventually(t, "the vote is archived", func() bool {
				return strings.Contains(sh(tally+" audit --recount -o csv "+settings), "demo,1,1,0,0,0,1,0,1,true,\r\n")
			})
			require.Contains(t, sh(totals), "bruno (Bruno)")
			require.Equal(t, 0, a.interrupt())
			if data != "." {
				full := data
				if !filepath.IsAbs(data) {
					full = filepath.Join(p.dir, data)
				}
				require.Equal(t, "", leftovers(t, full))
			}
		})
	}
}

// The folder for temporary files may have any name.
func TestTemporaryFolder(t *testing.T) {
	t.Parallel()
	for _, name := range []string{strings.Repeat("x", 120), "a b#%41?@é"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tmp := filepath.Join(t.TempDir(), name)
			require.NoError(t, os.Mkdir(tmp, 0o700))
			p := newPlace(t, "TMPDIR="+tmp)
			a := p.allinone().ready()
			a.vote("demo", form, "option=ana", "")
			p.counted("demo", "ana", 1)
			require.Equal(t, 0, a.interrupt())
			files, err := os.ReadDir(tmp)
			require.NoError(t, err)
			require.Empty(t, files)
		})
	}
}

func TestPollsFile(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	const polls = "polls: [{id: mine, title: Mine, options: [{id: x, name: X}, {id: y}]}, {id: later, options: [{id: x}], opens_at: 2999-01-01T00:00:00Z}]"
	write := func(text string) {
		require.NoError(t, os.WriteFile(filepath.Join(p.dir, "polls.yaml"), []byte(text), 0o600))
	}
	write(polls)
	a := p.allinone("--polls-file=polls.yaml").ready()
	require.Contains(t, a.greeting()["vote"], "/polls/POLL/votes -d option=OPTION")
	testkit.Eventually(t, "the polls are there", func() bool {
		return strings.Count(p.tally("polls", "list", "-o", "csv").ok(), "\n") == 3
	})
	require.NotContains(t, p.tally("polls", "list").ok(), "demo")
	a.vote("mine", jsonType, `{"option":"x"}`, "")
	p.counted("mine", "x", 1)
	require.Equal(t, 0, a.interrupt())

	// By a pipe, as a shell's <(…) makes one.
	r, w, err := os.Pipe()
	require.NoError(t, err)
	_, err = w.WriteString(polls)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	cmd := p.command(binary(t, "allinone"), "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0", "--polls-file=/dev/fd/3")
	cmd.ExtraFiles = []*os.File{r}
	a = p.start(cmd).ready()
	require.NoError(t, r.Close())
	p.counted("mine", "x", 1)
	require.Equal(t, 0, a.interrupt())

	// Options of a poll with votes can't change.
	write(strings.Replace(polls, "{id: y}", "{id: z}", 1))
	a = p.allinone("--polls-file=polls.yaml")
	require.Equal(t, 2, a.wait())
	require.Regexp(t, `\nallinone: .*polls-file: .*poll mine.*can't change[^\n]*\n$`, a.stderr.String())
	require.True(t, free(t, filepath.Join(p.dir, "data")))
}

// With --redis-url it brings no Redis along, and leaves that one alone.
func TestOtherRedis(t *testing.T) {
	t.Parallel()
	redis := testkit.Redis(t)
	p := newPlace(t)
	a := p.allinone("--redis-url="+redis.URL(), "--queue-shards=2").ready()
	a.vote("demo", form, "option=ana", "")
	require.Equal(t, filepath.Join(bin.dir, "tally")+" --queue-shards 2 --redis-url "+redis.URL(), a.greeting()["totals"])
	p.counted("demo", "ana", 1, "--redis-url", redis.URL(), "--queue-shards", "2")
	require.NotContains(t, a.stderr.String(), "redis-server started")
	require.NoDirExists(t, filepath.Join(p.dir, "data", "redis"))
	require.NoFileExists(t, filepath.Join(p.dir, "data", "redis.url"))
	require.Equal(t, 0, a.interrupt())
	require.NoError(t, redis.Client().Ping(t.Context()).Err())

	// Other shards: a wrong setting.
	a = p.allinone("--redis-url=" + redis.URL())
	require.Equal(t, 2, a.wait())
	require.Contains(t, a.stderr.String(), "queue-shards is 1, but this Redis was set up with 2")
}

// Without a redis-server on PATH an embedded Redis serves, which is said.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "PATH=/nosuch")
	data := filepath.Join(p.dir, "data")
	args := []string{"--queue-shards=2", "--owner-ttl=1s", "--idempotency-ttl=2s", "--archive-max-age=100ms"}
	a := p.allinone(args...).ready()
	require.Contains(t, a.stderr.String(), "votes live only in memory")
	shards := []string{"--queue-shards", "2"}
	tally := func(args ...string) string {
		t.Helper()
		return p.tally(append(args, shards...)...).ok()
	}
	info, err := os.Stat(filepath.Join(data, "redis.url"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())

	// An Idempotency-Key counts once while it is remembered, and is forgotten.
	first, replayed := a.vote("demo", form, "option=ana", "key")
	require.False(t, replayed)
	again, replayed := a.vote("demo", form, "option=ana", "key")
	require.True(t, replayed)
	require.Equal(t, first, again)
	testkit.Eventually(t, "the key is forgotten", func() bool {
		id, replayed := a.vote("demo", form, "option=ana", "key")
		require.Equal(t, replayed, id == first)
		return !replayed
	})
	for range 20 {
		a.vote("demo", jsonType, `{"option":"bruno"}`, "")
	}
	p.counted("demo", "ana", 2, shards...)
	p.counted("demo", "bruno", 20, shards...)

	// tally finds it by the file, and by the URL alone.
	text, err := os.ReadFile(filepath.Join(data, "redis.url"))
	require.NoError(t, err)
	url, kind, _ := strings.Cut(string(text), "\n")
	require.Equal(t, "embedded\n", kind)
	for _, args := range []string{"totals", "queue", "polls list", "dead list", "audit"} {
		plain := tally(strings.Fields(args)...)
		byURL := tally(append(strings.Fields(args), "--redis-url", url)...)
		require.Equal(t, strings.Count(plain, "\n"), strings.Count(byURL, "\n"))
	}
	// Nobody else gets in.
	require.Equal(t, 1, p.tally("--redis-url", "redis://"+url[strings.Index(url, "@")+1:], "--queue-shards", "2").wait())

	// An owner that is gone gives way.
	owners := func() map[string]bool {
		out := map[string]bool{}
		for line := range strings.Lines(tally("queue", "-o", "csv")) {
			out[strings.Split(line, ",")[4]] = true
		}
		delete(out, "owner")
		return out
	}
	require.Len(t, owners(), 1)
	other := testkit.StartProcess(t, "consumer", "--redis-url="+url, "--queue-shards=2", "--owner-ttl=1s")
	testkit.Eventually(t, "two consumers share", func() bool { return len(owners()) == 2 && !owners()[""] })
	other.Kill()
	testkit.Eventually(t, "one has all again", func() bool { return len(owners()) == 1 && !owners()[""] })
	for range 10 {
		a.vote("demo", form, "option=carla", "")
	}
	p.counted("demo", "carla", 10, shards...)

	// The proof, and the end.
	tally("polls", "close", "demo")
	require.Contains(t, tally("demo", "--final"), "[final]")
	testkit.Eventually(t, "all is archived", func() bool {
		return strings.Contains(tally("audit", "--recount", "-o", "csv"), "demo,32,32,0,0,0,32,0,32,true,\r\n")
	})
	require.Equal(t, "poll,option,votes,percent\r\ndemo,ana,2,6.25\r\ndemo,bruno,20,62.50\r\ndemo,carla,10,31.25\r\n", tally("recount", "-o", "csv"))
	require.Equal(t, 0, a.interrupt())
	require.Equal(t, "", leftovers(t, data))
	require.True(t, free(t, data))

	// It remembers nothing, as it says; the archive does.
	a = p.allinone(args...).ready()
	p.counted("demo", "ana", 0, shards...)
	require.Contains(t, tally("recount", "-o", "csv"), "demo,ana,2,")
	a.vote("demo", form, "option=ana", "")
	p.counted("demo", "ana", 1, shards...)
	a.kill()
	require.True(t, free(t, data))
	// What was there is gone, and so is its URL's worth.
	require.NotContains(t, p.tally().stderr.String(), fmt.Sprintf("%q", url))
	a = p.allinone(args...).ready()
	require.Equal(t, 0, a.interrupt())
	require.Equal(t, "", leftovers(t, data))
}
