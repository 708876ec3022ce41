// Package audit is stage 4: it proves the count.
//
// The audit takes a snapshot of each shard at one instant and checks, per poll:
//
//	accepted = counted + queued + dead + dropped
//	counted  = archived + awaiting archive
//	counted  = sum of the tally
//
// accepted, counted and archived are the ledger's. queued, dead and awaiting
// are counted in the frames themselves, and with Recount archived is counted in
// the archive's own rows, option by option: no side of an equation is computed
// from the other.
//
// The recount reads the archive alone. It counts a frame once, however often it
// was archived: its last copy.
//
// The restore adds to Redis what the archive has and Redis has lost. It adds
// nothing that Redis has, or may still get from elsewhere; see Restore.
package audit
