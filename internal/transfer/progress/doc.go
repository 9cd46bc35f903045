// Package progress records how far one migration is, and the facts of its report.
//
// The code that does a part of a migration tells the Tracker what it has done and decided; the Tracker
// decides nothing. Of connections the package sees only byte counters; it knows no engine and no other node.
package progress
