package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// sentinelMaster is the name that the sentinels know their primary by.
const sentinelMaster = "paredao"

// SentinelParams say how a primary, its replicas and their sentinels are set
// up.
type SentinelParams struct {
	// Dir is where all their files go.
	Dir string
	// Replicas of the primary; 0 means 1.
	Replicas int
	// DownAfter is for how long the primary must be silent, FailoverTimeout how
	// long a failover may take. 0 means 1 s and 5 s.
	DownAfter, FailoverTimeout time.Duration
	// Redis are more settings of every server, as "--appendfsync", "always".
	Redis []string
}

// Sentinel is a primary with replicas that three sentinels watch. Its servers
// keep an append-only file and evict nothing.
type Sentinel struct {
	servers   []*Redis
	sentinels []*sentinel
	downAfter time.Duration
}

// StartSentinel starts them and returns when the replicas are in step and the
// sentinels know of them and of each other.
func StartSentinel(ctx context.Context, p SentinelParams) (*Sentinel, error) {
	if p.Replicas == 0 {
		p.Replicas = 1
	}
	if p.DownAfter == 0 {
		p.DownAfter = time.Second
	}
	if p.FailoverTimeout == 0 {
		p.FailoverTimeout = 5 * time.Second
	}
	s := &Sentinel{downAfter: p.DownAfter}
	if err := s.start(ctx, p); err != nil {
		s.End()
		return nil, fmt.Errorf("sentinel: %w", err)
	}
	return s, nil
}

func (s *Sentinel) start(ctx context.Context, p SentinelParams) error {
	for i := range 1 + p.Replicas {
		args := append([]string{"--appendonly", "yes", "--repl-diskless-sync-delay", "0"}, p.Redis...)
		if i > 0 {
			args = append(args, "--replicaof", "127.0.0.1 "+strconv.Itoa(s.servers[0].Port))
		}
		dir, err := subdir(p.Dir, "redis-"+strconv.Itoa(i))
		if err != nil {
			return err
		}
		r, err := StartRedis(ctx, dir, args...)
		if err != nil {
			return err
		}
		s.servers = append(s.servers, r)
	}
	for i := range 3 {
		dir, err := subdir(p.Dir, "sentinel-"+strconv.Itoa(i))
		if err != nil {
			return err
		}
		one, err := startSentinel(ctx, dir, s.servers[0].Port, p)
		if err != nil {
			return err
		}
		s.sentinels = append(s.sentinels, one)
	}
	return s.Settled(ctx)
}

// URL is the redis-url of the whole.
func (s *Sentinel) URL() string { return s.urlOf(s.sentinels) }

// OneURL is a redis-url that names one of the sentinels, so that clients talk to
// that one as long as it answers. They learn of the others from it.
func (s *Sentinel) OneURL(i int) string { return s.urlOf(s.sentinels[i : i+1]) }

func (s *Sentinel) urlOf(sentinels []*sentinel) string {
	var hosts []string
	for _, one := range sentinels {
		hosts = append(hosts, one.addr)
	}
	return "redis-sentinel://" + strings.Join(hosts, ",") + "/" + sentinelMaster
}

// Servers are the primary and the replicas, in no order that says which.
func (s *Sentinel) Servers() []*Redis { return s.servers }

// Master is the server that the sentinels call the primary, which may be down.
func (s *Sentinel) Master(ctx context.Context) (*Redis, error) {
	var errs []error
	for _, one := range s.sentinels {
		r, err := s.masterOf(ctx, one)
		if err == nil {
			return r, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no sentinel names the primary: %w", errors.Join(errs...))
}

func (s *Sentinel) masterOf(ctx context.Context, one *sentinel) (*Redis, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	addr, err := one.client.GetMasterAddrByName(ctx, sentinelMaster).Result()
	if err != nil {
		return nil, err
	}
	return byAddr(s.servers, net.JoinHostPort(addr[0], addr[1]))
}

// KillMaster kills the primary as kill -9 does, and returns it.
func (s *Sentinel) KillMaster(ctx context.Context) (*Redis, error) {
	r, err := s.Master(ctx)
	if err != nil {
		return nil, err
	}
	r.Kill()
	return r, nil
}

// Restart starts a killed server with the files that it left. It takes itself
// for what it was, and so for the primary if it was that; the sentinels make it
// a replica, after some seconds.
func (s *Sentinel) Restart(ctx context.Context, r *Redis) error {
	// A server that was promoted must not come back as the replica that it was
	// started as; its configuration, which Sentinel rewrites, would say so.
	if i := slices.Index(r.args, "--replicaof"); i >= 0 {
		master, err := s.Master(ctx)
		if err != nil {
			return err
		}
		r.args = slices.Delete(slices.Clone(r.args), i, i+2)
		if master != r {
			r.args = append(r.args, "--replicaof", "127.0.0.1 "+strconv.Itoa(master.Port))
		}
	}
	return r.Start(ctx)
}

// Failover has the sentinels promote a replica while the primary is well. It
// returns when they have begun. The primary takes votes for a second or two
// until it is told, and loses them; unless writes are paused before.
func (s *Sentinel) Failover(ctx context.Context, pauseWrites bool) error {
	if pauseWrites {
		const pause = 10 * time.Second // until it is a replica
		master, err := s.Master(ctx)
		if err != nil {
			return err
		}
		c := redis.NewClient(&redis.Options{Addr: master.Addr(), MaxRetries: -1})
		defer func() { _ = c.Close() }()
		if err := c.Do(ctx, "CLIENT", "PAUSE", pause.Milliseconds(), "WRITE").Err(); err != nil {
			return err
		}
		if err := s.caughtUp(ctx, master); err != nil {
			return err
		}
	}
	return until(ctx, "the sentinels agree to a failover", func(ctx context.Context) error {
		return s.sentinels[0].client.Failover(ctx, sentinelMaster).Err()
	})
}

// caughtUp waits until all replicas have what the primary has.
func (s *Sentinel) caughtUp(ctx context.Context, master *Redis) error {
	return until(ctx, "the replicas have everything", func(ctx context.Context) error {
		m, err := replication(ctx, master)
		if err != nil {
			return err
		}
		for i := range s.servers {
			if r := m["slave"+strconv.Itoa(i)]; r != "" && !strings.Contains(r, "offset="+m["master_repl_offset"]+",") {
				return fmt.Errorf("the primary is at %s, a replica: %s", m["master_repl_offset"], r)
			}
		}
		return nil
	})
}

// Promoted waits until the sentinels name another primary than old, and it
// takes writes.
func (s *Sentinel) Promoted(ctx context.Context, old *Redis) (*Redis, error) {
	var master *Redis
	err := until(ctx, "another primary", func(ctx context.Context) error {
		agree := 0
		for _, one := range s.sentinels {
			if got, err := s.masterOf(ctx, one); err == nil && got != old {
				master = got
				agree++
			}
		}
		if agree < 2 { // one may be away, too
			return fmt.Errorf("%d sentinels say so", agree)
		}
		info, err := replication(ctx, master)
		if err == nil && info["role"] != "master" {
			err = errors.New("it is a " + info["role"])
		}
		return err
	})
	return master, err
}

// Demoted waits until a server that was the primary takes no more writes: it is
// a replica, or has none left where min-replicas-to-write asks for one. (That it
// is a replica it is told eight seconds after its clients are.)
func (s *Sentinel) Demoted(ctx context.Context, old *Redis) error {
	c := redis.NewClient(&redis.Options{Addr: old.Addr(), MaxRetries: -1, ReadTimeout: time.Second})
	defer func() { _ = c.Close() }()
	return untilEvery(ctx, 2*time.Millisecond, "the old primary takes no writes", func(ctx context.Context) error {
		err := c.Set(ctx, "lab:probe", 1, time.Millisecond).Err()
		switch {
		case err == nil:
			return errors.New("it does")
		case strings.HasPrefix(err.Error(), "READONLY"), strings.HasPrefix(err.Error(), "NOREPLICAS"):
			return nil
		}
		return err
	})
}

// Settled waits until every server runs, all but one as replicas that are in
// step, and all sentinels know it.
func (s *Sentinel) Settled(ctx context.Context) error {
	return until(ctx, "primary, replicas and sentinels are settled", func(ctx context.Context) error {
		var master *Redis
		for _, one := range s.sentinels {
			got, err := s.masterOf(ctx, one)
			if err != nil {
				return err
			}
			if master != nil && got != master {
				return errors.New("the sentinels do not agree")
			}
			master = got
			info, err := one.client.Master(ctx, sentinelMaster).Result()
			if err != nil {
				return err
			}
			if info["flags"] != "master" || info["num-slaves"] != strconv.Itoa(len(s.servers)-1) ||
				info["num-other-sentinels"] != strconv.Itoa(len(s.sentinels)-1) {
				return fmt.Errorf("a sentinel says %s, %s replicas, %s others", info["flags"], info["num-slaves"], info["num-other-sentinels"])
			}
			replicas, err := one.client.Replicas(ctx, sentinelMaster).Result()
			if err != nil {
				return err
			}
			for _, r := range replicas {
				if r["flags"] != "slave" || r["master-link-status"] != "ok" {
					return fmt.Errorf("a sentinel says of a replica: %s, its link is %s", r["flags"], r["master-link-status"])
				}
			}
		}
		return inStep(ctx, master, s.servers)
	})
}

// SignalSentinel sends a signal to one of the three sentinels, as SIGSTOP.
func (s *Sentinel) SignalSentinel(i int, sig syscall.Signal) error {
	return s.sentinels[i].cmd.Process.Signal(sig)
}

// End ends all of it.
func (s *Sentinel) End() {
	for _, one := range s.sentinels {
		one.end()
	}
	for _, r := range s.servers {
		r.Kill()
	}
}

// sentinel is one sentinel's process.
type sentinel struct {
	addr   string
	cmd    *exec.Cmd
	done   chan struct{}
	client *redis.SentinelClient
}

// startSentinel starts one and returns when it answers.
func startSentinel(ctx context.Context, dir string, master int, p SentinelParams) (*sentinel, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("%w; `make tools` installs it", err)
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "sentinel.conf") // which it writes its state to
	text := fmt.Sprintf(`port %d
bind 127.0.0.1
dir %s
logfile %s
sentinel monitor %[4]s 127.0.0.1 %[5]d 2
sentinel down-after-milliseconds %[4]s %[6]d
sentinel failover-timeout %[4]s %[7]d
`, port, dir, filepath.Join(dir, "sentinel.log"), sentinelMaster, master, p.DownAfter.Milliseconds(), p.FailoverTimeout.Milliseconds())
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(bin, conf, "--sentinel")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &sentinel{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended does not matter
		close(s.done)
	}()
	s.client = redis.NewSentinelClient(&redis.Options{Addr: s.addr, MaxRetries: -1})
	err = until(ctx, "the sentinel answers", func(ctx context.Context) error {
		select {
		case <-s.done:
			return fmt.Errorf("it ended at once: %w", errGaveUp)
		default:
			return s.client.Ping(ctx).Err()
		}
	})
	if err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

func (s *sentinel) end() {
	_ = s.cmd.Process.Kill() // it may have ended
	<-s.done
	_ = s.client.Close()
}

// errGaveUp ends until early.
var errGaveUp = errors.New("no more attempts")

// settlePatience bounds each wait for servers to agree. A returning primary
// alone takes Sentinel ten seconds.
const settlePatience = 2 * time.Minute

// until tries until there is no error. It waits for a state, never for a time.
func until(ctx context.Context, what string, try func(context.Context) error) error {
	return untilEvery(ctx, 20*time.Millisecond, what, try)
}

func untilEvery(ctx context.Context, every time.Duration, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, settlePatience)
	defer cancel()
	for {
		err := try(ctx)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errGaveUp):
			return fmt.Errorf("%s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, err, ctx.Err())
		case <-time.After(every):
		}
	}
}

func subdir(dir, name string) (string, error) {
	dir = filepath.Join(dir, name)
	return dir, os.MkdirAll(dir, 0o700)
}

func byAddr(servers []*Redis, addr string) (*Redis, error) {
	i := slices.IndexFunc(servers, func(r *Redis) bool { return r.Addr() == addr })
	if i < 0 {
		return nil, fmt.Errorf("no server is at %s", addr)
	}
	return servers[i], nil
}

// replication is what a server says of its role.
func replication(ctx context.Context, r *Redis) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1})
	defer func() { _ = c.Close() }()
	info, err := c.InfoMap(ctx, "replication").Result()
	if err != nil {
		return nil, err
	}
	return info["Replication"], nil
}

// inStep tells whether all other servers are replicas of master that have what
// it has.
func inStep(ctx context.Context, master *Redis, servers []*Redis) error {
	m, err := replication(ctx, master)
	if err != nil {
		return err
	}
	if m["role"] != "master" {
		return fmt.Errorf("the primary is a %s", m["role"])
	}
	online := 0
	for i := range servers {
		if strings.Contains(m["slave"+strconv.Itoa(i)], "state=online") {
			online++
		}
	}
	if online != len(servers)-1 {
		return fmt.Errorf("%d of %d replicas are online", online, len(servers)-1)
	}
	for _, r := range servers {
		if r == master {
			continue
		}
		info, err := replication(ctx, r)
		if err != nil {
			return err
		}
		if info["role"] != "slave" || info["master_link_status"] != "up" || info["master_port"] != strconv.Itoa(master.Port) {
			return fmt.Errorf("a replica is a %s of %s, its link is %s", info["role"], info["master_port"], info["master_link_status"])
		}
	}
	return nil
}
