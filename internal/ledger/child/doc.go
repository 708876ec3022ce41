// Package child runs the project's real binaries as child processes, for the
// tests and the load tests: it reads their addresses from their logs, waits
// until they are ready, pauses them and kills them.
//
// A child is killed by the kernel when its parent dies, however that happens.
package child
