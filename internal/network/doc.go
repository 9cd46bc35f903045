// Package network lets a container keep its IP address when it moves to another node.
//
// On one node and in one network namespace, the package owns the addresses of the containers whose home is
// this node, the network namespace and veth pair of every container here (made by itself, or adopted from
// another engine), the tunnel to the other nodes, the routes, and the devices of held addresses. It knows
// nothing about migrations, callers, or how processes are frozen: it is told where an address is, and makes
// it so. Every call describes a state, not a change, so it can be repeated after a crash.
//
// # Where packets go
//
// Node N owns 10.57.N.0/24, if the pool is 10.57.0.0/16. A packet to a container goes to the container's
// home node by that subnet's route, unless a /32 route is better; the home node always has the /32 route
// when the container is elsewhere. Packets without a route meet a blackhole: while a container is away
// nobody answers for it, neither by a reset nor by ICMP.
//
// One VXLAN device without learning and without ARP connects the nodes: each peer has a permanent
// neighbour, a forwarding entry and routes. The device sends within WireGuard (package tunnel). Each node has
// an address of the pool for its end of the tunnel. WireGuard accepts from a peer only packets with the
// peer's tunnel address, and the packet filter accepts VXLAN only from WireGuard's device and with the
// hardware address of the right peer. Routing containers' addresses in WireGuard itself would save VXLAN's
// header. But WireGuard's table has one peer for each source address, and packets that a node forwards for
// clients and moved containers have any source.
//
// # Where answers go
//
// A container that is away from its home may have three kinds of correspondents, and a table of
// destinations alone cannot tell them apart. Other containers and nodes: the destination decides. A host to
// which the container once connected through its home's masquerading: answers must go home for ever,
// because only the home knows the host's view of the address. A client that connected to the container
// through any node: answers must go back through that node, because no other node may know the client, and
// a direct way out would be wrong if home and this node share a LAN on which the first kind also lives. So
// each node keeps an ingress mark in the connection's conntrack mark: where the latest packet to a
// container came in, by this node's own interfaces or from a peer. Answers leave the same way. Packets
// without an ingress mark go home, and from there wherever the main table says. A client that moves to
// another node is followed with its first packet. One case is not served: a client that has moved and
// sends nothing is found only when it next sends.
//
// Only the home masquerades, and only packets that begin a connection. Otherwise a connection first seen in
// its middle, just after a move, would have its address translated. And conntrack checks no TCP windows
// (tcp_be_liberal): it would not translate packets back that it took for invalid, and the node would answer
// them with a reset. If the home has translated packets back, and another node has held them until the
// container came home, conntrack does not recognise them: see lateChain in package filter.
//
// # Holding packets
//
// Package hold queues packets of a container that moves. For each held address, this package makes a TUN
// device with a routing table and a rule: the address's route leads into the device, and what the hold
// writes to the device goes to the destination. Under this package's lock only Has, Holding and Addresses of
// the holds may be called: see package hold.
//
// The kernel segments and checksums packets that enter a TUN device without offloads, so held packets are
// complete. Connection tracking skips them when they pass the second time.
//
// # Parts and locks
//
// Network wires parts together that have state and locks of their own: leases of addresses (pool), the tunnel
// and its peers (tunnel), the packet filter and the suppression of ARP (filter), rules in other programs'
// chains (foreign), settings of engines' bridges (bridge), records of containers on bridges (records), and
// holds (hold). Package flows keeps its state in the kernel. The lock of the node (node.mu) is taken first,
// and then the lock of one part, or none. No part takes the lock of another. Only holds call back into this
// package, with no lock but those that come before node.mu: see package hold.
//
// Two parts disagree for a moment while something changes in both. node.mu is held throughout: SetPeers
// lets the filter know a new peer before the tunnel does, and if the filter cannot be changed, the tunnel's
// peers stay as they were.
//
// The parts without a lock of their own share node.mu: attached containers (containers), those on bridges
// (onBridges), routed networks (routedNetworks, neighbours) and the devices of holds (holdDevices). A record
// of a container on a bridge is changed under node.mu, too, and read without it. Whoever switches an address
// looks at its container, at the peers, and at whether the address is held, and then changes its route;
// SetPeers removes the routes through a peer that has gone. With a lock for each, a route could be made after
// that, or over the route into a hold's device.
package network
