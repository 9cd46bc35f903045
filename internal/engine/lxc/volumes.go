package lxc

import (
	"context"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/engine"
)

// noVolumes: LXC containers have no volumes.
type noVolumes struct{}

// VolumePath fails: LXC containers have no volumes.
func (noVolumes) VolumePath(volume engine.Volume) (string, error) {
	return "", fmt.Errorf("%s: %w: LXC has no volumes", volume, errors.ErrUnsupported)
}

// Volumes returns none.
func (noVolumes) Volumes(context.Context) ([]engine.StoredVolume, error) { return nil, nil }

// RemoveVolume fails: there is none.
func (noVolumes) RemoveVolume(_ context.Context, name string) error {
	return fmt.Errorf("LXC volume %.80q: %w", name, engine.ErrNoVolume)
}
