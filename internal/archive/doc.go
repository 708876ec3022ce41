// Package archive is stage 3: it moves counted votes in batches from Redis to
// the archive.
//
// What is true:
//
//   - A batch is fixed in Redis before it is written: which frames, under which
//     name. Whoever writes it, however often, writes the same bytes to the same
//     names, create-if-absent.
//   - Order: the objects, then the manifest that lists them, then the commit by
//     which the frames leave Redis. A crash anywhere repeats the batch.
//   - Every page of a batch is read only while the batch is the current one, so
//     a late archiver can't write other frames under an old name.
//   - Memory is bounded whatever a batch holds: pages of frames, and at most
//     openObjects Parquet writers, each with one row group, spooled to disk.
//
// What may fail: Redis or the archive may be away; the batch is tried again. An
// object that exists with other content is an alarm (vote.ErrObjectConflict):
// nothing is overwritten and the shard's archive stands still until an operator
// has looked, while counting goes on.
//
// After a failover Redis may have forgotten a committed batch and number the
// next one alike. Then the archive already has a manifest of that number, and
// the batch takes the next free one. Frames that were archived twice that way
// are counted once by the recount.
package archive
