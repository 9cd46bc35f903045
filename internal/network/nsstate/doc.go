// Package nsstate finds what was made in a container's network namespace and is in none that an
// engine makes for it at another node: rules of the packet filter, devices, addresses, routes,
// routing rules, traffic control, IPsec, and settings of the kernel. Without that a container runs
// on after a move, and its firewall is open.
//
// What the engine makes is told apart in three ways. The container's interface, its address and its
// gateway are known (Expected). Docker's resolver has rules that are recognised by what they say.
// And whatever a new namespace on this node has, every namespace has: tunnel devices of modules,
// the kernel's own routing rules, defaults of settings.
//
// Nothing in the container is run for that, and nothing is changed: a table of iptables is made by
// asking for it, so only those are asked for that the kernel lists.
package nsstate
