// Package memory moves the memory of a container's processes while they run.
//
// At the source it finds written pages (tracker), reads them without stopping anything (reader), and passes
// them as runs of pages to a Sink, in rounds, until the rest is small enough (Decide). At the target a
// Store keeps them until a restore takes them. It must not know engines, CRIU, connections or what a
// migration is: its callers pass processes and a Sink.
//
// The pages are those of private anonymous mappings that a restore can fill lazily, and of memory that
// processes share without a file: shared anonymous mappings and memfds of 256 KiB or more (object.go). CRIU
// dumps and restores everything else: files, smaller shared memory, locked and huge pages.
package memory
