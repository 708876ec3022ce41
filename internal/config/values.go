package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The parsers of this file take a setting's text. Their errors say only what
// is allowed; the setting's name and value are added by the caller.

// number is a whole number from least to most.
func number(least, most int) func(string) (int, error) {
	return func(text string) (int, error) {
		n, err := strconv.Atoi(text)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("must be a whole number from %d to %d", least, most)
		}
		return n, nil
	}
}

// sizeUnits in bytes; keys are lower case.
var sizeUnits = map[string]int64{
	"": 1, "b": 1,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30,
	"kb": 1e3, "mb": 1e6, "gb": 1e9,
}

// size is a number of bytes, with or without a unit.
func size(least, most int64) func(string) (int, error) {
	return func(text string) (int, error) {
		digits := strings.TrimRight(text, "abgikmABGIKM")
		n, err := strconv.ParseInt(digits, 10, 64)
		unit, known := sizeUnits[strings.ToLower(text[len(digits):])]
		if err != nil || !known || n < 0 || n > math.MaxInt64/unit || n*unit < least || n*unit > most {
			return 0, fmt.Errorf("must be a size from %s to %s, in bytes or like 4KiB or 1MiB", bytesText(least), bytesText(most))
		}
		return int(n * unit), nil
	}
}

func bytesText(n int64) string {
	if n >= 1<<20 && n%(1<<20) == 0 {
		return fmt.Sprintf("%dMiB", n>>20)
	}
	return fmt.Sprintf("%d bytes", n)
}

// duration is a time.Duration from least to most.
func duration(least, most time.Duration) func(string) (time.Duration, error) {
	return func(text string) (time.Duration, error) {
		d, err := time.ParseDuration(text)
		if err != nil || d < least || d > most {
			return 0, fmt.Errorf("must be a duration from %s to %s, like 250ms, 5s or 10m", short(least), short(most))
		}
		return d, nil
	}
}

// short is d as a user would write it: 10m, not 10m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// oneOf is one of a few words.
func oneOf(words ...string) func(string) (string, error) {
	return func(text string) (string, error) {
		for _, w := range words {
			if text == w {
				return w, nil
			}
		}
		last := len(words) - 1
		return "", fmt.Errorf("must be %s or %s", strings.Join(words[:last], ", "), words[last])
	}
}

func level(text string) (slog.Level, error) {
	word, err := oneOf("debug", "info", "warn", "error")(strings.ToLower(text))
	if err != nil {
		return 0, err
	}
	var l slog.Level
	return l, l.UnmarshalText([]byte(word))
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?$`)

// isHost tells a host's name or an address (IPv6 without brackets).
func isHost(host string) bool {
	if hostName.MatchString(host) {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && (addr.Zone() == "" || hostName.MatchString(addr.Zone()))
}

// address is one to listen on: host:port.
func address(text string) (string, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil || host != "" && !isHost(host) || !isPort(port, 0) {
		return "", errors.New("must be HOST:PORT or :PORT with a port from 0 to 65535, like :8080, 127.0.0.1:8080 or [::1]:8080")
	}
	return text, nil
}

// isPort tells a decimal port number that is not below least.
func isPort(text string, least uint64) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n >= least
}

// prefixes is a list of networks; a bare address is a network of one.
func prefixes(text string) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		p, err := network(strings.TrimSpace(part))
		if err != nil {
			return nil, errors.New("must be networks with commas between them, like 10.0.0.0/8,192.0.2.7,2001:db8::/32")
		}
		list = append(list, p)
	}
	return list, nil
}

var errNetwork = errors.New("no network")

func network(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return netip.Prefix{}, errNetwork
		}
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, errNetwork
	}
	if p.Addr().Is4In6() {
		// Clients' addresses are compared as IPv4, which no IPv6 prefix holds.
		if p.Bits() < 96 {
			return netip.Prefix{}, errNetwork
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// readable is a file that can be opened now. A pipe is believed, since
// opening one would take what is in it.
func readable(path string) (string, error) {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		return "", errors.New("must be a file, and this is a folder")
	}
	if err == nil && info.Mode().IsRegular() {
		var f *os.File
		if f, err = os.Open(path); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		return "", fmt.Errorf("must be a file that can be read: %w", cause(err))
	}
	return path, nil
}

// folder is one that exists or can be made later.
func folder(path string) (string, error) {
	info, err := os.Stat(path)
	switch {
	case path == "":
		return "", errors.New("must be a folder")
	case errors.Is(err, os.ErrNotExist):
		return path, nil
	case err != nil:
		return "", fmt.Errorf("must be a folder: %w", cause(err))
	case !info.IsDir():
		return "", errors.New("must be a folder, and this is a file")
	}
	return path, nil
}

// cause is err without the path, which the caller has named already.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
