// Package embedded is the small container engine that makes Godwit useful with nothing else
// installed. It runs containers with runc and moves them with CRIU.
//
// A container is an OCI bundle below the state directory; a small process of its own, the monitor,
// keeps its standard output, its log and its exit code, so that the agent can stop, crash and come
// back at any time. What this package knows about a container it finds on disk and in the kernel:
// nothing that matters is only in memory. It knows no network peer, no migration and no other
// engine; layers, addresses and network namespaces are given to it.
package embedded
