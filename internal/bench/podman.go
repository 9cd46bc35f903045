package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/godwit/godwit/internal/bench/results"
)

const (
	// podmanHome is Podman's, and has caches that no option moves. In a node it is in memory.
	podmanHome    = "/var/lib/containers"
	podmanName    = "bench"
	podmanArchive = benchDir + "/podman.tar"
)

// podmanWay is Podman's own way: checkpoint into an archive, copy, restore from it.
type podmanWay struct {
	peer
	archive string // the image
	image   string
}

func newPodmanWay(b *bed, w containerWorkload, archive string) *podmanWay {
	return &podmanWay{
		peer:    peer{bed: b, workload: w, plug: plug{name: "podman", number: 3}, at: nodes[0]},
		archive: archive, image: "localhost/" + w.imageName() + ":latest",
	}
}

func (p *podmanWay) name() string { return wayPodman }

func (p *podmanWay) podman(args ...string) []string { return p.bed.podman(args...) }

// podman returns a Podman command line.
func (b *bed) podman(args ...string) []string {
	return append([]string{
		"podman", "--runtime", b.runc, "--cgroup-manager", "cgroupfs", "--events-backend", "none",
		"--network-config-dir", benchDir + "/podman-networks",
	}, args...)
}

func (p *podmanWay) start(ctx context.Context) error {
	for _, node := range nodes {
		if err := p.prepare(ctx, node); err != nil {
			return err
		}
	}
	run := []string{
		"run", "--detach", "--pull", "never", "--name", podmanName, "--network", "ns:" + p.plug.namespace(),
		p.image,
	}
	if _, err := p.bed.exec(ctx, p.at, p.podman(append(run, p.workload.command()...)...)...); err != nil {
		return err
	}
	return p.connect(ctx, p.pid)
}

func (p *podmanWay) pid(ctx context.Context, node string) (int, error) {
	out, err := p.bed.exec(ctx, node, p.podman("inspect", "--format", "{{.State.Pid}}", podmanName)...)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(out))
}

func (p *podmanWay) prepare(ctx context.Context, node string) error {
	if err := p.bed.plugIn(ctx, node, p.plug); err != nil {
		return err
	}
	if err := p.bed.mountPodman(ctx, node); err != nil {
		return err
	}
	_, err := p.bed.exec(ctx, node, p.podman("load", "--quiet", "--input", p.archive)...)
	return err
}

// move does not compress: the data of the workload is incompressible.
func (p *podmanWay) move(ctx context.Context) ([]results.Measurement, error) {
	from, to := p.at, other(p.at)
	if err := p.bed.plugIn(ctx, to, p.plug); err != nil {
		return nil, err
	}
	measured, err := p.bed.podmanMove(ctx, from, p.podman(), podmanName, "--tcp-established")
	if err != nil {
		return nil, err
	}
	p.at = to
	if _, err := p.bed.exec(ctx, from, p.podman("rm", podmanName)...); err != nil {
		return nil, err
	}
	return measured, nil
}

// podmanMove checkpoints a container with Podman into an archive, copies the archive, and restores from it.
func (b *bed) podmanMove(ctx context.Context, from string, podman []string, container string,
	options ...string) ([]results.Measurement, error) {
	command := func(args ...string) []string {
		return slices.Concat(podman, []string{"container"}, args,
			options)
	}
	checkpoint, err := b.time(ctx, from,
		append(command("checkpoint", "--compress", "none", "--export", podmanArchive), container)...)
	if err != nil {
		return nil, err
	}
	copied, size, err := b.send(ctx, from, podmanArchive)
	if err != nil {
		return nil, err
	}
	restore, err := b.time(ctx, other(from), command("restore", "--import", incoming+"/podman.tar")...)
	return tookOwn(checkpoint, copied, restore, size), err
}

func (p *podmanWay) stop(ctx context.Context) error {
	failed := p.disconnect()
	for _, node := range nodes {
		if !p.bed.podmanMounted(node) {
			continue
		}
		_, err := p.bed.exec(ctx, node, p.podman("rm", "--all", "--force", "--time", "0")...)
		if err == nil {
			err = p.bed.unmountPodman(ctx, node)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// mountPodman mounts Podman's home in memory in a node.
func (b *bed) mountPodman(ctx context.Context, node string) error {
	_, err := b.exec(ctx, node, "mount", "-t", "tmpfs", "-o", "mode=700", "bench", podmanHome)
	return err
}

func (b *bed) unmountPodman(ctx context.Context, node string) error {
	_, err := b.exec(ctx, node, "umount", "--recursive", podmanHome)
	return err
}

// podmanMounted reports whether a node has Podman's home in memory.
func (b *bed) podmanMounted(node string) bool { return b.mounted(node, podmanHome) }

// mounted reports whether there is a mount at a path of a node.
func (b *bed) mounted(node, at string) bool {
	pid, err := b.lab.PID(node)
	if err != nil {
		return false
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	return err == nil && strings.Contains(string(mounts), " "+at+" ")
}

// podmanMountPoint makes a directory to mount over, and returns a function that removes it if it did not
// exist before: the nodes share the machine's file system.
func podmanMountPoint() (remove func() error, err error) {
	switch err := os.Mkdir(podmanHome, 0o700); {
	case errors.Is(err, os.ErrExist):
		return func() error { return nil }, nil
	case err != nil:
		return nil, fmt.Errorf("mount point for Podman in the nodes: %w", err)
	}
	return func() error {
		if err := os.Remove(podmanHome); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("mount point for Podman in the nodes: %w", err)
		}
		return nil
	}, nil
}
