package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"time"
)

// blobProxy stands in front of the archive's service, and has its faults.
type blobProxy struct {
	server   *http.Server
	listener net.Listener
	// busy answers 503 with Retry-After; dropping passes a PUT on, and then
	// closes the connection in place of the answer.
	busy, dropping atomic.Bool
	// refused requests, and unwitting PUTs: those that the service did (201), and
	// whose answer was dropped.
	refused, unwitting atomic.Int64
	// failed requests did not get through to the service, or had no answer.
	failed atomic.Int64
}

func startBlobProxy(host string) (*blobProxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &blobProxy{listener: l}
	// The Host header stays the client's: the signature does not cover it, and
	// the service answers for any.
	forward := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: host})
	forward.ErrorLog = log.New(io.Discard, "", 0) // it tells of answers that were dropped on purpose
	forward.ErrorHandler = func(http.ResponseWriter, *http.Request, error) {
		p.failed.Add(1)
		panic(http.ErrAbortHandler)
	}
	p.server = &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if p.busy.Load() {
				p.refused.Add(1)
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			if r.Method == http.MethodPut && p.dropping.Load() {
				answer := &discard{header: http.Header{}}
				forward.ServeHTTP(answer, r)
				if answer.status == http.StatusCreated {
					p.unwitting.Add(1)
				}
				panic(http.ErrAbortHandler)
			}
			forward.ServeHTTP(w, r)
		}),
	}
	go func() { _ = p.server.Serve(l) }() // it ends with close
	return p, nil
}

func (p *blobProxy) addr() string { return p.listener.Addr().String() }

func (p *blobProxy) close() error {
	if err := p.server.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// discard takes an answer that nobody is to see.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }
