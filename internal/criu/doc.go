// Package criu drives CRIU, which makes images of running processes and makes processes from
// images.
//
// It speaks CRIU's own protocol (criu swrk) so that what takes time is done before a container is
// frozen: a dump session that leaves the container frozen with complete images, a restore proxy
// between runc and CRIU that holds a restore until the images are there and nothing runs before it
// is allowed to, a list of what cannot be dumped, and the repair of sockets after a dump that was
// given up. It knows processes, cgroups and OCI specifications, but no engine, no network peer and
// no migration.
package criu
