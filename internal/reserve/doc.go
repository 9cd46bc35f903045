// Package reserve holds reservations for containers that are about to arrive on this node, so that no two
// take the same name, address or id, and all of them have room in memory.
//
// It makes no decision about room: the caller who promises memory states how much was free, and decides.
package reserve
