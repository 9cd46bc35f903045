// Package files has the directory trees that make up a container's state: their kinds, sizes, removal, and
// the space that they take. Package copies below copies them to another node.
//
// It knows content and attributes; it knows no engine, no network peer and no migration. Everything that it
// reads from a container's file system is untrusted: sizes and counts are bounded and no path leaves the
// directory that it was given.
package files
