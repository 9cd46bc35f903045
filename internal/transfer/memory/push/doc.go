// Package push sends remote pages after the handover: pages that are still in the frozen processes at the
// source.
//
// Sender serves them at the source; Receiver hands them to what fills the container's memory at the target.
// There are two connections, one for pages that a process waits for and one for all others. If they break,
// the source opens two new ones, and the Receiver says which pages are missing. If the frozen processes are
// lost, Sender reads the pages from the Spill: an encrypted copy on the source's disk, whose key only the
// memory of both agents has. Source opens the connections, again whenever they break, and begins the spill
// after the handover; an agent that is started again goes on with it. Package memory/postcopy has the
// order of the pages and what goes over the connections.
//
// The source gives its copy up when it hears that nothing is missing, so the Receiver says that only if it is
// certain. The package knows no step of a migration; of engines it knows two errors.
package push
