package moves

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/bench/testbed"
	"github.com/godwit/godwit/internal/engine"
)

// Godwit's directories that the bundle reads, in a node.
const (
	godwitContainers = "/var/lib/godwit/containers"
	GodwitLayers     = "/var/lib/godwit/layers"
)

// Bundle is a container for runc that is the same as one of Godwit's: made from its specification and its
// layers, so that both have the same mounts, namespaces, capabilities, seccomp filter and files. It is the
// same on both nodes.
type Bundle struct {
	bed   *testbed.Bed
	dir   string // in a node
	name  string // in runc
	plug  Plug
	model engine.Container
	// command runs in the container; nil: the command of the model.
	command []string
}

// NewBundle returns a bundle for a container made after a model.
func NewBundle(b *testbed.Bed, plug Plug, model engine.Container) Bundle {
	return Bundle{bed: b, dir: testbed.BenchDir + "/" + plug.Name, name: plug.Name, plug: plug, model: model}
}

func (c Bundle) rootfs() string { return c.dir + "/rootfs" }

func (c Bundle) images() string { return c.dir + "/images" }

func (c Bundle) work() string { return c.dir + "/work" }

func (c Bundle) config() string { return c.dir + "/criu.conf" }

// runc makes a runc command line.
func (c Bundle) runc(args ...string) []string {
	return append([]string{c.bed.Runc, "--root", c.dir + "/runc"}, args...)
}

// Make makes the bundle in a node. home is the node with Godwit's container.
func (c Bundle) Make(ctx context.Context, home, node string) error {
	spec, err := c.spec(home)
	if err != nil {
		return err
	}
	for _, dir := range []string{c.rootfs(), c.images(), c.work(), c.dir + "/upper", c.dir + "/scratch"} {
		if err := c.bed.Empty(node, dir); err != nil {
			return err
		}
	}
	if err := c.makeMounts(home, node, spec); err != nil {
		return err
	}
	// The fastest way of CRIU's own to hold packets.
	if err := c.bed.Write(node, c.config(), []byte("network-lock nftables\n")); err != nil {
		return err
	}
	document, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := c.bed.Write(node, c.dir+"/config.json", document); err != nil {
		return err
	}
	lower, err := c.layers(node)
	if err != nil {
		return err
	}
	if err := plugIn(ctx, c.bed, node, c.plug); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/scratch", lower, c.dir, c.dir)
	_, err = c.bed.Exec(ctx, node, "mount", "-t", "overlay", "overlay", "-o", options, c.rootfs())
	return err
}

// spec returns Godwit's own specification of the container, with other paths.
func (c Bundle) spec(home string) (*specs.Spec, error) {
	path, err := c.bed.Path(home, filepath.Join(godwitContainers, c.model.Definition.ID, "config.json"))
	if err != nil {
		return nil, err
	}
	document, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("specification of the container: %w", err)
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(document, spec); err != nil {
		return nil, fmt.Errorf("specification of the container: %w", err)
	}
	if spec.Root == nil || spec.Linux == nil {
		return nil, errors.New("specification of the container: it has no root or no Linux part")
	}
	if c.command != nil && spec.Process != nil {
		spec.Process.Args = c.command
	}
	spec.Root.Path = c.rootfs()
	spec.Linux.CgroupsPath = "/bench-" + c.name
	for i := range spec.Linux.Namespaces {
		if spec.Linux.Namespaces[i].Type == specs.NetworkNamespace {
			spec.Linux.Namespaces[i].Path = c.plug.namespace()
		}
	}
	spec.Annotations = map[string]string{"org.criu.config": c.config()}
	return spec, nil
}

// makeMounts gives every mount that is bound from the node a source of its own.
func (c Bundle) makeMounts(home, node string, spec *specs.Spec) error {
	for i := range spec.Mounts {
		m := &spec.Mounts[i]
		if m.Type != "bind" {
			continue
		}
		theirs, err := c.bed.Path(home, m.Source)
		if err != nil {
			return err
		}
		info, err := os.Stat(theirs)
		if err != nil {
			return fmt.Errorf("mount %s of the container: %w", m.Destination, err)
		}
		m.Source = c.dir + "/mounts/" + strconv.Itoa(i)
		if info.IsDir() {
			err = c.bed.Empty(node, m.Source)
		} else { // for example hosts
			var content []byte
			if content, err = os.ReadFile(theirs); err == nil {
				err = c.bed.Write(node, m.Source, content)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// MountDir returns a node's source of a mount in the container.
func (c Bundle) MountDir(home, destination string) (string, error) {
	spec, err := c.spec(home)
	if err != nil {
		return "", err
	}
	for i, m := range spec.Mounts {
		if m.Destination == destination {
			return c.dir + "/mounts/" + strconv.Itoa(i), nil
		}
	}
	return "", fmt.Errorf("nothing is mounted at %s", destination)
}

// layers returns the directories of the image in a node, the uppermost first, in overlayfs's format.
func (c Bundle) layers(node string) (string, error) {
	var lower []string
	for _, digest := range c.model.Definition.Layers {
		dir := filepath.Join(GodwitLayers, strings.Replace(digest, ":", "/", 1), "fs")
		if !c.bed.Has(node, dir) {
			return "", fmt.Errorf("node %s has no layer %s", node, dir)
		}
		lower = append([]string{dir}, lower...)
	}
	return strings.Join(lower, ":"), nil
}

// Start runs the container.
func (c Bundle) Start(ctx context.Context, node string) error {
	log := c.dir + "/runc.log"
	return c.bed.Detached(ctx, node, log, c.runc("--log", log, "run", "-d", "--bundle", c.dir, c.name)...)
}

// Pid returns the PID of the container's first process.
func (c Bundle) Pid(ctx context.Context, node string) (int, error) {
	out, err := c.bed.Exec(ctx, node, c.runc("state", c.name)...)
	if err != nil {
		return 0, err
	}
	var state specs.State
	if err := json.Unmarshal([]byte(out), &state); err != nil {
		return 0, fmt.Errorf("state of the container: %w", err)
	}
	return state.Pid, nil
}

// Kill ends the container, if it runs.
func (c Bundle) Kill(ctx context.Context, node string) error {
	_, err := c.bed.Exec(ctx, node, c.runc("delete", "--force", c.name)...)
	return err
}

// checkpoint writes the container's state to memory and ends it.
func (c Bundle) checkpoint(ctx context.Context, node string, options ...string) (float64, error) {
	for _, dir := range []string{c.images(), c.work()} {
		if err := c.bed.Empty(node, dir); err != nil {
			return 0, err
		}
	}
	args := append([]string{"checkpoint", "--image-path", c.images(), "--work-path", c.work(),
		"--tcp-established"}, options...)
	return c.bed.Time(ctx, node, c.runc(append(args, c.name)...)...)
}

// restore restores the container from a directory.
func (c Bundle) restore(ctx context.Context, node, images string, options ...string) (float64, error) {
	args := append([]string{
		"restore", "--detach", "--bundle", c.dir, "--image-path", images, "--work-path", c.work(),
		"--tcp-established",
	}, options...)
	return c.bed.Time(ctx, node, c.runc(append(args, c.name)...)...)
}

// Remove removes the container from a node completely.
func (c Bundle) Remove(ctx context.Context, node string) error {
	if !c.bed.Has(node, c.dir) {
		return nil
	}
	err := errors.Join(c.Kill(ctx, node), c.bed.All(ctx, node, []string{"umount", c.rootfs()}))
	if err != nil {
		return err
	}
	return c.bed.Empty(node, c.dir)
}

// GodwitVolumes is where a node keeps the volumes of the embedded engine.
const GodwitVolumes = "/var/lib/godwit/volumes"
