// Package access decides who may ask an agent for what, and records calls: it opens the socket for the
// command line, identifies the caller, refuses calls whose caller lacks the right, and writes calls of
// users and of other nodes to the audit logs.
//
// The kernel identifies a caller at the socket (unix(7), SO_PEERCRED); a certificate identifies a node. The
// package knows the names of the calls, but not their effects.
package access
