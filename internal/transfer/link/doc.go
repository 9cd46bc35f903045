// Package link owns the data connections of a migration. At the source (Link): how they are dialled and
// measured, their common bandwidth limit, what they have carried, and the sections that the first of them
// carries; Early makes connections while the mode of the migration is still being chosen. At the target
// (Target): the first of them, over which the source is answered.
//
// The package knows one section, by which the source says that it has staged (KindStaged), and no step that
// sends others. It answers for one thing about the final marker: KeepFinal reports whether a marker that was
// given to the connection certainly stays on this node.
package link
