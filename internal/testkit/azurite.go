package testkit

import (
	"os"
	"path/filepath"
	"testing"

	"paredao/internal/lab"
)

// The account that every Azurite knows.
const (
	AzuriteAccount = lab.AzuriteAccount
	AzuriteKey     = lab.AzuriteKey
)

// Azurite starts Microsoft's blob storage emulator for one test and returns the
// connection string to it. Everything is kept in memory and is gone, like the
// process, when the test ends.
func Azurite(tb testing.TB) string {
	tb.Helper()
	return startAzurite(tb, "").ConnectionString()
}

// AzuriteServer is an Azurite whose data outlive its process, so that a test
// can take the service away and bring it back at the same address.
type AzuriteServer struct {
	*lab.Azurite

	tb testing.TB
}

// NewAzurite starts an AzuriteServer and stops it when the test ends.
func NewAzurite(tb testing.TB) *AzuriteServer {
	tb.Helper()
	return &AzuriteServer{startAzurite(tb, tb.TempDir()), tb}
}

func startAzurite(tb testing.TB, dir string) *lab.Azurite {
	tb.Helper()
	a, err := lab.StartAzurite(RepoRoot(tb), dir)
	// Before the check, so that a failing start is cleaned up too.
	tb.Cleanup(a.Kill)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// Start brings a stopped service back at the address that it had before.
func (s *AzuriteServer) Start() {
	s.tb.Helper()
	if err := s.Azurite.Start(); err != nil {
		s.tb.Fatal(err)
	}
}

// RepoRoot is the directory of the module's go.mod, found upwards from the
// directory of the package under test.
func RepoRoot(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatal("no go.mod above the working directory")
		}
		dir = parent
	}
}
