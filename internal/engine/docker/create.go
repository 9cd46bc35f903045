package docker

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/engine/oci"
)

// logDriver is the driver whose logs move: one file of lines. Other logs stay with their drivers.
const logDriver = "json-file"

// Create makes Docker create an arriving container, without a restart policy for now.
func (a *adapter) Create(ctx context.Context, d engine.Definition, label, value string) (string, error) {
	x, err := decode(d)
	if err != nil {
		return "", err
	}
	if err := a.makeVolumes(ctx, d, label, value); err != nil {
		return "", err
	}
	config := *x.Config
	config.Labels = maps.Clone(config.Labels)
	if config.Labels == nil {
		config.Labels = map[string]string{}
	}
	config.Labels[label] = value
	if config.Image, err = a.imageHere(ctx, d, x); err != nil {
		return "", err
	}
	binds, mounts, err := takeMounts(d, x.Host)
	if err != nil {
		return "", err
	}
	host := hostConfig(x.Host, binds, mounts)
	host.NetworkMode = networkMode(d, x.Host.NetworkMode)
	made, err := a.api(ctx).ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: &config, HostConfig: host, NetworkingConfig: endpoints(d, x), Name: d.Name,
	})
	if err == nil {
		err = a.reserveLog(ctx, made.ID, x)
	}
	return made.ID, err
}

// Root returns a container's root file system.
func (a *adapter) Root(f oci.Container) (mounts.Overlay, error) {
	found := native(f)
	switch keeperOf(found) {
	case storageDriver:
	case oci.Snapshotter:
		root, err := a.snapshotRoot(found.ID)
		if err != nil {
			return root, fmt.Errorf("container %s: %w", nameOf(found), err)
		}
		return root, nil
	default:
		return mounts.Overlay{}, fmt.Errorf("container %s: Docker's storage driver %q is not supported",
			nameOf(found), keeperOf(found))
	}
	data := found.GraphDriver.Data
	layers := strings.Split(data["LowerDir"], ":") // the first is the topmost
	slices.Reverse(layers)
	root := mounts.Overlay{Layers: layers, Upper: data["UpperDir"], Work: data["WorkDir"],
		Target: data["MergedDir"]}
	for _, path := range append(layers, root.Upper, root.Work, root.Target) {
		if !filepath.IsAbs(path) {
			return root, fmt.Errorf("container %s: Docker does not say where its files are: %q",
				nameOf(found), path)
		}
	}
	return root, nil
}

// LogStays names the log driver, unless the log moves.
func (a *logFiles) LogStays(d engine.Definition) string {
	x, err := decode(d)
	if err == nil && x.Host.LogConfig.Type != logDriver && x.Host.LogConfig.Type != "none" {
		return x.Host.LogConfig.Type
	}
	return ""
}

// Log returns the path of Docker's log, even before Docker has written to it.
func (a *logFiles) Log(ctx context.Context, f oci.Container) (string, error) {
	found := native(f)
	if found.HostConfig.LogConfig.Type != logDriver {
		return "", nil
	}
	if found.LogPath != "" {
		return found.LogPath, nil
	}
	root, err := a.directory(ctx)
	return filepath.Join(root, "containers", found.ID, found.ID+"-json.log"), err
}

// Shm returns "": Docker makes runc mount it.
func (a *adapter) Shm(oci.Container) string { return "" }

// Gone does nothing: the adapter keeps nothing.
func (a *adapter) Gone(string) error { return nil }

// RestoreDir returns the container's ID, by which its runtime knows it, too.
func (a *adapter) RestoreDir(engineID string) string { return engineID }
