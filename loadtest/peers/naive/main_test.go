package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"paredao/internal/testkit"
)

// TestNaive posts a vote, and sees it in the queue and then in the tally.
func TestNaive(t *testing.T) {
	server := testkit.Redis(t)
	rdb := server.Client()
	ctx, cancel := context.WithCancel(context.Background())
	logs, log := io.Pipe()
	served, counted := make(chan error, 1), make(chan error, 1)
	go func() {
		served <- runAPI(ctx, []string{"--listen=127.0.0.1:0", "--poll=p", "--redis-url=" + server.URL()}, io.Discard, log)
	}()
	var line struct{ Msg, Addr string }
	require.NoError(t, json.NewDecoder(logs).Decode(&line))
	post := func(body, forwarded string) int {
		req, err := http.NewRequest(http.MethodPost, "http://"+line.Addr+"/polls/p/votes", strings.NewReader(body))
		require.NoError(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("User-Agent", "ua")
		if forwarded != "" {
			req.Header.Set("X-Forwarded-For", forwarded)
		}
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	assert.Equal(t, 422, post(`{"option":"nobody"}`, ""))
	assert.Equal(t, 400, post(`{`, ""))
	assert.Equal(t, 202, post(`{"option":"ana"}`, "10.0.0.1, 192.0.2.7"))
	text, err := rdb.LIndex(ctx, queueKey, 0).Result()
	require.NoError(t, err)
	var v stored
	require.NoError(t, json.Unmarshal([]byte(text), &v))
	assert.Equal(t, stored{ID: v.ID, Poll: "p", Option: "ana", AcceptedAt: v.AcceptedAt, Client: "192.0.2.7", UserAgent: "ua"}, v)

	go func() { counted <- runConsumer(ctx, []string{"--redis-url=" + server.URL()}, io.Discard) }()
	require.Eventually(t, func() bool {
		n, err := rdb.HGet(ctx, tallyPrefix+"p", "ana").Int()
		return err == nil && n == 1
	}, 10*time.Second, 5*time.Millisecond)
	assert.Zero(t, rdb.LLen(ctx, queueKey).Val())
	http.DefaultClient.CloseIdleConnections()
	cancel()
	require.NoError(t, <-served)
	require.NoError(t, <-counted)
}
