// Package bridge acts on the bridges of engines: it makes a node answer there for containers that are at
// other nodes, tells a bridge's containers where to send, and watches for bridges that engines make again.
//
// Which containers are elsewhere is decided in package network. The only state here is which bridges have a
// fixed hardware address, with a lock under which no other is taken.
package bridge
