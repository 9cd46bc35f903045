package lxc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/godwit/godwit/internal/criu/examine"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// Examine lists obstacles to moving this running container.
func (ds *departures) Examine(ctx context.Context, id string) ([]engine.Problem, error) {
	return checkpoint.LookTwice(ctx, func() ([]engine.Problem, error) {
		problems, err := ds.examine(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("examine LXC container %.12s: %w", id, err)
		}
		return problems, nil
	})
}

func (ds *departures) examine(ctx context.Context, id string) ([]engine.Problem, error) {
	ctr, err := ds.catalog.running(ctx, id)
	if err != nil {
		return nil, err
	}
	written, all, err := settingsOf(ctr)
	if err != nil {
		return nil, err
	}
	problems := checkSettings(written, all)
	group, err := groupOf(ctr)
	if err != nil {
		return nil, err
	}
	if frozen, err := group.Paused(); err == nil && frozen { // at the target it would run
		name := ctr.Definition.Name
		problems = append(problems, engine.Problem{What: "container " + name, Why: "it is paused",
			Remedy: "lxc-unfreeze -n " + name})
	}
	pids, err := group.Procs()
	if err != nil {
		return nil, err
	}
	problems = append(problems, examineGroups(group)...)
	problems = append(problems, examineMounts(pids)...)
	filling, err := checkpoint.ExamineMemory(ds.identities.place(id, ctr.Definition.Name).memory())
	if err != nil {
		return nil, err
	}
	problems = append(problems, filling...)
	made, err := checkpoint.ExamineNetwork(ctx, checkpoint.Surroundings{
		PID: ctr.PID, PIDs: pids, Network: ctr.Definition.Network, Alone: true, System: true,
	})
	if err != nil {
		return nil, err
	}
	problems = append(problems, made...)
	found, err := checkpoint.Examine(ctx, ctr.PID, examine.Subject{PIDs: pids, Groups: true})
	return append(problems, found...), err
}

// examineGroups finds groups within the container's that could not be made again at the target.
func examineGroups(group *cgroup.Cgroup) []engine.Problem {
	_, err := group.Inner()
	if !errors.Is(err, kernel.ErrUnsupported) {
		return nil // a container that has just ended has none
	}
	return []engine.Problem{{
		What: "control groups within the container", Why: "they would not be the same at the target: " +
			err.Error(),
		Remedy: "use an init that makes none, such as that of busybox, or have the container run on a " +
			"node with controllers of cgroup version 1",
	}}
}

// examineMounts finds contents of file systems that CRIU mounts anew and empty: systemd has one for the
// credentials of each service, most of which have none. Each process may have mounts of its own.
func examineMounts(pids []int) (problems []engine.Problem) {
	seen := map[string]bool{}
	for _, pid := range pids {
		space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err == nil && seen[space] {
			continue
		}
		seen[space] = true
		found, err := kernel.ReadMounts(pid)
		if err != nil && !isGone(err) {
			problems = append(problems, engine.Problem{What: fmt.Sprintf("mounts of process %d", pid),
				Why: err.Error(), Remedy: "look at the node's log"})
		}
		for _, one := range found {
			if one.Type == "ramfs" || one.Type == "hugetlbfs" {
				problems = append(problems, examineMount(pid, one)...)
			}
		}
	}
	return problems
}

func examineMount(pid int, one kernel.Mount) []engine.Problem {
	why := "its contents would not move"
	directory, err := os.Open(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), one.Point))
	if err == nil {
		_, err = directory.Readdirnames(1)
		err = errors.Join(err, directory.Close())
	}
	switch {
	case errors.Is(err, io.EOF), isGone(err):
		return nil
	case err != nil:
		why = "its contents cannot be read: " + err.Error()
	}
	return []engine.Problem{{
		What: fmt.Sprintf("mount of %.200s (%s)", one.Point, one.Type), Why: why,
		Remedy: "empty it, or unmount it",
	}}
}

// isGone reports that a process, or one of its files, has just ended.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }
