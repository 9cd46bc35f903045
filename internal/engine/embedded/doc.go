// Package embedded is the small container engine that makes Godwit useful with nothing else
// installed. It runs containers with runc and moves them with CRIU.
//
// A container is an OCI bundle below the state directory. A small process of its own, the monitor, keeps
// its standard output, its log and its exit code, so that the agent can stop, crash and come back at any
// time. The package finds everything about a container on disk and in the kernel: nothing that matters is
// only in memory. It knows no network peer, no migration and no other engine; callers pass layers,
// addresses and network namespaces.
//
// The Engine is made of parts. catalog finds containers; bundles makes their files, processes their
// processes, volumes their volumes; notes and restarts keep what outlives a boot. life, execs, logs and
// meters serve users; departures, halts and arrivals serve migrations. A part knows those below it, and the
// Engine has the methods of most parts because it embeds them.
package embedded
