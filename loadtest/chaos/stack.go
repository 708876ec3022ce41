package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"paredao/internal/blobstore"
	"paredao/internal/lab"
	"paredao/internal/ledger"
	"paredao/internal/ledger/child"
	"paredao/internal/redisstore"
	"paredao/internal/vote"
)

// startPatience bounds each wait for a process to come up or go down.
const startPatience = time.Minute

// stackParams say what to start.
type stackParams struct {
	// bin is the folder of the binaries, dir the folder of the run, root the
	// project's, in which Azurite is.
	bin, dir, root string
	shards         int
	fsync          string // always, everysec, no
	redisArgs      []string
	redisEnv       []string
	// redisURL, if set, is what the daemons use; no redis-server is started
	// (Sentinel, Cluster).
	redisURL                   string
	apis, consumers, archivers int
	azurite                    bool   // else a folder
	archiveDir                 string // the folder, if not one in dir
	apiArgs                    []string
	consumerArgs, archiverArgs []string
	// choices are the polls to define, and their options.
	choices []ledger.Choice
	// proxied puts a proxy of its own between each kind of daemon and Redis,
	// and one before Azurite.
	proxied bool
}

// stack is the processes of a run.
type stack struct {
	p stackParams
	// redis is nil with redisURL.
	redis                      *lab.Redis
	azurite                    *lab.Azurite // nil with a folder
	apis, consumers, archivers []*lab.Daemon
	// store goes straight to Redis and blobs straight to the archive, through
	// no proxy.
	store      *redisstore.Store
	blobs      blobstore.Store
	redisURL   string
	archiveURL string
	// env gives tally access to the archive.
	env []string

	links     map[string]*link // by kind of daemon, if proxied
	blobProxy *blobProxy       // if proxied, and in Azurite
}

// Kinds of daemons, and their binaries.
const (
	api      = "api"
	consumer = "consumer"
	archiver = "archiver"
)

// startStack starts everything and waits until it is ready. After an error
// nothing of it runs.
func startStack(ctx context.Context, p stackParams) (_ *stack, err error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	s := &stack{p: p, redisURL: p.redisURL, links: map[string]*link{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.end(context.WithoutCancel(ctx), true))
		}
	}()
	if err := s.startRedis(ctx); err != nil {
		return nil, err
	}
	daemonEnv, err := s.startArchive(ctx)
	if err != nil {
		return nil, err
	}
	if s.store, err = redisstore.Open(redisstore.Options{URL: s.redisURL, Shards: p.shards}); err != nil {
		return nil, err
	}
	if err := s.definePolls(ctx); err != nil {
		return nil, err
	}
	for _, kind := range []struct {
		name string
		n    int
		args []string
		all  *[]*lab.Daemon
	}{
		{api, p.apis, p.apiArgs, &s.apis},
		{consumer, p.consumers, p.consumerArgs, &s.consumers},
		{archiver, p.archivers, slices.Concat([]string{"--archive-url=" + s.archiveURL, "--archive-max-age=5s"}, p.archiverArgs), &s.archivers},
	} {
		for range kind.n {
			d, err := s.daemon(kind.name, daemonEnv, kind.args)
			if err != nil {
				return nil, err
			}
			*kind.all = append(*kind.all, d)
		}
	}
	for _, d := range s.daemons() {
		if err := d.Ready(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// daemons are all of them, in the order in which they end: producers first.
func (s *stack) daemons() []*lab.Daemon { return slices.Concat(s.apis, s.consumers, s.archivers) }

func (s *stack) startRedis(ctx context.Context) error {
	if s.redisURL != "" {
		return nil
	}
	dir := filepath.Join(s.p.dir, "redis")
	err := os.MkdirAll(dir, 0o755)
	if err != nil {
		return err
	}
	s.redis, err = lab.StartRedisEnv(ctx, s.p.redisEnv, dir,
		slices.Concat([]string{"--appendonly", "yes", "--appendfsync", s.p.fsync}, s.p.redisArgs)...)
	if err != nil {
		return err
	}
	s.redisURL = s.redis.URL()
	if !s.p.proxied {
		return nil
	}
	for _, kind := range []string{api, consumer, archiver} {
		if s.links[kind], err = newLink(s.redis.Addr()); err != nil {
			return err
		}
	}
	return nil
}

// startArchive returns the environment that the daemons need for it.
func (s *stack) startArchive(ctx context.Context) (env []string, err error) {
	var creds blobstore.AzureCredentials
	if s.p.azurite {
		dir := filepath.Join(s.p.dir, "azurite")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if s.azurite, err = lab.StartAzurite(s.p.root, dir); err != nil {
			return nil, err
		}
		s.archiveURL = "azblob://votes"
		creds.ConnectionString = s.azurite.ConnectionString()
		const variable = "AZURE_STORAGE_CONNECTION_STRING="
		s.env = []string{variable + creds.ConnectionString}
		env = s.env
		if s.p.proxied {
			if s.blobProxy, err = startBlobProxy(s.azurite.Host()); err != nil {
				return nil, err
			}
			env = []string{variable + lab.AzuriteConnection(s.blobProxy.addr())}
		}
	} else {
		dir := s.p.archiveDir
		if dir == "" {
			dir = filepath.Join(s.p.dir, "archive")
		}
		s.archiveURL = "file:" + dir
	}
	s.blobs, err = blobstore.Open(ctx, s.archiveURL, creds)
	return env, err
}

// definePolls opens the polls of the choices.
func (s *stack) definePolls(ctx context.Context) error {
	if err := s.store.CheckShards(ctx); err != nil {
		return err
	}
	for _, p := range pollsOf(s.p.choices) {
		if _, err := s.store.ApplyPoll(ctx, p, vote.Window{}); err != nil {
			return fmt.Errorf("define poll %s: %w", p.ID, err)
		}
	}
	return nil
}

// pollsOf are the polls that have the choices.
func pollsOf(choices []ledger.Choice) []vote.Poll {
	var polls []vote.Poll
	for _, c := range choices {
		at := slices.IndexFunc(polls, func(p vote.Poll) bool { return p.ID == c.Poll })
		if at < 0 {
			at = len(polls)
			polls = append(polls, vote.Poll{ID: c.Poll, Title: c.Poll, Results: vote.ResultsLive})
		}
		polls[at].Options = append(polls[at].Options, vote.Option{ID: c.Option, Name: c.Option})
	}
	return polls
}

func (s *stack) daemon(name string, env, args []string) (*lab.Daemon, error) {
	url := s.redisURL
	if l := s.links[name]; l != nil {
		url = l.url()
	}
	all := []string{
		"--redis-url=" + url, "--queue-shards=" + strconv.Itoa(s.p.shards),
		"--admin-listen=127.0.0.1:0", "--log-format=json",
	}
	if name == api {
		port, err := lab.FreePort()
		if err != nil {
			return nil, err
		}
		all = append(all, fmt.Sprintf("--listen=127.0.0.1:%d", port))
	}
	d, err := lab.StartDaemon(child.Spec{
		Name: name, Path: filepath.Join(s.p.bin, name), Env: env,
		Args: append(all, args...), // the last of two equal flags counts
	})
	if err != nil {
		return nil, fmt.Errorf("%w (make build makes it)", err)
	}
	return d, nil
}

// apiURLs are the base URLs of the apis, straight to each.
func (s *stack) apiURLs(ctx context.Context) ([]string, error) {
	var urls []string
	for _, d := range s.apis {
		addr, err := d.Public(ctx)
		if err != nil {
			return nil, err
		}
		urls = append(urls, "http://"+addr)
	}
	return urls, nil
}

// tally runs the operator's tool and returns what it prints on stdout; an exit
// code but 0 is an *exec.ExitError.
func (s *stack) tally(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.p.bin, "tally"), append(args, "--redis-url="+s.redisURL,
		"--queue-shards="+strconv.Itoa(s.p.shards), "--archive-url="+s.archiveURL)...)
	cmd.Env = append(cmd.Environ(), s.env...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.Bytes(), fmt.Errorf("%w: %s", err, strings.TrimSpace(said.String()))
	}
	return out.Bytes(), nil
}

// healed waits until every daemon says that it is ready, with nothing restarted
// for it.
func (s *stack) healed(ctx context.Context) error {
	const patience = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, d := range s.daemons() {
		if err := d.Ready(ctx); err != nil {
			return fmt.Errorf("after the last fault: %w", err)
		}
	}
	return nil
}

// allServe sees that each api takes votes again, while they come: one that had
// given up would be hidden behind the others.
func (s *stack) allServe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	const accepted = "paredao_votes_accepted_total"
	for _, d := range s.apis {
		before, err := d.Metric(ctx, accepted)
		if err != nil {
			return err
		}
		for now := before; now <= before; {
			if !wait(ctx, 50*time.Millisecond) {
				return fmt.Errorf("%s takes no votes after the last fault", d.Name())
			}
			if now, err = d.Metric(ctx, accepted); err != nil {
				return err
			}
		}
	}
	return nil
}

// well sees, while votes come, that all daemons are ready and all apis serve.
func (s *stack) well(ctx context.Context) error {
	if err := s.healed(ctx); err != nil {
		return err
	}
	return s.allServe(ctx)
}

// end stops everything: the daemons in an orderly way, then what they need.
// Those that were ended on purpose are left alone; one that has ended by itself
// is an error. After a failure it shows the
// ends of the logs.
func (s *stack) end(ctx context.Context, failed bool) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	var errs []error
	for _, d := range s.daemons() {
		var err error
		if d.Running() {
			_ = d.Cont() // a paused one can't end
			var code int
			if code, err = d.Term(ctx); err == nil && code != 0 {
				err = fmt.Errorf("%s ended with %d after SIGTERM", d.Name(), code)
			}
		}
		if err == nil && d.Died() {
			err = fmt.Errorf("%s had ended by itself, with %d", d.Name(), d.ExitCode())
		}
		errs = append(errs, err)
		if failed || err != nil {
			fmt.Fprint(os.Stderr, d.Tail(2000))
		}
	}
	if s.store != nil {
		errs = append(errs, s.store.Close())
	}
	for _, l := range s.links {
		l.close()
	}
	if s.redis != nil {
		s.redis.Kill()
		if failed {
			text := s.redis.Log()
			fmt.Fprintf(os.Stderr, "log of redis-server:\n%s\n", text[max(0, len(text)-2000):])
		}
	}
	if s.blobProxy != nil {
		errs = append(errs, s.blobProxy.close())
	}
	if s.azurite != nil {
		s.azurite.Kill()
	}
	return errors.Join(errs...)
}
