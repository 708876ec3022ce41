package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"paredao/internal/ledger"
)

// totals is what tally totals and tally recount say of a poll, as far as they
// say the same.
type totals struct {
	Poll    string `json:"poll"`
	Total   int64  `json:"total"`
	Pending int64  `json:"pending"`
	Options []struct {
		ID    string `json:"id"`
		Votes int64  `json:"votes"`
	} `json:"options"`
}

// ask runs tally as an operator would, and returns where its answers differ.
func (s *stack) ask(ctx context.Context, choices []ledger.Choice, counts []int64) []string {
	var differences []string
	for _, args := range [][]string{{"totals", poll, "-o", "json"}, {"recount", "-o", "json"}} {
		command := "tally " + strings.Join(args, " ")
		out, err := s.tally(ctx, args...)
		if err == nil {
			fmt.Printf("%s:\n", command)
			err = compare(out, choices, counts)
		}
		if err != nil {
			differences = append(differences, command+": "+err.Error())
		}
	}
	out, err := s.tally(ctx, "audit", "--recount")
	fmt.Printf("tally audit --recount:\n%s\n", out)
	if err != nil {
		differences = append(differences, "tally audit --recount: "+err.Error())
	}
	return differences
}

// tally runs the operator's tool; an exit code but 0 is an error.
func (s *stack) tally(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, s.o.tally, append(args, "--redis-url="+s.redisURL,
		"--queue-shards="+strconv.Itoa(s.o.shards), "--archive-url="+s.archiveURL)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return out.Bytes(), nil
}

func compare(out []byte, choices []ledger.Choice, counts []int64) error {
	var polls []totals
	if err := json.Unmarshal(out, &polls); err != nil {
		return fmt.Errorf("unreadable: %w", err)
	}
	if len(polls) != 1 || polls[0].Poll != poll {
		return fmt.Errorf("it is not about poll %s alone: %s", poll, out)
	}
	var errs []error
	got := map[string]int64{}
	for _, o := range polls[0].Options {
		fmt.Printf("  %-4s %d\n", o.ID, o.Votes)
		got[o.ID] = o.Votes
	}
	var want int64
	for i, c := range choices {
		want += counts[i]
		if got[c.Option] != counts[i] {
			errs = append(errs, fmt.Errorf("option %s has %d votes, not %d", c.Option, got[c.Option], counts[i]))
		}
		delete(got, c.Option)
	}
	fmt.Printf("  all  %d\n", polls[0].Total)
	if len(got) > 0 || polls[0].Total != want || polls[0].Pending != 0 {
		errs = append(errs, fmt.Errorf("total %d, not %d; pending %d; other options %v", polls[0].Total, want, polls[0].Pending, got))
	}
	return errors.Join(errs...)
}
