// Package link owns the data connections of a migration at its source: how they are dialled and measured,
// their common bandwidth limit, and the sections that the first of them carries. Early makes connections
// while the mode of the migration is still being chosen.
//
// The package knows neither what a section says nor which step sends it, and it answers for one thing about
// the final marker: KeepFinal reports whether a marker that was given to the connection certainly stays on
// this node.
package link
