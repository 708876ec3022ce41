package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
)

// FreePort finds a port of loopback that nobody listens on just now. It lies
// below those that the kernel gives to outgoing connections, so that a server
// that is down for a moment finds its port again, whoever connects meanwhile.
func FreePort() (int, error) {
	const lowest = 10000
	below := 32768
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		var low, high int
		if _, err := fmt.Sscan(string(b), &low, &high); err == nil && low > lowest+1000 {
			below = low
		}
	}
	var errs []error
	for range 20 {
		port := lowest + rand.IntN(below-lowest)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return port, l.Close()
		}
		errs = append(errs, err)
	}
	return 0, fmt.Errorf("free port: %w", errors.Join(errs...))
}
