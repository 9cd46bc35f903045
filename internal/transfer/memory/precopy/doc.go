// Package precopy carries a container's memory to the target in rounds while the container runs, and what is
// left in the freeze.
//
// At the source, Rounds looks for pages that were written, decides after each round what comes next, and
// hands pages to a Sender, which sends them over one or more connections. At the target, a Receiver puts them
// into the store from which the restored processes are filled. protocol.go has the sections between the two.
// A round is over when the target says that all of its pages are in place; pages that it could not make from
// a delta or a reference are sent again.
//
// Pages that stay at the source when the container is handed over are for package push. The package knows no
// engine and no step of a migration: connections, processes and figures come as arguments.
package precopy
