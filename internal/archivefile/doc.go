// Package archivefile is the archive's format: the names of objects and
// manifests, the Parquet rows, the manifest.
//
//	votes/poll=<poll>/date=YYYY-MM-DD/hour=HH/<batch>.parquet
//	manifest/<shard>/<sequence>.json
//
// What is true: names and bytes follow from the batch alone, so that whoever
// writes a batch again writes the same. A manifest is written after its
// objects, so every manifest's objects are there; an object that no manifest
// lists belongs to a batch that was not finished, and counts for nothing.
//
// The stages archive (writes) and audit (reads) share this package and know
// nothing of each other.
package archivefile
