package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// slots is how many hash slots a Redis Cluster has.
const slots = 16384

// ClusterParams say how a Redis Cluster is set up.
type ClusterParams struct {
	// Dir is where all files go.
	Dir string
	// Masters, each with one replica; 0 means 3.
	Masters int
	// NodeTimeout is for how long a node must be silent; 0 means 1.5 s.
	NodeTimeout time.Duration
	// Redis are more settings of every server, as "--appendfsync", "always".
	Redis []string
}

// Cluster is a Redis Cluster of masters that share out the slots evenly, each
// with a replica. Its servers keep an append-only file and evict nothing. A
// part that is away does not stop the others.
type Cluster struct {
	nodes   []*clusterNode
	masters int
}

type clusterNode struct {
	*Redis

	bus    int
	id     string
	client *redis.Client
}

// StartCluster starts the servers, joins them, and returns when all agree.
func StartCluster(ctx context.Context, p ClusterParams) (*Cluster, error) {
	if p.Masters == 0 {
		p.Masters = 3
	}
	if p.NodeTimeout == 0 {
		p.NodeTimeout = 1500 * time.Millisecond
	}
	c := &Cluster{masters: p.Masters}
	if err := c.start(ctx, p); err != nil {
		c.End()
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, p ClusterParams) error {
	for i := range 2 * p.Masters {
		n, err := startNode(ctx, p, i)
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, n)
	}
	for i, n := range c.nodes {
		// Nodes that vote need epochs of their own.
		if err := n.client.Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			return err
		}
		if i < p.Masters {
			from, to := i*slots/p.Masters, (i+1)*slots/p.Masters-1
			if err := n.client.Do(ctx, "CLUSTER", "ADDSLOTSRANGE", from, to).Err(); err != nil {
				return err
			}
		}
		if i > 0 {
			if err := n.client.Do(ctx, "CLUSTER", "MEET", "127.0.0.1", c.nodes[0].Port, c.nodes[0].bus).Err(); err != nil {
				return err
			}
		}
	}
	for i, n := range c.nodes[p.Masters:] {
		err := until(ctx, "a replica follows its master", func(ctx context.Context) error {
			return n.client.ClusterReplicate(ctx, c.nodes[i].id).Err()
		})
		if err != nil {
			return err
		}
	}
	return c.Settled(ctx)
}

func startNode(ctx context.Context, p ClusterParams, i int) (*clusterNode, error) {
	dir, err := subdir(p.Dir, "node-"+strconv.Itoa(i))
	if err != nil {
		return nil, err
	}
	n := &clusterNode{}
	if n.bus, err = FreePort(); err != nil {
		return nil, err
	}
	n.Redis, err = StartRedis(ctx, dir, append([]string{
		"--appendonly", "yes", "--repl-diskless-sync-delay", "0",
		"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(n.bus),
		"--cluster-node-timeout", strconv.FormatInt(p.NodeTimeout.Milliseconds(), 10),
		"--cluster-require-full-coverage", "no", "--cluster-allow-replica-migration", "no",
	}, p.Redis...)...)
	if err != nil {
		return nil, err
	}
	n.client = redis.NewClient(&redis.Options{Addr: n.Addr(), MaxRetries: -1})
	if n.id, err = n.client.ClusterMyID(ctx).Result(); err != nil {
		n.Kill()
		return nil, err
	}
	return n, nil
}

// URL is the redis-url of the whole.
func (c *Cluster) URL() string {
	var hosts []string
	for _, n := range c.nodes {
		hosts = append(hosts, n.Addr())
	}
	return "redis-cluster://" + strings.Join(hosts, ",")
}

// Nodes are all servers, in no order that says which are masters.
func (c *Cluster) Nodes() []*Redis {
	var out []*Redis
	for _, n := range c.nodes {
		out = append(out, n.Redis)
	}
	return out
}

// Slot is the slot of a queue shard's keys.
func (c *Cluster) Slot(ctx context.Context, shard int) (int, error) {
	n, err := c.nodes[0].client.ClusterKeySlot(ctx, strconv.Itoa(shard)).Result()
	return int(n), err
}

// Masters are the servers that have slots now, in order of their first slot,
// as a majority of those that answer says.
func (c *Cluster) Masters(ctx context.Context) ([]*Redis, error) {
	ranges, err := c.view(ctx)
	if err != nil {
		return nil, err
	}
	var out []*Redis
	seen := map[string]bool{}
	for _, r := range ranges {
		addr := r.Nodes[0].Addr
		if seen[addr] {
			continue
		}
		seen[addr] = true
		one, err := byAddr(c.Nodes(), addr)
		if err != nil {
			return nil, err
		}
		out = append(out, one)
	}
	return out, nil
}

// MasterOf is the server that a slot belongs to, which may be down.
func (c *Cluster) MasterOf(ctx context.Context, slot int) (*Redis, error) {
	ranges, err := c.view(ctx)
	if err != nil {
		return nil, err
	}
	addr := owner(ranges, slot)
	if addr == "" {
		return nil, fmt.Errorf("slot %d belongs to nobody", slot)
	}
	return byAddr(c.Nodes(), addr)
}

// view is what most of the nodes that answer take for the cluster's state.
func (c *Cluster) view(ctx context.Context) ([]redis.ClusterSlot, error) {
	counts := map[string]int{}
	var best []redis.ClusterSlot
	most := 0
	var errs []error
	for _, n := range c.nodes {
		ranges, err := n.slots(ctx)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		key := masters(ranges)
		if counts[key]++; counts[key] > most {
			most, best = counts[key], ranges
		}
	}
	if most == 0 {
		return nil, fmt.Errorf("no node answers: %w", errors.Join(errs...))
	}
	return best, nil
}

func (n *clusterNode) slots(ctx context.Context) ([]redis.ClusterSlot, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return n.client.ClusterSlots(ctx).Result() //nolint:staticcheck // it is what clients go by
}

// masters tells views apart.
func masters(ranges []redis.ClusterSlot) string {
	var b strings.Builder
	for _, r := range ranges {
		fmt.Fprintf(&b, "%d-%d %s\n", r.Start, r.End, r.Nodes[0].Addr)
	}
	return b.String()
}

func owner(ranges []redis.ClusterSlot, slot int) string {
	for _, r := range ranges {
		if r.Start <= slot && slot <= r.End && len(r.Nodes) > 0 {
			return r.Nodes[0].Addr
		}
	}
	return ""
}

func (c *Cluster) node(r *Redis) (*clusterNode, error) {
	for _, n := range c.nodes {
		if n.Redis == r {
			return n, nil
		}
	}
	return nil, errors.New("the server is not of this cluster")
}

// KillMaster kills the master of a slot as kill -9 does, and returns it.
func (c *Cluster) KillMaster(ctx context.Context, slot int) (*Redis, error) {
	r, err := c.MasterOf(ctx, slot)
	if err != nil {
		return nil, err
	}
	r.Kill()
	return r, nil
}

// Failover has the replica of a slot's master take its place in an orderly way,
// without a loss, and returns the old master when that has begun.
func (c *Cluster) Failover(ctx context.Context, slot int) (*Redis, error) {
	ranges, err := c.view(ctx)
	if err != nil {
		return nil, err
	}
	master, replica, err := c.pair(ranges, slot)
	if err != nil {
		return nil, err
	}
	return master.Redis, until(ctx, "the replica agrees to a failover", func(ctx context.Context) error {
		return replica.client.ClusterFailover(ctx).Err()
	})
}

// pair are the master of a slot and its replica.
func (c *Cluster) pair(ranges []redis.ClusterSlot, slot int) (master, replica *clusterNode, err error) {
	for _, r := range ranges {
		if slot < r.Start || slot > r.End || len(r.Nodes) < 2 {
			continue
		}
		var found []*clusterNode
		for _, n := range r.Nodes[:2] {
			one, err := byAddr(c.Nodes(), n.Addr)
			if err != nil {
				return nil, nil, err
			}
			node, err := c.node(one)
			if err != nil {
				return nil, nil, err
			}
			found = append(found, node)
		}
		return found[0], found[1], nil
	}
	return nil, nil, fmt.Errorf("slot %d has no master with a replica", slot)
}

// Promoted waits until the slot has another master than old.
func (c *Cluster) Promoted(ctx context.Context, slot int, old *Redis) (*Redis, error) {
	var master *Redis
	err := until(ctx, "another master", func(ctx context.Context) error {
		var err error
		if master, err = c.MasterOf(ctx, slot); err == nil && master == old {
			err = errors.New("it is still the old one")
		}
		return err
	})
	return master, err
}

// Settled waits until every node runs, all agree on who has which slots, and
// each master has its replica in step.
func (c *Cluster) Settled(ctx context.Context) error {
	return until(ctx, "the cluster is settled", func(ctx context.Context) error {
		var want string
		var ranges []redis.ClusterSlot
		for _, n := range c.nodes {
			info, err := n.client.ClusterInfo(ctx).Result()
			if err != nil {
				return err
			}
			for _, sign := range []string{
				"cluster_state:ok", "cluster_slots_ok:" + strconv.Itoa(slots), "cluster_known_nodes:" + strconv.Itoa(len(c.nodes)),
			} {
				if !strings.Contains(info, sign+"\r\n") {
					return fmt.Errorf("%s: not %s", n.Addr(), sign)
				}
			}
			if ranges, err = n.slots(ctx); err != nil {
				return err
			}
			if got := masters(ranges); want == "" {
				want = got
			} else if got != want {
				return errors.New("the nodes do not agree on the slots")
			}
		}
		groups := map[string][]*Redis{}
		for _, r := range ranges {
			if len(groups[r.Nodes[0].Addr]) > 0 {
				continue
			}
			for _, n := range r.Nodes {
				one, err := byAddr(c.Nodes(), n.Addr)
				if err != nil {
					return err
				}
				groups[r.Nodes[0].Addr] = append(groups[r.Nodes[0].Addr], one)
			}
		}
		for _, g := range groups {
			if len(g) < 2 {
				return fmt.Errorf("%s has no replica", g[0].Addr())
			}
			if err := inStep(ctx, g[0], g); err != nil {
				return err
			}
		}
		if len(groups) != c.masters {
			return fmt.Errorf("%d masters have slots", len(groups))
		}
		return nil
	})
}

// MoveSlot moves a slot with its keys to another master while clients work with
// them, as redis-cli --cluster reshard does.
func (c *Cluster) MoveSlot(ctx context.Context, slot int, to *Redis) error {
	from, err := c.MasterOf(ctx, slot)
	if err != nil {
		return err
	}
	if from == to {
		return nil
	}
	src, err := c.node(from)
	if err != nil {
		return err
	}
	dst, err := c.node(to)
	if err != nil {
		return err
	}
	if err := dst.client.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", src.id).Err(); err != nil {
		return fmt.Errorf("importing slot %d: %w", slot, err)
	}
	if err := src.client.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", dst.id).Err(); err != nil {
		return fmt.Errorf("migrating slot %d: %w", slot, err)
	}
	if err := migrate(ctx, src, dst, slot); err != nil {
		return err
	}
	// First the new owner, so that no slot is ever without one.
	owners := []*clusterNode{dst, src}
	masters, err := c.Masters(ctx)
	if err != nil {
		return err
	}
	for _, m := range masters {
		if n, err := c.node(m); err == nil && n != src && n != dst {
			owners = append(owners, n)
		}
	}
	for _, n := range owners {
		if err := n.client.Do(ctx, "CLUSTER", "SETSLOT", slot, "NODE", dst.id).Err(); err != nil {
			return fmt.Errorf("slot %d to its new owner: %w", slot, err)
		}
	}
	return nil
}

// migrate moves the keys, some at a time.
func migrate(ctx context.Context, src, dst *clusterNode, slot int) error {
	const batch, timeout = 20, 5 * time.Second
	host, port, err := net.SplitHostPort(dst.Addr())
	if err != nil {
		return err
	}
	for {
		keys, err := src.client.ClusterGetKeysInSlot(ctx, slot, batch).Result()
		if err != nil || len(keys) == 0 {
			return err
		}
		args := []any{"MIGRATE", host, port, "", 0, timeout.Milliseconds(), "KEYS"}
		for _, k := range keys {
			args = append(args, k)
		}
		if err := src.client.Do(ctx, args...).Err(); err != nil {
			return fmt.Errorf("migrate %d keys of slot %d: %w", len(keys), slot, err)
		}
	}
}

// End ends all of it.
func (c *Cluster) End() {
	for _, n := range c.nodes {
		n.Kill()
		_ = n.client.Close()
	}
}
