package e2e

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"paredao/internal/blobstore"
	"paredao/internal/testkit"
)

// killEvery is the issue's own number.
const killEvery = 300 * time.Millisecond

// killer kills a random one of its victims again and again.
type killer struct {
	s       *stack
	victims []*testkit.Process
	random  *rand.Rand
	// kills in all; counting and archiving are those that left votes behind in
	// the queue or in the archive's list.
	kills, counting, archiving int
}

func newKiller(s *stack, victims ...*testkit.Process) *killer {
	return &killer{s: s, victims: victims, random: rand.New(rand.NewPCG(1, 2))}
}

// run kills for so long.
func (k *killer) run(d time.Duration) {
	k.s.t.Helper()
	tick := time.NewTicker(killEvery)
	defer tick.Stop()
	for end := time.After(d); ; {
		select {
		case <-tick.C:
		case <-end:
			return
		}
		victim := k.victims[k.random.IntN(len(k.victims))]
		victim.Kill()
		k.kills++
		queued, awaiting := k.s.pending()
		if queued > 0 {
			k.counting++
		}
		if awaiting > 0 {
			k.archiving++
		}
		victim.Restart()
	}
}

// check makes sure that the kills were kills in the middle of work.
func (k *killer) check() {
	k.s.t.Helper()
	k.s.t.Logf("%d kills; %d with votes in the queue, %d with votes before the archive", k.kills, k.counting, k.archiving)
	require.GreaterOrEqual(k.s.t, k.kills, 3)
	require.Positive(k.s.t, k.counting)
	require.Positive(k.s.t, k.archiving)
}

// A consumer or an archiver is killed every 300 ms.
func TestKilledWorkers(t *testing.T) {
	s := newStack(t, 2)
	k := newKiller(s, s.start("consumer", ""), s.start("consumer", ""), s.start("archiver", ""), s.start("archiver", ""))
	l := s.load(steady, s.start("api", ""))
	s.grow(l, 500)
	k.run(faultTime())
	k.check()
	s.judge(l)
}

// The same with Azure Blob Storage, which goes away in the middle, too.
func TestKilledWorkersAzure(t *testing.T) {
	azurite := testkit.NewAzurite(t)
	s := newStack(t, 1)
	s.archiveURL = "azblob://votes/e2e"
	s.env = []string{"AZURE_STORAGE_CONNECTION_STRING=" + azurite.ConnectionString()}
	s.openArchive(blobstore.AzureCredentials{ConnectionString: azurite.ConnectionString()})

	k := newKiller(s, s.start("consumer", ""), s.start("archiver", ""), s.start("archiver", ""))
	l := s.load(steady, s.start("api", ""))
	s.archived("before the service goes away")
	k.run(faultTime() / 3)
	azurite.Stop()
	k.run(faultTime() / 3)
	_, before := s.pending()
	s.grow(l, 500)
	testkit.Eventually(t, "votes pile up before the archive", func() bool {
		_, awaiting := s.pending()
		return awaiting > before
	})
	azurite.Start()
	k.run(faultTime() / 3)
	k.check()
	s.judge(l)
}

// archived waits until there are objects in the archive.
func (s *stack) archived(when string) {
	s.t.Helper()
	testkit.Eventually(s.t, "an object is in the archive "+when, func() bool {
		for info, err := range s.blobs.List(s.t.Context(), "votes/") {
			return err == nil && strings.HasSuffix(info.Name, ".parquet")
		}
		return false
	})
}
