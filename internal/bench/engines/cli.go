package engines

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/bench/moves"
	"github.com/godwit/godwit/internal/bench/results"
	"github.com/godwit/godwit/internal/bench/testbed"
)

// byCommand is the common part of Docker's and Podman's command lines.
type byCommand struct {
	bed     *testbed.Bed
	program string
}

func (c byCommand) name() string { return c.program }

func (c byCommand) load(ctx context.Context, node, archive string, _ outside) (string, error) {
	return moves.LoadImage(ctx, c.bed, node, c.program, archive)
}

// bridge is a network of the engines on both nodes.
const (
	bridge       = "bench"
	bridgeSubnet = "172.30.0.0/24"
)

// create returns the command line that makes a container; verb: run or create.
func (c byCommand) create(one outside, verb ...string) []string {
	args := append([]string{c.program}, append(verb, "--name", one.name)...)
	network := "none"
	if one.connected {
		network = bridge
	}
	args = append(args, "--network", network)
	if one.connected && one.port != 0 {
		args = append(args, "--publish", fmt.Sprintf("%d:%d", one.port, one.port))
	}
	return append(append(args, one.image), one.args...)
}

func (c byCommand) run(ctx context.Context, node string, one outside) error {
	_, err := c.bed.Exec(ctx, node, c.create(one, "run", "--detach")...)
	return err
}

func (c byCommand) pid(ctx context.Context, node string, one outside) (int, error) {
	out, err := c.bed.Exec(ctx, node, c.program, "inspect", "--format", "{{.State.Pid}}", one.name)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		return 0, fmt.Errorf("the process of %s: %w", one.name, err)
	}
	return pid, nil
}

// server returns the port that the node publishes.
func (c byCommand) server(node string, one outside) (string, error) {
	address, err := c.bed.Lab.Address(node)
	return netip.AddrPortFrom(address, uint16(one.port)).String(), err
}

// docker is the node's Docker.
type docker struct{ byCommand }

// bringUp enables Docker's checkpoints, which are an experimental feature.
func (d docker) bringUp(ctx context.Context, node string) error {
	err := withCRIU(d.bed, func() error {
		return d.bed.Lab.Engines().StartDocker(ctx, node, "--experimental")
	})
	if err == nil {
		_, err = d.bed.Exec(ctx, node, "docker", "network", "create", "--subnet", bridgeSubnet, bridge)
	}
	return err
}

// withCRIU starts a daemon whose runc finds CRIU in the daemon's environment.
func withCRIU(b *testbed.Bed, start func() error) error {
	path := os.Getenv("PATH")
	if err := os.Setenv("PATH", filepath.Dir(b.CRIU.Path)+":"+path); err != nil {
		return err
	}
	return errors.Join(start(), os.Setenv("PATH", path))
}

func (docker) connects() bool { return true }

func (d docker) remove(ctx context.Context, node string, c outside) error {
	_, err := d.bed.Exec(ctx, node, "docker", "rm", "--force", c.name)
	return err
}

// checkpointed is docker checkpoint, a copy, and docker start --checkpoint. Docker 20.10 accepts a
// checkpoint only from its own directory.
func (d docker) checkpointed(ctx context.Context, from string, c outside) ([]results.Measurement, error) {
	to := testbed.Other(from)
	_ = d.remove(ctx, to, c) // left by an earlier failed move
	if _, err := d.bed.Exec(ctx, to, d.create(c, "create")...); err != nil {
		return nil, err
	}
	there, err := d.checkpoints(ctx, to, c.name)
	if err != nil {
		return nil, err
	}
	here, err := d.checkpoints(ctx, from, c.name)
	if err != nil {
		return nil, err
	}
	checkpoint, err := d.bed.Time(ctx, from, "docker", "checkpoint", "create", c.name, dockerCheckpoint)
	if err != nil {
		return nil, err
	}
	copied, size, err := d.bed.Send(ctx, from, here)
	if err != nil {
		return nil, err
	}
	placed, err := d.bed.Time(ctx, to, "cp", "--archive", testbed.Incoming+"/"+dockerCheckpoint, there)
	if err != nil {
		return nil, err
	}
	restore, err := d.bed.Time(ctx, to, "docker", "start", "--checkpoint", dockerCheckpoint, c.name)
	if err == nil {
		_, err = d.bed.Exec(ctx, to, "rm", "--recursive", there) // or the next one could not use its name
	}
	if err == nil {
		err = d.remove(ctx, from, c)
	}
	return moves.TookOwn(checkpoint, copied+placed, restore, size), err
}

// dockerCheckpoint is the checkpoint's name.
const dockerCheckpoint = "bench"

// checkpoints returns Docker's directory of a container's checkpoints.
func (d docker) checkpoints(ctx context.Context, node, container string) (string, error) {
	out, err := d.bed.Exec(ctx, node, "sh", "-c",
		`echo "$(docker info --format '{{.DockerRootDir}}')/containers/`+
			`$(docker inspect --format '{{.Id}}' "$0")/checkpoints"`, container)
	dir := strings.TrimSpace(out)
	if err == nil {
		_, err = d.bed.Exec(ctx, node, "mkdir", "--parents", dir)
	}
	return dir + "/" + dockerCheckpoint, err
}

// podman is the node's Podman.
type podman struct{ byCommand }

func (p podman) bringUp(ctx context.Context, node string) error {
	if err := p.bed.Lab.Engines().PreparePodman(ctx, node); err != nil {
		return err
	}
	_, err := p.bed.Exec(ctx, node, testbed.Program, "engine", "setup", "podman")
	return err
}

func (podman) connects() bool { return false }

func (p podman) remove(ctx context.Context, node string, c outside) error {
	_, err := p.bed.Exec(ctx, node, "podman", "rm", "--force", "--time=0", c.name)
	return err
}

// checkpointed is podman container checkpoint into an archive, a copy, and a restore from it.
func (p podman) checkpointed(ctx context.Context, from string, c outside) ([]results.Measurement, error) {
	measured, err := moves.PodmanMove(ctx, p.bed, from, []string{p.program}, c.name)
	if err == nil {
		err = p.remove(ctx, from, c)
	}
	return measured, err
}

// containerd is the node's containerd, by ctr.
type containerd struct{ bed *testbed.Bed }

func (containerd) name() string { return "containerd" }

func (c containerd) bringUp(ctx context.Context, node string) error {
	err := withCRIU(c.bed, func() error { return c.bed.Lab.Engines().StartContainerd(ctx, node) })
	if err != nil {
		return err
	}
	_, err = c.bed.Exec(ctx, node, testbed.Program, "engine", "setup", "containerd")
	return err
}

func (containerd) connects() bool { return false }

func (c containerd) load(ctx context.Context, node, archive string, _ outside) (string, error) {
	out, err := c.bed.Exec(ctx, node, "ctr", "images", "import", archive)
	words := strings.Fields(out) // unpacking NAME (DIGEST)...done
	if i := slices.Index(words, "unpacking"); err == nil && i >= 0 && i+1 < len(words) {
		return words[i+1], nil
	}
	return "", errors.Join(fmt.Errorf("ctr images import says %.200q", out), err)
}

func (c containerd) run(ctx context.Context, node string, one outside) error {
	_, err := c.bed.Exec(ctx, node,
		append([]string{"ctr", "run", "--detach", "--null-io", one.image, one.name}, one.args...)...)
	return err
}

func (c containerd) pid(ctx context.Context, node string, one outside) (int, error) {
	out, err := c.bed.Exec(ctx, node, "ctr", "tasks", "ls")
	for line := range strings.Lines(out) { // TASK PID STATUS
		if words := strings.Fields(line); len(words) == 3 && words[0] == one.name {
			return strconv.Atoi(words[1])
		}
	}
	return 0, errors.Join(fmt.Errorf("containerd on %s has no task %s: %q", node, one.name, out), err)
}

func (c containerd) server(string, outside) (string, error) {
	return "", errors.New("containers of containerd have no network here")
}

func (c containerd) remove(ctx context.Context, node string, one outside) error {
	_, err := c.bed.Exec(ctx, node, "sh", "-c", `ctr tasks rm --force "$0"; ctr containers rm "$0"`, one.name)
	return err
}

// Where a checkpoint of containerd is stored: an image, and its archive.
const (
	ctrCheckpoint = "example.com/bench:checkpoint"
	ctrArchive    = testbed.BenchDir + "/containerd.tar"
)

// checkpointed makes an image of the container with its files and its state, and sends it as an archive.
// The container would continue to run: its later changes are lost, so this counts as downtime.
func (c containerd) checkpointed(ctx context.Context, from string, one outside) ([]results.Measurement,
	error) {
	to := testbed.Other(from)
	checkpoint, err := timeAll(ctx, c.bed, from,
		[]string{"ctr", "containers", "checkpoint", "--rw", "--image", "--task", one.name, ctrCheckpoint},
		[]string{"ctr", "images", "export", "--skip-manifest-json", ctrArchive, ctrCheckpoint})
	if err != nil {
		return nil, err
	}
	if err := c.remove(ctx, from, one); err != nil {
		return nil, err
	}
	copied, size, err := c.bed.Send(ctx, from, ctrArchive)
	if err != nil {
		return nil, err
	}
	restore, err := timeAll(ctx, c.bed, to,
		// unpacking fails for checkpoints
		[]string{"ctr", "images", "import", "--no-unpack", testbed.Incoming + "/" +
			filepath.Base(ctrArchive)},
		[]string{"ctr", "containers", "restore", "--rw", "--live", one.name, ctrCheckpoint})
	for _, node := range testbed.Nodes {
		_, removeErr := c.bed.Exec(ctx, node, "ctr", "images", "rm", ctrCheckpoint)
		err = errors.Join(err, removeErr)
	}
	return moves.TookOwn(checkpoint, copied, restore, size), err
}
