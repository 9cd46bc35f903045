// Package predict tells what a migration would cost in each mode before anything moves, and chooses.
//
// It is pure: what was measured of the container, the link and the nodes comes in as numbers, and
// what is expected goes out. It asks nobody, and knows no clock. The rounds are predicted by the
// rules that end them for real (memory.Decide), so that the two cannot differ.
//
// # Memory
//
// Let R be the bytes of memory that travel, w the bytes on the wire for one of them (zero pages and
// pages whose content is elsewhere in the container are references of next to nothing, the rest is
// compressed), B the bytes per second of the link, and c the processor's seconds for a byte. A byte
// takes
//
//	s = max(w/B, c)
//
// because pages are read, compressed and sent beside each other, and the slowest of these counts.
// D(t) are the bytes of the distinct pages that the container writes within t seconds: the dirtying
// curve. It was measured at 0.1, 1, 10 and 60 s, and for longer by the rounds of past migrations;
// between these it is a power of t, as is that of a program that writes ever new pages (linear) and
// of one that writes the same again and again (constant). After the last point it is the geometric
// mean of that power, and of what a program does that writes at random to a number of pages of its
// own, W(1-exp(-kt)), through the last two points. Rounds then take
//
//	T(0) = R s + RTT,   T(k+1) = D(T(k)) s + RTT
//
// because a round is over when the target says that its pages are in place, and sends what was
// written in the one before. They end where memory.Decide says so. While the freeze is prepared (P
// seconds) the container writes on, one more round brings what it wrote, and what is left in the
// freeze is D of how long that round and the quiescing of connections took.
//
// # Downtime
//
//	cold:       max(dump + R/dump rate, R s) + state/B + RTT/2 + restore + R/restore rate
//	pre-copy:   max(dump, D s) + state/B + RTT/2 + restore
//	post-copy:  dump + (touched + state)/B + to find what is touched + RTT/2 + restore
//	restart:    stop + files/B + RTT/2 + start
//
// Dump and restore are a constant and a share for each process, thread, mapping, descriptor and
// connection, and for what there is of memory (tables of what is where); Costs says what they were
// measured to be, and on what. RTT/2 is the way of the last byte: nothing in a freeze waits for an
// answer. A client waits longer by the news that the container runs, which goes to the source, and
// by its packet, which goes to the target after that: a round trip and its own way.
//
// # What it took the last times
//
// All times but those of memory fall into four parts: before the target is ready, from then until
// the freeze, frozen, and after the resume. What these were in past migrations between the two
// nodes (PartsOf, of their reports; the median of the last few) is known better than what the costs
// say. So a part is what the costs say, and what they had been wrong by: all of it for the same
// container in the same mode, and less for another, or over a link whose round trip was another,
// because some of it is round trips. The freeze is that of the container only. If memory took
// clearly longer than the link would have, the processors were the limit, of both nodes with all
// else that they did, and c is what it was then (Pace).
//
// # After the handover
//
// Pages that stayed, L bytes, follow in L s. The container meanwhile wants those that it touches: a
// page that is not there costs it a round trip. If it does work of x seconds in the post-copy push's time t
// = x + waiting, it touches at least the D(x) that it would write, of which half have come by then
// on the average. The equation is solved for x. Even a program that does nothing waits for two
// pages, one after the other. Reads are not seen by anybody, so the interval is wide.
//
// # What a client waits for
//
// The longest wait for an answer is the freeze, a round trip, and, if pages follow, the time until
// those have come that the answer needs. At least these are the pages that the program writes in
// the time of an answer, D(0.1 s), one round trip for each that it has to ask for; at most all L
// that follow, as for a garbage collector that goes through the whole heap. Nobody sees what a
// program reads, so the middle of the two is expected: their geometric mean, as they are orders of
// magnitude apart. The mode is chosen by this wait, not by the freeze: services of Java and
// databases answered after 2 to 41 s in post-copy, where a pre-copy would have had them wait for
// 0.5 to 1.9 s.
//
// # Intervals
//
// Expected is the model with what was measured; Low and High are the model with all that is
// uncertain at its better and at its worse end together: bandwidth (its jitter and loss, or hardly
// known at all), curve (how long it was watched), the costs of this machine. They hold nine of ten
// (see the tests), as long as container and link go on as they did.
package predict
