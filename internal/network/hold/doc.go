// Package hold keeps packets of a container in a queue of this process while the container moves, and sends
// them on afterwards, in order.
//
// A Set has the holds of a node. A Hold redirects an address to a device, which the network makes (a TUN
// device) and whose other end is a queue here. Release writes the packets, in order, into the same device,
// from which they go to the destination. Packets that come meanwhile queue behind them. When the queue is
// empty and nothing has come for a moment, the address's route is switched. The package knows neither
// routes nor devices of the kernel. It needs only Network and Device, so it is tested without root.
//
// A kernel queue would survive this process, but tbf and htb let the first packet pass, sch_plug is not in
// every kernel, and neither could send the held packets elsewhere. If this process dies, its TUN devices
// and the routes to them vanish, the network's blackhole takes their place, and senders retransmit the lost
// packets.
//
// A hold can begin with TCP SYNs only (StartNew): the reader then writes all other packets back at once, to
// the container that is still here, so that handshakes in flight complete. A half-open connection cannot
// move: the new node's kernel knows no connection for its last ACK, and answers with a reset. For a
// container that is started anew, the hold keeps requests (StartRequests) and passes on everything else to
// the new container: it may ask others, but must not be asked anything.
//
// Order is kept at the node that holds. A client attached to the container's new node reaches the container
// directly as soon as it is there, and so may overtake its own earlier packets that still wait at the old
// node. Making the client wait would lengthen its interruption by a round trip, for an order that IP does
// not promise.
//
// # Invariants
//
//   - An address has at most one hold and one device. The device of a hold that has ended lingers for
//     packets that are still on their way; Prepare waits until it is gone, because its name is in use.
//   - A hold counts as started from just before the address's route leads into its device, and as current
//     until just after the route is switched. So if the network finds under its own lock that an address is
//     not held, it may route the address: a hold that starts meanwhile redirects it afterwards.
//   - A hold changes neither routes nor destination after its end.
//   - Held packets are forwarded, dropped and counted, or still queued.
//
// # Locks
//
// A lock is taken only while locks of earlier lines are held:
//
//  1. Set.preparing, or Hold.releasing and then Hold.routing
//  2. the network's own lock, in methods of Network and Device
//  3. Set.mu
//  4. Hold.sending, and then Hold.mu, and the queue's
//
// So the network may call Has, Holding and Addresses under its lock, and nothing else of a Set or Hold. Close
// waits for lingering devices, whose end takes the network's lock. The reader takes only the locks of the
// last line: a change of routes, however slow, does not keep packets from being queued.
//
// Rejected: one lock for network and holds, as there was once. Every method of a hold then depended on all
// of the network's state, and no part of it could be tested without root. Rejected: the holds' lock before
// the network's. The network looks for holds while it has its lock, in the middle of changes. Rejected: the
// network passes a function to be run under its lock. Marking a hold before it acts gives the same
// guarantee, and no package runs another's code under a lock.
package hold
