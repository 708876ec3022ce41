package vote

import (
	"strings"
	"testing"
)

func TestValidID(t *testing.T) {
	for id, want := range map[string]bool{
		"a":                      true,
		"0":                      true,
		"paredao-07":             true,
		"a_b-c":                  true,
		"ana--":                  true,
		"constructor":            true, // a name as good as any other
		strings.Repeat("a", 63):  true,
		strings.Repeat("a", 64):  false,
		"":                       false,
		"-a":                     false,
		"_a":                     false,
		"__proto__":              false,
		"Ana":                    false,
		"a b":                    false,
		" a":                     false,
		"a\n":                    false,
		"a\x00":                  false,
		"a:b":                    false,
		"a,b":                    false,
		"a/b":                    false,
		"../x":                   false,
		"a{b}":                   false,
		"a\"":                    false,
		"joão":                   false, // NFC
		"joa\u0303o":             false, // NFD
		"ан":                     false,
		"😀":                      false,
		"\u202eana":              false,
		"a\xff":                  false,
		strings.Repeat("é", 31):  false,
		"a" + string(rune(0xff)): false,
	} {
		if got := ValidID(id); got != want {
			t.Errorf("ValidID(%q) = %v, want %v", id, got, want)
		}
	}
}

func TestNewIdempotencyKey(t *testing.T) {
	base := NewIdempotencyKey("p", "key")
	if base != NewIdempotencyKey("p", "key") {
		t.Error("the same poll and key give two digests")
	}
	for _, other := range [][2]string{
		{"p", "key2"}, {"p2", "key"}, {"pk", "ey"}, {"", "pkey"}, {"p", "KEY"}, {"p", "key "},
	} {
		if base == NewIdempotencyKey(other[0], other[1]) {
			t.Errorf("poll %q, key %q have the digest of poll p, key key", other[0], other[1])
		}
	}
}

func TestTallyField(t *testing.T) {
	for _, c := range []struct{ class, option, want string }{
		{"", "ana", "ana"},
		{"unico", "ana", "unico/ana"},
	} {
		if got := TallyField(c.class, c.option); got != c.want {
			t.Errorf("TallyField(%q, %q) = %q, want %q", c.class, c.option, got, c.want)
		}
	}
}
