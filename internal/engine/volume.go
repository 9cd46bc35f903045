package engine

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// VolumeKind is the kind of storage of a volume.
type VolumeKind string

// The kinds of volumes.
const (
	// a directory of the engine, found by name; it stays when its containers are removed
	Named VolumeKind = "named"
	Bind  VolumeKind = "bind"  // a directory of the node
	Tmpfs VolumeKind = "tmpfs" // memory; gone with the container
)

// Volume is a directory that is mounted into a container in addition to its image.
type Volume struct {
	Engine   string     `json:"engine,omitempty"` // of a named volume, as in Definition.EngineName
	Kind     VolumeKind `json:"kind,omitempty"`   // empty: named
	Name     string     `json:"name,omitempty"`   // of a named volume: [a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}
	Source   string     `json:"source,omitempty"` // of a bind: the directory, by the same path on every node
	Path     string     `json:"path"`             // in the container; unique among its volumes
	ReadOnly bool       `json:"read_only"`
	// SizeBytes bounds a tmpfs; 0: half of the node's memory, the kernel's default.
	SizeBytes int64 `json:"size_bytes,omitempty"`
	// Stays belongs to a move, not to the container: the content does not move, so nothing is copied,
	// removed or expected to be empty. Both nodes mount the same storage, or each has its own.
	Stays bool `json:"stays,omitempty"`
}

// Sort returns the volume's kind.
func (v Volume) Sort() VolumeKind { return cmp.Or(v.Kind, Named) }

// Key identifies a volume among those of its container, and its tree: the name of a named volume, or else
// the path.
func (v Volume) Key() string {
	if v.Sort() == Named {
		return v.Name
	}
	return v.Path
}

// String formats a volume for people.
func (v Volume) String() string {
	switch v.Sort() {
	case Bind:
		return "host directory " + v.Source
	case Tmpfs:
		return "tmpfs " + v.Path
	default:
		return "volume " + v.Name
	}
}

// Overlaps reports whether two volumes of one node share content.
func (v Volume) Overlaps(other Volume) bool {
	switch {
	case v.Sort() != other.Sort() || v.Sort() == Tmpfs:
		return false
	case v.Sort() == Named:
		return v.Engine == other.Engine && v.Name == other.Name
	}
	return Within(v.Source, other.Source) || Within(other.Source, v.Source)
}

// Within reports whether a clean path is a directory or below it.
func Within(path, directory string) bool {
	return path == directory || strings.HasPrefix(path, strings.TrimSuffix(directory, "/")+"/")
}

// Sharing lists the other containers, running or not, that share content with a volume of a container. A
// container whose definition cannot be read may have any volume.
func Sharing(all []Container, id string, volume Volume) (names []string) {
	for _, ctr := range all {
		if ctr.Definition.ID != id &&
			(ctr.State == Damaged || slices.ContainsFunc(ctr.Definition.Volumes, volume.Overlaps)) {
			names = append(names, ctr.Definition.Name)
		}
	}
	return names
}

// StoredVolume is an engine's description of a named volume of its node.
type StoredVolume struct {
	Name       string    `json:"name"`
	Path       string    `json:"path"` // on the node
	Changed    time.Time `json:"changed"`
	Containers []string  `json:"containers"` // by name, in order
}
