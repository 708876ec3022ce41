package config

import (
	"errors"
	"io"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzArguments: whatever the command line and the environment say, parsing ends
// with settings, with help, or with one printable line and exit code 2, and no
// place in it where a URL may have been typed brings its password to light.
func FuzzArguments(f *testing.F) {
	for _, s := range []struct{ args, env, before, after string }{
		{"--redis-url\n{}", "", "redis://u:", "@h"},
		{"--redis-url={}", "", "redis://u:p@h:", "/0"},
		{"-redis-url={}", "", "redis://:", "@h"},
		{"--redis-url\n=\n{}", "", "redis://:", "@h"},
		{"{}", "", "redis://:", "@h"},
		{"--\n{}", "", "redis://:", "@h"},
		{"--chunk-size=5\n--queue-shards\n2", "PAREDAO_REDIS_URL={}", "redis://u:", "@h?x"},
		{"", "PAREDAO_REDIS_ULR={}\nPAREDAO_LOG_LEVEL=debug", "redis://u:", "@h"},
		{"--archive-url={}", "AZURE_STORAGE_CONNECTION_STRING={}", "AccountKey=", ";"},
		{"--help={}", "", "", ""},
		{"--version\n-h", "\x00=\n==", "", ""},
		{"--{}=x\n--listen={}", "", "redis://u", "h"},
		{"--listen={}", "PAREDAO_CHUNK_SIZE={}", "redis://u", "h"},
		{"---\n-\n--=\n\xff", "", "", ""},
	} {
		f.Add(s.args, s.env, s.before, s.after)
	}
	const marker = "S3CRET"
	f.Fuzz(func(t *testing.T, args, env, before, after string) {
		if strings.Contains(args+env+before+after, marker) || strings.Contains(before+after, "\n") {
			return
		}
		// A password stands behind a colon or an equals sign.
		url := before + ":" + marker + "@" + after
		fill := func(s string) []string {
			if s == "" {
				return nil
			}
			return strings.Split(strings.ReplaceAll(s, "{}", url), "\n")
		}
		a, e := fill(args), fill(env)
		for i, parse := range []func() error{
			func() error { _, _, err := ParseAPI(a, e, "", io.Discard); return err },
			func() error { _, _, err := ParseConsumer(a, e, "", io.Discard); return err },
			func() error { _, _, err := ParseArchiver(a, e, "", io.Discard); return err },
			func() error { _, _, err := ParseAllinone(a, e, "", io.Discard); return err },
		} {
			err := parse()
			if err == nil || errors.Is(err, ErrHelp) {
				continue
			}
			var usage *UsageError
			require.ErrorAs(t, err, &usage)
			require.Equal(t, err.Error(), printable(err.Error()), "not one printable line")
			if strings.Contains(err.Error(), marker) && !plain(append(a, e...), marker) {
				t.Errorf("program %d, %q, %q: says %v", i, a, e, err)
			}
		}
	})
}

// plain tells whether the secret stands in an argument that no one could take for
// a URL, and that no URL belongs to.
func plain(args []string, marker string) bool {
	for i, a := range args {
		before, _, ok := strings.Cut(a, marker)
		name, _, _ := strings.Cut(a, "=")
		if i > 0 && strings.HasPrefix(args[i-1], "--") && !strings.Contains(args[i-1], "=") {
			name = args[i-1]
		}
		if ok && !strings.Contains(before, "://") && !strings.HasSuffix(name, "-url") {
			return true
		}
	}
	return false
}

// FuzzValues: what a parser takes means what it says, written by another hand.
func FuzzValues(f *testing.F) {
	for _, s := range []string{
		"4KiB", "1MiB", "1000", "1gib", "9223372036854775807", "9007199254740993kib", "-1", "+5", "0x10", "1_000", "1e3", "4k", "KiB", "",
		"250ms", "1h2m3.5s", "1ns", "2562047h47m16.854775807s", "1d", "5",
		"10.0.0.0/8", "10.1.2.3/8,::1", "::ffff:10.0.0.0/104", "::ffff:0.0.0.0/0", "0.0.0.0/0", "fe80::1%eth0", "1.2.3.4/032", ",",
		":8080", "[::1]:0", "localhost:65535", "[fe80::1%25eth0]:1", "a b:1", "::1:80",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := size(64, math.MaxInt64)(text); err == nil {
			digits := strings.TrimRight(text, "abgikmABGIKM")
			want, err := strconv.ParseUint(strings.TrimPrefix(digits, "+"), 10, 63)
			unit := map[string]uint64{"": 1, "b": 1, "kib": 1024, "mib": 1 << 20, "gib": 1 << 30, "kb": 1000, "mb": 1e6, "gb": 1e9}[strings.ToLower(text[len(digits):])]
			if err != nil || unit == 0 || uint64(n)/unit != want || uint64(n)%unit != 0 {
				t.Errorf("size %q is %d", text, n)
			}
		}
		if d, err := duration(0, 1000*time.Hour)(text); err == nil {
			again, err := duration(0, 1000*time.Hour)(short(d))
			if err != nil || again != d || d < 0 {
				t.Errorf("duration %q is %s, written %s", text, d, short(d))
			}
		}
		if list, err := prefixes(text); err == nil {
			var parts []string
			for i, p := range list {
				if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() || p.Addr().Zone() != "" {
					t.Errorf("network %q is %v", text, p)
				}
				// It holds the address that was written, and no more than that says.
				bare, _, isNet := strings.Cut(strings.TrimSpace(strings.Split(text, ",")[i]), "/")
				addr, err := netip.ParseAddr(bare)
				if err != nil || !p.Contains(addr.Unmap()) || !isNet && !p.IsSingleIP() {
					t.Errorf("network %q is %v", text, p)
				}
				parts = append(parts, p.String())
			}
			again, err := prefixes(strings.Join(parts, ","))
			require.NoError(t, err)
			require.Equal(t, list, again)
		}
		if n, err := number(-5, 100)(text); err == nil && (n < -5 || n > 100) {
			t.Errorf("number %q is %d", text, n)
		}
		if a, err := address(text); err == nil && (a != text || strings.ContainsAny(a, " /@\n\x00")) {
			t.Errorf("address %q is %q", text, a)
		}
	})
}
