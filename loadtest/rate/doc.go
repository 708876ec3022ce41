//go:build linux

// Command rate posts votes to an api at a constant rate and says how long they
// took, from when each was due.
//
// The load is open: request n is due at start + n/rate, whatever became of those
// before it, and its latency counts from that moment. So when the server stands
// still for a second, every request of that second shows it, also those that
// could not even be sent, and no coordinated omission hides it. The time from
// when a request was really sent stands beside it as the service time.
//
// # How it sends
//
// Each thread has an epoll loop over its keep-alive connections, one request in
// the air on each, and ready-made requests. A free connection takes the next slot
// of the schedule when it is due; if none is free, the slot waits, and the wait
// is latency. The loop sleeps no shorter than a tick of 100 µs, so a request may
// leave that much late: which counts as latency too.
//
// # Whom the figures speak of
//
// The generator shares its machine with the server, so it must know when it
// measures itself. Of each latency it knows what may be its own part: how long
// the request was due while a connection was free, and how long the answer may
// have lain unread. Where the 99th percentile of that is material, there is no
// report. Nor is there where the rate was missed while the loop was at work
// nearly all the time. Busy connections alone are not the generator's fault:
// by Little's law, N connections carry N / service time, and the rest is latency;
// the report says how much of the time all of them were busy.
package main
