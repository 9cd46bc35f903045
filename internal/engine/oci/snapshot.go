package oci

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"

	"github.com/godwit/godwit/internal/engine/mounts"
)

// Snapshotter is containerd's snapshotter that uses overlays.
const Snapshotter = "overlayfs"

// SnapshotRoot returns a root file system that containerd keeps as a snapshot, as it would be mounted at
// target.
func SnapshotRoot(ctx context.Context, client snapshots.SnapshotsClient, key, target string) (mounts.Overlay,
	error) {
	root := mounts.Overlay{Target: target}
	reply, err := client.Mounts(ctx, &snapshots.MountsRequest{Snapshotter: Snapshotter, Key: key})
	if err != nil {
		return root, fmt.Errorf("ask containerd for its files: %w", err)
	}
	if all := reply.GetMounts(); len(all) == 1 && all[0].GetType() == "overlay" {
		for _, option := range all[0].GetOptions() {
			name, value, _ := strings.Cut(option, "=")
			switch name {
			case "lowerdir":
				root.Layers = strings.Split(value, ":") // the first is the topmost
				slices.Reverse(root.Layers)
			case "upperdir":
				root.Upper = value
			case "workdir":
				root.Work = value
			}
		}
	}
	for _, path := range append([]string{root.Upper, root.Work, root.Target}, root.Layers...) {
		if !filepath.IsAbs(path) {
			return root, fmt.Errorf("containerd does not say where its files are: %q", path)
		}
	}
	if len(root.Layers) == 0 {
		return root, errors.New("its image has no layers")
	}
	return root, nil
}
