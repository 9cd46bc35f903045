package vet

import (
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Agreed is what a container may have, by the specification that this node's own engine has made of its definition.
type Agreed struct {
	// Capabilities are those that any of its processes may have.
	Capabilities    uint64
	NoNewPrivileges bool
	// Filtered says that system calls are filtered. Forbidden are the numbers of some that the filter refuses for certain.
	Filtered  bool
	Forbidden []uint32
	// Profile is that of AppArmor, Label that of SELinux; empty: none was agreed.
	Profile, Label string

	// Namespaces are those that it does not share with the node.
	Namespaces []specs.LinuxNamespaceType
	// NetworkHeld says that CRIU runs in the container's network namespace, so that this is no new one to it.
	NetworkHeld  bool
	UIDs, GIDs   []Extent // of its user namespace
	ReadOnlyRoot bool

	Mounts []Mount
	// Covered are files and directories that are hidden or made read-only by mounts.
	Covered []string
	// Outside are the names by which CRIU finds what is mounted from outside of the container.
	Outside []string
	// AnySource says that CRIU also takes what the images say themselves is outside, as it does for LXC; Sources are then the
	// directories and files that may be.
	AnySource bool
	Sources   []string
}

// Mount is one that was agreed.
type Mount struct {
	Point    string
	Type     string // "bind" is one of what is outside
	ReadOnly bool
}

// Extent is a line of a user namespace's map.
type Extent struct{ Inside, Outside, Count uint32 }

// FromSpec is what a specification of a container allows.
func FromSpec(spec *specs.Spec) Agreed {
	a := Agreed{}
	if spec.Process != nil {
		a.NoNewPrivileges = spec.Process.NoNewPrivileges
		a.Profile, a.Label = spec.Process.ApparmorProfile, spec.Process.SelinuxLabel
		if c := spec.Process.Capabilities; c != nil {
			a.Capabilities = Capabilities(slices.Concat(c.Bounding, c.Permitted, c.Inheritable, c.Effective, c.Ambient))
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
	for _, d := range l.Devices { // that are mounted, in a user namespace
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

// private tells whether the container has a namespace of this type of its own.
func (a *Agreed) private(kind specs.LinuxNamespaceType) bool {
	return slices.Contains(a.Namespaces, kind)
}

// at finds what was agreed to be mounted at a point; the last one hides those before.
func (a *Agreed) at(point string) (Mount, bool) {
	for _, m := range slices.Backward(a.Mounts) {
		if m.Point == point {
			return m, true
		}
	}
	return Mount{}, false
}

// below tells whether a point is one of these or in one of them.
func below(point string, of []string) bool {
	return slices.ContainsFunc(of, func(dir string) bool {
		dir = path.Clean("/" + dir)
		return point == dir || strings.HasPrefix(point, strings.TrimSuffix(dir, "/")+"/")
	})
}

// readOnly is the flag of mounts that nobody can write to.
const readOnly = unix.MS_RDONLY
