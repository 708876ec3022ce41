// Package count is stage 2: it takes votes from the queue to the tallies.
//
// What is true:
//
//   - A chunk is read, added up, and committed by one compare-and-swap on the
//     head of the queue. Until then nothing has been taken off it, so a
//     consumer that dies leaves nothing to be recovered.
//   - A consumer that comes late finds the head moved: its commit is refused
//     and changes nothing.
//   - An element that can't be read whole goes to the dead list as it is, and
//     the line goes on.
//
// What may fail: any call. The consumer then reads again; whether its commit
// was applied shows in what it reads.
package count
