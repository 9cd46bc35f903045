// Package wireguard gives a node one WireGuard device with a peer for each other member.
//
// There are two ways. Linux 5.6 and later have WireGuard in the kernel, if it was built with WireGuard; the
// agent configures it through netlink. On other kernels, a process of this program (Command) runs the Go
// implementation of WireGuard on a TUN device. That process outlives the agent, because containers' packets
// must still pass while an agent is updated or has crashed. A restarted agent finds the process by its
// control socket, which speaks WireGuard's configuration protocol
// (https://www.wireguard.com/xplatform/). The process ends when its TUN device is removed.
//
// The package knows keys, addresses and ports. It knows neither containers nor what the device carries.
package wireguard
