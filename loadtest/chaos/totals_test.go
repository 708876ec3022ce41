package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/ledger"
)

func TestCompareShown(t *testing.T) {
	result := &ledger.Result{Options: []ledger.OptionResult{
		{Poll: "p", Option: "ana", Counted: 2}, {Poll: "p", Option: "bruno", Counted: 1}, {Poll: "p", Option: "nobody"}, {Poll: "shut", Option: "ana"},
	}}
	const rest = `"total":3,"pending":0`
	for text, problem := range map[string]string{
		`[{"poll":"p",` + rest + `,"options":[{"id":"ana","votes":2},{"id":"bruno","votes":1}]},{"poll":"another","total":7}]`: "",
		`[{"poll":"p",` + rest + `,"options":[{"id":"ana","votes":2},{"id":"bruno","votes":1}]},
		  {"poll":"shut","options":[{"id":"ana","votes":0}]}]`: "",
		`[]`: "p/ana is not there, and the judge counted 2",
		`[{"poll":"p",` + rest + `,"options":[{"id":"ana","votes":1},{"id":"bruno","votes":2}]}]`:                                 "p/ana has 1 votes, and the judge counted 2",
		`[{"poll":"p",` + rest + `,"options":[{"id":"ana","votes":3}]}]`:                                                          "p/bruno is not there",
		`[{"poll":"p","total":3,"pending":1,"options":[{"id":"ana","votes":2},{"id":"bruno","votes":1}]}]`:                        "1 votes are pending",
		`[{"poll":"p","total":4,"pending":0,"options":[{"id":"ana","votes":2},{"id":"bruno","votes":1}]}]`:                        "a total of 4",
		`[{"poll":"p","total":4,"pending":0,"options":[{"id":"ana","votes":2},{"id":"bruno","votes":1},{"id":"zoe","votes":1}]}]`: "p/zoe has 1 votes",
		`[{"poll":"p",` + rest + `,"options":[{"id":"ana","votes":2},{"id":"bruno","votes":1}]},
		  {"poll":"shut","total":1,"options":[{"id":"ana","votes":1}]}]`: "shut/ana has 1 votes, and the judge counted 0",
	} {
		var polls []shown
		require.NoError(t, json.Unmarshal([]byte(text), &polls))
		err := compareShown(polls, result, counted)
		if problem == "" {
			require.NoError(t, err, text)
			continue
		}
		require.ErrorContains(t, err, problem, text)
	}
}

// Results that an api has kept are older than the drain.
func TestFreshResults(t *testing.T) {
	drained := time.Date(2026, 1, 20, 22, 0, 1, 0, time.UTC)
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/polls/p/results", r.URL.Path)
		n := asked.Add(1)
		fmt.Fprintf(w, `{"poll":"p","as_of":%q,"total":%d}`, drained.Add(time.Duration(n-3)*time.Second).Format(time.RFC3339Nano), n)
	}))
	defer server.Close()
	one, err := freshResults(t.Context(), server.URL, "p", drained)
	require.NoError(t, err)
	assert.EqualValues(t, 3, one.Total)
	_, err = freshResults(t.Context(), server.URL, "p", drained)
	require.NoError(t, err)
	server.Close()
	_, err = freshResults(t.Context(), server.URL, "p", drained)
	require.Error(t, err)
}
