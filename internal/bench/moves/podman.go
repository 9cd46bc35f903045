package moves

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
	// PodmanHome is Podman's, and has caches that no option moves. In a node it is in memory.
	PodmanHome    = "/var/lib/containers"
	podmanName    = "bench"
	podmanArchive = testbed.BenchDir + "/podman.tar"
)

// Podman is Podman's own way: checkpoint into an archive, copy, restore from it.
type Podman struct {
	Peer
	archive string // the image
	image   string
}

// NewPodman returns Podman's way. archive has the image.
func NewPodman(b *testbed.Bed, w Workload, archive string) *Podman {
	return &Podman{
		Peer:    Peer{Bed: b, Workload: w, Plug: Plug{Name: "podman", Number: 3}, At: testbed.Nodes[0]},
		archive: archive, image: "localhost/" + w.imageName() + ":latest",
	}
}

// Name implements Way.
func (p *Podman) Name() string { return WayPodman }

func (p *Podman) podman(args ...string) []string { return PodmanCommand(p.Bed, args...) }

// PodmanCommand returns a Podman command line.
func PodmanCommand(b *testbed.Bed, args ...string) []string {
	return append([]string{
		"podman", "--runtime", b.Runc, "--cgroup-manager", "cgroupfs", "--events-backend", "none",
		"--network-config-dir", testbed.BenchDir + "/podman-networks",
	}, args...)
}

// Start implements Way.
func (p *Podman) Start(ctx context.Context) error {
	for _, node := range testbed.Nodes {
		if err := p.prepare(ctx, node); err != nil {
			return err
		}
	}
	run := []string{
		"run", "--detach", "--pull", "never", "--name", podmanName, "--network", "ns:" + p.Plug.namespace(),
		p.image,
	}
	if _, err := p.Bed.Exec(ctx, p.At, p.podman(append(run, p.Workload.command()...)...)...); err != nil {
		return err
	}
	return p.connect(ctx, p.pid)
}

func (p *Podman) pid(ctx context.Context, node string) (int, error) {
	out, err := p.Bed.Exec(ctx, node, p.podman("inspect", "--format", "{{.State.Pid}}", podmanName)...)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(out))
}

func (p *Podman) prepare(ctx context.Context, node string) error {
	if err := plugIn(ctx, p.Bed, node, p.Plug); err != nil {
		return err
	}
	if err := MountPodman(ctx, p.Bed, node); err != nil {
		return err
	}
	_, err := p.Bed.Exec(ctx, node, p.podman("load", "--quiet", "--input", p.archive)...)
	return err
}

// Move does not compress: the data of the workload is incompressible.
func (p *Podman) Move(ctx context.Context) ([]results.Measurement, error) {
	from, to := p.At, testbed.Other(p.At)
	if err := plugIn(ctx, p.Bed, to, p.Plug); err != nil {
		return nil, err
	}
	measured, err := PodmanMove(ctx, p.Bed, from, p.podman(), podmanName, "--tcp-established")
	if err != nil {
		return nil, err
	}
	p.At = to
	if _, err := p.Bed.Exec(ctx, from, p.podman("rm", podmanName)...); err != nil {
		return nil, err
	}
	return measured, nil
}

// PodmanMove checkpoints a container with Podman into an archive, copies the archive, and restores from it.
func PodmanMove(ctx context.Context, b *testbed.Bed, from string, podman []string, container string,
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
	return TookOwn(checkpoint, copied, restore, size), err
}

// Stop implements Way.
func (p *Podman) Stop(ctx context.Context) error {
	failed := p.Disconnect()
	for _, node := range testbed.Nodes {
		if !PodmanMounted(p.Bed, node) {
			continue
		}
		_, err := p.Bed.Exec(ctx, node, p.podman("rm", "--all", "--force", "--time", "0")...)
		if err == nil {
			err = UnmountPodman(ctx, p.Bed, node)
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// MountPodman mounts Podman's home in memory in a node.
func MountPodman(ctx context.Context, b *testbed.Bed, node string) error {
	_, err := b.Exec(ctx, node, "mount", "-t", "tmpfs", "-o", "mode=700", "bench", PodmanHome)
	return err
}

// UnmountPodman unmounts Podman's home.
func UnmountPodman(ctx context.Context, b *testbed.Bed, node string) error {
	_, err := b.Exec(ctx, node, "umount", "--recursive", PodmanHome)
	return err
}

// PodmanMounted reports whether a node has Podman's home in memory.
func PodmanMounted(b *testbed.Bed, node string) bool { return b.Mounted(node, PodmanHome) }

// PodmanMountPoint makes a directory to mount over, and returns a function that removes it if it did not
// exist before: the nodes share the machine's file system.
func PodmanMountPoint() (remove func() error, err error) {
	switch err := os.Mkdir(PodmanHome, 0o700); {
	case errors.Is(err, os.ErrExist):
		return func() error { return nil }, nil
	case err != nil:
		return nil, fmt.Errorf("mount point for Podman in the nodes: %w", err)
	}
	return func() error {
		if err := os.Remove(PodmanHome); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("mount point for Podman in the nodes: %w", err)
		}
		return nil
	}, nil
}
