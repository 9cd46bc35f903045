// Package tunnel connects this node with its peers: by one VXLAN device, which sends within WireGuard unless
// the packets travel in the clear. Package network says why.
//
// Devices, keys and MTU are fixed once the tunnel is open. The peers have a lock of their own, which is also
// held while the devices follow from them; no other lock is taken under it. A new peer must
// be known to the packet filter before SetPeers, so that its first packet is let in: network.Network calls
// both under its own lock.
package tunnel
