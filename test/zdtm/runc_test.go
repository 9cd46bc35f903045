package zdtm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/lab/labtest"
)

// peerDirectory is where node a keeps containers of plain runc.
const peerDirectory = "/var/lib/zdtm"

// peer makes containers of plain runc that are the same as one of Godwit's, the model: made from its
// specification and its layers, so that both have the same mounts, namespaces, capabilities and seccomp
// filter.
type peer struct {
	model container
	spec  []byte
	lower string // layers, in overlayfs's format
	runc  string
	path  string // PATH with Godwit's CRIU
	count atomic.Int64
}

func newPeer(ctx context.Context) (*peer, error) {
	p := &peer{model: container{name: "model", node: "a"}, path: "PATH=/opt/godwit/bin:" + os.Getenv("PATH")}
	for _, path := range []string{"/opt/godwit/bin/runc", "runc"} {
		if found, err := exec.LookPath(path); err == nil && p.runc == "" {
			p.runc = found
		}
	}
	if out, err := p.model.godwit(ctx, "run", "-d", "--name", p.model.name, image, "/init", "start", "/",
		"/bin/busybox", "true"); err != nil {
		return nil, errors.New(errorText(err, out))
	}
	out, err := p.model.godwit(ctx, "inspect", p.model.name)
	if err != nil {
		return nil, errors.New(errorText(err, out))
	}
	var model struct {
		Definition struct {
			ID     string   `json:"id"`
			Layers []string `json:"layers"`
		} `json:"definition"`
	}
	if err := json.Unmarshal([]byte(out), &model); err != nil {
		return nil, err
	}
	for _, digest := range model.Definition.Layers {
		p.lower = filepath.Join("/var/lib/godwit/layers", strings.Replace(digest, ":", "/", 1), "fs") + ":" +
			p.lower
	}
	p.lower = strings.TrimSuffix(p.lower, ":")
	path, err := inNode(filepath.Join("/var/lib/godwit/containers", model.Definition.ID, "config.json"))
	if err == nil {
		p.spec, err = os.ReadFile(path)
	}
	return p, err
}

// inNode returns where this program finds a file of node a.
func inNode(path string) (string, error) {
	root, err := world.lab.Root("a")
	return filepath.Join(root, path), err
}

func (p *peer) remove() error {
	p.model.remove()
	path, err := inNode(peerDirectory)
	if err != nil {
		return err
	}
	return os.RemoveAll(path)
}

// twin is one container of runc.
type twin struct {
	peer      *peer
	name, dir string
}

// try runs a program in a container of plain runc, which is checkpointed and restored in place.
func (p *peer) try(ctx context.Context, of program) (outcome, string, error) {
	name := "zdtm-" + strconv.FormatInt(p.count.Add(1), 10)
	c := twin{peer: p, name: name, dir: filepath.Join(peerDirectory, name)}
	defer c.remove()
	if err := c.make(ctx, of); err != nil {
		return "", "", err
	}
	if err := c.run(ctx, "run", "--detach", "--bundle", c.dir, c.name); err != nil {
		return "", "", err
	}
	if why := c.awaitStart(); why != "" {
		return unfit, why, nil
	}
	result, why := c.move(ctx, of)
	return result, why, nil
}

// move checkpoints and restores the container.
func (c twin) move(ctx context.Context, of program) (outcome, string) {
	flags := []string{"--image-path", c.dir + "/images", "--work-path", c.dir + "/work", "--tcp-established",
		"--file-locks"}
	if err := c.run(ctx, append(append([]string{"checkpoint"}, flags...), c.name)...); err != nil {
		if result, why := c.look(ctx, of); result != passed {
			return failed, err.Error() + "; and then where it was: " + why
		}
		return rolledBack, err.Error()
	}
	if err := c.run(ctx, append(append([]string{"restore", "--detach", "--bundle", c.dir}, flags...),
		c.name)...); err != nil {
		return lost, err.Error()
	}
	return c.look(ctx, of)
}

// make makes the bundle, and a network namespace, as Godwit's containers have, that CRIU does not save.
func (c twin) make(ctx context.Context, of program) error {
	var spec specs.Spec
	if err := json.Unmarshal(c.peer.spec, &spec); err != nil {
		return err
	}
	spec.Root.Path, spec.Process.Args = c.dir+"/rootfs", of.start()
	spec.Linux.CgroupsPath = "/" + c.name
	for i, n := range spec.Linux.Namespaces {
		if n.Type == specs.NetworkNamespace {
			spec.Linux.Namespaces[i].Path = "/run/netns/" + c.name
		}
	}
	// As for Godwit: deleted open files are saved, up to a size.
	spec.Annotations = map[string]string{"org.criu.config": c.dir + "/criu.conf"}
	document, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	for _, dir := range []string{"rootfs", "upper", "scratch", "images", "work"} {
		path, err := inNode(filepath.Join(c.dir, dir))
		if err == nil {
			err = os.MkdirAll(path, 0o755)
		}
		if err != nil {
			return err
		}
	}
	for name, content := range map[string][]byte{
		"config.json": document,
		"criu.conf":   []byte("network-lock nftables\nlink-remap\nghost-limit 1073741824\n"),
	} {
		path, err := inNode(filepath.Join(c.dir, name))
		if err == nil {
			err = os.WriteFile(path, content, 0o644)
		}
		if err != nil {
			return err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/scratch", c.peer.lower, c.dir, c.dir)
	for _, command := range [][]string{
		{"mount", "-t", "overlay", "overlay", "-o", options, c.dir + "/rootfs"},
		{"ip", "netns", "add", c.name}, {"ip", "-n", c.name, "link", "set", "lo", "up"},
	} {
		if out, err := execute(ctx, "a", command...); err != nil {
			return errors.New(errorText(err, out))
		}
	}
	return nil
}

// run runs runc with files as streams: a container that stays inherits them.
func (c twin) run(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd, err := world.lab.Command(ctx, "a",
		append([]string{c.peer.runc, "--root", c.dir + "/runc", "--log", c.dir + "/log"}, args...)...)
	if err != nil {
		return err
	}
	cmd.Env = append(os.Environ(), c.peer.path)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("runc %s: %w: %s", args[0], err, c.complaints())
	}
	return nil
}

// complaints returns the ends of runc's and CRIU's logs.
func (c twin) complaints() string {
	var all []string
	for _, name := range []string{"log", "work/dump.log", "work/restore.log"} {
		path, err := inNode(filepath.Join(c.dir, name))
		if err != nil {
			return err.Error()
		}
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if strings.Contains(line, "rror") && !strings.Contains(line, "RLIMIT_NOFILE") {
				all = append(all, strings.TrimSpace(line))
			}
		}
	}
	return strings.Join(all[max(0, len(all)-5):], "; ")
}

// awaitStart waits until the program has set up its state; it returns the reason of a failure.
func (c twin) awaitStart() string {
	path, err := inNode(filepath.Join(c.dir, "upper/zdtm/status"))
	if err != nil {
		return err.Error()
	}
	var said string
	labtest.Within(startPatience, func() bool {
		data, _ := os.ReadFile(path) // not there yet
		said = strings.TrimSpace(string(data))
		return said != ""
	})
	if said == "started" {
		return ""
	}
	return "it does not start: " + said
}

func (c twin) look(ctx context.Context, of program) (outcome, string) {
	out, err := execute(ctx, "a", append([]string{c.peer.runc, "--root", c.dir + "/runc", "exec", c.name},
		of.finish()...)...)
	return verdict(out, err)
}

func (c twin) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, command := range [][]string{
		{c.peer.runc, "--root", c.dir + "/runc", "delete", "--force", c.name},
		{"umount", c.dir + "/rootfs"}, {"ip", "netns", "del", c.name}, {"rm", "-rf", c.dir},
	} {
		_, _ = execute(ctx, "a", command...) // some may not exist
	}
}
