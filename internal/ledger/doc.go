// Package ledger judges the whole pipeline from the outside: it posts votes,
// keeps what it was answered, and compares that with what was counted and
// archived in the end, vote by vote.
//
// The client gives each vote an Idempotency-Key and has one of three answers:
// acked (202), refused (4xx), or unknown (anything else, also none). A vote of
// unknown fate is sent again with the same key until it is acked or refused. A
// share of the votes may go without a key: keys would hide a frame that is
// enqueued twice. Those are sent once, and where the answer is missing they may
// be in the archive or not, but not twice.
//
// The ledger holds when, after the drain:
//
//   - the id of every acked vote stands in the archive's rows exactly once, with
//     the option that was voted for (a frame that was archived twice is read
//     once, as every recount does);
//   - no other id stands there, but for votes without key and answer: nothing
//     refused, nothing invented;
//   - the tally of each option is the number of its votes in the archive;
//   - the audit finds no difference, its recount included;
//   - the queue, the archive's list and the dead list are empty.
//
// It speaks plain HTTP over connections of its own, one vote in the air on
// each: net/http repeats a request with an Idempotency-Key by itself, and a
// judge must see every attempt.
//
// Only tests and load tests import it.
package ledger
