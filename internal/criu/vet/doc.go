// Package vet reads the CRIU images of a container that comes from another node, before CRIU does.
//
// CRIU makes what its images say, as root: credentials, namespaces, mounts, filters of system calls. It believes them, because
// usually the same machine has written them. Here they come from another node. So what they say about privileges is compared with what
// was agreed: the definition from which this node's own engine has made the container's specification. An image that gives a
// process more than that is refused, with the process and what is wrong with it, and nothing of it gets to CRIU.
//
// What a program does with its own memory, registers, signals and timers is its own business and is not looked at.
//
// It knows CRIU's image formats and OCI specifications. It knows no engine, no peer and no migration, and starts nothing.
package vet
