package podman

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/engine/oci"
)

// native returns Podman's answer about a container.
func native(found oci.Container) inspected {
	told, _ := found.Native.(inspected) // Find has put it there
	return told
}

// stored is the entry for a container in the index of Podman's storage, which can be read whatever Podman
// is doing with the container.
type stored struct {
	ID    string   `json:"id"`
	Names []string `json:"names"`
	Image string   `json:"image"`
}

// index returns the file in which the storage lists its containers (containers/storage, containers.go).
func (a *adapter) index() string {
	return filepath.Join(a.root, "overlay-containers", "containers.json")
}

func (a *adapter) stored() ([]stored, error) {
	var all []stored
	for _, path := range []string{a.index(),
		filepath.Join(filepath.Dir(a.index()), "volatile-containers.json")} {
		data, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		var some []stored
		if err == nil {
			err = json.Unmarshal(data, &some)
		}
		if err != nil {
			return nil, fmt.Errorf("read which containers Podman has: %w", err)
		}
		all = append(all, some...)
	}
	return all, nil
}

// List lists all containers.
func (a *adapter) List(ctx context.Context, busy func(string) bool) ([]oci.Container, error) {
	all, err := a.stored()
	if err != nil {
		return nil, err
	}
	var listed []oci.Container
	var ask []string
	for _, one := range all {
		if busy(one.ID) {
			listed = append(listed, summary(one))
		} else {
			ask = append(ask, one.ID)
		}
	}
	found, err := a.inspect(ctx, ask...)
	return append(listed, found...), err
}

// summary returns what the storage says about a container.
func summary(one stored) oci.Container {
	d := engine.Definition{ID: one.ID, ImageID: idPrefix + one.Image}
	if len(one.Names) > 0 {
		d.Name = one.Names[0]
	}
	return oci.Container{ID: one.ID, Container: engine.Container{Definition: d, State: engine.Created}}
}

// inspect queries Podman for containers. It leaves out containers that do not exist, and containers in the
// storage that are not Podman's.
func (a *adapter) inspect(ctx context.Context, ids ...string) ([]oci.Container, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	data, err := podman(ctx, append([]string{"container", "inspect"}, ids...)...)
	if err != nil && !says(err, saysNoContainer, saysNoObject) {
		return nil, fmt.Errorf("ask Podman about its containers: %w", err)
	}
	var told []inspected
	if err := json.Unmarshal(data, &told); err != nil {
		return nil, fmt.Errorf("decode Podman's list of containers: %w", err)
	}
	all := make([]oci.Container, 0, len(told))
	for _, one := range told {
		restart, err := json.Marshal(one.Host.RestartPolicy)
		if err != nil {
			return nil, err
		}
		container := describe(one)
		if own := &container.Definition.Network; own.OnBridge() {
			own.Routed = a.isRouted(ctx, own.Bridge)
		}
		all = append(all, oci.Container{
			ID: one.ID, Container: container, Paused: one.State.Paused, Restart: restart,
			Arrival: one.Config.Annotations[arrivalAnnotation], Directory: one.StaticDir, Native: one,
		})
	}
	return all, nil
}

// Find queries Podman for a container.
func (a *adapter) Find(ctx context.Context, ref string) (oci.Container, error) {
	missing := fmt.Errorf("container %.80q of Podman: %w", ref, engine.ErrNotFound)
	all, err := a.stored()
	if err != nil {
		return oci.Container{}, err
	}
	id := matching(all, ref)
	if id == "" {
		return oci.Container{}, missing
	}
	found, err := a.inspect(ctx, id)
	if err == nil && len(found) == 0 {
		err = missing
	}
	if err != nil {
		return oci.Container{}, err
	}
	return found[0], nil
}

// matching returns the ID of the container with this ID, name, or unique prefix of an ID; "" if there is
// none.
func matching(all []stored, ref string) string {
	if ref == "" {
		return ""
	}
	var begin []string
	for _, one := range all {
		if one.ID == ref || slices.Contains(one.Names, ref) {
			return one.ID
		}
		if strings.HasPrefix(one.ID, ref) {
			begin = append(begin, one.ID)
		}
	}
	if len(begin) != 1 {
		return ""
	}
	return begin[0]
}

// describe converts Podman's answer about a container for other packages.
func describe(found inspected) engine.Container {
	c := found.Config
	d := engine.Definition{
		ID: found.ID, Name: found.Name, Image: found.ImageName, ImageID: idPrefix + found.Image,
		Created: found.Created,
		Args:    c.Cmd, Env: c.Env, Dir: c.WorkingDir, User: c.User, Hostname: c.Hostname, TTY: c.TTY,
		ReadOnly: found.Host.ReadonlyRootfs,
		Labels:   c.Labels, StopSignal: string(c.StopSignal), StopTimeout: float64(c.StopTimeout),
		Limits:  limitsOf(found.Host),
		Volumes: volumesOf(found.Mounts),
	}
	d.Network, d.Ports = networkOf(found)
	ctr := engine.Container{
		Definition: d, State: stateOf(found), ExitCode: found.State.ExitCode, Started: found.State.StartedAt,
		Finished: found.State.FinishedAt,
	}
	if ctr.State == engine.Running {
		ctr.PID = found.State.PID
	}
	return ctr
}

func stateOf(found inspected) engine.State {
	switch {
	case (found.State.Running || found.State.Paused) && found.State.PID > 0:
		return engine.Running
	case slices.Contains([]string{"running", "paused", "stopping", "stopped", "exited", "removing",
		"unknown"}, found.State.Status):
		return engine.Exited
	}
	return engine.Created // its processes, if any, have not started
}

func limitsOf(h host) engine.Limits {
	limits := engine.Limits{MemoryBytes: h.Memory}
	if h.CPUQuota > 0 && h.CPUPeriod > 0 {
		limits.CPUs = float64(h.CPUQuota) / float64(h.CPUPeriod)
	}
	if h.PidsLimit > 0 {
		limits.Pids = h.PidsLimit
	}
	return limits
}

// volumesOf returns the mounts that are directories of the node.
func volumesOf(all []mount) []engine.Volume {
	var volumes []engine.Volume
	for _, m := range all {
		v := engine.Volume{Path: path.Clean(m.Destination), ReadOnly: !m.RW}
		switch m.Type {
		case "volume":
			v.Engine, v.Kind, v.Name = Name, engine.Named, m.Name
		case "bind":
			v.Kind, v.Source = engine.Bind, path.Clean(m.Source)
		default:
			continue
		}
		volumes = append(volumes, v)
	}
	return volumes
}

// Root returns a container's root file system. Podman reports its mount point only while it is mounted; the
// mount point is beside the writable layer (containers/storage, drivers/overlay).
func (a *adapter) Root(f oci.Container) (mounts.Overlay, error) {
	found := native(f)
	if found.GraphDriver.Name != "overlay" {
		return mounts.Overlay{}, fmt.Errorf("container %s: only Podman's storage driver overlay is supported",
			found.Name)
	}
	data := found.GraphDriver.Data
	layers := strings.Split(data["LowerDir"], ":") // the first is the topmost
	slices.Reverse(layers)
	root := mounts.Overlay{Layers: layers, Upper: data["UpperDir"], Work: data["WorkDir"]}
	root.Target = filepath.Join(filepath.Dir(root.Upper), "merged")
	for _, path := range append(layers, root.Upper, root.Work) {
		if !filepath.IsAbs(path) {
			return root, fmt.Errorf("container %s: Podman does not say where its files are: %q", found.Name,
				path)
		}
	}
	return root, nil
}

// Shm returns the directory of a container's /dev/shm; "" if the container has none of its own.
func (a *adapter) Shm(f oci.Container) string {
	found := native(f)
	if found.Host.IpcMode == "none" {
		return ""
	}
	return filepath.Join(found.StaticDir, "shm")
}

// logDriver is the driver whose logs move: one file of lines. json-file is another name for it.
const logDriver = "k8s-file"

// LogStays names the log driver, unless the log moves. "": Podman did not name a driver.
func (a *adapter) LogStays(d engine.Definition) string {
	x, err := decode(d)
	if driver := x.Host.LogConfig.Type; err == nil && driver != logDriver && driver != "json-file" &&
		driver != "none" {
		return driver
	}
	return ""
}

// Log returns the path of the file that the container's monitor writes.
func (a *adapter) Log(_ context.Context, f oci.Container) (string, error) {
	log := native(f).Host.LogConfig
	if log.Type != logDriver && log.Type != "json-file" {
		return "", nil
	}
	return log.Path, nil
}
