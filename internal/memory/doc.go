// Package memory moves the memory of a container's processes while they run.
//
// At the source it finds which pages were written (tracker), reads them without stopping anything
// (reader), and hands them as runs of pages to whatever carries them (Sink), in rounds, until what
// is left is small enough (Decide). At the target a Store keeps them until a restore takes them. It
// must not know engines, CRIU, connections or what a migration is: it is handed processes and a
// Sink.
//
// Pages are those of private anonymous mappings that a restore can fill lazily. Everything else
// (files, shared memory, locked or huge pages) is dumped and restored by CRIU.
package memory
