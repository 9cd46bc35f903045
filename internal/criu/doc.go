// Package criu drives CRIU, which makes images of running processes and makes processes from
// images.
//
// It speaks CRIU's own protocol (criu swrk), so that slow work is done before a container is frozen. It has
// a dump session that leaves the container frozen with complete images. It has a restore proxy between runc
// and CRIU, which holds a restore until the images are complete, and lets nothing run before that is
// permitted. It repairs sockets after a dump that was given up. It knows processes, cgroups and OCI
// specifications, but no engine, no network peer and no migration.
package criu
