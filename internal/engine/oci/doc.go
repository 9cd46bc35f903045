// Package oci moves containers of any engine that runs them by an OCI runtime. They leave as their engine
// has made them, and arrive as containers of the engine at the target.
//
// At the target, only a runtime can restore a container instead of creating it. The runtime shim
// godwit-runc does that (package shim); it must be registered as a runtime of the engine. The package does
// not touch the engine's own state. It writes only to what belongs to the container, its writable layer,
// its volumes and its log, while none of its processes runs. An Adapter hides the differences between
// engines.
//
// An engine gives each container an ID of its own on each node. Godwit uses the first of these IDs; a label
// keeps it on containers that have moved. The package's records of a move, which must survive a crash, are
// in a directory named by this ID.
package oci
