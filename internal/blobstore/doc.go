// Package blobstore is the adapter to the archive: objects with names, in a
// local folder or in an Azure Blob container.
//
// # What is true
//
//   - An object is complete or not there at all. Create checks the length and
//     the SHA-256 of what it was given before a reader can see any of it.
//   - An object is never overwritten. Create of a name that exists compares:
//     the same content is success (false, nil), other content is
//     vote.ErrObjectConflict. So Create may be repeated as often as one likes,
//     also by several processes at once, and the outcome is one object.
//   - When Create has returned without an error, the object is durable: the
//     folder has fsynced the file and every directory above it, Azure has
//     acknowledged it and was asked for its length again.
//   - One opened object is one version: reads from Azure are pinned to its
//     ETag, and an open file stays the file that it was.
//   - Memory is bounded whatever the size of an object.
//   - Reading never creates anything. Writing creates the container or the
//     folder when it is missing, also when it was deleted a moment ago.
//   - No error holds a secret.
//
// # What may fail, and what then
//
//   - The process dies in Create: the folder keeps a file below .tmp, which is
//     never listed and is removed by the first Create of a later process once it
//     is an hour old; Azure keeps staged blocks, which it drops after a week.
//     The name stays free. Repeat Create.
//   - The reply of Azure is lost: the SDK repeats the request, is told that the
//     object exists, and the comparison finds it equal. Then created is false,
//     although it was this call that created it: created is for logs only.
//   - Azure is down, slow or overloaded: requests are repeated a few times with
//     growing pauses and as Retry-After asks, then the error is returned.
//     Repeat Create.
//   - The upload is cut short or changed on its way: Azure refuses it by its
//     MD5. If a wrong length was stored all the same, Create removes that very
//     version (by its ETag, so never anybody else's object) and uploads again.
//   - The disk is full, the folder can't be written, something else stands in
//     its way: the error names the path, and nothing is visible.
//   - The object was replaced while it was open in Azure: the next read that has
//     to ask the service fails.
//   - The file system knows no hard links (FAT, some network shares): Create
//     fails, since nothing else creates a complete file without overwriting.
//
// # Where the two differ
//
// In Azure "a" and "a/b" may both be objects; in a folder the second to come
// fails. A folder on a case-insensitive file system takes "A" and "a" for one
// name, which shows as a conflict, never as an overwrite. If the name is taken,
// the body need not be read at all, so a wrong body may then go unnoticed.
package blobstore
