// Package connection keeps the network as the containers of this node need it. Connections makes and removes
// what connects a container, when the agent starts and when a container does. Adopter takes over the
// connections of containers that another engine has given an address of the pool, Bridges looks after
// containers on bridges of their engines that have come or gone, and Routed makes the routes of engines'
// networks. Keeper looks at all of them again and again: engines start and end containers without telling.
//
// Where a migration is in charge of a container, nothing here touches the container's network. What an engine
// that does not answer may have stays as it is.
package connection

// Moves is what migrations on this node know of its containers.
type Moves interface {
	// Moving reports whether a migration is in charge of a container.
	Moving(container string) bool
	// Left reports whether a container is not this node's since it was last moved from or to it.
	Left(container string) bool
}
