package podman

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// localDriver is the driver whose volumes are directories of the node.
const localDriver = "local"

// volumeMaker describes how a volume was made.
type volumeMaker struct {
	Driver  string            `json:"driver"`
	Options map[string]string `json:"options,omitempty"`
	labels  map[string]string // they do not travel
}

// plain reports whether a volume is a directory of the node and nothing else. Options mount something
// there, or limit it.
func plain(m volumeMaker) bool {
	return (m.Driver == "" || m.Driver == localDriver) && len(m.Options) == 0
}

// VolumePath returns the path of a named volume's content on this node, existing or not.
func (a *adapter) VolumePath(v engine.Volume) (string, error) {
	if !namePattern.MatchString(v.Name) {
		return "", fmt.Errorf("volume name %.80q is not one that Podman allows", v.Name)
	}
	ctx, cancel := asking(context.Background())
	defer cancel()
	about, err := a.about(ctx)
	if err != nil {
		return "", err
	}
	return filepath.Join(about.Store.VolumePath, v.Name, "_data"), nil
}

// RemoveVolume makes Podman remove a volume. A volume in use by a container stays.
func (a *adapter) RemoveVolume(ctx context.Context, name string) error {
	if _, err := podman(ctx, "volume", "rm", name); err != nil && !says(err, saysNoVolume, saysUsed) {
		return fmt.Errorf("remove volume %s of Podman: %w", name, err)
	}
	return nil
}

// MadeFor reports whether a volume has a label.
func (a *adapter) MadeFor(ctx context.Context, name, label, value string) (bool, error) {
	maker, err := inspectVolume(ctx, name)
	if errors.Is(err, engine.ErrNoVolume) {
		return false, nil
	}
	return maker.labels[label] == value, err
}

// inspectVolume queries how a volume was made. Error: engine.ErrNoVolume.
func inspectVolume(ctx context.Context, name string) (volumeMaker, error) {
	data, err := podman(ctx, "volume", "inspect", name)
	if says(err, saysNoVolume, saysNoObject) {
		return volumeMaker{}, engine.ErrNoVolume
	}
	var told []struct {
		Driver  string            `json:"Driver"`
		Options map[string]string `json:"Options"`
		Labels  map[string]string `json:"Labels"`
	}
	if err == nil {
		err = json.Unmarshal(data, &told)
	}
	if err == nil && len(told) != 1 {
		err = os.ErrInvalid
	}
	if err != nil {
		return volumeMaker{}, fmt.Errorf("ask Podman about volume %.80s: %w", name, err)
	}
	return volumeMaker{told[0].Driver, told[0].Options, told[0].Labels}, nil
}

// volumeMakers queries how the named volumes of a container were made.
func volumeMakers(ctx context.Context, d engine.Definition) (map[string]volumeMaker, error) {
	makers := map[string]volumeMaker{}
	for _, v := range d.Volumes {
		if v.Sort() != engine.Named {
			continue
		}
		maker, err := inspectVolume(ctx, v.Name)
		if err != nil {
			return nil, err
		}
		makers[v.Name] = maker
	}
	return makers, nil
}

// volumeObstacles lists the obstacles of an arriving container's volumes.
func (a *adapter) volumeObstacles(ctx context.Context, d engine.Definition, x extra) ([]engine.Problem,
	error) {
	p := problems{}
	for _, v := range oci.Coming(d) {
		p.add(!plain(x.Volumes[v.Name]), v.String()+" of Podman",
			"only volumes of the local driver, without options, move",
			"make it on the target as well, and say that it is shared or skipped (--volumes)")
	}
	for _, v := range d.Volumes {
		if v.Sort() == engine.Bind {
			if problem, is := oci.BindObstacle(v, a.Title()); is {
				p = append(p, problem)
			}
			continue
		}
		_, err := inspectVolume(ctx, v.Name)
		if err != nil && !errors.Is(err, engine.ErrNoVolume) {
			return nil, err
		}
		p.add(err == nil && !v.Stays, v.String()+" of Podman", "a volume of this name already exists here",
			"remove it, or say that it is shared or skipped (--volumes)")
	}
	return p, nil
}
