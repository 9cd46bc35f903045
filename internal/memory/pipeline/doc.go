// Package pipeline carries pages from a source to a store with as few bytes as possible.
//
// The Sender is where rounds put their pages (memory.Sink). It knows the digest of the receiver's content
// of each page, and sends the least of the following: nothing (the receiver already has it there), that the
// page is zero, a reference to the same content elsewhere in the container (pages that processes share
// copy-on-write travel once), a delta to what was sent before, or the content. The Receiver keeps the same
// state from what it gets, and puts pages into a store.
//
// The package must not know connections, codecs or what a migration is: frames leave through Lanes and
// arrive by Receiver.Frame.
//
// # Order
//
// The sender's knowledge is exact because the receiver applies frames in the order in which they were made:
// they are numbered, and each lane carries some of them. So a reference can be to anything that was put
// before, over any connection, and no round is overtaken by an earlier one. The receiver of a frame waits
// for its turn with that one frame in hand; all others wait in their connections.
//
// # Never wrong memory
//
// The result of each reference and each delta is checked against the sender's digest. A page that does not
// match, or refers to a missing page, is not placed. It is reported as missing with the next barrier, the
// sender sends it again, and while anything is missing Receiver.Complete returns an error.
//
// # Memory
//
// The sender holds 17 bytes for each page that it knows and 5 to 11 more in the index of contents,
// so 6 to 7 MiB for each GiB; the pages of the cache for deltas (CacheBytes, 64 MiB unless told
// otherwise) with about 60 bytes for each; and two frames of FrameBytes and two more for each lane.
// The receiver holds two MiB, and one frame for each lane.
//
// # Format
//
// A frame is its number (u64) and records, little-endian. A record begins with 16 bytes: task (u32),
// address (u64), and a word with the number of pages (24 bits) and the kind (8 bits). The rest depends on
// the kind:
//
//	zero     nothing
//	content  the pages
//	copy     where the same content is: task (u32), address (u64); check (u64)
//	base     the same, in what the receiver had before the migration
//	delta    check (u64); for each page length (u16) and the delta
//	forget   nothing: all pages of the task are of no use any more
//	barrier  nothing; the address is its number
package pipeline
