package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The account that every Azurite knows. Its key is public, printed in
// Microsoft's own documentation, and opens nothing but an emulator.
const (
	AzuriteAccount = "devstoreaccount1"
	AzuriteKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// startPatience bounds the wait for a service to come up or go down. It is
// generous: whoever waits, waits for the event itself, and this only ends a hang.
const startPatience = time.Minute

// Azurite is Microsoft's blob storage emulator on loopback. With a folder its
// data outlive its process, so that the service can go away and come back at
// the same address.
type Azurite struct {
	binary string
	args   []string
	host   string // host:port, known after the first start

	mu      sync.Mutex
	process *azuriteProcess // nil when stopped
}

// StartAzurite starts the Azurite that `make tools` has put under root, the
// project's folder. Its data stand in dir, or in memory if that is empty.
func StartAzurite(root, dir string) (*Azurite, error) {
	a := &Azurite{binary: filepath.Join(root, ".tools", "node_modules", ".bin", "azurite-blob")}
	if dir == "" {
		a.args = []string{"--inMemoryPersistence"}
	} else {
		a.args = []string{"--location", dir}
	}
	return a, a.Start()
}

// Host is the address that the service listens at, as host:port.
func (a *Azurite) Host() string { return a.host }

// ConnectionString gives access to the service with the account's key.
func (a *Azurite) ConnectionString() string { return AzuriteConnection(a.host) }

// AzuriteConnection is the same for an Azurite reached at host, a host:port.
func AzuriteConnection(host string) string {
	return fmt.Sprintf("DefaultEndpointsProtocol=http;AccountName=%s;AccountKey=%s;BlobEndpoint=http://%s/%s;",
		AzuriteAccount, AzuriteKey, host, AzuriteAccount)
}

// Stop ends the process in an orderly way, so that its data reach the disk, and
// returns when it is gone. Connections to it are refused from then on.
func (a *Azurite) Stop() { a.end(syscall.SIGTERM) }

// Kill ends it as kill -9 does.
func (a *Azurite) Kill() { a.end(syscall.SIGKILL) }

// Start brings a stopped service back at the address that it had before.
func (a *Azurite) Start() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.process != nil {
		return errors.New("azurite runs already")
	}
	port := "0" // the kernel picks; Azurite says which
	if a.host != "" {
		_, port, _ = strings.Cut(a.host, ":")
	}
	if _, err := os.Stat(a.binary); err != nil {
		return fmt.Errorf("azurite is not installed (%w): run `make tools`", err)
	}
	args := append([]string{a.binary, "--blobHost", "127.0.0.1", "--blobPort", port, "--silent", "--disableTelemetry"}, a.args...)
	process, host, err := startAzurite(args)
	if err != nil {
		return fmt.Errorf("start azurite: %w", err)
	}
	a.process, a.host = process, host
	return nil
}

func (a *Azurite) end(sig syscall.Signal) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.process == nil {
		return
	}
	a.process.end(sig)
	a.process = nil
}

// azuriteProcess is the group of processes of one running Azurite.
type azuriteProcess struct {
	cmd   *exec.Cmd
	leash io.Closer // closing it ends the group; so does the death of this process
	gone  chan struct{}
}

// watchdog runs its arguments and kills them when its stdin ends, which happens
// as well when this process dies without having cleaned up.
const watchdog = `"$@" </dev/null & child=$!; read -r _; kill -9 "$child"`

func startAzurite(args []string) (*azuriteProcess, string, error) {
	cmd := exec.Command("sh", append([]string{"-c", watchdog, "sh"}, args...)...)
	// A group of its own: it can be signalled whole, and Ctrl-C in the
	// terminal reaches the parent before it reaches the service.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	leash, err := cmd.StdinPipe()
	if err != nil {
		return nil, "", err
	}
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	if err := cmd.Start(); err != nil {
		return nil, "", err
	}
	p := &azuriteProcess{cmd: cmd, leash: leash, gone: make(chan struct{})}
	go func() {
		defer close(p.gone)
		// Returns when everything that holds the output has ended, so the
		// service itself too and not the watchdog alone.
		// That it was killed is no error, but its normal end.
		_ = cmd.Wait()
		_ = writer.Close()
	}()
	address, output := make(chan string, 1), make(chan string, 1)
	go watchOutput(reader, address, output)

	timer := time.NewTimer(startPatience)
	defer timer.Stop()
	select {
	case host := <-address:
		if err := answers(host); err != nil {
			p.end(syscall.SIGKILL)
			return nil, "", err
		}
		return p, host, nil
	case text := <-output:
		p.end(syscall.SIGKILL)
		return nil, "", fmt.Errorf("it ended with: %s", text)
	case <-timer.C:
		p.end(syscall.SIGKILL)
		return nil, "", fmt.Errorf("it did not listen within %v", startPatience)
	}
}

// end signals the whole group and returns when all of it is gone.
func (p *azuriteProcess) end(sig syscall.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	timer := time.NewTimer(startPatience)
	defer timer.Stop()
	select {
	case <-p.gone:
	case <-timer.C:
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.gone
	}
	_ = p.leash.Close()
}

var listens = regexp.MustCompile(`successfully listens on http://(\S+)`)

// watchOutput reports the address when it is printed, and what was printed in
// all when the output ends. It reads to the end, so that the pipe never blocks.
func watchOutput(r io.Reader, address, output chan<- string) {
	var text strings.Builder
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if m := listens.FindStringSubmatch(lines.Text()); m != nil {
			address <- m[1]
			break
		}
		text.WriteString(lines.Text() + "\n")
	}
	_, _ = io.Copy(io.Discard, r)
	output <- text.String()
}

// answers makes one request: any HTTP response will do.
func answers(host string) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: startPatience}
	u := url.URL{Scheme: "http", Host: host, Path: "/" + AzuriteAccount}
	resp, err := client.Get(u.String())
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
