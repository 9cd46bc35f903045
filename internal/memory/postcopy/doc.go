// Package postcopy brings remote pages, which stayed at the source, to a container that runs at the target.
//
// The Server, at the source, reads them from the frozen processes. The Client, at the target, passes them
// to the process that fills the container's memory. Between them are two connections, so that a page for
// which a process waits is never behind others:
//
//	urgent  target to source: remote faults; source to target: the requested pages, one for each fault
//	push    source to target: all other pages, in the order in which they are probably needed;
//	        target to source: what is missing (first), how far it is (about once a second), and that it has
//	        all (last)
//
// The package must not know agents, engines, CRIU or processes, nor who makes the connections, and when
// they are made again.
//
// # Order
//
// The queue decides what leaves next: pages that the caller knows to be needed at once; pages around
// recently requested ones, as many as the program's access pattern makes likely (8 to 256 for a program
// that goes through its memory, 4 for one that jumps); hot pages, which the caller knows; wider
// surroundings of requested pages; then the rest in order of address.
//
// # Each page once
//
// A page leaves once on a pair of connections, on either of them. Only the target knows what it has. So
// when a connection breaks, the server forgets everything and waits for the target's map of missing pages;
// nothing that arrived is sent again, and recovery works like any start. The server starts without the map
// only the first time, when nothing can have arrived. Then requested pages leave from the beginning, and
// others when the caller allows it.
//
// # Changes
//
// In a hybrid migration the target has an earlier content of most pages, and in many of them only a few
// bytes have changed since. If the target has said that it has that content, and the source still knows it,
// the source sends the changes, with a digest of the page. A page that does not come out right is not
// accepted. Usually the container has given that page back, and its earlier content is gone for that
// reason; then nobody needs it. If a process does need it, or it is missing when everything else is here,
// the connections end, and the next ones carry whole pages.
//
// # A peer that lies
//
// The target accepts no page that is not missing, no urgent page that it did not request, and nothing
// twice. The source sends no page that did not stay with it. Either side tells the peer about its mistake
// and ends the connections: ErrPeer.
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
//	changes   pages as changes to what the target has had: task (u32), address (u64), digest (2 x u64),
//	          length (u16), delta
//	missing   maps as memory.EncodeMap writes them; its name is "changes" if the target can take these
//	status    memory.FillReport as JSON, at most 64 KiB
//	complete  the same
package postcopy
