// Package residual keeps residual memory copies: the memory of containers that have left this node, in case
// they come back, and of containers that other nodes staged here and that may come (idle copies).
//
// Copies are in memory that is not swapped. They go when their time is over, when memory is short, or when a
// newer copy needs the room. A migration that uses a copy checks each page of it, so nothing depends on how
// the copy came to be what it is.
//
// The package knows neither the migration by which a container left nor the one that brings it.
package residual
