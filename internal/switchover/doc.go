// Package switchover owns the packets of a container that moves away, from the step that holds them until
// they go on to one of the two nodes: the queue that holds them, the block on what the frozen container
// sends, and in mode restart who may redirect the queue.
//
// The package owns the invariant that packets go to the node that has the container, in order: they are let
// go here only by ReleaseHere, or to the target by ReleaseThere and, for what opens no connection, by
// Redirect. When a step does so, a migration decides. How packets are held is for package network/hold.
package switchover
