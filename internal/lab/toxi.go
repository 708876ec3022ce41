package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Toxi is a toxiproxy in this process: it passes bytes on, whatever they are,
// and slows or breaks connections as a network does.
type Toxi struct{ proxy *toxiproxy.Proxy }

// StartToxi starts one on a free port of loopback in front of target, a
// host:port. Close ends it.
func StartToxi(target string) (*Toxi, error) {
	// Some of its parts log to stderr, whatever logger they are given.
	zerolog.SetGlobalLevel(zerolog.Disabled)
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	t := &Toxi{proxy: toxiproxy.NewProxy(server, target, "127.0.0.1:0", target)}
	if err := t.proxy.Start(); err != nil {
		return nil, fmt.Errorf("toxiproxy: %w", err)
	}
	return t, nil
}

// Addr is the proxy's host:port.
func (t *Toxi) Addr() string {
	t.proxy.Lock()
	defer t.proxy.Unlock()
	return t.proxy.Listen
}

// Add makes connections suffer from now on: kind is one of toxiproxy's
// ("latency", "bandwidth", "reset_peer", …) with its attributes, stream is
// "upstream", "downstream". name is for Remove.
func (t *Toxi) Add(name, kind, stream string, attributes map[string]any) error {
	text, err := json.Marshal(map[string]any{"name": name, "type": kind, "stream": stream, "attributes": attributes})
	if err == nil {
		_, err = t.proxy.Toxics.AddToxicJson(bytes.NewReader(text))
	}
	if err != nil {
		return fmt.Errorf("toxiproxy: add %s: %w", kind, err)
	}
	return nil
}

// Remove ends what Add began.
func (t *Toxi) Remove(ctx context.Context, name string) error {
	if err := t.proxy.Toxics.RemoveToxic(ctx, name); err != nil {
		return fmt.Errorf("toxiproxy: remove %s: %w", name, err)
	}
	return nil
}

// Close cuts every connection and takes no new one.
func (t *Toxi) Close() { t.proxy.Stop() }
