// Package reserve keeps what containers that are about to come will need on this node, so that no two take
// the same name, address or id, and all of them have room in memory.
//
// It decides nothing about room: whoever promises memory says how much was free, and judges.
package reserve
