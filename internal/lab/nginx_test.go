package lab

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A POST that an api has taken without answering goes to the next one, if it has
// a key.
func TestNginxRepeatsWhatHasAKey(t *testing.T) {
	var mu sync.Mutex
	dropped, answered := map[string]bool{}, map[string]bool{}
	note := func(to map[string]bool, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, http.MethodPost, r.Method)
		mu.Lock()
		defer mu.Unlock()
		to[r.URL.Path+" "+string(body)] = true
	}
	dies := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		note(dropped, r)
		panic(http.ErrAbortHandler)
	}))
	defer dies.Close()
	lives := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note(answered, r)
		w.WriteHeader(http.StatusAccepted)
	}))
	defer lives.Close()
	n, err := StartNginx(t.Context(), t.TempDir(), []string{strings.TrimPrefix(dies.URL, "http://"), strings.TrimPrefix(lives.URL, "http://")})
	require.NoError(t, err)
	defer n.Kill()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	post := func(body, key string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+n.Addr()+"/polls/p/votes", strings.NewReader(body))
		require.NoError(t, err)
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		resp, err := client.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	repeated := 0
	for i := range 16 { // the upstreams take turns
		key := ""
		if i%4 > 1 {
			key = strconv.Itoa(i)
		}
		status := post(strconv.Itoa(i), key)
		got := "/polls/p/votes " + strconv.Itoa(i)
		mu.Lock()
		wasDropped, wasAnswered := dropped[got], answered[got]
		mu.Unlock()
		if key == "" {
			assert.Equal(t, wasDropped, status == http.StatusBadGateway, "%d", status)
			assert.NotEqual(t, wasDropped, wasAnswered, "one of the two has it")
			continue
		}
		assert.Equal(t, http.StatusAccepted, status)
		assert.True(t, wasAnswered)
		if wasDropped {
			repeated++
		}
	}
	assert.Positive(t, repeated)
}
