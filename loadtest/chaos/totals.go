package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"paredao/internal/ledger"
)

// shown is what tally totals, tally recount and an api say of a poll, as far as
// they say the same.
type shown struct {
	Poll    string    `json:"poll"`
	AsOf    time.Time `json:"as_of"`
	Total   int64     `json:"total"`
	Pending int64     `json:"pending"`
	Options []struct {
		ID    string `json:"id"`
		Votes int64  `json:"votes"`
	} `json:"options"`
}

// compareShown compares what is shown of the judged polls with what the judge
// counted: votes is an option's number. Other polls are not looked at.
func compareShown(polls []shown, result *ledger.Result, votes func(ledger.OptionResult) int64) error {
	var errs []error
	want := map[string]map[string]int64{}
	for _, o := range result.Options {
		if want[o.Poll] == nil {
			want[o.Poll] = map[string]int64{}
		}
		want[o.Poll][o.Option] = votes(o)
	}
	for _, p := range polls {
		options, ok := want[p.Poll]
		if !ok {
			continue
		}
		delete(want, p.Poll)
		var sum int64
		for _, o := range p.Options {
			sum += o.Votes
			if o.Votes != options[o.ID] {
				errs = append(errs, fmt.Errorf("%s/%s has %d votes, and the judge counted %d", p.Poll, o.ID, o.Votes, options[o.ID]))
			}
			delete(options, o.ID)
		}
		errs = append(errs, missing(p.Poll, options))
		if p.Total != sum || p.Pending != 0 {
			errs = append(errs, fmt.Errorf("%s has a total of %d, its options add up to %d; %d votes are pending", p.Poll, p.Total, sum, p.Pending))
		}
	}
	// A poll without votes need not be there.
	for poll, options := range want {
		errs = append(errs, missing(poll, options))
	}
	return errors.Join(errs...)
}

// missing says which options have votes that are not shown.
func missing(poll string, options map[string]int64) error {
	var errs []error
	for option, n := range options {
		if n != 0 {
			errs = append(errs, fmt.Errorf("%s/%s is not there, and the judge counted %d votes", poll, option, n))
		}
	}
	return errors.Join(errs...)
}

func counted(o ledger.OptionResult) int64  { return o.Counted }
func archived(o ledger.OptionResult) int64 { return o.Archived }

// everywhere compares the judgement with what operators and voters are told:
// by tally, which reads Redis or the archive, and by each api.
func (r *run) everywhere(ctx context.Context, s *stack, result *ledger.Result) error {
	var polls []string
	for _, o := range result.Options {
		polls = append(polls, o.Poll)
	}
	slices.Sort(polls)
	polls = slices.Compact(polls)
	var errs []error
	for _, c := range []struct {
		args  []string
		votes func(ledger.OptionResult) int64
	}{
		{slices.Concat([]string{"totals"}, polls, []string{"-o", "json"}), counted},
		{[]string{"recount", "-o", "json"}, archived},
	} {
		name := "tally " + strings.Join(c.args, " ")
		out, err := s.tally(ctx, c.args...)
		r.report.command(name, out, err)
		var said []shown
		if err == nil {
			err = json.Unmarshal(out, &said)
		}
		if err == nil {
			err = compareShown(said, result, c.votes)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
	}
	// All is drained: what is as fresh as this has all of it.
	drained, err := s.store.Now(ctx)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	urls, err := s.apiURLs(ctx)
	errs = append(errs, err)
	for _, url := range urls {
		var said []shown
		for _, poll := range polls {
			one, err := freshResults(ctx, url, poll, drained)
			if err != nil {
				return errors.Join(append(errs, err)...)
			}
			said = append(said, one)
		}
		if err := compareShown(said, result, counted); err != nil {
			errs = append(errs, fmt.Errorf("the results of %s: %w", url, err))
		}
	}
	r.report.row("apis whose results were compared", len(urls))
	return errors.Join(errs...)
}

// freshResults asks an api for a poll's results until they are as new as a
// moment by Redis's clock: an api keeps them for results-max-age.
func freshResults(ctx context.Context, base, poll string, asOf time.Time) (shown, error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	url := base + "/polls/" + poll + "/results"
	for {
		one, err := results(ctx, url)
		if err == nil && one.Poll != poll {
			err = fmt.Errorf("they are poll %q's", one.Poll)
		}
		if err != nil {
			return one, fmt.Errorf("%s: %w", url, err)
		}
		if !one.AsOf.Before(asOf) {
			return one, nil
		}
		if !wait(ctx, 50*time.Millisecond) {
			return one, fmt.Errorf("%s: still as of %s, asked for are those of %s", url, one.AsOf, asOf)
		}
	}
}

func results(ctx context.Context, url string) (one shown, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return one, err
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return one, err
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode != http.StatusOK {
		return one, errors.New(resp.Status)
	}
	return one, json.NewDecoder(resp.Body).Decode(&one)
}
