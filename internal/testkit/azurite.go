package testkit

import (
	"bufio"
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
	"testing"
	"time"
)

// The account that every Azurite knows. Its key is public, printed in
// Microsoft's own documentation, and opens nothing but an emulator.
const (
	AzuriteAccount = "devstoreaccount1"
	AzuriteKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// startPatience bounds the wait for Azurite to come up or go down. It is
// generous: a test waits for the event itself, and this only ends a hang.
const startPatience = time.Minute

// Azurite starts Microsoft's blob storage emulator for one test and returns the
// connection string to it. Everything is kept in memory and is gone, like the
// process, when the test ends.
func Azurite(tb testing.TB) string {
	tb.Helper()
	s := &AzuriteServer{tb: tb, args: []string{"--inMemoryPersistence"}}
	s.launch()
	return s.ConnectionString()
}

// AzuriteServer is an Azurite whose data outlive its process, so that a test
// can take the service away and bring it back at the same address.
type AzuriteServer struct {
	tb   testing.TB
	args []string
	host string // host:port, known after the first start

	mu      sync.Mutex
	process *azuriteProcess // nil when stopped
}

// NewAzurite starts an AzuriteServer and stops it when the test ends.
func NewAzurite(tb testing.TB) *AzuriteServer {
	tb.Helper()
	s := &AzuriteServer{tb: tb, args: []string{"--location", tb.TempDir()}}
	s.launch()
	return s
}

func (s *AzuriteServer) launch() {
	s.tb.Helper()
	// Registered before the start, so that a failing start is cleaned up too.
	s.tb.Cleanup(func() { s.end(syscall.SIGKILL) })
	s.Start()
}

// Host is the address that the service listens at, as host:port.
func (s *AzuriteServer) Host() string { return s.host }

// ConnectionString gives access to the service with the account's key.
func (s *AzuriteServer) ConnectionString() string {
	return fmt.Sprintf("DefaultEndpointsProtocol=http;AccountName=%s;AccountKey=%s;BlobEndpoint=http://%s/%s;",
		AzuriteAccount, AzuriteKey, s.host, AzuriteAccount)
}

// Stop ends the process in an orderly way, so that its data reach the disk, and
// returns when it is gone. Connections to it are refused from then on.
func (s *AzuriteServer) Stop() {
	s.tb.Helper()
	s.end(syscall.SIGTERM)
}

// Start brings a stopped service back at the address that it had before.
func (s *AzuriteServer) Start() {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		s.tb.Fatal("azurite runs already")
	}
	port := "0" // the kernel picks; Azurite says which
	if s.host != "" {
		_, port, _ = strings.Cut(s.host, ":")
	}
	binary := filepath.Join(RepoRoot(s.tb), ".tools", "node_modules", ".bin", "azurite-blob")
	if _, err := os.Stat(binary); err != nil {
		s.tb.Fatalf("azurite is not installed (%v): run `make tools`", err)
	}
	args := append([]string{binary, "--blobHost", "127.0.0.1", "--blobPort", port, "--silent", "--disableTelemetry"}, s.args...)
	process, host, err := startAzurite(args)
	if err != nil {
		s.tb.Fatalf("start azurite: %v", err)
	}
	s.process, s.host = process, host
}

func (s *AzuriteServer) end(sig syscall.Signal) {
	s.tb.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return
	}
	s.process.end(sig)
	s.process = nil
}

// azuriteProcess is the group of processes of one running Azurite.
type azuriteProcess struct {
	cmd   *exec.Cmd
	leash io.Closer // closing it ends the group; so does the death of this process
	gone  chan struct{}
}

// watchdog runs its arguments and kills them when its stdin ends, which happens
// as well when the test binary dies without having cleaned up.
const watchdog = `"$@" </dev/null & child=$!; read -r _; kill -9 "$child"`

func startAzurite(args []string) (*azuriteProcess, string, error) {
	cmd := exec.Command("sh", append([]string{"-c", watchdog, "sh"}, args...)...)
	// A group of its own: it can be signalled whole, and Ctrl-C in the
	// terminal reaches the test before it reaches the service.
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

// RepoRoot is the directory of the module's go.mod, found upwards from the
// directory of the package under test.
func RepoRoot(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatal("no go.mod above the working directory")
		}
		dir = parent
	}
}
