// Package dump owns the execution state of one migration, at both ends: the source freezes the container and
// has CRIU dump it (Dump), and sends what CRIU writes while it grows; the target takes that (Receiver).
//
// Packets are held before the freeze, so that no connection is half open in the dump, and what the frozen
// container sends is blocked before CRIU looks at its sockets. Pages of files that hardly ever change are
// sent ahead of the freeze; the target says whether it has them, and the dump then refers to them.
//
// The package wires the mechanisms together (switchover, transfer/state) and knows no step of the migration:
// the user calls what a step needs. What a freeze needs of memory and files the package declares (Memory,
// Config.Files).
package dump
