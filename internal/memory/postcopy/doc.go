// Package postcopy brings remote pages, which stayed at the source, to a container that runs at the target.
//
// The Server, at the source, reads them from the frozen processes. The Client, at the target, hands
// them to what fills the container's memory. Between them are two connections, so that a page that a
// process waits for is never behind others:
//
//	urgent  target to source: remote faults; source to target: the requested pages, one for each fault
//	push    source to target: all other pages, in the order in which they are probably needed; target to source: what is
//	        missing (first), how far it is (about once a second), and that it has all (last)
//
// The package must not know agents, engines, CRIU or processes, nor who makes the connections and when again.
//
// # Order
//
// What leaves next, by the queue: pages that the caller knows to be needed at once; pages around
// those that were requested just now, as many as the way in which a program asks makes likely (8 to
// 256 for one that goes through its memory, 4 for one that jumps); then hot pages, which the caller
// knows; then what is farther around requested pages; then the rest in order of address.
//
// # Each page once
//
// A page leaves once on a pair of connections, whichever of them takes it. The target alone knows
// what it has. So when a connection breaks, the server forgets all and waits for the target's map
// of what is missing; nothing that arrived is sent again, and recovery goes the way of every
// beginning. The only time that the server does not wait for the map is the first, when nothing can
// have arrived. Then requested pages leave from the begin, and others when the caller allows it.
//
// # Changes
//
// In a hybrid migration the target has had an earlier content of most pages, and of many only a few
// bytes have changed since. Once the target has said that it has that content, and where the source
// still knows it, what has changed is sent, with a digest of the page. A page that does not come
// out right is not taken. Mostly the container has given it back, and what was here of it is gone
// for that; then nobody asks for it. If somebody does, or it is missing when all else is here, the
// connections end, and the next ones carry whole pages.
//
// # A peer that lies
//
// The target takes no page that it does not miss, nor an urgent one that it did not ask for, and
// nothing twice. The source gives no page that did not stay with it. Either tells the peer what it
// has done wrong and ends the connections: ErrPeer.
//
// # On the disk
//
// A source may lose the frozen processes before all pages have left, by a reboot. Spill writes the pages to a
// file that only who has its key can read, and that cannot be changed unseen; OpenSpill makes a Reader of it.
//
// # Memory
//
// Each side holds 16 bytes for each area of the map, 32 MiB at most, and one to three bits for each
// page, 96 KiB for a GiB; a server one batch of pages (1 MiB at most) and one page, a client one
// run of each connection. The sessions have buffers of their own.
//
// # Format
//
// Sections of package wire/stream, little-endian:
//
//	want      remote faults: task (u32), address (u64); 1 to 4096 times
//	pages     runs of pages as memory.Encoder writes them
//	changes   pages as changes to what the target has had: task (u32), address (u64), digest (2 x u64), length (u16), delta
//	missing   maps as memory.EncodeMap writes them; its name is "changes" if the target can take these
//	status    memory.FillReport as JSON, at most 64 KiB
//	complete  the same
package postcopy
