package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
)

// Every test and every scenario that docs/faults.md names exists, and no cell of
// its tables is empty.
func TestFaultsDocument(t *testing.T) {
	root := testkit.RepoRoot(t)
	text, err := os.ReadFile(filepath.Join(root, "docs", "faults.md"))
	require.NoError(t, err)
	exists := func(pkg, name string) bool {
		for _, dir := range []string{"internal", "cmd"} {
			files, err := filepath.Glob(filepath.Join(root, dir, pkg, "*_test.go"))
			require.NoError(t, err)
			for _, f := range files {
				b, err := os.ReadFile(f)
				require.NoError(t, err)
				if strings.Contains(string(b), "\nfunc "+name+"(") {
					return true
				}
			}
		}
		return false
	}
	names := regexp.MustCompile("`([a-z0-9]+)\\.((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(names), 100)
	for _, n := range names {
		assert.True(t, exists(n[1], n[2]), "docs/faults.md names %s.%s, which does not exist", n[1], n[2])
	}
	// As scenarios() of loadtest/chaos lists them, one a line.
	source, err := os.ReadFile(filepath.Join(root, "loadtest", "chaos", "scenario.go"))
	require.NoError(t, err)
	_, list, ok := strings.Cut(string(source), "\nfunc scenarios() []scenario {\n")
	require.True(t, ok, "loadtest/chaos/scenario.go has no scenarios()")
	list, _, _ = strings.Cut(list, "\n}\n")
	scenarios := map[string]bool{}
	for _, s := range regexp.MustCompile(`\{"([a-z-]+)", "`).FindAllStringSubmatch(list, -1) {
		scenarios[s[1]] = true
	}
	require.Greater(t, len(scenarios), 5)
	named := regexp.MustCompile("SCENARIO=([^\\s`]*)").FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(named), 5)
	for _, s := range named {
		assert.True(t, scenarios[s[1]], "docs/faults.md names the scenario %q, which does not exist", s[1])
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(line, "|"), "|")
		assert.Len(t, cells, 3, line)
		for _, c := range cells {
			assert.NotEmpty(t, strings.TrimSpace(c), line)
		}
	}
	require.Greater(t, rows, 100)
}
