// Package image makes small container images from Debian packages, for the lab, the demo and the
// tests, with nothing but what apt and dpkg give on a Debian or Ubuntu machine.
//
// Images share their lower layers. A package's dependencies that only its installation needs are
// left out, maintainer scripts do not run, and documentation is not unpacked: these are images to
// try a migration with, not to build on.
//
// The images of the studies (studies.go) are larger: their layers may also have files from
// elsewhere, whose digests are known, and files that programs of Debian's make in a file system of
// their own (make.go). Their sources are below sources.
//
// The package knows nothing of the lab's nodes, and nothing of how a node stores images.
package image
