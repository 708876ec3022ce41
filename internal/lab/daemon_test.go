package lab

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"paredao/internal/ledger/child"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a daemon that listens nowhere, says that it does, and prints its
// arguments.
func fake(t *testing.T) *Daemon {
	t.Helper()
	const script = `trap 'exit 7' TERM
echo '{"msg":"api takes votes","addr":"h:1"}'; echo '{"msg":"admin listens","addr":"h:2"}'
echo "args: $*"; while :; do read -r x || sleep 0.01; done`
	d, err := StartDaemon(child.Spec{Name: "api", Path: "sh", Args: []string{"-c", script, "sh", "--listen=h:0"}})
	require.NoError(t, err)
	t.Cleanup(d.Kill)
	return d
}

func args(t *testing.T, d *Daemon) string {
	t.Helper()
	line, err := d.Log().Await(t.Context(), "args: ")
	require.NoError(t, err)
	return line
}

func TestDaemonComesBackWhereItWas(t *testing.T) {
	d := fake(t)
	assert.Equal(t, "args: --listen=h:0\n", args(t, d))
	require.ErrorContains(t, d.Restart(), "still runs")
	pid := d.Pid()
	d.Kill()
	assert.False(t, d.Running())
	require.NoError(t, d.Restart("--more"))
	assert.NotEqual(t, pid, d.Pid())
	assert.Equal(t, "args: --listen=h:0 --listen=h:1 --admin-listen=h:2 --more\n", args(t, d))
	code, err := d.Term(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 7, code)
	require.NoError(t, d.Restart())
	assert.Equal(t, "args: --listen=h:0 --listen=h:1 --admin-listen=h:2 --more\n", args(t, d), "they do not pile up")
	assert.Contains(t, d.Tail(1000), "ended with 7")
}

func TestDaemonStandsStill(t *testing.T) {
	d := fake(t)
	args(t, d)
	require.NoError(t, d.Stop(t.Context()))
	state, _, err := procStat(d.Pid())
	require.NoError(t, err)
	assert.Equal(t, "T", state)
	require.NoError(t, d.Cont())
	used, err := d.CPU()
	require.NoError(t, err)
	assert.Less(t, used, time.Minute)
	rss, err := d.RSS()
	require.NoError(t, err)
	assert.Greater(t, rss, int64(10<<10))
}

func TestFreePort(t *testing.T) {
	for range 20 {
		port, err := FreePort()
		require.NoError(t, err)
		assert.Less(t, port, 32768, "not one that an outgoing connection may have")
		assert.GreaterOrEqual(t, port, 10000)
	}
}

func TestAOFIsCutBack(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, aofFolder)
	require.NoError(t, os.Mkdir(folder, 0o700))
	write := func(name, text string) string {
		file := filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	old := write("appendonly.aof.9.incr.aof", "old")
	file := write("appendonly.aof.10.incr.aof", "0123456789")
	write("appendonly.aof.10.base.rdb", "base")
	now := time.Now()
	a := &AOF{dir: folder, samples: []aofSample{
		{now.Add(-3 * time.Second), old, 3}, {now.Add(-2 * time.Second), file, 4}, {now.Add(-time.Second), file, 8}, {now, file, 10},
	}}
	from, gone, err := a.CutBack(now.Add(-1500 * time.Millisecond))
	require.NoError(t, err)
	assert.Equal(t, int64(6), gone)
	assert.Equal(t, now.Add(-2*time.Second), from)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "0123", string(text))

	copied := filepath.Join(dir, "backup")
	require.NoError(t, CopyAOF(dir, copied))
	write("appendonly.aof.11.incr.aof", "later")
	require.NoError(t, a.Restore(copied))
	assert.NoFileExists(t, filepath.Join(folder, "appendonly.aof.11.incr.aof"))
	assert.FileExists(t, file)
}
