package vet

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Agreed is what a container may have, according to the specification that this node's own engine derived
// from the container's definition.
type Agreed struct {
	// Capabilities are those that a process of the container may have.
	Capabilities    uint64
	NoNewPrivileges bool
	// User is the user of the container's first process; nil: not known.
	User *specs.User
	// Filtered reports that system calls are filtered. Forbidden are the numbers of system calls that the
	// filter certainly refuses.
	Filtered  bool
	Forbidden []uint32
	// Profile is the AppArmor profile, Label the SELinux label; empty: none was agreed.
	Profile, Label string

	// Namespaces are those that the container does not share with the node.
	Namespaces []specs.LinuxNamespaceType
	// NetworkHeld reports that CRIU runs in the container's network namespace, so CRIU does not see that
	// namespace as a new one.
	NetworkHeld  bool
	UIDs, GIDs   []Extent // of the container's user namespace
	ReadOnlyRoot bool

	Mounts []Mount
	// Covered are files and directories hidden or made read-only by mounts.
	Covered []string
	// Outside are the names by which CRIU finds mounts from outside the container.
	Outside []string
	// AnySource reports that CRIU also accepts mounts that the images themselves declare external, as it
	// does for LXC. Sources then lists the allowed directories and files.
	AnySource bool
	Sources   []string
}

// Mount is an agreed mount.
type Mount struct {
	Point    string
	Type     string // "bind" mounts something from outside
	ReadOnly bool
}

// Extent is a line of a user namespace's ID map.
type Extent struct{ Inside, Outside, Count uint32 }

// FromSpec returns what a container's specification allows.
func FromSpec(spec *specs.Spec) Agreed {
	a := Agreed{}
	if spec.Process != nil {
		a.NoNewPrivileges = spec.Process.NoNewPrivileges
		a.User = &spec.Process.User
		a.Profile, a.Label = spec.Process.ApparmorProfile, spec.Process.SelinuxLabel
		if c := spec.Process.Capabilities; c != nil {
			a.Capabilities = Capabilities(slices.Concat(c.Bounding, c.Permitted, c.Inheritable, c.Effective,
				c.Ambient))
		}
	}
	if spec.Root != nil {
		a.ReadOnlyRoot = spec.Root.Readonly
	}
	for _, m := range spec.Mounts {
		a.Mounts = append(a.Mounts, mountOf(m))
	}
	if l := spec.Linux; l != nil {
		a.linux(l)
	}
	return a
}

func (a *Agreed) linux(l *specs.Linux) {
	for _, n := range l.Namespaces {
		a.Namespaces = append(a.Namespaces, n.Type)
	}
	a.UIDs, a.GIDs = extents(l.UIDMappings), extents(l.GIDMappings)
	a.Covered = slices.Concat(l.MaskedPaths, l.ReadonlyPaths)
	for _, d := range l.Devices { // a user namespace mounts these
		a.Covered = append(a.Covered, d.Path)
	}
	if l.Seccomp != nil {
		a.Filtered = true
		a.Forbidden = forbidden(l.Seccomp)
	}
}

func mountOf(m specs.Mount) Mount {
	out := Mount{Point: path.Clean("/" + m.Destination), Type: m.Type}
	for _, option := range m.Options {
		switch option {
		case "bind", "rbind":
			out.Type = "bind"
		case "ro":
			out.ReadOnly = true
		case "rw":
			out.ReadOnly = false
		}
	}
	return out
}

func extents(of []specs.LinuxIDMapping) []Extent {
	var out []Extent
	for _, m := range of {
		out = append(out, Extent{m.ContainerID, m.HostID, m.Size})
	}
	return out
}

// private reports whether the container has its own namespace of this type.
func (a *Agreed) private(kind specs.LinuxNamespaceType) bool {
	return slices.Contains(a.Namespaces, kind)
}

// at returns the agreed mount at a point; the last one hides those before.
func (a *Agreed) at(point string) (Mount, bool) {
	for _, m := range slices.Backward(a.Mounts) {
		if m.Point == point {
			return m, true
		}
	}
	return Mount{}, false
}

// below reports whether a point equals one of these or lies below one.
func below(point string, of []string) bool {
	return slices.ContainsFunc(of, func(dir string) bool {
		dir = path.Clean("/" + dir)
		return point == dir || strings.HasPrefix(point, strings.TrimSuffix(dir, "/")+"/")
	})
}

// readOnly is the flag of read-only mounts.
const readOnly = unix.MS_RDONLY
