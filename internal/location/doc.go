// Package location knows which node has which container. Locations are those of containers away from their
// home, as nodes tell of their guests, and make the routes to them. Doubles raise an alarm when two nodes say
// that they run the same container. Members asks the other nodes for a container before it is started.
//
// What nodes know of each other is a few seconds old. Where a migration is in charge of a container, only the
// migration says where it is; this package asks Moves, and knows nothing else of migrations.
package location

// Moves is what migrations on this node know of its containers.
type Moves interface {
	// Moving reports whether a migration says where a container is.
	Moving(container string) bool
	// Departed reports whether a container that is still on this node runs at another one: its memory
	// follows, or its end here is on its way. Who went on sending here would have its packets take the link
	// that the memory needs.
	Departed(container string) bool
	// AllMoving are the containers of which a migration says where they are.
	AllMoving() map[string]bool
}
