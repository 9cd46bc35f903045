// Package podman moves containers that Podman runs as root. It implements the operations that package oci
// needs with Podman's command line, because Podman has no daemon that is sure to run.
//
// Podman cannot change a container's restart policy once the container is made. So a leaving or arriving
// container is guarded: Podman gives its runtime an OCI hook that refuses to start the container's
// processes.
package podman
