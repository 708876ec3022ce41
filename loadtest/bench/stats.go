package main

import (
	"math"
	"slices"
)

// spread is the middle and the ends of what the rounds gave.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spreadOf must get at least one value.
func spreadOf(values []float64) spread {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1]}
}

// minRounds is how many rounds a verdict needs: with fewer a median is no more
// than a single run.
const minRounds = 3

// Verdicts.
const (
	verdictAim    = "aim reached"
	verdictMust   = "must met"
	verdictMissed = "MISSED"
	verdictNone   = "not judged"
)

// verdict judges a median.
func verdict(median float64, rounds int, must, aim float64, lower bool) string {
	reached := func(goal float64) bool {
		if lower {
			return median <= goal
		}
		return median >= goal
	}
	switch {
	case rounds < minRounds:
		return verdictNone
	case math.IsNaN(median) || !reached(must):
		return verdictMissed
	case reached(aim):
		return verdictAim
	}
	return verdictMust
}
