// Package predict forecasts the cost of a migration in each mode before anything moves, and chooses a mode.
//
// It is pure: measurements of the container, the link and the nodes come in as numbers, and expected values
// go out. The package does no I/O and reads no clock. The rounds are predicted by the same rules that end
// real rounds (memory.Decide), so that the two cannot differ.
//
// # Memory
//
// Let R be the bytes of memory that are sent, w the bytes on the wire for one of them (zero pages, and
// pages whose content is elsewhere in the container, are references of next to nothing; the rest is
// compressed), B the bytes per second of the link, and c the processor's seconds for a byte. A byte takes
//
//	s = max(w/B, c)
//
// because pages are read, compressed and sent in parallel, and the slowest of these counts. D(t) are the
// bytes of the distinct pages that the container writes within t seconds: the dirtying curve. It was
// measured at 0.1, 1, 10 and 60 s, and for longer times by the rounds of past migrations. Between these
// points it is a power of t, as is the curve of a program that always writes new pages (linear) and of one
// that writes the same pages again and again (constant). After the last point it is the geometric mean of
// that power and of the curve of a program that writes at random to a fixed number of pages, W(1-exp(-kt)),
// through the last two points. Rounds then take
//
//	T(0) = R s + RTT,   T(k+1) = D(T(k)) s + RTT
//
// because a round is over when the target reports that its pages are in place, and sends the pages that
// were written in the previous round. Rounds end where memory.Decide says so. While the freeze is prepared
// (P seconds) the container continues to write, and one more round sends those pages. The remainder in the
// freeze is D of the time that this round and the quiescing of connections took.
//
// # Downtime
//
//	cold:       max(dump + R/dump rate, R s) + state/B + RTT/2 + restore + R/restore rate
//	pre-copy:   max(dump, D s) + state/B + RTT/2 + restore
//	post-copy:  dump + (touched + state)/B + to find what is touched + RTT/2 + restore
//	restart:    stop + files/B + RTT/2 + start
//
// Dump and restore are a constant and a share for each process, thread, mapping, descriptor and connection,
// and for the amount of memory (its page tables); Costs has the measured values, and the machine. RTT/2 is
// the way of the last byte: nothing in a freeze waits for an answer. A client waits longer by the message
// that the container runs, which goes to the source, and by its packet, which goes to the target after
// that: a round trip and its own way.
//
// # Learning from past migrations
//
// All times except those of memory fall into four parts: before the target is ready, from then until the
// freeze, frozen, and after the resume. The same parts of past migrations between the two nodes (PartsOf,
// from their reports; the median of the last few) are more reliable than the costs. So a part is the value
// from the costs, plus the error of that value in past migrations: all of the error for the same container
// in the same mode, and less for another, or over a link with another round trip, because some of it is
// round trips. The freeze is that of the container only. If memory took clearly longer than the link would
// have, the processors of both nodes were the limit, with all their other work, and c is the value of that
// migration (Pace).
//
// # After the handover
//
// Pages that stayed, L bytes, follow in L s. The container meanwhile touches pages: a page that is not
// there costs it a round trip. If it does work of x seconds in the post-copy push's time t = x + waiting,
// it touches at least the D(x) that it would write, of which half have come by then on average. The
// equation is solved for x. Even a program that does nothing waits for two pages, one after the other.
// Reads are not observable, so the interval is wide.
//
// # What a client waits for
//
// The longest wait for an answer is the freeze, a round trip, and, if pages follow, the time until the
// pages that the answer needs have come. At least these are the pages that the program writes in the time
// of an answer, D(0.1 s), one round trip for each page that it has to request; at most all L that follow,
// as for a garbage collector that goes through the whole heap. Reads are not observable, so the expected
// value is the middle of the two: their geometric mean, as they are orders of magnitude apart. The mode is
// chosen by this wait, not by the freeze: services of Java and databases answered after 2 to 41 s in
// post-copy, where clients would have waited 0.5 to 1.9 s in a pre-copy.
//
// # Intervals
//
// Expected is the model with the measured values; Low and High are the model with all uncertain values at
// their better and at their worse end together: bandwidth (its jitter and loss, or hardly known at all),
// curve (how long the container was watched), the costs of this machine. The intervals contain nine of ten
// results (see the tests), as long as container and link go on as before.
package predict
