// Package access decides who may ask an agent for what at the socket for the command line: it opens the
// socket, tells who is at the other end, and refuses calls whose caller lacks the right.
//
// The kernel says who calls (unix(7), SO_PEERCRED). The package knows the names of the calls, and nothing of
// what they do.
package access
