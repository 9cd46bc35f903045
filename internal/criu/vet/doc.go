// Package vet checks the CRIU images of a container from another node before CRIU reads them.
//
// CRIU restores what its images say, as root: credentials, namespaces, mounts and system call filters. It
// trusts them, because usually the same machine wrote them. Here they come from another node. So the
// package compares what the images say about privileges with what was agreed: the definition from which
// this node's own engine derived the container's specification. An image that gives a process more
// privileges is refused before CRIU sees any of it, and the error names the process and the cause.
//
// The package does not look at a program's own memory, registers, signals and timers.
//
// It knows CRIU's image formats and OCI specifications. It knows no engines, peers or migrations, and
// starts no programs.
package vet
