package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"paredao/internal/audit"
	"paredao/internal/lab"
	"paredao/internal/ledger/child"
)

// startPatience bounds each wait for a process to come up or go down,
// drainPatience that for a queue to run empty.
const (
	startPatience = time.Minute
	drainPatience = 5 * time.Minute
)

// The poll that all systems have.
const poll = "bench"

// options are its options, with the weights with which they are drawn.
var options = []struct {
	id     string
	weight int
}{{"ana", 50}, {"bruno", 30}, {"carla", 20}}

func weights() string {
	var all []string
	for _, o := range options {
		all = append(all, o.id+"="+strconv.Itoa(o.weight))
	}
	return strings.Join(all, ",")
}

func optionIDs() string {
	var all []string
	for _, o := range options {
		all = append(all, o.id)
	}
	return strings.Join(all, ",")
}

const (
	votesPath   = "/polls/" + poll + "/votes"
	resultsPath = "/polls/" + poll + "/results"
)

// The queues, as the contract (ours) and the peer name them.
const (
	ourQueue   = "votes:{0}"
	ourArchive = "archive:{0}"
	naiveQueue = "naive:votes"
	naiveTally = "naive:tally:" + poll
)

// process is a running part of a system under test.
type process struct {
	name string
	*lab.Daemon
}

// system is what one run measures: an api and what it needs, each run's anew.
type system struct {
	spec  spec
	bin   string
	dir   string
	redis *lab.Redis // nil for bare
	rdb   *redis.Client
	runID string
	procs []*process
	url   string // of the api
	// sent is what the generator knows to be taken, unknown how many more may
	// have been: wrk leaves without the last answers.
	sent, unknown int64
}

// startSystem starts what a run needs, and sees that it takes a vote. After an
// error nothing of it runs.
func startSystem(ctx context.Context, bin, dir string, sp spec) (_ *system, err error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	s := &system{spec: sp, bin: bin, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.end(true))
		}
	}()
	if sp.system != bare {
		if err := s.startRedis(ctx); err != nil {
			return nil, err
		}
	}
	switch sp.system {
	case bare:
		err = s.start(bare, bare, "--poll="+poll, "--options="+optionIDs())
	case naive:
		err = s.start("api", naive, "api", "--poll="+poll, "--options="+optionIDs(), "--redis-url="+s.redis.URL())
	case ours:
		err = s.startOurs(ctx)
	}
	if err != nil {
		return nil, err
	}
	addr, err := s.proc("api", bare).Public(ctx)
	if err != nil {
		return nil, err
	}
	s.url = "http://" + addr
	return s, s.probe(ctx)
}

func (s *system) startRedis(ctx context.Context) (err error) {
	// A rewrite of the file is a fork in the middle of a run, at another moment
	// in each.
	s.redis, err = lab.StartRedis(ctx, s.dir, "--appendonly", "yes", "--appendfsync", s.spec.fsync, "--auto-aof-rewrite-percentage", "0")
	if err != nil {
		return err
	}
	s.rdb = redis.NewClient(&redis.Options{Addr: s.redis.Addr(), MaxRetries: -1})
	s.runID, err = s.identity(ctx)
	return err
}

// start starts one process of the system on a free port.
func (s *system) start(name, binary string, args ...string) error {
	if name == "api" || name == bare {
		args = append(args, "--listen=127.0.0.1:0")
	}
	d, err := lab.StartDaemon(child.Spec{Name: s.spec.id + " " + name, Path: filepath.Join(s.bin, binary), Args: args})
	if err != nil {
		return fmt.Errorf("%w (%s)", err, howToBuild)
	}
	s.procs = append(s.procs, &process{name, d})
	return nil
}

func (s *system) startOurs(ctx context.Context) error {
	file := filepath.Join(s.dir, "polls.yaml")
	var b strings.Builder
	fmt.Fprintf(&b, "polls:\n  - id: %s\n    title: Benchmark\n    options:\n", poll)
	for _, o := range options {
		fmt.Fprintf(&b, "      - {id: %q}\n", o.id)
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return err
	}
	args := []string{"--polls-file=" + file}
	if s.spec.varied {
		args = append(args, "--trusted-proxies=127.0.0.0/8")
	}
	if err := s.startDaemon("api", args...); err != nil {
		return err
	}
	if s.spec.whole {
		if err := s.startDaemon("consumer"); err != nil {
			return err
		}
		// In less time than a run lasts, or nothing would be archived in it.
		if err := s.startDaemon("archiver", "--archive-url="+s.archiveURL(), "--archive-max-age=1s"); err != nil {
			return err
		}
	}
	for _, p := range s.procs {
		if err := p.Ready(ctx); err != nil {
			return err
		}
	}
	addr, err := s.proc("api").Public(ctx)
	if err != nil {
		return err
	}
	// Ready it may be before it has applied the polls file.
	for {
		if _, err = child.Get(ctx, "http://"+addr+"/polls/"+poll); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the api does not know the poll: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// startDaemon starts one of the real binaries.
func (s *system) startDaemon(name string, args ...string) error {
	return s.start(name, name, slices.Concat([]string{
		"--redis-url=" + s.redis.URL(), "--admin-listen=127.0.0.1:0", "--log-format=json",
	}, args)...)
}

func (s *system) archiveURL() string { return "file:" + filepath.Join(s.dir, "archive") }

// proc is the process of the first name that there is; nil if there is none.
func (s *system) proc(names ...string) *process {
	for _, name := range names {
		for _, p := range s.procs {
			if p.name == name {
				return p
			}
		}
	}
	return nil
}

// probe posts one vote and looks at the whole answer, which wrk does not.
func (s *system) probe(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+votesPath, strings.NewReader(`{"option":"ana"}`))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("first vote: %w", err)
	}
	defer resp.Body.Close()
	var got struct {
		ID, Poll, Option string
		AcceptedAt       time.Time `json:"accepted_at"`
	}
	err = json.NewDecoder(resp.Body).Decode(&got)
	if err != nil || resp.StatusCode != http.StatusAccepted || got.ID == "" || got.Poll != poll || got.Option != "ana" || got.AcceptedAt.IsZero() {
		return errors.Join(fmt.Errorf("first vote: answered %s, %+v", resp.Status, got), err)
	}
	s.sent++
	return nil
}

// identity is the run_id of the Redis behind the address, which must be the one
// that was started.
func (s *system) identity(ctx context.Context) (string, error) {
	info, err := s.rdb.InfoMap(ctx, "server").Result()
	if err != nil {
		return "", fmt.Errorf("redis: %w", err)
	}
	return identityOf(info["Server"], s.redis.Pid())
}

func identityOf(server map[string]string, pid int) (string, error) {
	if got := server["process_id"]; got != strconv.Itoa(pid) || server["run_id"] == "" {
		return "", fmt.Errorf("redis was not the one that was started: process %s answers, not %d", got, pid)
	}
	return server["run_id"], nil
}

// sameRedis sees that Redis is still the process that the run began with: not
// another one, and not that one started again.
func (s *system) sameRedis(ctx context.Context) error {
	if s.redis == nil {
		return nil
	}
	now, err := s.identity(ctx)
	if err == nil && now != s.runID {
		err = fmt.Errorf("redis was not the one that was started: its run_id was %s and is %s", s.runID, now)
	}
	return err
}

// times is the processor time of each process so far, in seconds.
func (s *system) times() (map[string]float64, error) {
	pids := map[string]int{}
	for _, p := range s.procs {
		if p.Running() {
			pids[p.name] = p.Pid()
		}
	}
	if s.redis != nil {
		pids["redis"] = s.redis.Pid()
	}
	out := map[string]float64{}
	for name, pid := range pids {
		t, err := processTime(pid)
		if err != nil {
			return nil, fmt.Errorf("processor time of %s: %w", name, err)
		}
		out[name] = t.Seconds()
	}
	return out, nil
}

// stop ends a process in an orderly way: what it had in hand is done then.
func (s *system) stop(name string) error {
	p := s.proc(name)
	if p == nil || !p.Running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), startPatience)
	defer cancel()
	code, err := p.Term(ctx)
	if err == nil && code != 0 {
		err = fmt.Errorf("%s ended with %d after SIGTERM", p.Name(), code)
	}
	return err
}

// alive sees that nothing has ended by itself.
func (s *system) alive() error {
	for _, p := range s.procs {
		if p.Died() {
			return fmt.Errorf("%s has ended by itself, with %d: %s", p.Name(), p.ExitCode(), p.Log().Tail(1000))
		}
	}
	if s.redis != nil && !s.redis.Running() {
		return fmt.Errorf("redis-server has ended by itself: %s", s.redis.Log())
	}
	return nil
}

// audit runs the operator's audit. That it finds a difference is an error.
func (s *system) audit(ctx context.Context, recount bool) (audit.PollAudit, error) {
	args := []string{"audit", poll, "-o", "json", "--redis-url=" + s.redis.URL(), "--archive-url=" + s.archiveURL()}
	if recount {
		args = append(args, "--recount")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, "tally"), args...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return audit.PollAudit{}, fmt.Errorf("tally audit: %w: %s", err, strings.TrimSpace(said.String()))
	}
	var r audit.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return audit.PollAudit{}, fmt.Errorf("tally audit: %w", err)
	}
	if len(r.Polls) != 1 || !r.OK() || !r.Polls[0].OK {
		return audit.PollAudit{}, fmt.Errorf("tally audit: %s", out.String())
	}
	return r.Polls[0], nil
}

// end stops everything, producers first, and Redis at last.
func (s *system) end(failed bool) error {
	var errs []error
	for _, p := range s.procs {
		errs = append(errs, s.stop(p.name))
		if failed {
			fmt.Fprint(os.Stderr, p.Tail(2000))
		}
	}
	if s.rdb != nil {
		errs = append(errs, s.rdb.Close())
	}
	if s.redis != nil {
		s.redis.Kill()
	}
	return errors.Join(errs...)
}
