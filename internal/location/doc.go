// Package location tracks which node has which container.
//
// Locations records containers that run away from their home node, and sets routes to them. Doubles raises an
// alarm if two nodes say that they run the same container. Members asks the other nodes before a container is
// started here, so that the container never runs twice.
//
// What nodes tell each other is a few seconds old. While a migration is moving a container, only the
// migration says where the container is, so this package asks Moves.
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
