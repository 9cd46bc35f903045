// Package progress keeps what is worth telling about one migration while it goes on: how far it is, and the
// facts of its report.
//
// Whoever does a part of a migration tells the Tracker what it has done and decided; the Tracker decides
// nothing. The package knows no connection, no engine and no other node: counters of connections come as
// numbers, by what they were.
package progress
