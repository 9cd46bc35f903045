package lxc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// sweep kills the remaining processes of a container and of LXC's monitor of it, by the names of their
// cgroups. A container of the same name that LXC keeps in another directory may have these cgroups now.
func (p place) sweep(ctx context.Context) error {
	for _, name := range []string{p.payload(), p.watcher()} {
		group, err := cgroup.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = p.sweepGroup(ctx, group)
		}
		if err != nil {
			return fmt.Errorf("end what is left of LXC container %s: %w", p.name, err)
		}
	}
	p.sweepInner()
	return nil
}

// sweepInner removes empty groups that LXC has left below the groups of the machine's first process, where
// that process is not in the root of a hierarchy. LXC makes its groups there.
func (p place) sweepInner() {
	groups, _ := os.ReadFile("/proc/1/cgroup") // if it cannot be read, nothing is removed
	for _, base := range basesIn(string(groups)) {
		for _, name := range []string{p.payload(), p.watcher()} {
			removeEmpty(base + name)
		}
	}
}

// removeEmpty removes a group that has no processes. A group that cannot be removed does no harm.
func removeEmpty(name string) {
	group, err := cgroup.Open(name)
	if err != nil {
		return
	}
	if pids, err := group.Procs(); err == nil && len(pids) == 0 {
		_ = group.Remove()
	}
}

// basesIn lists the groups of a process, from /proc/PID/cgroup, without the root. systemd's own group
// counts as the root.
func basesIn(groups string) (bases []string) {
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		base := strings.TrimSuffix(fields[len(fields)-1], "/init.scope")
		if len(fields) == 3 && len(base) > 1 && filepath.Clean(base) == base &&
			!slices.Contains(bases, base) {
			bases = append(bases, base)
		}
	}
	return bases
}

func (p place) sweepGroup(ctx context.Context, group *cgroup.Cgroup) error {
	pids, err := group.Procs()
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return err
	}
	if slices.ContainsFunc(pids, p.isAnothers) {
		return nil
	}
	if err := killGroup(ctx, group); err != nil {
		return err
	}
	return group.Remove()
}

// isAnothers reports whether a process is LXC's monitor of a container in another directory, or its child.
func (p place) isAnothers(pid int) bool {
	const prefix = "[lxc monitor] " // LXC's title of the process; directory and name follow
	pids := []int{pid}
	if process, err := kernel.ReadProcess(pid); err == nil {
		pids = append(pids, process.Parent)
	}
	return slices.ContainsFunc(pids, func(pid int) bool {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // the process may have ended
		title, _, _ := strings.Cut(string(line), "\x00")
		return strings.HasPrefix(title, prefix) &&
			!strings.HasPrefix(prefix+filepath.Dir(p.lxc)+" "+p.name, title)
	})
}

// clearGroups removes leftover cgroups with the container's name: LXC would choose others. If they have
// processes, a container of that name runs, which LXC keeps in another directory.
func (p place) clearGroups() error {
	for _, name := range []string{p.payload(), p.watcher()} {
		group, err := cgroup.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var pids []int
		if err == nil {
			pids, err = group.Procs()
		}
		if err == nil && len(pids) > 0 {
			err = fmt.Errorf("%d processes are in it: another LXC container %s runs here; stop or rename it",
				len(pids), p.name)
		}
		if err == nil {
			err = group.Remove()
		}
		if err != nil {
			return fmt.Errorf("cgroup %s: %w", name, err)
		}
	}
	p.sweepInner()
	return nil
}

// killGroup kills all processes of a group, which LXC's monitor may be removing at the same time.
func killGroup(ctx context.Context, group *cgroup.Cgroup) error {
	if err := group.Kill(ctx); err != nil && !errors.Is(err, unix.ENODEV) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// forget removes all our files of a container outside of LXC's directory.
func (p place) forget() error {
	if err := mounts.UnmountBelow(p.run); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(p.run), os.RemoveAll(p.state))
}
