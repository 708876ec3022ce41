package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/loadtest/peers/peer"
)

// TestBare sees that bare answers as the api does.
func TestBare(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	logs, log := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{"--listen=127.0.0.1:0", "--poll=p"}, io.Discard, log) }()
	var line struct{ Msg, Addr string }
	require.NoError(t, json.NewDecoder(logs).Decode(&line))
	require.Equal(t, "api takes votes", line.Msg)
	url := "http://" + line.Addr + "/polls/p"

	for body, want := range map[string]int{
		`{"option":"ana"}`: 202, `{"option":"nobody"}`: 422, `{"option":"ana","x":1}`: 400, `{}`: 400,
		`{"option":"ana","class":"x"}`: 422, `{"option":"ana","option":"ana"}`: 400,
	} {
		resp, err := http.Post(url+"/votes", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, want, resp.StatusCode, body)
		if want != 202 {
			continue
		}
		var got map[string]string
		require.NoError(t, json.Unmarshal(text, &got), "%s", text)
		assert.Equal(t, "p", got["poll"])
		assert.Equal(t, "ana", got["option"])
		id, err := uuid.Parse(got["id"])
		require.NoError(t, err)
		assert.EqualValues(t, 7, id.Version())
		at, err := time.Parse(peer.AcceptedLayout, got["accepted_at"])
		require.NoError(t, err)
		assert.WithinDuration(t, time.Now(), at, time.Minute)
		assert.Len(t, got, 4)
	}
	resp, err := http.Post(url+"x/votes", "application/json", strings.NewReader(`{"option":"ana"}`))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, 404, resp.StatusCode)

	resp, err = http.Get(url + "/results")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, 200, resp.StatusCode)
	req, err := http.NewRequest(http.MethodGet, url+"/results", nil)
	require.NoError(t, err)
	req.Header.Set("If-None-Match", resp.Header.Get("ETag"))
	resp, err = http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, 304, resp.StatusCode)

	http.DefaultClient.CloseIdleConnections()
	cancel()
	require.NoError(t, <-done)
}
