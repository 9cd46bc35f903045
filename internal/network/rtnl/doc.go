// Package rtnl has what the parts of a node's network need of the kernel's routing: our routes and rules,
// told from other programs' by their protocol and priorities, and conversions between addresses and the types
// of the netlink library. It has no state of its own: its users know which routes should exist.
package rtnl
