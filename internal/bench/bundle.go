package bench

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
	godwitLayers     = "/var/lib/godwit/layers"
)

// bundle is a container for runc that is the same as one of Godwit's: made from its specification and its
// layers, so that both have the same mounts, namespaces, capabilities, seccomp filter and files. It is the
// same on both nodes.
type bundle struct {
	bed   *testbed.Bed
	dir   string // in a node
	name  string // in runc
	plug  plug
	model engine.Container
	// command runs in the container; nil: the command of the model.
	command []string
}

func newBundle(b *testbed.Bed, plug plug, model engine.Container) bundle {
	return bundle{bed: b, dir: testbed.BenchDir + "/" + plug.name, name: plug.name, plug: plug, model: model}
}

func (c bundle) rootfs() string { return c.dir + "/rootfs" }

func (c bundle) images() string { return c.dir + "/images" }

func (c bundle) work() string { return c.dir + "/work" }

func (c bundle) config() string { return c.dir + "/criu.conf" }

// runc makes a runc command line.
func (c bundle) runc(args ...string) []string {
	return append([]string{c.bed.Runc, "--root", c.dir + "/runc"}, args...)
}

// make makes the bundle in a node. home is the node with Godwit's container.
func (c bundle) make(ctx context.Context, home, node string) error {
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
func (c bundle) spec(home string) (*specs.Spec, error) {
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
func (c bundle) makeMounts(home, node string, spec *specs.Spec) error {
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

// mountDir returns a node's source of a mount in the container.
func (c bundle) mountDir(home, destination string) (string, error) {
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
func (c bundle) layers(node string) (string, error) {
	var lower []string
	for _, digest := range c.model.Definition.Layers {
		dir := filepath.Join(godwitLayers, strings.Replace(digest, ":", "/", 1), "fs")
		if !c.bed.Has(node, dir) {
			return "", fmt.Errorf("node %s has no layer %s", node, dir)
		}
		lower = append([]string{dir}, lower...)
	}
	return strings.Join(lower, ":"), nil
}

// start runs the container.
func (c bundle) start(ctx context.Context, node string) error {
	log := c.dir + "/runc.log"
	return c.bed.Detached(ctx, node, log, c.runc("--log", log, "run", "-d", "--bundle", c.dir, c.name)...)
}

// pid returns the PID of the container's first process.
func (c bundle) pid(ctx context.Context, node string) (int, error) {
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

// kill ends the container, if it runs.
func (c bundle) kill(ctx context.Context, node string) error {
	_, err := c.bed.Exec(ctx, node, c.runc("delete", "--force", c.name)...)
	return err
}

// checkpoint writes the container's state to memory and ends it.
func (c bundle) checkpoint(ctx context.Context, node string, options ...string) (float64, error) {
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
func (c bundle) restore(ctx context.Context, node, images string, options ...string) (float64, error) {
	args := append([]string{
		"restore", "--detach", "--bundle", c.dir, "--image-path", images, "--work-path", c.work(),
		"--tcp-established",
	}, options...)
	return c.bed.Time(ctx, node, c.runc(append(args, c.name)...)...)
}

// remove removes the container from a node completely.
func (c bundle) remove(ctx context.Context, node string) error {
	if !c.bed.Has(node, c.dir) {
		return nil
	}
	err := errors.Join(c.kill(ctx, node), c.bed.All(ctx, node, []string{"umount", c.rootfs()}))
	if err != nil {
		return err
	}
	return c.bed.Empty(node, c.dir)
}
