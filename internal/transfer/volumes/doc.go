// Package volumes decides what becomes of a container's volumes in a move, and hands volumes over that both
// nodes mount.
//
// A volume moves, stays, or is on storage that both nodes mount; the user chooses, and proofs decide what is
// shared. Directories that belong to the machine neither leave it nor go to a container from another node.
// Where files keep their inodes depends on that, too: ExamineInodes finds open files that must keep theirs.
// The contents of volumes travel elsewhere: see package files.
package volumes
