package ledger

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
)

// Choice is what a vote may be for.
type Choice struct{ Poll, Option string }

// String is poll/option.
func (c Choice) String() string { return c.Poll + "/" + c.Option }

// Source says what the next vote is for, as the place of a choice; false: there
// are no more. Many goroutines call it.
type Source func() (choice int, ok bool)

// Draw draws each vote anew with the given weights, total votes in all, or
// without an end if total is 0. The same seed draws the same votes.
func Draw(weights []int, total int64, seed uint64) (Source, error) {
	sum := 0
	for i, w := range weights {
		if w < 0 {
			return nil, fmt.Errorf("weight %d of choice %d is below 0", w, i)
		}
		sum += w
	}
	if sum == 0 {
		return nil, errors.New("no choice has a weight above 0")
	}
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, seed))
	var drawn int64
	return func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		if total > 0 && drawn == total {
			return 0, false
		}
		drawn++
		at := random.IntN(sum)
		for i, w := range weights {
			if at -= w; at < 0 {
				return i, true
			}
		}
		return 0, false // not reached: at was below the sum
	}, nil
}

// Shuffle gives each choice exactly so many votes, in an order that follows
// from the seed.
func Shuffle(counts []int64, seed uint64) Source {
	var order []uint16
	for i, n := range counts {
		for range n {
			order = append(order, uint16(i))
		}
	}
	rand.New(rand.NewPCG(seed, seed)).Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	var mu sync.Mutex
	return func() (int, bool) {
		mu.Lock()
		defer mu.Unlock()
		if len(order) == 0 {
			return 0, false
		}
		i := order[0]
		order = order[1:]
		return int(i), true
	}
}
