package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
)

// VolumePath is where the content of a volume is on this node, or would be: volumes of Docker's local driver are directories.
func (e *Engine) VolumePath(v engine.Volume) (string, error) {
	switch v.Sort() {
	case engine.Bind:
		return v.Source, nil
	case engine.Tmpfs:
		return "", fmt.Errorf("%s is of one container: %w", v, errors.ErrUnsupported)
	}
	if !namePattern.MatchString(v.Name) {
		return "", fmt.Errorf("volume name %.80q is not one that Docker allows", v.Name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	root, err := e.directory(ctx)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "volumes", v.Name, "_data"), nil
}

// Volumes tells of none: Docker's are listed by Docker.
func (e *Engine) Volumes(context.Context) ([]engine.StoredVolume, error) { return nil, nil }

// RemoveVolume removes none.
func (e *Engine) RemoveVolume(_ context.Context, name string) error {
	return fmt.Errorf("%w: %.80q", engine.ErrNoVolume, name)
}

// localDriver is the one whose volumes are directories of the node.
const localDriver = "local"

// volumeMaker is how a volume was made.
type volumeMaker struct {
	Driver  string            `json:"driver"`
	Options map[string]string `json:"options,omitempty"`
}

// plain tells whether a volume is a directory of the node and nothing else. Options of the local driver mount something there.
func plain(m volumeMaker) bool {
	return (m.Driver == "" || m.Driver == localDriver) && len(m.Options) == 0
}

// volumeMakers asks Docker how the named volumes of a container were made.
func (e *Engine) volumeMakers(ctx context.Context, d engine.Definition) (map[string]volumeMaker, error) {
	makers := map[string]volumeMaker{}
	for _, v := range d.Volumes {
		if v.Sort() != engine.Named {
			continue
		}
		found, err := e.api.VolumeInspect(ctx, v.Name, client.VolumeInspectOptions{})
		if err != nil {
			return nil, fmt.Errorf("ask Docker about %s: %w", v, err)
		}
		makers[v.Name] = volumeMaker{Driver: found.Volume.Driver, Options: found.Volume.Options}
	}
	return makers, nil
}

// makerObstacles lists the volumes whose content comes, but would not be what it was at the source.
func makerObstacles(d engine.Definition, x extra) []engine.Problem {
	var found []engine.Problem
	for _, v := range coming(d) {
		if !plain(x.Volumes[v.Name]) {
			found = append(found, engine.Problem{
				What: v.String() + " of Docker", Why: "only volumes of the local driver, without options, move",
				Remedy: "make it on the target as well, and say that it is shared or skipped (--volume)",
			})
		}
	}
	return found
}

// volumeObstacles lists what stands against the volumes of a container that is to come.
func (e *Engine) volumeObstacles(ctx context.Context, d engine.Definition, x extra) ([]engine.Problem, error) {
	found := makerObstacles(d, x)
	for _, v := range d.Volumes {
		path, err := e.VolumePath(v)
		if err != nil {
			return nil, err
		}
		if v.Sort() == engine.Bind {
			if problem, is := bindObstacle(v); is {
				found = append(found, problem)
			}
			continue
		}
		_, err = e.api.VolumeInspect(ctx, v.Name, client.VolumeInspectOptions{})
		switch {
		case errdefs.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("ask Docker about %s: %w", v, err)
		case !v.Stays:
			found = append(found, engine.Problem{
				What: v.String() + " of Docker", Why: "there is one here already, at " + path, Remedy: "remove it, or say that it is shared or skipped (--volume)",
			})
		}
	}
	return found, nil
}

// bindObstacle refuses host directories that would have to move: nobody has told Docker's users that they are Godwit's to remove.
func bindObstacle(v engine.Volume) (engine.Problem, bool) {
	if !v.Stays && !v.ReadOnly {
		return engine.Problem{
			What: v.String(), Why: "host directories of Docker's containers are not moved",
			Remedy: "mount the same storage there on both nodes, choose --volume " + v.Path + "=skip, or use a named volume",
		}, true
	}
	if _, err := os.Stat(v.Source); err != nil {
		return engine.Problem{What: v.String(), Why: "it is not on this node", Remedy: "make it"}, true
	}
	return engine.Problem{}, false
}

// makeVolumes makes the named volumes that come, empty.
func (e *Engine) makeVolumes(ctx context.Context, d engine.Definition) error {
	for _, v := range coming(d) {
		_, err := e.api.VolumeCreate(ctx, client.VolumeCreateOptions{Name: v.Name})
		if err != nil {
			return fmt.Errorf("make %s of Docker: %w", v, err)
		}
	}
	return nil
}

// emptyVolumes removes what Docker has put into volumes that come: it fills a new one from the image.
func (e *Engine) emptyVolumes(d engine.Definition) error {
	for _, v := range coming(d) {
		path, err := e.VolumePath(v)
		if err == nil {
			err = files.EmptyTree(path)
		}
		if err != nil {
			return fmt.Errorf("empty %s of Docker: %w", v, err)
		}
	}
	return nil
}

// unmakeVolumes has Docker remove volumes that an arrival made. One that somebody has taken since stays.
func (e *Engine) unmakeVolumes(ctx context.Context, names []string) error {
	for _, name := range names {
		_, err := e.api.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			return fmt.Errorf("remove volume %s of Docker: %w", name, err)
		}
	}
	return nil
}

// coming are the named volumes whose content comes.
func coming(d engine.Definition) []engine.Volume {
	return slices.DeleteFunc(slices.Clone(d.Volumes), func(v engine.Volume) bool { return v.Stays || v.Sort() != engine.Named })
}

func contains(list []string, one string) bool { return slices.Contains(list, one) }

// sameFile tells whether two paths lead to the same.
func sameFile(a, b string) (bool, error) {
	first, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	second, err := os.Stat(b)
	if err != nil {
		return false, err
	}
	return os.SameFile(first, second), nil
}
