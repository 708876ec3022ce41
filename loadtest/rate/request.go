//go:build linux

package main

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
)

// choice is an option and its weight.
type choice struct {
	option string
	weight int
}

// requests are the votes as they are sent, each drawn anew. One thread uses it.
type requests struct {
	ready  [][]byte // by agent, then option
	upto   []int    // of each option: the sum of the weights up to it
	agents int
	turn   int
	keyAt  []int // where the number of a request's key stands; none without keys
	random *rand.Rand
}

// keyDigits are those of a key's number, in hexadecimal.
const keyDigits = 16

// agents are sent in turn, so that votes are as different as those of people.
func agents(varied bool) []string {
	if !varied {
		return []string{"paredao-rate"}
	}
	return []string{
		"Mozilla/5.0 (Linux; Android 15; SM-A556E) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/137.0.0.0 Mobile Safari/537.36",
		"Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Mobile/15E148 Safari/604.1",
		"Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/138.0.0.0 Safari/537.36",
		"Mozilla/5.0 (Linux; Android 14; moto g84 5G) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/136.0.0.0 Mobile Safari/537.36",
	}
}

type requestParams struct {
	host, path   string
	choices      []choice
	form, varied bool
	// keys begins each Idempotency-Key; without it there are none. It must be
	// another in each run, or the votes are answered as repeated.
	keys string
	seed uint64
}

// newRequests makes the requests of one thread.
func newRequests(p requestParams, thread int) *requests {
	r := &requests{random: rand.New(rand.NewPCG(p.seed, uint64(thread)))}
	sum := 0
	for _, c := range p.choices {
		sum += c.weight
		r.upto = append(r.upto, sum)
	}
	contentType, body := "application/json", `{"option":"%s"}`
	if p.form {
		contentType, body = "application/x-www-form-urlencoded", "option=%s"
	}
	for _, agent := range agents(p.varied) {
		r.agents++
		for _, c := range p.choices {
			b := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nContent-Type: %s\r\n", p.path, p.host, agent, contentType)
			if p.keys != "" {
				b = fmt.Appendf(b, "Idempotency-Key: %s-", p.keys)
				r.keyAt = append(r.keyAt, len(b))
				b = fmt.Appendf(b, "%0*x\r\n", keyDigits, 0)
			}
			text := fmt.Sprintf(body, c.option)
			r.ready = append(r.ready, fmt.Appendf(b, "Content-Length: %d\r\n\r\n%s", len(text), text))
		}
	}
	return r
}

// next draws the request of slot n. It is valid until the next call.
func (r *requests) next(n int64) []byte {
	at, option := r.random.IntN(r.upto[len(r.upto)-1]), 0
	for at >= r.upto[option] {
		option++
	}
	if r.turn++; r.turn == r.agents {
		r.turn = 0
	}
	i := r.turn*len(r.upto) + option
	b := r.ready[i]
	if r.keyAt != nil {
		var number [keyDigits / 2]byte
		for j := range number {
			number[len(number)-1-j] = byte(n >> (8 * j))
		}
		hex.Encode(b[r.keyAt[i]:], number[:])
	}
	return b
}
