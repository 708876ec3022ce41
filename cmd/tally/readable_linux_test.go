package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// readable is how many bytes wait in a pipe.
func readable(t *testing.T, f *os.File) int {
	t.Helper()
	conn, err := f.SyscallConn()
	require.NoError(t, err)
	var n int
	require.NoError(t, conn.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }))
	require.NoError(t, err)
	return n
}
