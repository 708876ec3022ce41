package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
)

// refused is a port where nobody listens.
const refused = "127.0.0.1:1"

// commands are all of them, with arguments that they take.
var commands = []struct {
	args  string
	redis bool // needs it
}{
	{"", true},
	{"totals", true},
	{"polls apply -f -", true},
	{"polls list", true},
	{"polls show demo", true},
	{"polls open demo", true},
	{"polls close demo", true},
	{"queue", true},
	{"audit", true},
	{"recount", false},
	{"restore", true},
	{"dead list", true},
	{"dead requeue --all", true},
	{"dead drop --all", true},
}

// path are the words of a command's name.
func path(args string) []string {
	words := strings.Fields(args)
	switch {
	case len(words) == 0:
		return nil
	case words[0] == "polls", words[0] == "dead":
		return words[:2]
	}
	return words[:1]
}

// The list above is complete.
func TestCommands(t *testing.T) {
	var have, listed []string
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if sub.HasSubCommands() {
				walk(sub)
			} else if sub.IsAvailableCommand() && sub.Name() != "help" {
				have = append(have, strings.TrimPrefix(sub.CommandPath(), "tally "))
			}
		}
	}
	root := newRoot("test")
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			require.True(t, c.Hidden)
			root.RemoveCommand(c)
		}
	}
	walk(root)
	for _, c := range commands[1:] {
		listed = append(listed, strings.Join(path(c.args), " "))
	}
	require.ElementsMatch(t, have, listed)
}

func TestHelp(t *testing.T) {
	// Help is there also for someone whose settings are wrong.
	c := newCLI(t, "PAREDAO_REDIS_URL=nonsense", "PAREDAO_QUEUE_SHARDS=x")
	topics := [][]string{nil, {"polls"}, {"dead"}}
	for _, cmd := range commands[1:] {
		topics = append(topics, path(cmd.args))
	}
	for _, topic := range topics {
		name := strings.Join(append([]string{"tally"}, topic...), " ")
		t.Run(name, func(t *testing.T) {
			c := c.in(t)
			help := c.run(append(slices.Clone(topic), "--help")...).ok(t)
			require.Contains(t, help, "Usage:\n  "+name)
			require.Contains(t, help, "--output")
			require.Contains(t, help, "PAREDAO_REDIS_URL")
			require.Equal(t, help, c.run(append(slices.Clone(topic), "-h")...).ok(t))
			require.Equal(t, help, c.run(append([]string{"help"}, topic...)...).ok(t))
		})
	}
	for _, flag := range []string{"--version", "-v"} {
		require.Regexp(t, `^tally \S+ \(\S+, go1\.\S+\)\n$`, c.run(flag).ok(t))
	}
	require.Contains(t, c.run("completion", "bash", "--redis-url=redis://localhost", "--queue-shards=1").ok(t), "tally")
}

func TestWrongUse(t *testing.T) {
	c := newCLI(t)
	empty := filepath.Join(c.dir, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, test := range []struct {
		args string // words, ~ stands for a blank in one
		want string
	}{
		{"--nope", "unknown flag --nope"},
		{"-z", "unknown flag -z"},
		{"-watch", "begin with --"},
		{"totals --nope", "unknown flag --nope"},
		{"queue --watch", "unknown flag --watch"},
		{"totals --version", "unknown flag --version"},
		{"-o xml", `--output "xml": allowed are table, json, csv`},
		{"queue -o JSON", `"JSON"`},
		{"-o", "-o needs a value"},
		{"totals --output= demo", `--output ""`},
		{"--watch=maybe", "--watch"},
		{"--timeout 5", "--timeout"},
		{"--final --timeout -1s", "--timeout"},
		{"--timeout 5s", "--timeout goes with --final"},
		{"--watch --timeout 5s", "--timeout goes with --final"},
		{"--watch --final", "exclude each other"},
		{"totals --watch --final", "exclude each other"},
		{"Totals", `"Totals" is neither a command nor a poll`},
		{"../x", "neither a command nor a poll"},
		{"a~b", `"a b" is neither`},
		{"help nosuch", `no command "nosuch"`},
		{"help polls nosuch", "no command"},
		{"completion", "needs a command"},
		{"completion nosuch", "unknown command"},
		{"polls", "tally polls needs a command"},
		{"polls nosuch", `unknown command "nosuch" for "tally polls"`},
		{"dead", "tally dead needs a command"},
		{"dead nosuch", "unknown command"},
		{"polls apply", "needs -f FILE"},
		{"polls apply -f", "needs a value"},
		{"polls apply polls.yaml", "takes no arguments"},
		{"polls list demo", "takes no arguments"},
		{"polls show", "needs the id of one poll, but got 0"},
		{"polls show a b", "got 2"},
		{"polls open", "needs the id of one poll"},
		{"polls close a b", "needs the id of one poll"},
		{"queue 0", `takes no arguments, but got "0"`},
		{"restore demo", "takes no arguments"},
		{"restore --settle 5", "--settle"},
		{"restore --settle -1s", "--settle"},
		{"restore --timeout -1s", "--timeout"},
		{"dead list x", "takes no arguments"},
		{"dead requeue", "needs the ids"},
		{"dead drop", "needs the ids"},
		{"dead drop --all x", "needs the ids"},
		{"--redis-url http://x", "--redis-url"},
		{"--redis-url=", "--redis-url"},
		{"audit --redis-url redis://", "--redis-url"},
		{"queue --queue-shards 0", "--queue-shards"},
		{"recount --queue-shards 1025", "--queue-shards"},
		{"--redis-password-file nosuch", "--redis-password-file"},
		{"--log-level loud", "--log-level"},
		{"--log-format xml", "--log-format"},
		{"recount --archive-url ftp://x", "--archive-url"},
		{"recount --archive-url azblob://votes", "AZURE_STORAGE_CONNECTION_STRING"},
		{"recount --archive-url file:~/x", "--archive-url"},
	} {
		t.Run(test.args, func(t *testing.T) {
			args := strings.Fields(test.args)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "~b", " b")
			}
			c.in(t).run(args...).fails(t, 2, test.want)
		})
	}
	t.Run("variables", func(t *testing.T) {
		for _, kv := range []string{
			"PAREDAO_REDIS_URL=x", "PAREDAO_QUEUE_SHARDS=-1", "PAREDAO_ARCHIVE_URL=x", "PAREDAO_LOG_LEVEL=x",
			"PAREDAO_LOG_FORMAT=x", "PAREDAO_REDIS_PASSWORD_FILE=/nosuch",
		} {
			name, _, _ := strings.Cut(kv, "=")
			newCLI(t, kv).run("queue").fails(t, 2, name)
		}
	})
}

// A variable that means nothing is warned about, one of another binary is not.
func TestUnknownVariable(t *testing.T) {
	w := newWorld(t, 1)
	w.env = append(w.env, "PAREDAO_REDISURL=x", "PAREDAO_LISTEN=:1", "PAREDAO_EMPTY=")
	got := w.run("polls", "list", "-o", "json")
	require.Equal(t, 0, got.code)
	require.Equal(t, "[]\n", got.stdout)
	require.Equal(t, 1, strings.Count(got.stderr, "\n"), got.stderr)
	require.Contains(t, got.stderr, "PAREDAO_REDISURL")
}

// With Redis down nothing is printed, least of all a total.
func TestRedisDown(t *testing.T) {
	c := newCLI(t, "PAREDAO_REDIS_URL=redis://operator:s3cr3t@"+refused)
	stdin := "polls: [{id: demo, options: [{id: a}]}]"
	for _, cmd := range commands {
		for _, form := range forms {
			t.Run(cmd.args+" "+form, func(t *testing.T) {
				got := c.in(t).runWith(stdin, append(strings.Fields(cmd.args), "-o", form)...)
				if !cmd.redis {
					got.fails(t, 1, "archive")
					return
				}
				got.fails(t, 1, "can't read Redis at redis://operator:***@"+refused+" (--redis-url)", "refused")
			})
		}
	}
	for _, args := range []string{"--watch", "totals demo --watch", "--final", "--final --timeout 1h", "audit --recount", "restore --dry-run", "dead drop some-1"} {
		t.Run(args, func(t *testing.T) { c.in(t).run(strings.Fields(args)...).fails(t, 1, "can't read Redis") })
	}
	for _, url := range []string{
		"redis-cluster://:s3cr3t@" + refused, "redis-sentinel://:s3cr3t@" + refused + "/m", "unix:///nosuch/redis.sock",
		"rediss://:s3cr3t@" + refused,
	} {
		t.Run(url, func(t *testing.T) {
			got := c.in(t).run("--redis-url", url)
			got.fails(t, 1, "can't read Redis at")
			require.NotContains(t, got.stderr, "s3cr3t")
		})
	}
}

// Redis goes away between two reads of one command: what was read first is not
// printed.
func TestRedisGoesAway(t *testing.T) {
	w := newWorld(t, 2)
	w.poll("one", "a")
	w.poll("two", "a")
	for _, args := range []string{"", "one", "polls list", "queue", "audit", "dead list", "--watch", "--final"} {
		t.Run(args, func(t *testing.T) {
			proxy := testkit.NewProxy(t, w.redis.Addr())
			scripts := 0
			held, release := proxy.HoldNext(func(cmd []string) bool {
				if strings.EqualFold(cmd[0], "EVALSHA") || strings.EqualFold(cmd[0], "HMGET") {
					scripts++
				}
				return scripts == 2
			})
			defer release()
			c := w.in(t)
			run := c.start(c.command(append(strings.Fields(args), "--redis-url", proxy.URL())...))
			<-held
			proxy.Close()
			run.wait().fails(t, 1, "can't read Redis at redis://"+proxy.Addr())
		})
	}
}

// A command that was interrupted has not done its work, and says so.
func TestInterrupted(t *testing.T) {
	t.Parallel() // Redis's answer is waited for, for two seconds
	w := newWorld(t, 1)
	w.poll("demo", "a")
	for args, s := range map[string]syscall.Signal{
		"": syscall.SIGINT, "totals": syscall.SIGTERM, "--final": syscall.SIGINT, "audit": syscall.SIGINT,
		"audit --recount": syscall.SIGTERM, "polls close demo": syscall.SIGTERM, "queue": syscall.SIGINT,
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			proxy := testkit.NewProxy(t, w.redis.Addr())
			held, release := proxy.HoldNext(func(cmd []string) bool { return strings.EqualFold(cmd[0], "EVALSHA") })
			defer release()
			c := w.in(t)
			run := c.start(c.command(append(strings.Fields(args), "--redis-url", proxy.URL())...))
			<-held
			run.signal(s).wait().fails(t, 1, "interrupted")
		})
	}
	t.Run("polls apply, waiting for input", func(t *testing.T) {
		t.Parallel()
		r, stdin, err := os.Pipe()
		require.NoError(t, err)
		defer r.Close()
		defer stdin.Close()
		c := w.in(t)
		cmd := c.command("polls", "apply", "-f", "-")
		cmd.Stdin = r
		run := c.start(cmd)
		// It has taken what was written, so it waits for more.
		const text = "polls:\n"
		_, err = stdin.WriteString(text)
		require.NoError(t, err)
		testkit.Eventually(t, "the input is read", func() bool { return readable(t, r) == 0 })
		run.signal(syscall.SIGINT).wait().fails(t, 1, "interrupted")
	})
}

// Where the data can't be written, the fault is not Redis's.
func TestFullDisk(t *testing.T) {
	w := newWorld(t, 1)
	require.Equal(t, 0, w.run("-o", "csv").code)
	full := func(t *testing.T, args ...string) {
		t.Helper()
		c := w.in(t)
		f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		require.NoError(t, err)
		defer f.Close()
		cmd := c.command(args...)
		cmd.Stdout = f
		got := c.start(cmd).wait()
		got.says(t, 1, "write", "no space left")
		require.NotContains(t, got.stderr, "Redis")
	}
	full(t) // no polls yet
	w.poll("demo", "a")
	w.archived("demo", map[string]int{"a": 1})
	for _, args := range []string{"", "--watch", "polls list", "polls show demo", "polls open demo", "queue", "audit", "dead list", "recount", "restore", "restore --dry-run", "dead drop --all"} {
		for _, form := range forms {
			t.Run(args+" "+form, func(t *testing.T) { full(t, append(strings.Fields(args), "-o", form)...) })
		}
	}
}

// No output ever holds a password.
func TestSecrets(t *testing.T) {
	const secret = "s3cr3t@/:#%"
	const escaped = "s3cr3t%40%2F%3A%23%25"
	r := testkit.Redis(t)
	require.NoError(t, r.Client().ACLSetUser(t.Context(), "operator", "on", ">"+secret, "~*", "&*", "+@all").Err())
	require.NoError(t, r.Client().ConfigSet(t.Context(), "requirepass", secret).Err())
	c := newCLI(t)
	file := func(name, text string) string {
		path := filepath.Join(c.dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	right, wrong := file("right", secret+"\n"), file("wrong", "wr0ng-s3cr3t\n")
	url := "redis://" + r.Addr() + "/0"
	with := func(user string) string { return "redis://" + user + "@" + r.Addr() + "/0" }
	for _, test := range []struct {
		name string
		args []string
		code int
	}{
		{"in the URL", []string{"--redis-url", with(":" + escaped)}, 0},
		{"of a user", []string{"--redis-url", with("operator:" + escaped)}, 0},
		{"in a file", []string{"--redis-url", url, "--redis-password-file", right}, 0},
		{"in a file, of a user", []string{"--redis-url", with("operator"), "--redis-password-file", right}, 0},
		{"in a file, over the URL's", []string{"--redis-url", with(":wr0ng-s3cr3t"), "--redis-password-file", right}, 0},
		{"none", []string{"--redis-url", url}, 1},
		{"wrong", []string{"--redis-url", with(":wr0ng-s3cr3t")}, 1},
		{"wrong, of a user", []string{"--redis-url", with("operator:wr0ng-s3cr3t")}, 1},
		{"wrong, in a file", []string{"--redis-url", url, "--redis-password-file", wrong}, 1},
		{"not encoded", []string{"--redis-url", with(":" + secret)}, 2},
		{"without a host", []string{"--redis-url", "redis://default:s3cr3t"}, 2},
		{"of another kind of URL", []string{"--redis-url", "postgres://operator:s3cr3t@host/db"}, 2},
		{"bad syntax", []string{"-redis-url=" + with(":s3cr3t")}, 2},
		{"a foreign query", []string{"--redis-url", url + "?password=s3cr3t"}, 2},
		{"a file that is none", []string{"--redis-url", url, "--redis-password-file", c.dir}, 2},
		{"instead of a poll", []string{with(":s3cr3t")}, 2},
		{"instead of a poll, after a command", []string{"totals", "redis://:s3cr3t@" + r.Addr()}, 1},
		{"where nothing belongs", []string{"restore", with(":s3cr3t")}, 2},
		{"instead of a topic", []string{"help", with(":s3cr3t")}, 2},
		{"instead of a form", []string{"--output", with(":s3cr3t")}, 2},
		{"instead of a command", []string{"polls", with(":s3cr3t")}, 2},
		{"instead of a dead element", []string{"dead", "drop", with(":s3cr3t"), "--redis-url", with(":" + escaped)}, 1},
		{"instead of its file", []string{"--redis-url", url, "--redis-password-file", "s3cr3t"}, 2},
		{"an archive's key", []string{"recount", "--archive-url", "azblob://votes?sig=s3cr3t"}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := c.in(t).run(append([]string{"-o", "json", "--log-level", "debug"}, test.args...)...)
			require.NotContains(t, got.stdout+got.stderr, "s3cr3t")
			if test.code == 0 {
				require.Equal(t, "[]\n", got.ok(t))
				return
			}
			got.fails(t, test.code)
		})
	}
	t.Run("in a variable", func(t *testing.T) {
		got := newCLI(t, "PAREDAO_REDIS_URL=http://:s3cr3t@host").run()
		got.fails(t, 2, "PAREDAO_REDIS_URL")
		require.NotContains(t, got.stderr, "s3cr3t")
	})
}

// All binaries must agree on the number of shards, and nobody is told less than
// that.
func TestQueueShards(t *testing.T) {
	w := newWorld(t, 2)
	w.poll("demo", "a")
	for _, cmd := range commands {
		if !cmd.redis {
			continue
		}
		t.Run(cmd.args, func(t *testing.T) {
			args := append(strings.Fields(cmd.args), "--queue-shards", "3")
			w.in(t).runWith("polls: [{id: x, options: [{id: a}]}]", args...).fails(t, 2, "queue-shards is 3", "set queue-shards to 2")
		})
	}
	require.Equal(t, 0, w.run("queue", "--queue-shards", "2").code)
	// Whoever only looks decides nothing for the others.
	fresh := newWorld(t, 1)
	require.NoError(t, fresh.rdb.FlushAll(t.Context()).Err())
	require.Equal(t, 0, fresh.run("queue", "--queue-shards", "7").code)
	require.Zero(t, fresh.rdb.DBSize(t.Context()).Val())
	// Whoever applies polls does.
	require.Equal(t, 0, fresh.runWith("polls: [{id: x, options: [{id: a}]}]", "polls", "apply", "-f", "-", "--queue-shards", "7").code)
	fresh.run("queue", "--queue-shards", "1").fails(t, 2, "queue-shards")
}

// An allinone in the same folder needs no settings; see also its own tests.
func TestAllinoneFile(t *testing.T) {
	w := newWorld(t, 1)
	w.poll("demo", "a")
	c := newCLI(t)
	require.NoError(t, os.Mkdir(filepath.Join(c.dir, "data"), 0o700))
	file := filepath.Join(c.dir, "data", "redis.url")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }

	socket := filepath.Join(t.TempDir(), "s #%41 ?@.sock")
	link := testkit.Redis(t, "--unixsocket", socket)
	require.NoError(t, link.Client().HSet(t.Context(), "meta:{0}", "queue_shards", "1").Err())
	write("unix://" + strings.NewReplacer("#", "%23", "%", "%25", "?", "%3F", " ", "%20").Replace(socket) + "\n")
	require.Equal(t, "[]\n", c.run("-o", "json").ok(t))

	write("redis://:x@" + refused + "/0\n") // it was killed
	require.NotContains(t, c.run().stderr, refused, "an allinone that has ended was asked")
	for _, text := range []string{"", "\n", "nonsense\n", "http://s3cr3t\n"} {
		write(text)
		got := c.run()
		got.fails(t, 1, "data/redis.url", "--redis-url")
		require.NotContains(t, got.stderr, "s3cr3t")
	}
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Mkdir(file, 0o700))
	c.run().fails(t, 1, "redis.url", "--redis-url")
	// A setting, given in any way, wins.
	require.Contains(t, c.run("--redis-url", w.redis.URL()).ok(t), "demo")
	c.env = []string{"PAREDAO_REDIS_URL=" + w.redis.URL()}
	require.Contains(t, c.run().ok(t), "demo")
}
