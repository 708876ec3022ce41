//go:build !linux && !darwin

package httpapi

import "math"

// fileLimit is how many files the process may have open, where that is known.
func fileLimit() int64 { return math.MaxInt32 }
