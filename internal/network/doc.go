// Package network lets a container keep its IP address when it moves to another node.
//
// It owns, on one node and in one network namespace: the addresses of the containers whose home is this
// node, the network namespace and the veth pair of every container here (made by itself, or adopted from
// another engine), the tunnel to the other nodes, the routes, and the hold queues in which packets wait
// while a container moves. It must not know what a migration is, who asks, or how processes are frozen:
// it is told where an address is, and makes it so. Every call says what shall be, not what shall change,
// so it can be repeated after a crash.
//
// # Where packets go
//
// Node N owns 10.57.N.0/24, if the pool is 10.57.0.0/16. A packet to a container goes to the container's
// home node by that subnet's route, unless a /32 route says better; the home node always has the /32
// route when the container is elsewhere. What has no route meets a blackhole: while a container is away
// nobody answers for it, neither by a reset nor by ICMP.
//
// Nodes are joined by one VXLAN device without learning and without ARP: each peer has a permanent
// neighbour, a forwarding entry and routes. The device sends within WireGuard (see Overlay): each node
// has an address of the pool for its end of the tunnel, WireGuard takes from a peer only what has that
// peer's, and the packet filter takes VXLAN only from WireGuard's device and with the hardware address
// of the peer whose end it comes from. To route containers' addresses in WireGuard itself would spare
// VXLAN's header, but its table has one peer for each source address, and what a node forwards for
// clients and for containers that have moved has any.
//
// # Where answers go
//
// A container that is away from its home may have three kinds of correspondents, and a table of
// destinations alone cannot tell them apart: other containers and nodes (the destination tells); a host
// to which the container once connected through its home's masquerading (must go home for ever: its
// address is known there only); and a client that connected to the container through any node (must go
// back by that node: no other may know the client, and a direct way out would be wrong when home and
// this node share a LAN on which the first kind also lives). So each node remembers, in the connection's
// conntrack mark, the door by which the latest packet to a container came in: this node's own
// interfaces, or a peer. Answers leave by the same door; what has no door goes home, and from home to
// wherever the main table says. A client that moves to another node is followed with its first packet.
// The one case that this does not serve is a client that has moved and waits in silence: it is found
// when it next speaks.
//
// Only the home masquerades, and only packets that begin a connection. Otherwise a connection that is
// met in its middle, just after a move, would have its address translated. And conntrack judges no
// windows (tcp_be_liberal): what it took for invalid would not be translated back, and the node would
// answer it by a reset. What the home has translated back, and another node has held until the container
// had come home, conntrack does not know any more: see lateChain.
//
// # Holding packets
//
// A Hold turns the address to a TUN device whose other end is a queue in this process. Release writes
// the packets, in order, into the same TUN device, from which a rule sends them to the destination;
// packets that come meanwhile queue behind them. When the queue is empty and nothing has come for a
// moment, the address's route is switched. A kernel queue would survive this process, but tbf and htb
// let the first packet pass, sch_plug is not in every kernel, and neither could send what it holds
// elsewhere. If this process dies, its TUN devices and the routes to them vanish, the blackhole takes
// their place, and senders repeat what was lost.
//
// A hold can begin with TCP's SYNs only (StartNew): the reader then writes all other packets back at
// once, to the container that is still here, so that handshakes that have begun come to their end. A
// half-open connection cannot move: to the new node's kernel its last ACK belongs to nothing, and is
// answered by a reset. For a container that is started anew it holds requests (StartRequests), and
// passes on the rest to where the new one runs already: that may ask others, and be asked nothing.
//
// Order is kept at the node that holds. A client that is attached to the container's new node reaches it
// directly as soon as it is there, and so may overtake what it had sent before and still waits at the
// old one. Making it wait for that would lengthen its interruption by a round trip, for an order that IP
// does not promise.
//
// The kernel segments and checksums what enters a TUN device without offloads, so held packets are
// complete. They are exempt from connection tracking the second time that they come by.
package network
