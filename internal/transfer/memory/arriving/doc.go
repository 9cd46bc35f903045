// Package arriving owns the memory of a container at the target of one migration: Memory has the store into
// which pages come ahead of the freeze, the residual copy to which the source may refer, and the pages that
// come after the restore. Package leaving is the other end.
//
// It wires the mechanisms together (precopy, push, residual) and answers for two things: pages are brought to
// nobody before there is somebody who takes them (Fill), and pages that will never come are given up only if
// an operator says so (GiveUp).
//
// The steps of the migration, in their order, are the user's: the package knows none.
package arriving
