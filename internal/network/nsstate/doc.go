// Package nsstate finds objects in a container's network namespace that the engine would not make again at
// another node: rules of the packet filter, devices, addresses, routes, routing rules, traffic control,
// IPsec, and kernel settings. If they did not move, the container would continue with an open firewall.
//
// The package recognises the engine's own objects in three ways. The container's interface, its address and
// its gateway are known (Expected). The rules of Docker's resolver are recognised by their contents. And
// every namespace has the objects of a new namespace on this node: tunnel devices of modules, the kernel's
// own routing rules, default settings.
//
// The package runs nothing in the container and changes nothing. Querying a table of iptables creates the
// table, so only tables that the kernel lists are queried.
package nsstate
