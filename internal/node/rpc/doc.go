// Package rpc has the gRPC services of a node: for the command line on this node, and for other nodes. A
// service translates between messages and the part of the node that does the work, and decides nothing.
//
// Each service takes that part as a small interface. The agent embeds the services in what it registers with
// its two servers.
package rpc
