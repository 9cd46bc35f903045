// Package access decides who may ask an agent for what, and records who has: it opens the socket for the
// command line, tells who is at the other end, refuses calls whose caller lacks the right, and writes calls
// of users and of other nodes to the audit logs.
//
// The kernel says who calls at the socket (unix(7), SO_PEERCRED), a certificate which node does. The package
// knows the names of the calls, and nothing of what they do.
package access
