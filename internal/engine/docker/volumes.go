package docker

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// volumes are Docker's.
type volumes struct{ *server }

// VolumePath returns the path of a named volume's content on this node, existing or not: volumes of
// Docker's local driver are directories.
func (a *volumes) VolumePath(v engine.Volume) (string, error) {
	if !namePattern.MatchString(v.Name) {
		return "", fmt.Errorf("volume name %.80q is not one that Docker allows", v.Name)
	}
	ctx, cancel := asking(context.Background())
	defer cancel()
	root, err := a.directory(ctx)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "volumes", v.Name, "_data"), nil
}

// RemoveVolume makes Docker remove a volume. A volume in use by a container stays.
func (a *volumes) RemoveVolume(ctx context.Context, name string) error {
	_, err := a.api(ctx).VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
		return fmt.Errorf("remove volume %s of Docker: %w", name, err)
	}
	return nil
}

// MadeFor reports whether a volume has a label. Docker returns an existing volume when asked to make it.
func (a *volumes) MadeFor(ctx context.Context, name, label, value string) (bool, error) {
	found, err := a.api(ctx).VolumeInspect(ctx, name, client.VolumeInspectOptions{})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask Docker about volume %s: %w", name, err)
	}
	return found.Volume.Labels[label] == value, nil
}

// localDriver is the driver whose volumes are directories of the node.
const localDriver = "local"

// volumeMaker describes how a volume was made.
type volumeMaker struct {
	Driver  string            `json:"driver"`
	Options map[string]string `json:"options,omitempty"`
}

// plain reports whether a volume is a directory of the node and nothing else. Options of the local driver
// mount something there.
func plain(m volumeMaker) bool {
	return (m.Driver == "" || m.Driver == localDriver) && len(m.Options) == 0
}

// volumeMakers queries Docker how the named volumes of a container were made.
func (a *volumes) volumeMakers(ctx context.Context, d engine.Definition) (map[string]volumeMaker, error) {
	makers := map[string]volumeMaker{}
	for _, v := range d.Volumes {
		if v.Sort() != engine.Named {
			continue
		}
		found, err := a.api(ctx).VolumeInspect(ctx, v.Name, client.VolumeInspectOptions{})
		if err != nil {
			return nil, fmt.Errorf("ask Docker about %s: %w", v, err)
		}
		makers[v.Name] = volumeMaker{Driver: found.Volume.Driver, Options: found.Volume.Options}
	}
	return makers, nil
}

// makerObstacles lists volumes whose content moves but would not be the same as at the source.
func makerObstacles(d engine.Definition, x extra) []engine.Problem {
	var found []engine.Problem
	for _, v := range oci.Coming(d) {
		if !plain(x.Volumes[v.Name]) {
			found = append(found, engine.Problem{
				What:   v.String() + " of Docker",
				Why:    "only volumes of the local driver, without options, move",
				Remedy: "make it on the target as well, and say that it is shared or skipped (--volumes)",
			})
		}
	}
	return found
}

// volumeObstacles lists the obstacles of an arriving container's volumes.
func (a *volumes) volumeObstacles(ctx context.Context, d engine.Definition, x extra) ([]engine.Problem,
	error) {
	found := makerObstacles(d, x)
	for _, v := range d.Volumes {
		if v.Sort() == engine.Bind {
			if problem, is := oci.BindObstacle(v, title); is {
				found = append(found, problem)
			}
			continue
		}
		path, err := a.VolumePath(v)
		if err != nil {
			return nil, err
		}
		_, err = a.api(ctx).VolumeInspect(ctx, v.Name, client.VolumeInspectOptions{})
		switch {
		case errdefs.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("ask Docker about %s: %w", v, err)
		case !v.Stays:
			found = append(found, engine.Problem{
				What: v.String() + " of Docker", Why: "a volume of this name already exists here, at " + path,
				Remedy: "remove it, or say that it is shared or skipped (--volumes)",
			})
		}
	}
	return found, nil
}

// makeVolumes makes the named volumes whose content comes, empty.
func (a *volumes) makeVolumes(ctx context.Context, d engine.Definition, label, value string) error {
	for _, v := range oci.Coming(d) {
		_, err := a.api(ctx).VolumeCreate(ctx,
			client.VolumeCreateOptions{Name: v.Name, Labels: map[string]string{label: value}})
		if err != nil {
			return fmt.Errorf("make %s of Docker: %w", v, err)
		}
	}
	return nil
}
