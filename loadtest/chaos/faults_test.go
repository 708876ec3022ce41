package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// An answer was lost only where the service had done what it was asked for.
func TestBlobProxyCountsWhatWasDone(t *testing.T) {
	statuses := map[string]int{"/new": http.StatusCreated, "/there": http.StatusConflict, "/busy": http.StatusServiceUnavailable}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(statuses[r.URL.Path]) }))
	defer service.Close()
	p, err := startBlobProxy(strings.TrimPrefix(service.URL, "http://"))
	require.NoError(t, err)
	defer func() { require.NoError(t, p.close()) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	put := func(path string) error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+p.addr()+path, strings.NewReader("x"))
		require.NoError(t, err)
		resp, err := client.Do(req)
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}
	require.NoError(t, put("/new"))
	p.dropping.Store(true)
	for path := range statuses {
		require.Error(t, put(path), "the answer is dropped")
	}
	assert.EqualValues(t, 1, p.unwitting.Load())
	service.Close()
	require.Error(t, put("/new"))
	assert.EqualValues(t, 1, p.unwitting.Load())
}

func TestLoggedSince(t *testing.T) {
	const log = "starting: no space left on device\n" +
		`{"time":"2026-01-20T22:00:01.5Z","level":"WARN","msg":"votes can't be archived","err":"write x: no space left on device"}` + "\n" +
		`{"time":"2026-01-20T22:00:09Z","level":"INFO","msg":"stopped"}` + "\n"
	at := time.Date(2026, 1, 20, 22, 0, 1, 0, time.UTC)
	assert.True(t, loggedSince(log, "no space left on device", at))
	assert.False(t, loggedSince(log, "no space left on device", at.Add(time.Second)), "it is another fault's")
	assert.False(t, loggedSince(log, "read-only file system", at))
}

func TestAgain(t *testing.T) {
	n := 0
	require.NoError(t, again(t.Context(), unix.EINVAL, func() error {
		if n++; n < 3 {
			return unix.EINVAL
		}
		return nil
	}))
	assert.Equal(t, 3, n)
	other := errors.New("other")
	require.ErrorIs(t, again(t.Context(), unix.EINVAL, func() error { return other }), other)
}

// A disk may grow between the look at it and its filling.
func TestDiskIsFilledWhileItGrows(t *testing.T) {
	dir := t.TempDir()
	d, err := mountDisk(dir)
	if err != nil {
		t.Skipf("no file system may be mounted here: %v", err)
	}
	defer func() { require.NoError(t, d.close()) }()
	done, grown := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(grown)
		for block := make([]byte, 256<<10); ; {
			select {
			case <-done:
				return
			default:
			}
			f, err := os.CreateTemp(dir, "x")
			if err != nil {
				continue // it is full
			}
			_, _ = f.Write(block)
			_ = f.Close()
			if name := f.Name(); time.Now().UnixNano()%2 == 0 {
				_ = os.Remove(name)
			}
		}
	}()
	for range 50 {
		require.NoError(t, d.fill(t.Context()))
		require.NoError(t, d.mend())
	}
	close(done)
	<-grown
}
