package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Proxy stands in front of a Redis and breaks connections where a network
// would, but at the borders of commands: it forwards one command of a
// connection at a time and reads its whole reply before it goes on. So "the
// command ran, and its reply was lost" and "the command never came" are two
// faults that can be asked for.
//
// The commands with which a client opens a connection (HELLO, AUTH, CLIENT,
// SELECT, READONLY) change nothing, and are spared every fault but Stall, so
// that a probability is one per command. Subscriptions and replication are
// passed on without a look at them.
type Proxy struct {
	network, target string
	listener        net.Listener
	running         sync.WaitGroup
	dropped, cut    atomic.Int64

	mu     sync.Mutex
	random *rand.Rand
	// dropAfter and cutBefore are probabilities, of what is done to a command.
	dropAfter, cutBefore float64
	// open is closed while traffic flows; a stalled proxy has one that is not.
	open   chan struct{}
	holds  []*hold
	drops  []*hold
	links  map[*link]bool
	closed chan struct{}
}

// hold is a command that someone waits for: match tells it, seen is closed when
// it is there, and it goes on when release is closed.
type hold struct {
	match   func(cmd []string) bool
	seen    chan struct{}
	release chan struct{}
}

// StartProxy starts a proxy in front of the Redis at target, a host:port or the
// path of a unix socket. Close ends it. The seed decides which commands meet a
// fault, as far as their order does not depend on the machine.
func StartProxy(target string, seed uint64) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		network: "tcp", target: target, listener: l,
		random: rand.New(rand.NewPCG(seed, seed)),
		open:   make(chan struct{}),
		links:  map[*link]bool{},
		closed: make(chan struct{}),
	}
	if strings.HasPrefix(target, "/") {
		p.network = "unix"
	}
	close(p.open)
	p.running.Go(p.accept)
	return p, nil
}

// Addr is the proxy's host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// URL is the redis-url of what stands behind the proxy.
func (p *Proxy) URL() string { return "redis://" + p.Addr() + "/0" }

// DropReplies sets the probability with which a command runs, and its
// connection is cut in place of the reply.
func (p *Proxy) DropReplies(probability float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropAfter = probability
}

// CutBefore sets the probability with which a connection is cut in place of
// forwarding a command.
func (p *Proxy) CutBefore(probability float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutBefore = probability
}

// Dropped is the number of replies that were dropped.
func (p *Proxy) Dropped() int64 { return p.dropped.Load() }

// Cut is the number of commands that were not forwarded.
func (p *Proxy) Cut() int64 { return p.cut.Load() }

// Stall stops all traffic: connections stay as they are, new ones are taken and
// hear nothing.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
		p.open = make(chan struct{})
	default: // stalled already
	}
}

// Resume lets the traffic flow again. What was sent meanwhile arrives, also from
// clients that have hung up.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.open:
	default:
		close(p.open)
	}
}

// HoldNext holds back the next command that matches, as a paused process or a
// slow network would: held is closed when it has come, and release lets it go
// on to Redis, even if the client has hung up by then. match is called for one
// command after the other, never by two goroutines at once.
func (p *Proxy) HoldNext(match func(cmd []string) bool) (held <-chan struct{}, release func()) {
	h := &hold{match: match, seen: make(chan struct{}), release: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds = append(p.holds, h)
	return h.seen, sync.OnceFunc(func() { close(h.release) })
}

// DropNext drops the reply of the next command that matches, once that command
// has run. dropped is closed just before the connection is cut.
func (p *Proxy) DropNext(match func(cmd []string) bool) (dropped <-chan struct{}) {
	h := &hold{match: match, seen: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drops = append(p.drops, h)
	return h.seen
}

// CutAll cuts every connection that stands.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Close cuts every connection and takes no new one. It returns when nothing of
// the proxy runs any more.
func (p *Proxy) Close() {
	p.mu.Lock()
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	for l := range p.links {
		l.cut()
	}
	p.mu.Unlock()
	_ = p.listener.Close() // it was only closed before
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.running.Go(func() { p.serve(client) })
	}
}

// link is a client's connection and the one to Redis that stands for it.
type link struct {
	client, server net.Conn
	// commands come from the client; closed when it has hung up.
	commands chan command
	// passing is closed when all that follows is to be passed on unread.
	passing chan struct{}

	mu sync.Mutex
	// waiting commands were read and not yet forwarded.
	waiting int
	gone    bool
}

// command is one command as it was sent, and its words.
type command struct {
	raw   []byte
	words []string
}

func (l *link) cut() {
	_ = l.client.Close() // both may be closed already
	_ = l.server.Close()
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial(p.network, p.target)
	if err != nil {
		_ = client.Close() // as if the port were closed
		return
	}
	l := &link{client: client, server: server, commands: make(chan command, 64), passing: make(chan struct{})}
	if !p.enter(l) {
		return
	}
	done := make(chan struct{})
	p.running.Go(func() { l.read(done) })
	p.forward(l)
	close(done)
	l.cut()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// enter notes the link, so that Close finds it. False: closed already.
func (p *Proxy) enter(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.closed:
		l.cut()
		return false
	default:
		p.links[l] = true
		return true
	}
}

// read reads commands until the client hangs up.
func (l *link) read(done <-chan struct{}) {
	defer close(l.commands)
	defer l.count(0, true)
	r := bufio.NewReader(l.client)
	for {
		cmd, err := readCommand(r)
		if err != nil {
			return
		}
		l.count(1, false)
		select {
		case l.commands <- cmd:
		case <-done:
			return
		}
		if passThrough(cmd.words) {
			select {
			case <-l.passing:
				_, _ = io.Copy(l.server, r) // an end is an end
			case <-done:
			}
			return
		}
	}
}

// count keeps the number of commands that were read and not forwarded. When the
// client is gone and none is left, Redis hears of it, so that it serves no
// blocked client that is not there; not before, since those were sent.
func (l *link) count(add int, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting += add
	l.gone = l.gone || gone
	if l.gone && l.waiting == 0 {
		if c, ok := l.server.(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite() // the connection may be closed
		}
	}
}

// forward carries commands and replies until one side ends or a fault cuts.
func (p *Proxy) forward(l *link) {
	replies := bufio.NewReader(l.server)
	for cmd := range l.commands {
		f, ok := p.decide(cmd)
		if !ok || f.cut {
			return
		}
		if _, err := l.server.Write(cmd.raw); err != nil {
			return
		}
		l.count(-1, false)
		if passThrough(cmd.words) {
			close(l.passing)
			_, _ = io.Copy(l.client, replies) // an end is an end
			return
		}
		reply, err := readReply(nil, replies)
		if err != nil {
			return
		}
		if f.drop {
			p.dropped.Add(1)
			if f.dropped != nil {
				close(f.dropped)
			}
			return
		}
		if !p.flows() {
			return
		}
		// Should the client be gone, what it sent before still goes to Redis.
		_, _ = l.client.Write(reply)
	}
}

// fate is what is to become of a command.
type fate struct {
	cut, drop bool
	dropped   chan struct{}
}

// decide waits until the command may go on, and says how. False: the proxy has
// been closed.
func (p *Proxy) decide(cmd command) (fate, bool) {
	if !p.flows() {
		return fate{}, false
	}
	if opening(cmd.words) {
		return fate{}, true
	}
	p.mu.Lock()
	var f fate
	h := take(&p.holds, cmd.words)
	switch d := take(&p.drops, cmd.words); {
	case d != nil:
		f.drop, f.dropped = true, d.seen
	case p.random.Float64() < p.cutBefore:
		f.cut = true
		p.cut.Add(1)
	default:
		f.drop = p.random.Float64() < p.dropAfter
	}
	p.mu.Unlock()
	if h != nil {
		close(h.seen)
		select {
		case <-h.release:
		case <-p.closed:
			return fate{}, false
		}
	}
	return f, true
}

// take removes and returns the first hold that matches, or nil.
func take(holds *[]*hold, words []string) *hold {
	i := slices.IndexFunc(*holds, func(h *hold) bool { return h.match(words) })
	if i < 0 {
		return nil
	}
	h := (*holds)[i]
	*holds = slices.Delete(*holds, i, i+1)
	return h
}

// flows waits while the proxy is stalled. False: it has been closed.
func (p *Proxy) flows() bool {
	p.mu.Lock()
	open := p.open
	p.mu.Unlock()
	select {
	case <-open:
		return true
	case <-p.closed:
		return false
	}
}

func opening(words []string) bool {
	switch strings.ToUpper(words[0]) {
	case "HELLO", "AUTH", "CLIENT", "SELECT", "READONLY":
		return true
	}
	return false
}

func passThrough(words []string) bool {
	switch strings.ToUpper(words[0]) {
	case "SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE", "MONITOR", "SYNC", "PSYNC", "REPLCONF":
		return true
	}
	return false
}

var errProtocol = errors.New("not the Redis protocol")

// maxLength bounds what a length on the wire may ask for.
const maxLength = 1 << 30

// readCommand reads an array of bulk strings, or an inline command.
func readCommand(r *bufio.Reader) (command, error) {
	var c command
	line, err := r.ReadBytes('\n')
	if err != nil {
		return c, err
	}
	c.raw = line
	if line[0] != '*' {
		if c.words = strings.Fields(string(line)); len(c.words) == 0 {
			return readCommand(r) // an empty line is no command
		}
		return c, nil
	}
	n, err := length(line)
	if err != nil || n < 1 {
		return c, errProtocol
	}
	for range n {
		at := len(c.raw)
		if c.raw, err = readReply(c.raw, r); err != nil {
			return c, err
		}
		word := c.raw[at:]
		i := slices.Index(word, '\n')
		if word[0] != '$' || len(word) < i+3 {
			return c, errProtocol
		}
		c.words = append(c.words, string(word[i+1:len(word)-2]))
	}
	return c, nil
}

// readReply appends one whole value of RESP2 or RESP3 to dst. A push, which may
// come at any time, is taken along with the reply behind it.
func readReply(dst []byte, r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return dst, err
	}
	dst = append(dst, line...)
	var values int
	switch line[0] {
	case '+', '-', ':', '_', ',', '#', '(':
		return dst, nil
	case '$', '=', '!':
		n, err := length(line)
		if err != nil || n < 0 {
			return dst, err
		}
		at := len(dst)
		dst = append(dst, make([]byte, n+2)...)
		_, err = io.ReadFull(r, dst[at:])
		return dst, err
	case '*', '~':
		values, err = length(line)
	case '>':
		values, err = length(line)
		values++
	case '%':
		values, err = length(line)
		values *= 2
	case '|':
		values, err = length(line)
		values = values*2 + 1
	default:
		err = fmt.Errorf("%w: %.40q", errProtocol, line)
	}
	for range values {
		if err == nil {
			dst, err = readReply(dst, r)
		}
	}
	return dst, err
}

// length reads the number on a line; -1 stands for a null.
func length(line []byte) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	if err != nil || n < -1 || n > maxLength {
		return 0, fmt.Errorf("%w: %.40q", errProtocol, line)
	}
	return n, nil
}
