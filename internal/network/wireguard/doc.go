// Package wireguard gives a node one WireGuard device with a peer for each other member.
//
// There are two ways. The kernel has WireGuard since Linux 5.6, if it was built with it; it is
// asked by netlink. Where it has not, a process of this program, Command, runs WireGuard's
// implementation in Go on a TUN device. That process outlives the agent: containers' packets must
// go on while an agent is updated or has crashed. An agent that comes back finds it by its control
// socket, which speaks WireGuard's configuration protocol (https://www.wireguard.com/xplatform/).
// It ends when its TUN device is removed.
//
// The package knows keys, addresses and ports. It does not know what a container is, and what the
// device carries.
package wireguard
