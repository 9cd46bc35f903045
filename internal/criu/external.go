package criu

import (
	"errors"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Externals are the parts of a container that come from outside of it, with the keys that `runc restore` uses.
type Externals struct {
	Mounts   []Mount
	External []string // "net[INODE]:extRootNetNS" and the like
}

// ExternalFor computes, from a container's OCI specification and its first process, what `runc checkpoint` would tell
// CRIU to leave out of the images.
func ExternalFor(spec *specs.Spec, pid int) (Externals, error) {
	return Externals{}, errors.ErrUnsupported
}

// WriteDescriptors writes descriptors.json, which `runc restore` needs, to the images: what standard input, output and
// error of the container were when runc started it. descriptors is that of runc's state.json
// ("external_descriptors"): three strings such as "pipe:[4711]" or "/dev/null".
func WriteDescriptors(imagesDir string, descriptors []string) error { return errors.ErrUnsupported }
