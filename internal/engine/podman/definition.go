package podman

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

// maxVolumes bounds a definition, which may come from another node.
const maxVolumes = 64

var (
	idPattern      = regexp.MustCompile(`^[0-9a-f]{64}$`)
	namePattern    = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}$`)
	imagePattern   = regexp.MustCompile(`^[a-z0-9][a-zA-Z0-9._:/@-]{0,511}$`)
	logTagPattern  = regexp.MustCompile(`^(\{\{\.[A-Za-z.]{1,64}\}\}|[a-zA-Z0-9_.:/@ -])*$`)
	logSizePattern = regexp.MustCompile(`^([0-9]{1,4}(\.[0-9]{1,4})?[kMGTPE]?B|-1B)?$`)
	limitPattern   = regexp.MustCompile(`^(RLIMIT_)?[A-Za-z]{1,16}$`)
	// below the node's directory of time zones
	zonePattern = regexp.MustCompile(`^([A-Za-z0-9_+-]{1,64}(/[A-Za-z0-9_+-]{1,64}){0,3})?$`)
)

// extra is this engine's part of a definition (Definition.Engine).
type extra struct {
	Config  config   `json:"config"`
	Host    host     `json:"host_config"`
	Mounts  []mount  `json:"mounts"`
	Args    []string `json:"args"`    // of the first process, without Podman's init
	Command int      `json:"command"` // how many arguments, at the end, do not belong to the entry point
	// Scratch says that Podman itself has made some tmpfs, as it does for a read-only root unless it is
	// told not to.
	Scratch bool `json:"scratch,omitempty"`
	// Volumes says how the named volumes were made, by name.
	Volumes map[string]volumeMaker `json:"volumes,omitempty"`
	// Endpoint is the container's place in its one network; nil: it is on none of Podman's.
	Endpoint *endpoint `json:"endpoint,omitempty"`
	Arrival  string    `json:"-"`     // for which the container is made here
	Stdio    []string  `json:"stdio"` // stdin, stdout and stderr in the images, in CRIU's notation
}

// Describe adds what another node needs to make a running container.
func (a *adapter) Describe(ctx context.Context, f oci.Container, stdio []string, d *engine.Definition) error {
	found := native(f)
	x := extra{Config: found.Config.config, Host: found.Host, Mounts: found.Mounts, Stdio: stdio}
	bundle, err := bundleOf(found)
	if err != nil {
		return err
	}
	args := firstArgs(found, bundle)
	x.Args, x.Scratch = args, hasScratch(found, bundle)
	if command := found.Config.Cmd; len(command) <= len(args) &&
		slices.Equal(command, args[len(args)-len(command):]) {
		x.Command = len(command)
	}
	image, err := a.images.Image(ctx, d.ImageID)
	if err != nil {
		return fmt.Errorf("image of container %s: %w", found.Name, err)
	}
	d.Layers = image.Layers
	if x.Volumes, err = volumeMakers(ctx, f.Container.Definition); err != nil {
		return err
	}
	if x.Endpoint, err = endpointOf(ctx, found, d.Network); err != nil {
		return err
	}
	d.Engine, err = json.Marshal(x)
	return err
}

// bundleOf returns the specification that Podman has given to the runtime.
func bundleOf(found inspected) (specs.Spec, error) {
	data, err := os.ReadFile(found.OCIConfigPath)
	var spec specs.Spec
	if err == nil {
		err = json.Unmarshal(data, &spec)
	}
	if err == nil && (spec.Process == nil || len(spec.Process.Args) == 0) {
		err = errors.New("it has no process")
	}
	if err != nil {
		return spec, fmt.Errorf("bundle of container %s: %w", found.Name, err)
	}
	return spec, nil
}

// firstArgs returns the command line of a container's first process, or of the process that Podman's init
// starts: `INIT -- ARGUMENTS`.
func firstArgs(found inspected, bundle specs.Spec) []string {
	args := bundle.Process.Args
	if found.Host.Init && len(args) > 2 && args[1] == "--" {
		return args[2:]
	}
	return args
}

// scratchPlaces are where Podman mounts a tmpfs if the root is read-only, unless something else is mounted
// there. Podman 4.3 lists these as if they were requested, 5.4 does not list them.
var scratchPlaces = []string{"/run", "/tmp", "/var/tmp"}

// hasScratch reports whether a container has these mounts. Without them (--read-only-tmpfs=false), Podman 5
// makes /dev read-only, too.
func hasScratch(found inspected, bundle specs.Spec) bool {
	mounted := func(place string) bool {
		return slices.ContainsFunc(bundle.Mounts, func(m specs.Mount) bool { return m.Destination == place })
	}
	fixed := slices.ContainsFunc(bundle.Mounts,
		func(m specs.Mount) bool { return m.Destination == "/dev" && slices.Contains(m.Options, "ro") })
	return found.Host.ReadonlyRootfs && !fixed &&
		!slices.ContainsFunc(scratchPlaces, func(place string) bool { return !mounted(place) })
}

// Expect reads another node's description of a container.
func (a *adapter) Expect(d engine.Definition) (oci.Expected, error) {
	x, err := decode(d)
	if err != nil {
		return oci.Expected{}, err
	}
	restart, err := json.Marshal(x.Host.RestartPolicy)
	return oci.Expected{
		Late: true, Patience: startPatience, ShmBytes: x.Host.ShmSize, Stdio: x.Stdio,
		PrivateCgroup: x.Host.CgroupMode == "private", Restart: restart,
		Log: x.Host.LogConfig.Type == logDriver || x.Host.LogConfig.Type == "json-file",
	}, err
}

// decode reads this engine's part of a definition. It refuses a definition that this engine could not make
// or that would do harm.
func decode(d engine.Definition) (extra, error) {
	return oci.Decode(title, d, func(x extra) error {
		switch {
		case !namePattern.MatchString(d.Name):
			return fmt.Errorf("name %.80q is not one that Podman allows", d.Name)
		case !imagePattern.MatchString(d.Image) || imagestore.CheckDigest(d.ImageID) != nil:
			return fmt.Errorf("image %.80q, %.80q is not one of Podman's", d.Image, d.ImageID)
		case len(x.Args) == 0 || x.Command < 0 || x.Command > len(x.Args):
			return fmt.Errorf("%d arguments, %d of them a command", len(x.Args), x.Command)
		}
		return errors.Join(oci.CheckLayers(d.Layers), oci.CheckStdio(x.Stdio), checkVolumes(d, x),
			checkOthers(d, x), checkTold(x))
	})
}

// checkTold requires each value for Podman to be a single value. For many flags, Podman parses lists with
// commas and quotes, and a list may mean something quite different (--log-opt size=1mb,path=…).
func checkTold(x extra) error {
	h := x.Host
	for _, list := range [][]string{h.CapAdd, h.CapDrop, h.SecurityOpt, h.DNS, h.DNSOptions, h.DNSSearch,
		h.ExtraHosts, h.GroupAdd} {
		for _, value := range list {
			if value == "" || strings.ContainsAny(value, ",\"\r\n\x00") {
				return fmt.Errorf("value %.80q cannot be passed to Podman", value)
			}
		}
	}
	for _, limit := range h.Ulimits {
		if !limitPattern.MatchString(limit.Name) {
			return fmt.Errorf("limit %.80q is not a valid name", limit.Name)
		}
	}
	if log := h.LogConfig; !logTagPattern.MatchString(log.Tag) || !logSizePattern.MatchString(log.Size) {
		return fmt.Errorf("log's tag %.80q or size %.80q", log.Tag, log.Size)
	}
	if !zonePattern.MatchString(x.Config.Timezone) {
		return fmt.Errorf("time zone %.80q", x.Config.Timezone)
	}
	return nil
}

// checkVolumes requires the volumes in the definition's common part to be those that Podman will make: the
// agent migrates no others.
func checkVolumes(d engine.Definition, x extra) error {
	if len(d.Volumes) > maxVolumes {
		return fmt.Errorf("%d volumes: at most %d", len(d.Volumes), maxVolumes)
	}
	paths := map[string]bool{}
	for _, v := range d.Volumes {
		named := v.Sort() == engine.Named && v.Engine == Name && namePattern.MatchString(v.Name)
		bound := v.Sort() == engine.Bind && plainPath(v.Source)
		if !named && !bound || !plainPath(v.Path) || paths[v.Path] {
			return fmt.Errorf("volume %.80s at %.80q is not one of Podman's", v, v.Path)
		}
		paths[v.Path] = true
	}
	for path := range x.Host.Tmpfs {
		if !plainPath(path) || paths[path] {
			return fmt.Errorf("tmpfs at %.80q", path)
		}
	}
	if made := volumesOf(x.Mounts); len(made) != len(x.Mounts) || !oci.SameVolumes(made, d.Volumes) {
		return errors.New("its volumes do not match its configuration")
	}
	return nil
}

// plainPath reports whether a path can be passed to Podman between colons.
func plainPath(name string) bool {
	return path.IsAbs(name) && path.Clean(name) == name && name != "/" &&
		!strings.ContainsAny(name, ":,\\\x00")
}

// checkOthers requires the rest of the common part to be what Podman will do.
func checkOthers(d engine.Definition, x extra) error {
	if d.Limits != limitsOf(x.Host) {
		return errors.New("its limits do not match its configuration")
	}
	return checkNetwork(d, x)
}
