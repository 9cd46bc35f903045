// Package arriving owns the memory of a container at the target of one migration. Memory has the store for
// pages that arrive before the restore, the residual copy to which the source may refer, and the pages that
// arrive after the restore. Package leaving is the other end.
//
// It connects the mechanisms (precopy, push, residual) and guarantees two things: the pager gets pages only
// once it can take them (Fill), and pages that will never arrive are given up only if an operator says so
// (GiveUp).
//
// The package knows no step of the migration: its caller calls the methods in their order.
package arriving
