package migration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// VolumeWay says how a migration treats a volume.
type VolumeWay string

// The ways.
const (
	// the volume moves with the container, and leaves the source; unless both nodes mount it
	VolumeMove VolumeWay = "move"
	// both nodes mount it, which must be proven: nothing is copied or removed
	VolumeShared VolumeWay = "shared"
	VolumeSkip   VolumeWay = "skip" // the container gets the target's volume; this one stays here
)

// VolumeWayNames lists a user's choices.
func VolumeWayNames() []VolumeWay { return []VolumeWay{VolumeMove, VolumeShared, VolumeSkip} }

// VolumeWays are a user's choices for the volumes of a container, in a form that can be compared: WAY for
// volumes that are not named and VOLUME=WAY for one volume, in order, with zero bytes between.
type VolumeWays string

// maxVolumeWays bounds the length of a user's choices.
const maxVolumeWays = 64 << 10

// ParseVolumeWays parses a user's choices: each item is WAY or VOLUME=WAY, where VOLUME is a name, or a
// path in the container.
func ParseVolumeWays(items []string) (VolumeWays, error) {
	chosen := map[string]string{}
	for _, item := range items {
		volume, way := "", item
		if i := strings.LastIndexByte(item, '='); i >= 0 {
			volume, way = item[:i], item[i+1:]
			if volume == "" || strings.ContainsRune(volume, 0) {
				return "", fmt.Errorf("volumes %q: want WAY or VOLUME=WAY", bounded(item, maxName))
			}
		}
		if !slices.Contains(VolumeWayNames(), VolumeWay(way)) {
			return "", fmt.Errorf("unknown way %q for a volume; choose one of: %s",
				bounded(way, maxName), joinWays())
		}
		if _, twice := chosen[volume]; twice {
			return "", fmt.Errorf("volumes %q: this volume already has a way", bounded(item, maxName))
		}
		chosen[volume] = way
	}
	var out []string
	for _, volume := range slices.Sorted(maps.Keys(chosen)) {
		entry := chosen[volume]
		if volume != "" {
			entry = volume + "=" + entry
		}
		out = append(out, entry)
	}
	ways := VolumeWays(strings.Join(out, "\x00"))
	if len(ways) > maxVolumeWays {
		return "", fmt.Errorf("volumes: more than %d bytes", maxVolumeWays)
	}
	return ways, nil
}

func joinWays() string {
	var names []string
	for _, way := range VolumeWayNames() {
		names = append(names, string(way))
	}
	return strings.Join(names, ", ")
}

// JoinVolumeWays joins a user's choices without checking them: Settings.Complete does that.
func JoinVolumeWays(items []string) VolumeWays { return VolumeWays(strings.Join(items, "\x00")) }

func (w VolumeWays) items() []string {
	if w == "" {
		return nil
	}
	return strings.Split(string(w), "\x00")
}

// For returns the choice for a volume that has several names, and whether the volume was named.
func (w VolumeWays) For(names ...string) (way VolumeWay, named bool) {
	way = VolumeMove
	for volume, chosen := range w.all() {
		if volume == "" {
			way = chosen
		}
	}
	for volume, chosen := range w.all() {
		if volume != "" && slices.Contains(names, volume) {
			return chosen, true
		}
	}
	return way, false
}

// Named lists the volumes that are named in the choices.
func (w VolumeWays) Named() []string {
	named := maps.Clone(w.all())
	delete(named, "")
	return slices.Sorted(maps.Keys(named))
}

func (w VolumeWays) all() map[string]VolumeWay {
	all := map[string]VolumeWay{}
	for _, item := range w.items() {
		volume, way := "", item
		if i := strings.LastIndexByte(item, '='); i >= 0 {
			volume, way = item[:i], item[i+1:]
		}
		if way != "" {
			all[volume] = VolumeWay(way)
		}
	}
	return all
}

// VolumeMoved describes how a migration treats, or treated, one volume.
type VolumeMoved struct {
	Volume string    `json:"volume"`        // its name, or its path in the container if it has none
	Kind   string    `json:"kind"`          // named, bind or tmpfs
	Source string    `json:"source"`        // of a bind: the directory on the nodes
	Path   string    `json:"path"`          // in the container
	Way    VolumeWay `json:"way"`           // how it was treated, which may differ from the user's choice…
	Why    string    `json:"why,omitempty"` // …for this reason, or what else is to be known
	Bytes  int64     `json:"bytes"`         // of content that moves, when the migration began
	Files  int64     `json:"files"`         // of all types
}
