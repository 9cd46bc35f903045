// Package attachment keeps the network attachments of this node's containers right: interface, address and
// routes.
//
// Attachments restores them when the agent starts, and makes one for each container that starts. Adopter
// takes over an attachment that another engine made with an address of the pool. Bridges tracks containers
// that moved here or away on a bridge of their engine. Routed publishes routes to engines' networks. Engines
// start and end containers without telling Godwit, so Keeper repeats all of this at intervals.
//
// The package leaves alone each container that a migration is moving, and each that belongs to an engine that
// does not answer.
package attachment

// Moves is what migrations on this node know of its containers.
type Moves interface {
	// Moving reports whether a migration is in charge of a container.
	Moving(container string) bool
	// Left reports whether a container is not this node's since it was last moved from or to it.
	Left(container string) bool
}
