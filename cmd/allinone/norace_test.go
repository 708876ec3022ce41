//go:build !race

package main

// The binaries are built with the race detector when the tests are.
const raceDetector = false
