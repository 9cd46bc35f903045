// Package oci moves containers of engines that run them by an OCI runtime, whichever engine that
// is: they leave as their engine has made them, and arrive as containers of that engine.
//
// What only a runtime can do at the target, to restore in the place of creating, the runtime shim
// godwit-runc does (package shim), which must be a runtime of that engine. State of the engine's
// own is not touched: only what belongs to the container is written, its writable layer, its
// volumes and its log, while nothing of it runs. What differs between engines is behind an Adapter.
//
// An engine gives each container an id of its own on each node. Godwit's is that which it had
// first; a label keeps it on containers that have moved. What this package must know of a move
// after a crash is in a directory of its own, by that id.
package oci
