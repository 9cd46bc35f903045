package docker

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// bindVolume returns the volume that an entry of HostConfig.Binds requests: SOURCE:PATH[:MODES]. A path
// alone requests an anonymous volume.
func bindVolume(spec string) (v engine.Volume, modes []string) {
	parts := strings.SplitN(spec, ":", 3)
	if len(parts) == 1 {
		return engine.Volume{Engine: Name, Kind: engine.Named, Path: path.Clean(spec)}, nil
	}
	if len(parts) == 3 {
		modes = strings.Split(parts[2], ",")
	}
	v = engine.Volume{Path: path.Clean(parts[1]), ReadOnly: slices.Contains(modes, "ro")}
	if path.IsAbs(parts[0]) {
		v.Kind, v.Source = engine.Bind, path.Clean(parts[0])
	} else {
		v.Engine, v.Kind, v.Name = Name, engine.Named, parts[0]
	}
	return v, modes
}

// mountVolume returns the volume that an entry of HostConfig.Mounts requests. Without a name it is
// anonymous.
func mountVolume(m mount.Mount) engine.Volume {
	v := engine.Volume{Path: path.Clean(m.Target), ReadOnly: m.ReadOnly}
	if m.Type == mount.TypeBind {
		v.Kind, v.Source = engine.Bind, path.Clean(m.Source)
	} else {
		v.Engine, v.Kind, v.Name = Name, engine.Named, m.Source
	}
	return v
}

func anonymous(v engine.Volume) bool { return v.Sort() == engine.Named && v.Name == "" }

// takeMounts returns the mounts that Docker is to make for an arriving container: those of its
// configuration, each of which must be among the volumes that the agents migrate, and the remaining volumes
// by name. Docker generated these names at the source, for anonymous volumes, and would generate other
// names here.
func takeMounts(d engine.Definition, h *container.HostConfig) (binds []string, all []mount.Mount, err error) {
	left := slices.Clone(d.Volumes)
	take := func(v engine.Volume) bool {
		i := slices.IndexFunc(left, func(other engine.Volume) bool { return oci.SameVolume(v, other) })
		if i >= 0 {
			left = slices.Delete(left, i, i+1)
		}
		return i >= 0
	}
	for _, spec := range h.Binds {
		switch v, _ := bindVolume(spec); {
		case anonymous(v):
		case take(v):
			binds = append(binds, spec)
		default:
			return nil, nil, fmt.Errorf("it mounts %.80q, which is not one of its volumes", spec)
		}
	}
	for _, m := range h.Mounts {
		switch v := mountVolume(m); {
		case m.Type != mount.TypeTmpfs && anonymous(v):
		case m.Type == mount.TypeTmpfs || take(v):
			all = append(all, m)
		default:
			return nil, nil, fmt.Errorf("it mounts %.80s, which is not one of its volumes", v)
		}
	}
	for _, v := range left {
		if v.Sort() != engine.Named {
			return nil, nil, fmt.Errorf("its configuration does not mount %.80s", v)
		}
		all = append(all, mount.Mount{Type: mount.TypeVolume, Source: v.Name, Target: v.Path,
			ReadOnly: v.ReadOnly})
	}
	return binds, all, nil
}

// mountObstacles lists mounts that are more than a directory of the node or a plain volume.
func mountObstacles(h *container.HostConfig) []engine.Problem {
	var found []engine.Problem
	refuse := func(what, why string) {
		found = append(found, engine.Problem{What: what, Why: why, Remedy: "mount it without that"})
	}
	for _, spec := range h.Binds {
		_, modes := bindVolume(spec)
		for _, mode := range modes {
			if !slices.Contains([]string{"", "ro", "rw", "z", "Z", "nocopy", "private", "rprivate", "cached",
				"delegated", "consistent"}, mode) {
				refuse("--volume "+spec, "mode "+mode+" is not moved")
			}
		}
	}
	for _, m := range h.Mounts {
		if why := mountObstacle(m); why != "" {
			refuse("--mount at "+m.Target, why)
		}
	}
	if h.VolumeDriver != "" && h.VolumeDriver != localDriver {
		refuse("--volume-driver "+h.VolumeDriver, "only volumes of the local driver move")
	}
	return found
}

// mountObstacle says why a mount cannot be made at the target; "" if it can.
func mountObstacle(m mount.Mount) string {
	options, binding := m.VolumeOptions, m.BindOptions
	switch {
	case !slices.Contains([]mount.Type{mount.TypeBind, mount.TypeVolume, mount.TypeTmpfs}, m.Type):
		return "mounts of type " + string(m.Type) + " are not moved"
	case options != nil && options.Subpath != "":
		return "a mount of a part of a volume is not moved"
	case options != nil && options.DriverConfig != nil &&
		!plain(volumeMaker{Driver: options.DriverConfig.Name, Options: options.DriverConfig.Options}):
		return "only volumes of the local driver, without options, move"
	case binding != nil && !slices.Contains([]mount.Propagation{"", mount.PropagationPrivate,
		mount.PropagationRPrivate}, binding.Propagation):
		return "propagation " + string(binding.Propagation) + " is not moved"
	}
	return ""
}
