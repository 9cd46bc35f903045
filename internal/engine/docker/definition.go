package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// maxVolumes bounds a definition, which may come from another node.
const maxVolumes = 64

var (
	namePattern   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{1,254}$`)
	diffIDPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// extra is this engine's part of a definition (Definition.Engine).
type extra struct {
	Config *container.Config     `json:"config"`
	Host   *container.HostConfig `json:"host_config"`
	// Configuration is the digest of the image's configuration if Docker identifies the image otherwise.
	Configuration string `json:"configuration,omitempty"`
	// Volumes says how the named volumes were made, by name.
	Volumes map[string]volumeMaker `json:"volumes,omitempty"`
	// Endpoint is the container's place in its one network; nil: it is on none of Docker's.
	Endpoint *endpoint `json:"endpoint,omitempty"`
	Stdio    []string  `json:"stdio"` // stdin, stdout and stderr in the images, in CRIU's notation
	// LogBytes is the current size of the container's log.
	LogBytes int64 `json:"log_bytes,omitempty"`
}

func nameOf(found container.InspectResponse) string { return strings.TrimPrefix(found.Name, "/") }

// describe converts Docker's answer about a container for other packages.
func describe(found container.InspectResponse) engine.Container {
	c, h := found.Config, found.HostConfig
	d := engine.Definition{
		ID: found.ID, Name: nameOf(found), Image: c.Image, ImageID: found.Image,
		Args: append([]string{found.Path}, found.Args...), Env: c.Env, Dir: c.WorkingDir, User: c.User,
		Hostname: c.Hostname,
		TTY:      c.Tty, ReadOnly: h.ReadonlyRootfs, Labels: c.Labels, StopSignal: c.StopSignal,
		Limits:  limitsOf(h.Resources),
		Volumes: volumesOf(found.Mounts),
	}
	d.Network, d.Ports = networkOf(found)
	d.Created, _ = time.Parse(time.RFC3339Nano, found.Created) // zero if Docker does not report it
	if c.StopTimeout != nil {
		d.StopTimeout = float64(*c.StopTimeout)
	}
	ctr := engine.Container{Definition: d, State: stateOf(found.State), ExitCode: found.State.ExitCode}
	ctr.Started, _ = time.Parse(time.RFC3339Nano, found.State.StartedAt)
	ctr.Finished, _ = time.Parse(time.RFC3339Nano, found.State.FinishedAt)
	if ctr.State == engine.Running {
		ctr.PID = found.State.Pid
	}
	return ctr
}

// Describe adds what another node needs to make a running container.
func (a *adapter) Describe(ctx context.Context, f oci.Container, stdio []string, d *engine.Definition) error {
	found := native(f)
	image, err := a.api(ctx).ImageInspect(ctx, found.Image)
	if err != nil {
		return fmt.Errorf("ask Docker about the image of container %s: %w", nameOf(found), err)
	}
	d.Layers = image.RootFS.Layers
	x := extra{Config: found.Config, Host: found.HostConfig, Stdio: stdio}
	if keeperOf(found) == oci.Snapshotter {
		if x.Configuration, err = a.configurationOf(ctx, found.Image, d.Layers); err != nil {
			return err
		}
	}
	if x.Volumes, err = a.volumeMakers(ctx, *d); err != nil {
		return err
	}
	if x.Endpoint, err = a.endpointOf(ctx, found, d.Network); err != nil {
		return err
	}
	if x.LogBytes, err = a.logBytes(ctx, f); err != nil {
		return err
	}
	d.Engine, err = json.Marshal(x)
	return err
}

// Expect reads another node's description of a container.
func (a *adapter) Expect(d engine.Definition) (oci.Expected, error) {
	x, err := decode(d)
	if err != nil {
		return oci.Expected{}, err
	}
	restart, err := json.Marshal(x.Host.RestartPolicy)
	return oci.Expected{
		Stdio: x.Stdio, PrivateCgroup: x.Host.CgroupnsMode.IsPrivate(), Restart: restart,
		Log: x.Host.LogConfig.Type == logDriver,
	}, err
}

func stateOf(state *container.State) engine.State {
	switch {
	case state.Running && state.Pid > 0:
		return engine.Running
	case state.Status == container.StateCreated:
		return engine.Created
	}
	return engine.Exited
}

func limitsOf(r container.Resources) engine.Limits {
	limits := engine.Limits{MemoryBytes: r.Memory, CPUs: float64(r.NanoCPUs) / 1e9}
	if r.CPUQuota > 0 && r.CPUPeriod > 0 {
		limits.CPUs = float64(r.CPUQuota) / float64(r.CPUPeriod)
	}
	if r.PidsLimit != nil && *r.PidsLimit > 0 {
		limits.Pids = *r.PidsLimit
	}
	return limits
}

// volumesOf returns the mounts that are directories of the node. A tmpfs is part of the execution state.
func volumesOf(mounts []container.MountPoint) []engine.Volume {
	var volumes []engine.Volume
	for _, m := range mounts {
		v := engine.Volume{Path: path.Clean(m.Destination), ReadOnly: !m.RW}
		switch m.Type {
		case mount.TypeVolume:
			v.Engine, v.Kind, v.Name = Name, engine.Named, m.Name
		case mount.TypeBind:
			v.Kind, v.Source = engine.Bind, path.Clean(m.Source)
		default:
			continue
		}
		volumes = append(volumes, v)
	}
	return volumes
}

// decode reads this engine's part of a definition. It refuses a definition that this engine could not make
// or that would do harm.
func decode(d engine.Definition) (extra, error) {
	return oci.Decode(title, d, func(x extra) error {
		switch {
		case !namePattern.MatchString(d.Name):
			return fmt.Errorf("name %.80q is not one that Docker allows", d.Name)
		case len(d.Volumes) > maxVolumes:
			return fmt.Errorf("%d volumes: at most %d", len(d.Volumes), maxVolumes)
		case x.Config == nil || x.Host == nil:
			return errors.New("it has no configuration")
		}
		return errors.Join(oci.CheckLayers(d.Layers), oci.CheckStdio(x.Stdio), checkVolumes(d, x),
			checkOthers(d, x))
	})
}

// checkVolumes requires the volumes in the definition's common part to be those that Docker will make: the
// agent migrates no others.
func checkVolumes(d engine.Definition, x extra) error {
	paths := map[string]bool{}
	for _, v := range d.Volumes {
		named := v.Sort() == engine.Named && v.Engine == Name && namePattern.MatchString(v.Name)
		bound := v.Sort() == engine.Bind && path.IsAbs(v.Source) && path.Clean(v.Source) == v.Source &&
			v.Source != "/"
		if !named && !bound || !path.IsAbs(v.Path) || path.Clean(v.Path) != v.Path || v.Path == "/" ||
			paths[v.Path] {
			return fmt.Errorf("volume %.80s at %.80q is not one of Docker's", v, v.Path)
		}
		paths[v.Path] = true
	}
	if len(x.Host.VolumesFrom) > 0 {
		return errors.New("it takes volumes from other containers")
	}
	_, _, err := takeMounts(d, x.Host)
	return err
}

// checkOthers requires the rest of the common part to be what Docker will do.
func checkOthers(d engine.Definition, x extra) error {
	switch {
	case x.LogBytes < 0 || x.LogBytes > maxLog:
		return fmt.Errorf("a log of %d bytes: at most %d", x.LogBytes, int64(maxLog))
	case d.Limits != limitsOf(x.Host.Resources):
		return errors.New("its limits do not match its configuration")
	case !diffIDPattern.MatchString(d.ImageID):
		return fmt.Errorf("image %.80q: must be sha256: and 64 hexadecimal digits", d.ImageID)
	case x.Configuration != "" && !diffIDPattern.MatchString(x.Configuration):
		return fmt.Errorf("configuration %.80q of its image: must be sha256: and 64 hexadecimal digits",
			x.Configuration)
	}
	return checkNetwork(d, x)
}
