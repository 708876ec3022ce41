package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"paredao/internal/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A replay that was told to stop has proved nothing, and must not exit with 0.
func TestInterruptedIsAnError(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	s := &stack{o: options{bin: t.TempDir(), shards: 1, consumers: 1, connections: least, fsync: "no"}, dir: t.TempDir()}
	err := replay(ctx, s, []ledger.Choice{{Poll: poll, Option: "0"}}, []int64{1})
	require.ErrorContains(t, err, "interrupted")
	require.NotErrorIs(t, err, context.Canceled)
	require.NoError(t, s.end(false))
}
