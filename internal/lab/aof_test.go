package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// watched is an append-only file of so many bytes that nobody looks at by
// himself.
func watched(t *testing.T, bytes int) (a *AOF, file string) {
	t.Helper()
	dir := t.TempDir()
	a = &AOF{dir: filepath.Join(dir, aofFolder)}
	require.NoError(t, os.Mkdir(a.dir, 0o755))
	file = filepath.Join(a.dir, "appendonly.aof.1.incr.aof")
	grow(t, file, bytes)
	return a, file
}

func grow(t *testing.T, file string, bytes int) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("x", bytes)), 0o600))
}

func size(t *testing.T, file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	require.NoError(t, err)
	return info.Size()
}

func TestCutBackOfAYoungFile(t *testing.T) {
	a, _ := watched(t, 100)
	at := time.Now()
	a.look(at)
	young := filepath.Join(a.dir, "appendonly.aof.2.incr.aof")
	grow(t, young, 20)
	a.look(at.Add(2 * time.Second))
	from, gone, err := a.CutBack(at.Add(time.Second))
	require.NoError(t, err)
	assert.Equal(t, at.Add(time.Second), from)
	assert.EqualValues(t, 20, gone)
	assert.Zero(t, size(t, young))
}

// Who did not look can't tell what was written when, and would cut off all.
func TestCutBackNeedsASample(t *testing.T) {
	a, file := watched(t, 100)
	at := time.Now()
	_, _, err := a.CutBack(at)
	require.ErrorContains(t, err, "nobody looked")
	a.look(at.Add(time.Second))
	_, _, err = a.CutBack(at)
	require.ErrorContains(t, err, "nobody looked")
	assert.EqualValues(t, 100, size(t, file))
}

func TestRestoreForgetsTheSamples(t *testing.T) {
	a, file := watched(t, 100)
	backup := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, CopyAOF(filepath.Dir(a.dir), backup))
	at := time.Now()
	grow(t, file, 150)
	a.look(at)
	require.NoError(t, a.Restore(backup))
	assert.EqualValues(t, 100, size(t, file))
	_, _, err := a.CutBack(at.Add(time.Second))
	require.ErrorContains(t, err, "nobody looked")
	assert.EqualValues(t, 100, size(t, file))
	assert.True(t, a.Grown().Before(at))
}
