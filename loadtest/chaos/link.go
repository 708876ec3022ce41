package main

import (
	"paredao/internal/lab"
)

// link is the way of one kind of daemon to Redis:
//
//	daemons ─▶ proxy (cuts at commands) ─▶ toxi (slows bytes) ─▶ redis-server
type link struct {
	proxy *lab.Proxy
	toxi  *lab.Toxi
}

func newLink(redis string) (*link, error) {
	toxi, err := lab.StartToxi(redis)
	if err != nil {
		return nil, err
	}
	const seed = 1 // which commands are hit depends on the machine anyway
	proxy, err := lab.StartProxy(toxi.Addr(), seed)
	if err != nil {
		toxi.Close()
		return nil, err
	}
	return &link{proxy: proxy, toxi: toxi}, nil
}

func (l *link) url() string { return l.proxy.URL() }

func (l *link) close() {
	if l == nil {
		return // it never started
	}
	l.proxy.Close()
	l.toxi.Close()
}
