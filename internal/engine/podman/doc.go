// Package podman moves containers that Podman runs as root: it is what package oci asks Podman for,
// by its command line, because Podman has no daemon that one could rely on.
//
// Podman cannot be told to change what it does when a container ends, once the container is made.
// So a container that leaves or arrives is guarded: an OCI hook, which Podman gives to its runtime,
// refuses to make its processes anew.
package podman
