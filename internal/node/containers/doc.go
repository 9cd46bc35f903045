// Package containers makes, stops and removes containers of a node for its users, with their addresses. A
// container that a migration has to do with is left alone: who knows of migrations says so.
package containers
