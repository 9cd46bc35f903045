// Package docker moves containers that Docker runs: they leave as Docker has made them, and arrive as containers of Docker.
//
// It speaks to Docker by its API. What only a runtime can do at the target, to restore in the place of creating, godwit-runc
// does (package door), which must be a runtime of that Docker. State of Docker's own is not touched: only what belongs to the
// container is written, its writable layer, its volumes and its log, while nothing of it runs.
//
// Docker gives each container an id of its own on each node. Godwit's is that which it had first; a label keeps it on
// containers that have moved. What this package must know of a move after a crash is in a directory of its own, by that id.
package docker
