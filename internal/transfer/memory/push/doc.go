// Package push is the post-copy push: it brings the pages that stayed at the source when the container was
// handed over, in the frozen processes there, to what fills its memory at the target.
//
// Two connections carry them: one for pages that processes wait for, one for all others. When these break
// the source opens two new ones, and the Receiver at the target says what it lacks. A Sender gives the pages,
// from the frozen processes or, if these are lost, from the Spill: an encrypted copy on the source's disk,
// whose key only the memory of both agents has. Package memory/postcopy has the order of pages and what goes
// over the connections.
//
// The source gives its copy up when it hears that nothing is missing, so the Receiver says that only if it
// knows. The package knows no step of a migration; of engines it knows two errors.
package push
