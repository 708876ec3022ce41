package vote

import "io"

// Object is an archive object opened for reading at any offset.
type Object interface {
	io.ReaderAt
	io.Closer
	// Size is the object's length in bytes.
	Size() int64
}

// ObjectInfo describes a stored archive object.
type ObjectInfo struct {
	// Name is the object's path below the archive's root, with slashes.
	Name string
	// Size is its length in bytes.
	Size int64
}
