package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"

	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/containerd/nerdctl"
	"github.com/godwit/godwit/internal/engine/oci"
	imagestore "github.com/godwit/godwit/internal/files/image"
)

// maxVolumes bounds a definition, which may come from another node.
const maxVolumes = 64

var (
	digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	imagePattern  = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._:/@-]{0,511}$`)
)

// runtimeName is the runtime whose shim runs runc.
const runtimeName = "io.containerd.runc.v2"

// extra is this engine's part of a definition (Definition.Engine).
type extra struct {
	Namespace string     `json:"namespace"`
	ID        string     `json:"id"` // containerd's ID
	Spec      specs.Spec `json:"spec"`
	Chain     string     `json:"chain"` // of the image's layers
	Systemd   bool       `json:"systemd_cgroup,omitempty"`
	Log       bool       `json:"log"` // its output goes to a file
	Stdio     []string   `json:"stdio"`
	// Extension is the type of ctr's record that it has connected the container with CNI: see ctrExtension.
	Extension string         `json:"ctr_extension,omitempty"`
	Nerdctl   *madeByNerdctl `json:"nerdctl,omitempty"` // nil: nerdctl has not started the container
}

// Describe adds what another node needs to make a running container.
func (a *adapter) Describe(
	ctx context.Context, found oci.Container, stdio []string, d *engine.Definition,
) error {
	t := native(found)
	settings, err := runtimeOptions(t)
	if err != nil {
		return err
	}
	log, err := a.Log(ctx, found)
	if err != nil {
		return err
	}
	reply, err := a.snapshots.Stat(within(ctx, t.namespace),
		&snapshots.StatSnapshotRequest{Snapshotter: snapshotter, Key: t.container.GetSnapshotKey()})
	if err != nil {
		return fmt.Errorf("ask containerd for the files of container %s: %w", nameOf(found.ID), err)
	}
	chain := reply.GetInfo().GetParent()
	image, err := a.images.Of(ctx, t.namespace, t.container.GetImage(), chain)
	if err != nil {
		return fmt.Errorf("image of container %s: %w", nameOf(found.ID), err)
	}
	if image != nil { // otherwise another image, or none, has its name by now
		d.ImageID, d.Layers = image.ID, image.Layers
	}
	spec, made, err := t.spec, (*madeByNerdctl)(nil), error(nil)
	if t.byNerdctl() {
		// hooks are made again, and contain the environment of the program that started the container
		spec.Hooks, made = nil, &madeByNerdctl{}
		if made.Started, err = nerdctl.Started(t.place()); err != nil {
			return err
		}
	}
	extension, _ := ctrExtension(t.container.GetExtensions()) // other extensions are refused
	d.Engine, err = json.Marshal(extra{
		Extension: extension, Nerdctl: made,
		Namespace: t.namespace, ID: t.container.GetID(), Spec: spec, Chain: chain,
		Systemd: settings.GetSystemdCgroup(),
		Log:     log != "", Stdio: stdio,
	})
	return err
}

// runtimeOptions returns what containerd passes to the shim of a container.
func runtimeOptions(t told) (*options.Options, error) {
	settings := &options.Options{}
	packed := t.container.GetRuntime().GetOptions()
	if packed == nil {
		return settings, nil
	}
	if !strings.HasSuffix(packed.GetTypeUrl(), "containerd.runc.v1.Options") {
		return nil, fmt.Errorf("container %s: options of its runtime are %s", t.container.GetID(),
			packed.GetTypeUrl())
	}
	if err := proto.Unmarshal(packed.GetValue(), settings); err != nil {
		return nil, fmt.Errorf("container %s: options of its runtime: %w", t.container.GetID(), err)
	}
	return settings, nil
}

// Expect reads another node's description of a container.
func (a *adapter) Expect(d engine.Definition) (oci.Expected, error) {
	x, err := decode(d)
	if err != nil {
		return oci.Expected{}, err
	}
	restart, err := json.Marshal(takenRestart(d.Labels, a.logOf(x.Namespace, x.ID, d.Labels)))
	return oci.Expected{Stdio: x.Stdio, PrivateCgroup: hasNamespace(x.Spec, specs.CgroupNamespace),
		Restart: restart, Log: x.Log}, err
}

func hasNamespace(spec specs.Spec, kind specs.LinuxNamespaceType) bool {
	return slices.ContainsFunc(spec.Linux.Namespaces,
		func(n specs.LinuxNamespace) bool { return n.Type == kind })
}

// decode reads this engine's part of a definition. It refuses a definition that this engine could not make
// or that would do harm.
func decode(d engine.Definition) (extra, error) {
	return oci.Decode(Name, d, func(x extra) error {
		switch {
		case !imagePattern.MatchString(d.Image):
			return fmt.Errorf("image %.80q", d.Image)
		case !namePattern.MatchString(x.ID) || len(x.ID) > 76 ||
			d.Name != titleOf(x.Namespace, x.ID, d.Labels):
			return fmt.Errorf("container %.80q of name %.80q", x.ID, d.Name)
		case !digestPattern.MatchString(x.Chain):
			return fmt.Errorf("layers %.80q", x.Chain)
		// nerdctl's hooks remove objects whose names contain a part of the ID
		case nerdctl.Has(d.Labels) && !nerdctl.IsID(x.ID):
			return fmt.Errorf("container ID %.80q is not one that nerdctl makes", x.ID)
		case (x.Nerdctl != nil) != nerdctl.Has(d.Labels):
			return errors.New("its labels and its definition disagree on whether nerdctl made it")
		case x.Extension != "" && !extensionPattern.MatchString(x.Extension):
			return fmt.Errorf("extension %.80q", x.Extension)
		case x.Spec.Process == nil || x.Spec.Root == nil || x.Spec.Linux == nil ||
			len(x.Spec.Process.Args) == 0:
			return errors.New("it has no Linux process")
		}
		return errors.Join(checkNamespace(x.Namespace), checkImage(d, x), oci.CheckStdio(x.Stdio),
			checkDefinition(d, x))
	})
}

// checkNamespace refuses invalid namespaces, and those of other programs.
func checkNamespace(name string) error {
	if !namePattern.MatchString(name) || len(name) > 40 || slices.Contains(others, name) {
		return fmt.Errorf("namespace %.80q", name)
	}
	return nil
}

// checkImage requires a known image to have the layers on which the container's files lie.
func checkImage(d engine.Definition, x extra) error {
	if d.Namespace != x.Namespace {
		return fmt.Errorf("namespaces %.80q and %.80q", d.Namespace, x.Namespace)
	}
	if d.ImageID == "" && len(d.Layers) == 0 {
		return nil
	}
	if err := errors.Join(imagestore.CheckDigest(d.ImageID), oci.CheckLayers(d.Layers)); err != nil {
		return err
	}
	if chains := imagestore.Chains(d.Layers); chains[len(chains)-1] != x.Chain {
		return errors.New("its layers do not match its image")
	}
	return nil
}

// checkDefinition requires the definition's common part to be what containerd will do.
func checkDefinition(d engine.Definition, x extra) error {
	if len(d.Volumes) > maxVolumes ||
		!oci.SameVolumes(d.Volumes, volumesOf(x.Spec, keptOf(x.Namespace, x.ID, d.Labels))) {
		return errors.New("its volumes do not match its specification")
	}
	paths := map[string]bool{}
	for _, v := range d.Volumes {
		plain := func(name string) bool { return path.IsAbs(name) && path.Clean(name) == name && name != "/" }
		if !plain(v.Source) || !plain(v.Path) || paths[v.Path] {
			return fmt.Errorf("volume %.80s at %.80q", v, v.Path)
		}
		paths[v.Path] = true
	}
	if d.Limits != limitsOf(x.Spec) {
		return errors.New("its limits do not match its specification")
	}
	return checkNetwork(d, x)
}

// remade returns a specification with the parts of another that can move: they are harmless, and another
// node makes them in the same way. Obstacles names the other parts.
func remade(from specs.Spec) specs.Spec {
	p, l := from.Process, from.Linux
	return specs.Spec{
		Version: from.Version, Hostname: from.Hostname, Mounts: from.Mounts, Annotations: from.Annotations,
		Root: &specs.Root{Path: from.Root.Path, Readonly: from.Root.Readonly},
		Process: &specs.Process{
			User: p.User, Args: p.Args, Env: p.Env, Cwd: p.Cwd, Capabilities: p.Capabilities,
			Rlimits:         p.Rlimits,
			NoNewPrivileges: p.NoNewPrivileges, OOMScoreAdj: p.OOMScoreAdj,
		},
		Linux: &specs.Linux{
			Namespaces: l.Namespaces, CgroupsPath: l.CgroupsPath, MaskedPaths: l.MaskedPaths,
			ReadonlyPaths: l.ReadonlyPaths,
			Resources:     resources(l.Resources), Seccomp: l.Seccomp,
		},
	}
}

func resources(from *specs.LinuxResources) *specs.LinuxResources {
	if from == nil {
		return nil
	}
	return &specs.LinuxResources{Devices: from.Devices, Memory: from.Memory, CPU: from.CPU, Pids: from.Pids}
}

// same reports whether a specification loses nothing when it is remade.
func same(spec specs.Spec) bool {
	if spec.Process.ConsoleSize != nil || spec.Root == nil {
		return false
	}
	return reflect.DeepEqual(remade(spec), spec)
}
