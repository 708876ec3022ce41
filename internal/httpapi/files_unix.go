//go:build linux || darwin

package httpapi

import (
	"math"
	"syscall"
)

// fileLimit is how many files the process may have open.
func fileLimit() int64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > math.MaxInt32 {
		return math.MaxInt32 // what is not known bounds nothing
	}
	return int64(limit.Cur)
}
