// Package dump owns the execution state of one migration, at both ends: the source freezes the container and
// has CRIU dump it (Dump), and sends CRIU's images while they grow; the target takes them (Receiver).
//
// Dump holds packets before the freeze, so that no connection is half open in the dump, and blocks the frozen
// container's own packets before CRIU looks at its sockets. It sends pages of files that hardly ever change
// ahead of the freeze; the target says whether it has them, and the dump then refers to them.
//
// The package knows no step of the migration: its caller calls the methods in their order. It sends with
// package transfer/state, and declares what it needs of packets, memory and files (Packets, Memory,
// Config.Files).
package dump
