package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// terminal is a pseudo-terminal: what is printed on it can be read, and what is
// typed goes to the process in it.
type terminal struct {
	t      *testing.T
	master *os.File
	tty    *os.File
	output *output
	ended  chan struct{}
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	require.NoError(t, err)
	tty, err := os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	term := &terminal{t, os.NewFile(uintptr(fd), "ptmx"), tty, &output{}, make(chan struct{})}
	go func() {
		defer close(term.ended)
		_, _ = io.Copy(term.output, term.master) // it ends with an error when all others have closed it
	}()
	t.Cleanup(func() {
		_ = tty.Close()
		_ = term.master.Close()
		<-term.ended
	})
	return term
}

// run starts a command in the terminal, as a shell would; what is set already
// stays elsewhere.
func (term *terminal) run(c *cli, cmd *exec.Cmd) *running {
	term.t.Helper()
	cmd.Stdin = term.tty
	if cmd.Stdout == nil {
		cmd.Stdout = term.tty
	}
	if cmd.Stderr == nil {
		cmd.Stderr = term.tty
	}
	cmd.SysProcAttr.Setsid, cmd.SysProcAttr.Setctty = true, true
	return c.start(cmd)
}

// settings are the terminal's modes.
func (term *terminal) settings() unix.Termios {
	term.t.Helper()
	s, err := unix.IoctlGetTermios(int(term.tty.Fd()), unix.TCGETS)
	require.NoError(term.t, err)
	return *s
}

// text is what was printed, once all that is in the terminal has been read.
func (term *terminal) text() string {
	term.t.Helper()
	_, err := term.tty.WriteString("\x00the end")
	require.NoError(term.t, err)
	term.output.await(term.t, "\x00the end", 1)
	text, _, _ := strings.Cut(term.output.String(), "\x00the end")
	return text
}

var escape = regexp.MustCompile(`\x1b(\[[0-9;?]*[A-Za-z])?`)

// In a terminal --watch redraws in place, and Ctrl-C ends it. The terminal is
// left as it was: no colours, no other screen, no hidden cursor.
func TestWatchInTerminal(t *testing.T) {
	w := newWorld(t, 1)
	w.poll("demo", "a", "b")
	for _, key := range []string{"\x03", "signal"} {
		t.Run(fmt.Sprintf("%q", key), func(t *testing.T) {
			term := newTerminal(t)
			before := term.settings()
			c := w.in(t)
			run := term.run(c, c.command("--watch"))
			term.output.await(t, "\x1b[H\x1b[2J", 3)
			if key == "signal" {
				run.signal(syscall.SIGTERM)
			} else {
				_, err := term.master.WriteString(key)
				require.NoError(t, err)
			}
			require.Equal(t, 0, run.wait().code)
			text := term.text()
			require.Contains(t, text, "votes/s")
			for _, e := range escape.FindAllString(text, -1) {
				require.Contains(t, []string{"\x1b[H", "\x1b[2J"}, e)
			}
			require.Equal(t, before, term.settings())
		})
	}
	t.Run("other forms are not drawn", func(t *testing.T) {
		term := newTerminal(t)
		c := w.in(t)
		run := term.run(c, c.command("--watch", "-o", "csv"))
		term.output.await(t, "poll,title", 2)
		require.Equal(t, 0, run.signal(syscall.SIGINT).wait().code)
		require.NotContains(t, term.text(), "\x1b")
	})
}

func TestInTerminal(t *testing.T) {
	w := newWorld(t, 1)
	w.poll("demo", "a", "b")
	w.archived("demo", map[string]int{"a": 3})
	for _, args := range []string{"", "polls list", "queue", "dead list", "totals nosuch", "--nope"} {
		t.Run(args, func(t *testing.T) {
			term := newTerminal(t)
			c := w.in(t)
			got := term.run(c, c.command(strings.Fields(args)...)).wait()
			text := term.text()
			require.NotContains(t, text, "\x1b", "no colours, no drawing")
			piped := c.run(strings.Fields(args)...)
			require.Equal(t, piped.code, got.code)
			require.Equal(t, strings.ReplaceAll(piped.stdout+piped.stderr, "\n", "\r\n"), text)
		})
	}
	for _, args := range []string{"recount", "audit --recount"} {
		t.Run(args, func(t *testing.T) {
			// A progress bar on the terminal stays out of the data.
			term := newTerminal(t)
			c := w.in(t)
			cmd := c.command(append(strings.Fields(args), "-o", "csv")...)
			data := &output{}
			cmd.Stdout = data
			require.Equal(t, 0, term.run(c, cmd).wait().code)
			require.Contains(t, term.text(), "recounting")
			_, rows := fromCSV(t, data.String())
			require.Equal(t, "demo", rows[0]["poll"])
			require.NotContains(t, data.String(), "recounting")
			// Without a terminal there is none.
			require.NotContains(t, c.run(strings.Fields(args)...).ok(t), "recounting")
		})
	}
	t.Run("a warning", func(t *testing.T) {
		term := newTerminal(t)
		c := w.in(t)
		c.env = append(c.env, "PAREDAO_NOSUCH=x")
		require.Equal(t, 0, term.run(c, c.command("polls", "list")).wait().code)
		require.Contains(t, term.text(), "WARN  unknown variable PAREDAO_NOSUCH")
	})
}
