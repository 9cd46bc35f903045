package docker

import (
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/storage"
	"github.com/moby/moby/api/types/system"
)

// TestKeepers: who keeps root file systems is told in several ways, and only two of them can move.
func TestKeepers(t *testing.T) {
	snapshotter := [][2]string{{"driver-type", "io.containerd.snapshotter.v1"}}
	at := &system.ContainerdInfo{Address: "/run/docker/containerd/containerd.sock"}
	for name, c := range map[string]struct {
		info system.Info
		by   bool
		can  bool
	}{
		"overlay2": {system.Info{Driver: "overlay2",
			DriverStatus: [][2]string{{"Backing Filesystem", "extfs"}}}, false, true},
		"btrfs": {system.Info{Driver: "btrfs"}, false, false},
		"containerd": {system.Info{Driver: "overlayfs", DriverStatus: snapshotter, Containerd: at},
			true, true},
		"containerd of 26": {system.Info{Driver: "overlayfs", DriverStatus: snapshotter}, true, false},
		"another snapshotter": {system.Info{Driver: "stargz", DriverStatus: snapshotter, Containerd: at},
			true, false},
	} {
		if by, can := byContainerd(c.info), storageObstacle(c.info) == ""; by != c.by || can != c.can {
			t.Errorf("%s: by containerd %v, can move %v", name, by, can)
		}
	}
	snapshot := &storage.Storage{RootFS: &storage.RootFSStorage{
		Snapshot: &storage.RootFSStorageSnapshot{Name: "overlayfs"}}}
	for want, found := range map[string]container.InspectResponse{
		"overlay2":  {GraphDriver: &storage.DriverData{Name: "overlay2"}},
		"overlayfs": {Storage: snapshot},
		"btrfs":     {GraphDriver: &storage.DriverData{Name: "btrfs"}, Storage: &storage.Storage{}},
		"":          {},
	} {
		if got := keeperOf(found); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestMajorOf reads versions as Docker and distributions write them.
func TestMajorOf(t *testing.T) {
	for version, want := range map[string]int{
		"20.10.24+dfsg1": 20, "26.1.5+dfsg1": 26, "27.5.1": 27, "28.0.0": 28, "28.5.2+dfsg4": 28,
		"29.1.0": 29, "": 0, "dev": 0,
	} {
		if got := majorOf(version); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}
