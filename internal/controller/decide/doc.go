// Package decide says which containers should move where, and why. It is pure: it has no clock, no I/O and
// no memory of earlier decisions. It looks at the whole world each time (level-triggered), so that a lost
// message or a restart of the controller changes no decision.
//
// An intent is a wish. The executor limits how many are carried out at once, and the two agents of a
// migration alone decide whether the container has moved. Decide makes no intent for a container that has
// one already.
//
// Causes, the most urgent first:
//
//	user        somebody asked for this container to go to this node
//	drain       the node is drained; a deadline that comes near raises the priority
//	allowed     the container's label says on which nodes it may be, and this node is none of them
//	bring-back  the node that the container left in a drain has been restored
//	affinity    the container should be where others of its group are
//	spread      another container of its group is on the same node
//
// The target is the node where the container is predicted to arrive first, given what is on its way there
// already, among the connected and active nodes that its label allows and that have room. Nodes that keep
// a group together, or apart, come before others. A node that refused the container is left out until
// something about it has changed, and a node to which the container did not move for another reason comes
// after the others. A container whose move was cancelled stays until a user moves it.
//
// A user asked for a drain, and for a move. The other causes are labels, which may be older than anybody
// remembers: their intents are recommendations, unless the controller was told to carry them out.
package decide
