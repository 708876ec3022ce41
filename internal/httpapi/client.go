package httpapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"net/netip"
	"strings"
)

// Privacy says what is kept of a client's address.
type Privacy string

// The values of ip-privacy.
const (
	PrivacyHMAC     Privacy = "hmac"     // a keyed digest: the same client looks the same, and no more
	PrivacyTruncate Privacy = "truncate" // the network: /24, or /48 of IPv6
	PrivacyRaw      Privacy = "raw"
	PrivacyNone     Privacy = "none"
)

// digestBytes is how much of the HMAC is kept: 96 bits, so that among 300
// million clients a collision is unlikely (2^58 pairs against 2^96).
const digestBytes = 12

// keeper writes what may be kept of addresses. It is not for use by several at
// one time: a keyed hash costs more to make than to use.
type keeper struct {
	privacy Privacy
	mac     hash.Hash
	sum     [sha256.Size]byte
}

func newKeeper(p Privacy, key []byte) *keeper {
	k := &keeper{privacy: p}
	if p == PrivacyHMAC {
		k.mac = hmac.New(sha256.New, key)
	}
	return k
}

// append adds what may be kept of addr to dst.
func (k *keeper) append(dst []byte, addr netip.Addr) []byte {
	if !addr.IsValid() {
		return dst
	}
	switch k.privacy {
	case PrivacyRaw:
		return addr.AppendTo(dst)
	case PrivacyTruncate:
		bits := 24
		if addr.Is6() {
			bits = 48
		}
		network, err := addr.WithZone("").Prefix(bits)
		if err != nil { // both lengths fit
			return dst
		}
		return network.AppendTo(dst)
	case PrivacyHMAC:
		b := addr.As16()
		k.mac.Reset()
		copy(k.sum[:], b[:]) // what is passed to an interface moves to the heap
		k.mac.Write(k.sum[:len(b)])
		return base64.RawURLEncoding.AppendEncode(dst, k.mac.Sum(k.sum[:0])[:digestBytes])
	case PrivacyNone:
	}
	return dst
}

// ParsePrivacy reads the setting ip-privacy.
func ParsePrivacy(s string) (Privacy, error) {
	switch p := Privacy(s); p {
	case PrivacyHMAC, PrivacyTruncate, PrivacyRaw, PrivacyNone:
		return p, nil
	}
	return "", fmt.Errorf("ip-privacy %q: allowed are hmac, truncate, raw, none", s)
}

// clientAddr finds the client's address. X-Forwarded-For is believed only as
// far as trusted proxies wrote it: from the right, up to the first address that
// is not one of theirs. What a stranger put before that means nothing.
func clientAddr(peer netip.Addr, forwarded []string, trusted []netip.Prefix) netip.Addr {
	addr := peer.Unmap()
	for i := len(forwarded) - 1; i >= 0; i-- {
		rest := forwarded[i]
		for rest != "" {
			if !contains(trusted, addr) {
				return addr
			}
			entry := rest
			if j := strings.LastIndexByte(rest, ','); j >= 0 {
				entry, rest = rest[j+1:], rest[:j]
			} else {
				rest = ""
			}
			next, err := parseForwarded(strings.TrimSpace(entry))
			if err != nil {
				return addr // unreadable: no one vouches for what stands before it
			}
			addr = next
		}
	}
	return addr
}

// parseForwarded reads an entry: an address, which some proxies write with a
// port.
func parseForwarded(s string) (netip.Addr, error) {
	if addr, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return addr.Unmap().WithZone(""), nil
	}
	ap, err := netip.ParseAddrPort(s)
	return ap.Addr().Unmap().WithZone(""), err
}

func contains(nets []netip.Prefix, addr netip.Addr) bool {
	for _, n := range nets {
		if n.Contains(addr) {
			return true
		}
	}
	return false
}
