// Package leaving owns the memory of a container at the source of one migration, from the staged copy to the
// residual copy. Memory tracks the pages, sends them in rounds, and sends the remaining pages after the
// handover. Package arriving is the other end.
//
// It connects the mechanisms (staging, precopy, rounds, push, residual) and guarantees two things: a
// container's memory has one tracker, so a staged copy is taken over or ended; and a container that continues
// here keeps no tracking and no throttling (Untrack).
//
// If the execution state contains all memory (as in mode cold), there are no rounds, and the methods for them
// do nothing. The package knows no step of the migration: its caller calls the methods in their order.
package leaving
