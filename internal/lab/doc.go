// Package lab runs the real parts beside which Paredão works, as child
// processes on loopback, and breaks them: redis-server, Azurite, and a proxy
// that cuts connections to Redis at the borders of commands. Tests use it
// through testkit, the fault laboratory and load tests directly. No daemon
// imports it.
package lab
