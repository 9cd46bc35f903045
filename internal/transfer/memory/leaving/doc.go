// Package leaving owns the memory of a container at the source of one migration, from what was staged ahead
// to the residual copy that stays: Memory has the tracker, the way of pages to the target, their rounds, and
// the pages that follow after the handover. Package arriving is the other end.
//
// It wires the mechanisms together (staging, precopy, rounds, push, residual) and answers for two things: a
// container's memory has one tracker, so a staged copy is taken over or ended; and nothing of the tracking,
// and no throttling, is left in a container that goes on here (Untrack).
//
// In a mode in which all memory is in the execution state there are no rounds, and what is to be done with
// memory does nothing. The steps of the migration, in their order, are the user's: the package knows none.
package leaving
