// Package enqueue is stage 1: it takes votes from handlers and puts them on the
// queue by group commit.
//
// A shard has one open batch and one flusher. Whenever the flusher is free it
// sends what has come in meanwhile, at most vote.MaxFrameVotes: no timer, no
// linger. All waiters of a batch are woken by one channel.
//
// What is true:
//
//   - Submit returns a receipt only after Redis has acknowledged the frame that
//     holds the vote.
//   - A flusher has one frame in the air. It repeats it under the same sequence
//     number until it is answered or the batch's time is up, so a repeated
//     frame is never enqueued twice.
//   - The memory is bounded by MaxInFlight votes in open batches, and one frame
//     in the air for each shard.
//
// What may fail: Redis may be away, full, or slow. Then the waiters get
// vote.ErrUnavailable at the end of the batch's time, or vote.ErrOverloaded at
// once, and the flusher goes on with the next batch. ErrOverloaded says that the
// frame was not taken, so a frame of which an attempt has failed in another way
// is tried until its time is up, also by a Redis that is full: it can't say any
// more what became of the first attempt. A frame that was given up may have been
// enqueued, which is what ErrUnavailable says; or its command may still be under
// way, and then it comes too late to do anything: Redis has seen a higher
// sequence number by then, or sees this one for the first time, once.
package enqueue
