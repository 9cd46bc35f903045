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
	"github.com/godwit/godwit/internal/bench/testbed"
)

const (
	// podmanHome is Podman's, and has caches that no option moves. In a node it is in memory.
	podmanHome    = "/var/lib/containers"
	podmanName    = "bench"
	podmanArchive = testbed.BenchDir + "/podman.tar"
)

// podmanWay is Podman's own way: checkpoint into an archive, copy, restore from it.
type podmanWay struct {
	peer
	archive string // the image
	image   string
}

func newPodmanWay(b *testbed.Bed, w containerWorkload, archive string) *podmanWay {
	return &podmanWay{
		peer:    peer{bed: b, workload: w, plug: plug{name: "podman", number: 3}, at: testbed.Nodes[0]},
		archive: archive, image: "localhost/" + w.imageName() + ":latest",
	}
}

func (p *podmanWay) name() string { return wayPodman }

func (p *podmanWay) podman(args ...string) []string { return podmanCommand(p.bed, args...) }

// podmanCommand returns a Podman command line.
func podmanCommand(b *testbed.Bed, args ...string) []string {
	return append([]string{
		"podman", "--runtime", b.Runc, "--cgroup-manager", "cgroupfs", "--events-backend", "none",
		"--network-config-dir", testbed.BenchDir + "/podman-networks",
	}, args...)
}

func (p *podmanWay) start(ctx context.Context) error {
	for _, node := range testbed.Nodes {
		if err := p.prepare(ctx, node); err != nil {
			return err
		}
	}
	run := []string{
		"run", "--detach", "--pull", "never", "--name", podmanName, "--network", "ns:" + p.plug.namespace(),
		p.image,
	}
	if _, err := p.bed.Exec(ctx, p.at, p.podman(append(run, p.workload.command()...)...)...); err != nil {
		return err
	}
	return p.connect(ctx, p.pid)
}

func (p *podmanWay) pid(ctx context.Context, node string) (int, error) {
	out, err := p.bed.Exec(ctx, node, p.podman("inspect", "--format", "{{.State.Pid}}", podmanName)...)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(out))
}

func (p *podmanWay) prepare(ctx context.Context, node string) error {
	if err := plugIn(ctx, p.bed, node, p.plug); err != nil {
		return err
	}
	if err := mountPodman(ctx, p.bed, node); err != nil {
		return err
	}
	_, err := p.bed.Exec(ctx, node, p.podman("load", "--quiet", "--input", p.archive)...)
	return err
}

// move does not compress: the data of the workload is incompressible.
func (p *podmanWay) move(ctx context.Context) ([]results.Measurement, error) {
	from, to := p.at, testbed.Other(p.at)
	if err := plugIn(ctx, p.bed, to, p.plug); err != nil {
		return nil, err
	}
	measured, err := podmanMove(ctx, p.bed, from, p.podman(), podmanName, "--tcp-established")
	if err != nil {
		return nil, err
	}
	p.at = to
	if _, err := p.bed.Exec(ctx, from, p.podman("rm", podmanName)...); err != nil {
		return nil, err
	}
	return measured, nil
}

// podmanMove checkpoints a container with Podman into an archive, copies the archive, and restores from it.
func podmanMove(ctx context.Context, b *testbed.Bed, from string, podman []string, container string,
	options ...string) ([]results.Measurement, error) {
	command := func(args ...string) []string {
		return slices.Concat(podman, []string{"container"}, args,
			options)
	}
	checkpoint, err := b.Time(ctx, from,
		append(command("checkpoint", "--compress", "none", "--export", podmanArchive), container)...)
	if err != nil {
		return nil, err
	}
	copied, size, err := b.Send(ctx, from, podmanArchive)
	if err != nil {
		return nil, err
	}
	restore, err := b.Time(ctx, testbed.Other(from),
		command("restore", "--import", testbed.Incoming+"/podman.tar")...)
	return tookOwn(checkpoint, copied, restore, size), err
}

func (p *podmanWay) stop(ctx context.Context) error {
	failed := p.disconnect()
	for _, node := range testbed.Nodes {
		if !podmanMounted(p.bed, node) {
			continue
		}
		_, err := p.bed.Exec(ctx, node, p.podman("rm", "--all", "--force", "--time", "0")...)
		if err == nil {
			err = unmountPodman(ctx, p.bed, node)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// mountPodman mounts Podman's home in memory in a node.
func mountPodman(ctx context.Context, b *testbed.Bed, node string) error {
	_, err := b.Exec(ctx, node, "mount", "-t", "tmpfs", "-o", "mode=700", "bench", podmanHome)
	return err
}

func unmountPodman(ctx context.Context, b *testbed.Bed, node string) error {
	_, err := b.Exec(ctx, node, "umount", "--recursive", podmanHome)
	return err
}

// podmanMounted reports whether a node has Podman's home in memory.
func podmanMounted(b *testbed.Bed, node string) bool { return b.Mounted(node, podmanHome) }

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
