// Package layers moves layers of images between nodes: a Mover brings those that this node lacks, has other
// nodes bring theirs, and serves what is here.
//
// A layer may come from any node that has it, and from the registry; files/fetch decides from whom. Engines
// that keep images themselves get theirs by way of the spool. What a peer says is checked and bounded here.
//
// The package knows no migration and makes no connection: Config has what it needs of the node.
package layers
