// Package nsstate finds objects in a container's network namespace that the engine would not make again at
// another node: rules of the packet filter, devices, addresses, routes, routing rules, traffic control,
// IPsec, and kernel settings. If they did not move, the container would run on with an open firewall.
//
// The package recognises in three ways what the engine makes. The container's interface, its address and its
// gateway are known (Expected). The rules of Docker's resolver are recognised by their contents. And every
// namespace has what a new namespace on this node has: tunnel devices of modules, the kernel's own routing
// rules, default settings.
//
// The package runs nothing in the container and changes nothing. To query a table of iptables creates it, so
// only tables that the kernel lists are queried.
package nsstate
