package docker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/engine/contentstore"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/engine/oci"
)

// Docker keeps images and root file systems either itself, with a storage driver, or in its containerd,
// with a snapshotter (feature containerd-snapshotter; the only way of a new Docker 29).
const storageDriver = "overlay2"

// keeperOf returns the storage driver or the snapshotter of a container's root file system.
func keeperOf(found container.InspectResponse) string {
	switch {
	case found.Storage != nil && found.Storage.RootFS != nil && found.Storage.RootFS.Snapshot != nil:
		return found.Storage.RootFS.Snapshot.Name
	case found.GraphDriver != nil:
		return found.GraphDriver.Name
	}
	return ""
}

// byContainerd reports whether Docker keeps images in its containerd.
func byContainerd(info system.Info) bool {
	for _, told := range info.DriverStatus {
		if told[0] == "driver-type" && strings.HasPrefix(told[1], "io.containerd.snapshotter.") {
			return true
		}
	}
	return false
}

// asksContainerd queries Docker whether it now keeps images in its containerd.
func (a *ownContents) asksContainerd(ctx context.Context) (bool, error) {
	told, err := a.api(ctx).Info(ctx, client.InfoOptions{})
	if err != nil {
		return false, fmt.Errorf("ask Docker where it keeps its images: %w", err)
	}
	return byContainerd(told.Info), nil
}

// storageObstacle says why containers with this storage cannot move; "" if they can.
func storageObstacle(info system.Info) string {
	switch {
	case !byContainerd(info) && info.Driver != storageDriver:
		return "only overlay2 and containerd's overlayfs are supported"
	case byContainerd(info) && info.Driver != oci.Snapshotter:
		return "of containerd's snapshotters only overlayfs is supported"
	case byContainerd(info) && (info.Containerd == nil || info.Containerd.Address == ""):
		return "this Docker does not report where its containerd is; Docker 27 and later do"
	}
	return ""
}

// containerd is Docker's containerd, which keeps the root file systems of containers.
type containerd struct {
	snapshots  snapshots.SnapshotsClient
	images     *contentstore.Store
	connection *grpc.ClientConn
	namespace  string
	home       string // directory in which Docker mounts root file systems
}

// dialContainerd asks Docker for its containerd, and connects to it.
func (a *ownContents) dialContainerd(ctx context.Context) (*containerd, error) {
	told, err := a.api(ctx).Info(ctx, client.InfoOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask Docker for its containerd: %w", err)
	}
	if why := storageObstacle(told.Info); why != "" {
		return nil, errors.New(why)
	}
	if !byContainerd(told.Info) {
		return nil,
			errors.New( //nolint:staticcheck // its name
				"Docker's storage of images has been reconfigured since")
	}
	address := strings.TrimPrefix(told.Info.Containerd.Address, "unix://")
	connection, err := contentstore.Dial(address)
	if err != nil {
		return nil, fmt.Errorf("client of Docker's containerd: %w", err)
	}
	namespace := told.Info.Containerd.Namespaces.Containers
	return &containerd{
		snapshots: snapshots.NewSnapshotsClient(connection), connection: connection, namespace: namespace,
		images: contentstore.New(contentstore.Config{Connection: connection, Away: a.Away,
			Check: only(namespace), Name: dangling, Whole: true}),
		home: filepath.Join(told.Info.DockerRootDir, "rootfs", oci.Snapshotter),
	}, nil
}

// snapshotRoot returns a root file system that Docker's containerd keeps: the snapshot has the container's
// ID (moby, daemon/containerd).
func (a *ownContents) snapshotRoot(id string) (mounts.Overlay, error) {
	ctx, cancel := asking(context.Background())
	defer cancel()
	of, err := a.ownContainerd(ctx)
	if err != nil {
		return mounts.Overlay{}, err
	}
	root, err := oci.SnapshotRoot(contentstore.Within(ctx, of.namespace), of.snapshots, id,
		filepath.Join(of.home, id))
	if status.Code(err) == codes.Unavailable {
		a.giveUp(of)
	}
	return root, err
}

// ownContainerd returns Docker's containerd. No other caller waits while it is being found.
func (a *ownContents) ownContainerd(ctx context.Context) (*containerd, error) {
	a.mu.Lock()
	known := a.containerd
	a.mu.Unlock()
	if known != nil {
		return known, nil
	}
	found, err := a.dialContainerd(ctx)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.containerd != nil { // another caller was faster
		_ = found.connection.Close() // the connection was not used
		return a.containerd, nil
	}
	a.containerd = found
	return found, nil
}

// giveUp forgets a containerd that has failed, because it may be another one the next time. Callers that
// still use it get its errors.
func (a *ownContents) giveUp(one *containerd) {
	a.mu.Lock()
	if a.containerd == one {
		a.containerd = nil
	}
	a.mu.Unlock()
	_ = one.connection.Close()
}
