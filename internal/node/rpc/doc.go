// Package rpc has the gRPC services of a node, for the command line on this node and for other nodes. A
// service passes each call to the part of the node that does the work, and decides nothing.
//
// Each service declares a small interface for that part. The agent registers the services with its two
// servers.
package rpc
