package lab

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"paredao/internal/ledger/child"
)

// Nginx is a real nginx as a reverse proxy, as one may stand in front of the
// apis: keep-alive on both sides. A POST that was sent, and had no answer, it
// sends to another upstream if it has an Idempotency-Key, and never without.
type Nginx struct {
	addr string
	run  *child.Child
}

// StartNginx starts one in front of the upstreams, each a host:port, with its
// files in dir.
func StartNginx(ctx context.Context, dir string, upstreams []string) (*Nginx, error) {
	binary, err := exec.LookPath("nginx")
	if err != nil {
		return nil, fmt.Errorf("nginx is not installed: %w", err)
	}
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	n := &Nginx{addr: fmt.Sprintf("127.0.0.1:%d", port)}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, []byte(nginxConfig(dir, n.addr, upstreams)), 0o600); err != nil {
		return nil, err
	}
	n.run, err = child.Start(child.Spec{Name: "nginx", Path: binary, Args: []string{"-p", dir, "-c", config, "-e", "stderr"}})
	if err != nil {
		return nil, err
	}
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", n.addr)
		if err == nil {
			return n, c.Close()
		}
		select {
		case <-n.run.Done():
			return nil, fmt.Errorf("nginx ended: %s", n.run.Log().Tail(1000))
		case <-ctx.Done():
			n.run.Kill()
			return nil, fmt.Errorf("nginx does not listen: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// nginxConfig is a configuration that needs no root and no file outside dir.
func nginxConfig(dir, addr string, upstreams []string) string {
	var servers strings.Builder
	for _, u := range upstreams {
		// An upstream that restarts is back at once, not after ten seconds.
		fmt.Fprintf(&servers, "    server %s max_fails=0;\n", u)
	}
	var temp strings.Builder
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temp, "  %s_temp_path %s;\n", kind, filepath.Join(dir, "nginx-"+kind))
	}
	return fmt.Sprintf(`daemon off;
master_process off;
pid %s;
error_log stderr crit;
events { worker_connections 4096; }
http {
  access_log off;
%s  upstream apis {
%s    keepalive 64;
  }
  server {
    listen %s;
    keepalive_requests 1000000;
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_connect_timeout 2s;
    proxy_read_timeout 10s;
    error_page 418 = @keyed;
    location / {
      # proxy_next_upstream takes no variables, so the key leads elsewhere.
      if ($http_idempotency_key) { return 418; }
      # Without non_idempotent a POST goes to another only if it was not sent.
      proxy_next_upstream error timeout;
      proxy_pass http://apis;
    }
    location @keyed {
      proxy_next_upstream error timeout non_idempotent;
      proxy_pass http://apis;
    }
  }
}
`, filepath.Join(dir, "nginx.pid"), temp.String(), servers.String(), addr)
}

// Addr is its host:port.
func (n *Nginx) Addr() string { return n.addr }

// Pid is its process id.
func (n *Nginx) Pid() int { return n.run.Pid() }

// Tail is at most the last bytes of its log.
func (n *Nginx) Tail(bytes int) string { return n.run.Log().Tail(bytes) }

// Kill ends it.
func (n *Nginx) Kill() { n.run.Kill() }
