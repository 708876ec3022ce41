// Package redisstore keeps the queue, the tallies and the ledger in Redis.
//
// What is true:
//
//   - Every write is one script whose keys share one hash slot, and every
//     script may be sent twice: it asks for a sequence number or the head of a
//     list before it writes. So the client's own retries after a lost reply do
//     no harm. Enqueue alone goes without them, since its caller must know
//     whether an OOM is all that was answered.
//   - A script checks types and numbers before its first write, since Redis
//     does not roll back.
//   - Time is Redis's TIME, read inside the script.
//   - Conservation holds at any instant, per poll and shard:
//     accepted = counted + queued + dead + dropped, and
//     counted = archived + awaiting archive.
//
// What may fail: any call, with any of Redis's errors or none of its answers.
// The caller then asks again. What Redis itself loses (a crash under
// appendfsync everysec, a failover) it loses consistently for a shard, since
// all the keys of a shard are in one replication stream.
package redisstore
