// Package image makes small container images from Debian packages, for the lab, the demo and the tests. It
// only needs apt and dpkg on a Debian or Ubuntu machine.
//
// Images share their lower layers. Dependencies that only a package's installation needs are left out,
// maintainer scripts do not run, and documentation is not unpacked: these images are for trying a
// migration, not for building on.
//
// The images of the studies (studies.go) are larger: their layers may also have files from elsewhere, with
// known digests, and files that Debian's programs make in a separate file system (make.go). Their sources
// are below sources.
//
// The package knows neither the lab's nodes nor how a node stores images.
package image
