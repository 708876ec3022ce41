// Package daemon is what all long-running binaries share: signals and exit
// codes ([Main]), the start and the ordered stop of their parts ([Run]), the
// admin server ([Admin]), and the log of an outage ([OutageLog]).
//
//	SIGTERM ─▶ Main ─▶ Run ─▶ Draining ─▶ drain delay ─▶ stop part 1, part 2, … ─▶ exit code
//
// # What is true
//
//   - The first signal stops the process in order; the second ends it at once.
//   - Parts are stopped one after the other in the order in which they are
//     written: a part has returned before the next one is told to stop. So the
//     producers stand first, then what they feed, and the admin server last.
//   - A part's context is cancelled only when it is that part's turn, never by
//     the signal itself.
//   - /livez says that the process runs, and nothing of Redis: a restart mends
//     no outage. /readyz says whether it can do its work.
//
// # What may fail, and what then
//
// A part that fails, panics or ends by itself stops all the others, in order,
// and its error is what Run returns. A stop that takes longer than the
// shutdown timeout is given up: Run returns [ErrShutdownTimeout] and names the
// parts that still run. Nothing is lost by that, since any process may be
// killed at any moment; it is an error so that somebody looks.
package daemon
