// Package vote is the domain of Paredão: votes, polls, ids, and the frame, the
// unit in which votes travel from the api to the archive.
//
// What is true:
//
//   - A frame is created whole by one flusher, moves whole from list to list,
//     and is never edited. Its id (flusher id and sequence number) is unique
//     for ever.
//   - The header says how many votes of which poll the frame adds to the
//     ledger. A body that says anything else makes the frame unreadable
//     (ErrBadFrame): what was accepted and what is counted can't drift apart.
//   - All times are Redis's. A frame carries one: the instant at which Redis
//     accepted it.
//
// The package imports the standard library, uuid, and the zstd codec; it knows
// neither Redis nor HTTP.
package vote
