// Package predict tells what a migration would cost in each mode before anything moves, and chooses.
//
// It is pure: what was measured of the container, the link and the nodes comes in as numbers, and what is expected goes out. It
// asks nobody, and knows no clock. The rounds are predicted by the rules that end them for real (memory.Decide), so that
// the two cannot differ.
//
// # Memory
//
// Let R be the bytes of memory that travel, w the bytes on the wire for one of them (zero pages and pages whose content is
// elsewhere in the container are references of next to nothing, the rest is compressed), B the bytes per second of the link,
// and c the processor's seconds for a byte. A byte takes
//
//	s = max(w/B, c)
//
// because pages are read, compressed and sent beside each other, and the slowest of these counts. D(t) are the bytes of the
// distinct pages that the container writes within t seconds: the dirtying curve. It was measured at 0.1, 1, 10 and 60 s; between
// these it is a power of t, as is that of a program that writes at random (linear) and of one that writes the same pages
// again and again (constant). Rounds then take
//
//	T(0) = R s + RTT,   T(k+1) = D(T(k)) s + RTT
//
// because a round is over when the target says that its pages are in place, and sends what was written in the one before.
// They end where memory.Decide says so. While the freeze is prepared (P seconds) the container writes on, one more round
// brings what it wrote, and what is left in the freeze is D of how long that round and the settling of connections took.
//
// # Downtime
//
//	cold:       max(dump + R/dump rate, R s) + state/B + RTT/2 + restore + R/restore rate
//	pre-copy:   max(dump, D s) + state/B + RTT/2 + restore
//	post-copy:  dump + (touched + state)/B + RTT/2 + restore
//	restart:    stop + files/B + RTT/2 + start
//
// Dump and restore are a constant and a share for each process, thread, mapping, descriptor and connection, and for what there
// is of memory (tables of what is where); Costs says what they were measured to be, and on what. RTT/2 is the way of the last
// byte: nothing in a freeze waits for an answer. A client waits longer by the news that the container runs, which goes
// to the source, and by its packet, which goes to the target after that: a round trip and its own way.
//
// # After the handover
//
// Pages that stayed, L bytes, follow in L s. The container meanwhile wants those that it touches: a page that is not there
// costs it a round trip. If it does work of x seconds in the drain's time t = x + waiting, it touches at least the D(x) that
// it would write, of which half have come by then on the average. The equation is solved for x. Reads are not seen by anybody, so
// the interval is wide.
//
// # Intervals
//
// Expected is the model with what was measured; Low and High are the model with all that is uncertain at its better and at its
// worse end together: bandwidth (its jitter and loss, or hardly known at all), curve (how long it was watched), the costs of
// this machine. They hold nine of ten (see the tests), as long as container and link go on as they did.
package predict
