// Package files moves a container's data on disk: image layers, the writable layer, volumes.
//
// It knows content and attributes; it knows no engine, no network peer and no migration. Everything that it
// reads from a stream, an archive or a container's file system is untrusted: sizes and counts are bounded
// and no path leaves the directory that it was given.
package files
