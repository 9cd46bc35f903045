// Package rtnl converts between addresses and the types of the netlink library, and reads from the kernel
// what several parts of a node's network need. It has no state.
package rtnl
