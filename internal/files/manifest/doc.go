// Package manifest keeps what the source of a copy knows about the mirror: a list of all files, and of inodes
// with several names. The list is in files without names, so memory does not depend on the size of a tree.
package manifest
