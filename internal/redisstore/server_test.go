package redisstore

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"paredao/internal/testkit"
	"paredao/internal/vote"
)

// These tests need a redis-server of their own, set up in some special way.

func (e *env) config(name, value string) {
	e.Helper()
	e.must(e.rdb.ConfigSet(e.ctx(), name, value).Err())
}

// own is a redis-server for the test alone.
func own(t *testing.T, shards int, args ...string) (*env, *testkit.RedisServer) {
	t.Helper()
	r := testkit.Redis(t, args...)
	return newEnv(t, r.Addr(), false, shards), r
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

func TestHealth(t *testing.T) {
	e, _ := own(t, 1)
	health := func(want string) Health {
		e.Helper()
		h, err := e.Health(e.ctx())
		if err != nil || want == "" && h.Problem != "" || !strings.Contains(h.Problem, want) {
			e.Errorf("health %+v (%v), want %q", h, err, want)
		}
		return h
	}
	room := func(want bool) {
		e.Helper()
		if got, err := e.queue().HasRoom(e.ctx()); err != nil || got != want {
			e.Errorf("has room: %v (%v), want %v", got, err, want)
		}
	}
	if h := health(""); h.UsedMemory <= 0 || h.MaxMemory != 0 {
		e.Errorf("health %+v", h)
	}
	room(true)
	e.config("maxmemory", "1gb")
	if h := health(""); h.MaxMemory != 1<<30 {
		e.Errorf("health %+v", h)
	}
	room(true)
	used := health("").UsedMemory
	e.config("maxmemory", strconv.FormatInt(used+used/20, 10))
	room(false)
	for _, policy := range []string{"allkeys-lru", "volatile-ttl", "allkeys-random"} {
		e.config("maxmemory-policy", policy)
		health("maxmemory-policy is " + policy)
	}
	e.config("maxmemory-policy", "noeviction")
	health("")
	e.must(e.rdb.Do(e.ctx(), "REPLICAOF", "127.0.0.1", "1").Err())
	health("is a replica")
	e.must(e.rdb.Do(e.ctx(), "REPLICAOF", "NO", "ONE").Err())
	health("")
}

func TestHealthWithoutRedis(t *testing.T) {
	e, r := own(t, 1)
	s := e.open(Options{URL: r.URL(), Shards: 1, NoRetry: true})
	r.Kill()
	if h, err := s.Health(e.ctx()); err == nil {
		e.Errorf("health %+v", h)
	}
	if ok, err := s.Queue(time.Hour, 0, 0).HasRoom(e.ctx()); err == nil || ok {
		e.Errorf("room: %v", ok)
	}
	for name, f := range map[string]func() error{
		"register":  func() error { return s.Queue(time.Hour, 0, 0).Register(e.ctx(), 0, "f") },
		"check":     func() error { return s.CheckShards(e.ctx()) },
		"key":       func() error { _, err := s.ClientKey(e.ctx()); return err },
		"revision":  func() error { _, err := s.PollsRevision(e.ctx()); return err },
		"polls":     func() error { _, err := s.Polls(e.ctx()); return err },
		"poll":      func() error { _, err := s.Poll(e.ctx(), "p"); return err },
		"poll ids":  func() error { _, _, err := s.KnownPolls(e.ctx()); return err },
		"apply":     func() error { _, err := s.ApplyPoll(e.ctx(), definition("p"), vote.Window{}); return err },
		"close":     func() error { return s.ClosePoll(e.ctx(), "p") },
		"now":       func() error { _, err := s.Now(e.ctx()); return err },
		"results":   func() error { _, err := s.Results(e.ctx(), "p"); return err },
		"shards":    func() error { _, err := s.ShardPolls(e.ctx()); return err },
		"queues":    func() error { _, err := s.Queues(e.ctx()); return err },
		"read":      func() error { _, err := s.ReadQueue(e.ctx(), 0, all); return err },
		"dead":      func() error { _, err := s.Dead(e.ctx(), 0, 0, 1); return err },
		"remove":    func() error { _, err := s.RemoveDead(e.ctx(), DeadElement{}, true); return err },
		"state":     func() error { _, err := s.ArchiveState(e.ctx(), 0); return err },
		"fix":       func() error { _, err := s.FixBatch(e.ctx(), &vote.ArchiveBatch{}, ""); return err },
		"commit":    func() error { return s.CommitBatch(e.ctx(), &vote.ArchiveBatch{}, nil) },
		"batches":   func() error { _, err := s.Batches(e.ctx(), 0, []uint64{1}); return err },
		"number":    func() error { _, err := s.CountBatches(e.ctx(), 0); return err },
		"begin":     func() error { return s.BeginRestore(e.ctx(), 0, "token") },
		"restore":   func() error { return s.RestoreBatch(e.ctx(), "token", "next", &vote.RestoredBatch{}) },
		"snapshot":  func() error { _, err := s.Snapshot(e.ctx(), 0, nil, [3]int64{}); return err },
		"join":      func() error { _, err := s.Shares("r", "w", time.Hour).Join(e.ctx()); return err },
		"leave":     func() error { return s.Shares("r", "w", time.Hour).Leave(e.ctx()) },
		"claim":     func() error { _, err := s.Shares("r", "w", time.Hour).Claim(e.ctx(), 0); return err },
		"release":   func() error { return s.Shares("r", "w", time.Hour).Release(e.ctx(), 0) },
		"wait":      func() error { return s.AwaitVotes(e.ctx(), 0, time.Second) },
		"count":     func() error { _, _, err := s.CommitCount(e.ctx(), &vote.CountCommit{}); return err },
		"enqueue":   func() error { _, err := s.Queue(time.Hour, 0, 0).Enqueue(e.ctx(), &vote.Batch{}); return err },
		"and WAIT":  func() error { _, err := s.Queue(time.Hour, 1, 0).Enqueue(e.ctx(), &vote.Batch{}); return err },
		"archive":   func() error { _, err := s.ReadArchive(e.ctx(), 0, 0, all); return err },
		"the batch": func() error { _, err := s.ReadBatch(e.ctx(), &vote.ArchiveBatch{}, 0, all); return err },
	} {
		err := f()
		if err == nil || errors.Is(err, vote.ErrPollNotFound) || errors.Is(err, vote.ErrFlusherLost) ||
			errors.Is(err, vote.ErrBatchGone) || errors.Is(err, vote.ErrOverloaded) {
			e.Errorf("%s without Redis: %v", name, err)
		}
	}
	// It is there again: no restart, on the same store.
	r.Start()
	testkit.Eventually(e.T, "Redis answers again", func() bool { return s.CheckShards(e.ctx()) == nil })
}

// An INFO that is shorter, of an older server, or of none that we know.
func TestHealthOfOtherServers(t *testing.T) {
	for info, want := range map[string]string{
		"redis_version:6.2.14\r\n":                           "Redis is 6.2.14; 7.0 or newer is needed",
		"redis_version:7.2.4\r\nvalkey_version:8.0.1\r\n":    "",
		"redis_version:255.255.255\r\n":                      "",
		"redis_version:unstable\r\n":                         "",
		"":                                                   "",
		"# Memory\r\nmaxmemory_policy:allkeys-lfu\r\n":       "maxmemory-policy is allkeys-lfu",
		"role:slave\r\nmaxmemory_policy:noeviction\r\nx\n\n": "is a replica",
	} {
		srv, err := server.NewServer("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		for cmd, answer := range map[string]func(*server.Peer){
			"PING": func(c *server.Peer) { c.WriteInline("PONG") },
			"INFO": func(c *server.Peer) { c.WriteBulk(info) },
		} {
			err := srv.Register(cmd, func(c *server.Peer, _ string, _ []string) { answer(c) })
			if err != nil {
				t.Fatal(err)
			}
		}
		s, err := Open(Options{URL: "redis://" + srv.Addr().String(), Shards: 1})
		if err != nil {
			t.Fatal(err)
		}
		h, err := s.Health(t.Context())
		if err != nil || want == "" && h.Problem != "" || !strings.Contains(h.Problem, want) {
			t.Errorf("%q: %+v (%v), want %q", info, h, err, want)
		}
		_ = s.Close()
		srv.Close()
	}
}

// A full Redis takes no votes and says so; everything that drains it, and the
// close of a poll, goes on.
func TestFullRedis(t *testing.T) {
	e, _ := own(t, 1)
	e.apply("p", "q")
	e.deadFrames()
	e.send(e.batch(0, "f", 1, some("p", 20)...))
	e.send(e.batch(0, "f", 2, some("q", 2)...))
	e.must(e.CheckShards(e.ctx()))
	next := e.batch(0, "f", 3, ballot{"p", "ana", "k"})
	e.config("maxmemory", "1")

	before := e.dump()
	for name, q := range map[string]*Queue{"plain": e.queue(), "with replicas": e.Queue(time.Hour, 1, time.Millisecond)} {
		out, err := q.Enqueue(e.ctx(), next)
		if !errors.Is(err, vote.ErrOverloaded) {
			e.Errorf("%s: %+v, %v", name, out, err)
		}
	}
	if err := e.queue().Register(e.ctx(), 0, "new"); err == nil {
		e.Error("a flusher was registered")
	}
	if ok, err := e.queue().HasRoom(e.ctx()); err != nil || ok {
		e.Errorf("has room: %v (%v)", ok, err)
	}
	e.unchanged(before, "refused votes")

	e.must(e.CheckShards(e.ctx()))
	_, err := e.ClientKey(e.ctx())
	e.must(err)
	w := e.Shares(RoleConsumer, "w", time.Minute)
	if live, err := w.Join(e.ctx()); err != nil || len(live) != 1 {
		e.Errorf("live %v (%v)", live, err)
	}
	if ok, err := w.Claim(e.ctx(), 0); err != nil || !ok {
		e.Errorf("claim: %v (%v)", ok, err)
	}
	e.must(e.ClosePoll(e.ctx(), "q"))
	e.count(0)
	e.conserved("p", "q")
	dead, err := e.Dead(e.ctx(), 0, 0, 10)
	e.must(err)
	for i, d := range dead {
		if ok, err := e.RemoveDead(e.ctx(), d, i == 0); err != nil || !ok {
			e.Errorf("dead: %v (%v)", ok, err)
		}
	}
	e.archiveAll(0)
	e.conserved("p", "q")
	e.must(w.Release(e.ctx(), 0))
	e.must(w.Leave(e.ctx()))
	if r, err := e.Results(e.ctx(), "q"); err != nil || !r.Final {
		e.Errorf("results %+v (%v)", r, err)
	}
	if _, err := e.Queues(e.ctx()); err != nil {
		e.Error(err)
	}

	e.config("maxmemory", "0")
	if out, err := e.queue().Enqueue(e.ctx(), next); err != nil || out.Polls[0] != vote.PollAccepted {
		e.Errorf("with room again: %+v, %v", out, err)
	}
	e.conserved("p", "q")
}

// A user who may use the data and nothing else.
func TestACLUser(t *testing.T) {
	e, r := own(t, 2)
	e.must(e.rdb.Do(e.ctx(), "ACL", "SETUSER", "paredao", "on", ">p@ss/w:r#d%?", "~*", "+@all",
		"-info", "-config", "-client", "-@admin", "-@dangerous").Err())
	s := e.open(Options{URL: "redis://paredao:p%40ss%2Fw%3Ar%23d%25%3F@" + r.Addr(), Shards: 2})
	mainPath(t, s)
	if h, err := s.Health(t.Context()); err != nil || h != (Health{Servers: 1}) {
		t.Errorf("health %+v (%v)", h, err)
	}
	if ok, err := s.Queue(time.Hour, 0, 0).HasRoom(t.Context()); err != nil || !ok {
		t.Errorf("has room: %v (%v)", ok, err)
	}
	_, err := e.open(Options{URL: "redis://paredao:S3CRET@" + r.Addr(), Shards: 2}).Now(t.Context())
	if err == nil || strings.Contains(err.Error(), "S3CRET") {
		t.Errorf("a wrong password: %v", err)
	}
}

// The password file is read for every new connection.
func TestPasswordFile(t *testing.T) {
	e, r := own(t, 1)
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := e.open(Options{URL: r.URL(), PasswordFile: file, Shards: 1})
	// rotate gives Redis another password, and cuts all connections but the
	// test's own.
	rotate := func(password string) {
		t.Helper()
		e.config("requirepass", password)
		e.must(e.rdb.Do(e.ctx(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
	}
	e.must(e.rdb.Ping(e.ctx()).Err())
	if _, err := s.Now(t.Context()); err == nil || !strings.Contains(err.Error(), "redis-password-file") {
		t.Errorf("no file: %v", err)
	}
	for _, c := range []struct{ password, text string }{
		{"first", "first\n"}, {"second", "second"}, {" with spaces ", " with spaces \n"}, {"w\nl", "w\nl\n"}, {"crlf", "crlf\r\n"}, {"é😀", "é😀\n"},
	} {
		rotate(c.password)
		if _, err := s.Now(t.Context()); err == nil {
			t.Errorf("%q: the old password is still good", c.password)
		}
		write(c.text)
		if _, err := s.Now(t.Context()); err != nil {
			t.Errorf("%q: %v", c.password, err)
		}
	}
	write("S3CRET")
	rotate("other")
	if _, err := s.Now(t.Context()); err == nil || strings.Contains(err.Error(), "S3CRET") {
		t.Errorf("a wrong password: %v", err)
	}
	// A user whose password is in the file; the URL's own is not used.
	e.must(e.rdb.Do(e.ctx(), "ACL", "SETUSER", "voter", "on", ">S3CRET", "~*", "+@all").Err())
	u := e.open(Options{URL: "redis://voter:wrong@" + r.Addr(), PasswordFile: file, Shards: 1})
	if who, err := u.rdb.Do(t.Context(), "ACL", "WHOAMI").Text(); err != nil || who != "voter" {
		t.Errorf("logged in as %q (%v)", who, err)
	}
}

func TestUnixSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "rs") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "a @b.sock")
	e, _ := own(t, 2, "--unixsocket", socket)
	mainPath(t, e.open(Options{URL: "unix://" + strings.ReplaceAll(socket, " ", "%20"), Shards: 2}))
	e.config("requirepass", "p@/ss")
	s := e.open(Options{URL: "unix://:p%40%2Fss@" + strings.ReplaceAll(socket, " ", "%20") + "?db=3", Shards: 2})
	e.must(s.CheckShards(e.ctx()))
	if n := e.rdb.Do(e.ctx(), "EVAL", "redis.call('SELECT', 3) return redis.call('DBSIZE')", 0).Val(); n != int64(1) {
		t.Errorf("database 3 has %v keys", n)
	}
	// The same through a proxy on the socket.
	p := testkit.NewProxy(t, socket)
	if _, err := e.open(Options{URL: strings.Replace(p.URL(), "://", "://:p%40%2Fss@", 1), Shards: 2}).Now(e.ctx()); err != nil {
		t.Error(err)
	}
}

// TLS with a certificate that is good for the name localhost alone.
func TestTLS(t *testing.T) {
	port := freePort(t)
	e, _ := own(t, 1, "--tls-port", port, "--tls-auth-clients", "no",
		"--tls-cert-file", testTLS.cert, "--tls-key-file", testTLS.key, "--tls-ca-cert-file", testTLS.cert)
	mainPath(t, e.open(Options{URL: "rediss://localhost:" + port, Shards: 1}))
	for _, url := range []string{"rediss://localhost:" + port, "redis://localhost:" + port + "?tls=true"} {
		if _, err := e.open(Options{URL: url, Shards: 1}).Now(t.Context()); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	s := e.open(Options{URL: "rediss://127.0.0.1:" + port, Shards: 1, NoRetry: true})
	var unknown x509.HostnameError
	if _, err := s.Now(t.Context()); !errors.As(err, &unknown) {
		t.Errorf("a name that is not in the certificate: %v", err)
	}
}

// testTLS are the files of a certificate that this process trusts: main_test.go
// makes them before anything asks for the system's roots.
var testTLS struct{ cert, key string }

func makeCertificate(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC),
		IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	testTLS.cert, testTLS.key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	return errors.Join(
		os.WriteFile(testTLS.cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600),
		os.WriteFile(testTLS.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600),
		os.Setenv("SSL_CERT_FILE", testTLS.cert))
}

// replicaOf starts a replica and waits until it is in step.
func replicaOf(t *testing.T, e *env, primary *testkit.RedisServer, args ...string) *testkit.RedisServer {
	t.Helper()
	r := testkit.Redis(t, append([]string{"--replicaof", "127.0.0.1 " + strconv.Itoa(primary.Port)}, args...)...)
	inStep(t, e)
	return r
}

func inStep(t *testing.T, e *env) {
	t.Helper()
	testkit.Eventually(t, "the replica is in step", func() bool {
		info, err := e.rdb.Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "state=online")
	})
}

func TestAckReplicas(t *testing.T) {
	e, primary := own(t, 1, "--repl-diskless-sync-delay", "0")
	e.apply("p")
	q := e.Queue(time.Hour, 1, 50*time.Millisecond)
	e.must(q.Register(e.ctx(), 0, "f"))
	if out, err := q.Enqueue(e.ctx(), e.batch(0, "f", 1, ballot{"p", "ana", ""})); err == nil || !strings.Contains(err.Error(), "0 replicas hold the votes") {
		e.Errorf("no replica: %+v, %v", out, err)
	}
	replica := replicaOf(t, e, primary)
	patient := e.Queue(time.Hour, 1, 40*time.Second)
	// The same frame, now with a replica; and the next.
	b := e.batch(0, "f", 1, ballot{"p", "ana", ""})
	if out, err := patient.Enqueue(e.ctx(), b); err != nil || out.Polls[0] != vote.PollAccepted {
		e.Errorf("with a replica: %+v, %v", out, err)
	}
	e.must(e.rdb.ScriptFlush(e.ctx()).Err()) // a pipeline has no fallback of its own
	if out, err := patient.Enqueue(e.ctx(), e.batch(0, "f", 2, ballot{"p", "ana", "k"})); err != nil || out.Polls[0] != vote.PollAccepted {
		e.Errorf("without the script: %+v, %v", out, err)
	}
	there := redis.NewClient(&redis.Options{Addr: replica.Addr()})
	defer there.Close()
	if n, err := there.LLen(e.ctx(), "votes:{0}").Result(); err != nil || n != 2 {
		e.Errorf("the replica has %d frames (%v)", n, err)
	}
	if _, err := patient.Enqueue(e.ctx(), e.batch(0, "stranger", 1, ballot{"p", "ana", ""})); !errors.Is(err, vote.ErrFlusherLost) {
		e.Errorf("no record: %v", err)
	}

	// The replica is frozen: it is connected, and holds nothing new.
	e.must(syscall.Kill(replica.Pid(), syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(replica.Pid(), syscall.SIGCONT) })
	b = e.batch(0, "f", 3, ballot{"p", "ana", "k3"})
	for range 2 {
		if out, err := q.Enqueue(e.ctx(), b); err == nil || !strings.Contains(err.Error(), "0 replicas hold the votes, but ack-replicas is 1") {
			e.Errorf("frozen: %+v, %v", out, err)
		}
	}
	// A new connection has written nothing itself: the repetition must, or WAIT
	// would answer at once for the connection and say nothing of the frame.
	fresh := e.open(Options{URL: primary.URL(), Shards: 1})
	if out, err := fresh.Queue(time.Hour, 1, 50*time.Millisecond).Enqueue(e.ctx(), b); err == nil {
		e.Errorf("frozen, on a new connection: %+v", out)
	}
	// Its key, sent by another api, waits as well.
	again := e.batch(0, "g", 1, ballot{"p", "ana", "k3"})
	e.must(q.Register(e.ctx(), 0, "g"))
	if out, err := fresh.Queue(time.Hour, 1, 50*time.Millisecond).Enqueue(e.ctx(), again); err == nil {
		e.Errorf("frozen, the key again: %+v", out)
	}
	e.must(syscall.Kill(replica.Pid(), syscall.SIGCONT))
	out, err := fresh.Queue(time.Hour, 1, 40*time.Second).Enqueue(e.ctx(), b)
	if err != nil || out.Polls[0] != vote.PollAccepted || out.Keys != nil {
		e.Errorf("thawed: %+v, %v", out, err)
	}
	if n := len(e.readQueue(0)); n != 3 {
		e.Errorf("%d frames, want 3", n)
	}
	e.conserved("p")

	// The replica itself takes no votes.
	s := e.open(Options{URL: replica.URL(), Shards: 1, NoRetry: true})
	if h, err := s.Health(e.ctx()); err != nil || !strings.Contains(h.Problem, "replica") {
		e.Errorf("health %+v (%v)", h, err)
	}
	if out, err := s.Queue(time.Hour, 0, 0).Enqueue(e.ctx(), e.batch(0, "f", 4, ballot{"p", "ana", ""})); err == nil ||
		errors.Is(err, vote.ErrOverloaded) || errors.Is(err, vote.ErrFlusherLost) {
		e.Errorf("votes for a replica: %+v, %v", out, err)
	}
	// The primary is gone; the replica, promoted, knows the frame and its answer.
	primary.Kill()
	e.must(there.Do(e.ctx(), "REPLICAOF", "NO", "ONE").Err())
	if again, err := s.Queue(time.Hour, 0, 0).Enqueue(e.ctx(), b); err != nil || !again.AcceptedAt.Equal(out.AcceptedAt) {
		e.Errorf("after the failover: %+v, %v, want %+v", again, err, out)
	}
	if err := conserved(e.ctx(), s, "p"); err != nil {
		e.Error(err)
	}
}

// node is a server of a Redis Cluster.
type node struct {
	*testkit.RedisServer
	rdb *redis.Client
	bus string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{bus: freePort(t)}
	n.RedisServer = testkit.Redis(t, "--cluster-enabled", "yes", "--cluster-port", n.bus,
		"--cluster-node-timeout", "60000", "--repl-diskless-sync-delay", "0")
	n.rdb = n.Client()
	return n
}

// cluster makes a Redis Cluster of three masters that share out the slots.
func cluster(t *testing.T) []*node {
	t.Helper()
	var nodes []*node
	slots := []int{0, 5461, 10923, 16384}
	for i := range 3 {
		n := newNode(t)
		if err := n.rdb.Do(t.Context(), "CLUSTER", "ADDSLOTSRANGE", slots[i], slots[i+1]-1).Err(); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	for _, n := range nodes[1:] {
		meet(t, nodes[0], n)
	}
	for _, n := range nodes {
		testkit.Eventually(t, "the cluster stands", func() bool {
			info, err := n.rdb.ClusterInfo(t.Context()).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:16384") &&
				strings.Contains(info, "cluster_size:3")
		})
	}
	return nodes
}

func meet(t *testing.T, a, b *node) {
	t.Helper()
	if err := a.rdb.Do(t.Context(), "CLUSTER", "MEET", "127.0.0.1", b.Port, b.bus).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestCluster(t *testing.T) {
	nodes := cluster(t)
	e := &env{T: t}
	var err error
	if e.codec, err = vote.NewCodec(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.codec.Close)
	e.Store = e.open(Options{URL: "redis-cluster://" + nodes[0].Addr() + "," + nodes[1].Addr(), Shards: 4})
	mainPath(t, e.Store)
	for i, n := range nodes {
		if keys, err := n.rdb.DBSize(t.Context()).Result(); err != nil || keys == 0 {
			t.Errorf("master %d has %d keys (%v)", i, keys, err)
		}
	}
	// The worst of the masters is what counts.
	if err := nodes[1].rdb.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if h, err := e.Health(t.Context()); err != nil || h.MaxMemory != 1 || h.UsedMemory <= 1 {
		t.Errorf("health %+v (%v)", h, err)
	}
	if err := nodes[2].rdb.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err(); err != nil {
		t.Fatal(err)
	}
	if h, err := e.Health(t.Context()); err != nil || !strings.Contains(h.Problem, "allkeys-lru") {
		t.Errorf("health %+v (%v)", h, err)
	}
	for _, n := range nodes[1:] {
		for k, v := range map[string]string{"maxmemory": "0", "maxmemory-policy": "noeviction"} {
			if err := n.rdb.ConfigSet(t.Context(), k, v).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}

	// Shard 0 stands on the third master. It gets a replica, which takes over.
	const shard = 0
	replica := newNode(t)
	meet(t, nodes[0], replica)
	id := nodes[2].rdb.Do(t.Context(), "CLUSTER", "MYID").Val()
	testkit.Eventually(t, "the replica follows", func() bool {
		return replica.rdb.Do(t.Context(), "CLUSTER", "REPLICATE", id).Err() == nil
	})
	testkit.Eventually(t, "the replica is in step", func() bool {
		info, err := nodes[2].rdb.Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "state=online")
	})
	testkit.Eventually(t, "all know the replica", func() bool {
		for _, n := range append(nodes, replica) {
			text, err := n.rdb.ClusterNodes(t.Context()).Result()
			if err != nil || strings.Count(text, "connected") != 4 || strings.Count(text, "slave") != 1 || strings.Contains(text, "handshake") {
				return false
			}
		}
		return true
	})
	e.apply("r")
	acked := e.Queue(time.Hour, 1, 40*time.Second)
	e.must(acked.Register(e.ctx(), shard, "g"))
	b := e.batch(shard, "g", 1, some("r", 9)...)
	out, err := acked.Enqueue(e.ctx(), b)
	if err != nil || out.Polls[0] != vote.PollAccepted {
		t.Fatalf("with a replica: %+v, %v", out, err)
	}
	nodes[2].Kill()
	if err := replica.rdb.Do(t.Context(), "CLUSTER", "FAILOVER", "TAKEOVER").Err(); err != nil {
		t.Fatal(err)
	}
	// The same store finds the new master by itself, for both ways to send.
	impatient := e.Queue(time.Hour, 1, time.Millisecond)
	testkit.Eventually(t, "the frame's repetition reaches the new master", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := impatient.Enqueue(ctx, b)
		return err != nil && strings.Contains(err.Error(), "0 replicas hold the votes")
	})
	testkit.Eventually(t, "the frame's repetition is answered", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		again, err := e.queue().Enqueue(ctx, b)
		return err == nil && again.AcceptedAt.Equal(out.AcceptedAt)
	})
	e.count(shard)
	e.archiveAll(shard)
	if err := conserved(t.Context(), e.Store, "p", "q", "r"); err != nil {
		t.Error(err)
	}
	if r, err := e.Results(t.Context(), "r"); err != nil || r.Ledger.Archived != 9 {
		t.Errorf("results %+v (%v)", r, err)
	}
}
