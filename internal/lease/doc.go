// Package lease returns addresses of the pool to the nodes that own them (network/pool/lease.go hands
// addresses out).
//
// When a container is gone, its address goes back to its home node. That node may be down, and this agent may
// end between taking an address and making the container, so each pending return is first written to a file
// (notes.go), and retried until the home node has answered.
//
// The package does not decide who has a container: the home node checks that before it accepts a return.
package lease
