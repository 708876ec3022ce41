// Package ledger judges the whole pipeline from the outside: it posts votes,
// keeps what it was answered, and compares that with what was counted and
// archived in the end, vote by vote.
//
// The client gives each vote an Idempotency-Key and has one of three answers:
// acked (202), refused (4xx, but for 408 and 429), or unknown (anything else, also
// none). A vote of unknown fate is sent again with the same key until it is acked
// or refused. A share of the votes may go without a key: keys would hide a frame
// that is enqueued twice. Those are sent once, and where the answer is missing
// they may be in the archive or not, but not twice.
//
// The ledger holds when, after the drain:
//
//   - the id of every acked vote stands in the archive's rows exactly once, with
//     the option that was voted for (a frame that was archived twice is read
//     once, as every recount does);
//   - no other id stands there, but for votes without key and answer: nothing
//     refused, nothing invented. Rows of votes with a key and without are told
//     apart by their user agent, so a vote with a key that was taken under two
//     ids can't hide among keyless ones that never were. (One without a key can:
//     nothing ties two rows of it together but the id);
//   - each choice was refused or taken as Params expect of it;
//   - the tally of each option is the number of its votes in the archive;
//   - the audit finds no difference, its recount included;
//   - the queue, the archive's list and the dead list are empty.
//
// Where Redis promises less, LossWindows say when acked votes may be lost. The
// client keeps the time of each receipt, and compares that: a vote may be lost
// that was acked before the fault, by as much as the fault may take, and none
// that was acked after it. Result.LossCoverage is how much that excuses. Windows
// excuse nothing else: if the fault takes a key's memory, too, and its vote is
// archived, lost from Redis and taken again, then it is there twice and the
// ledger does not hold.
//
// It speaks plain HTTP over connections of its own, one vote in the air on
// each: net/http repeats a request with an Idempotency-Key by itself, and a
// judge must see every attempt.
//
// Only tests and load tests import it.
package ledger
