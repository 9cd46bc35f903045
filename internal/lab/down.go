package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// downTimeout is how long the processes of a lab may take to die.
const downTimeout = 20 * time.Second

// Down removes a lab: its processes, namespaces, cgroups and directories. It removes what it finds, so it
// can be called at any time, after any crash, and again. A lab that does not exist is ErrNoLab.
func (l *Lab) Down() error { return Down(l.name) }

// Down removes the lab of this name; see Lab.Down.
func Down(name string) error {
	if err := checkLabName(name); err != nil {
		return err
	}
	cgroups, err := hierarchies()
	if err != nil {
		return err
	}
	// In two steps, because Up takes the lock of all labs first, then the lab's own.
	return errors.Join(removeFound(name, cgroups), removeShared(cgroups))
}

func removeFound(name string, cgroups []hierarchy) error {
	unlock, err := lockLab(name)
	if err != nil {
		return err
	}
	defer unlock()
	found := exists(runDirectory(name)) || exists(filepath.Join(StateDirectory, name))
	for _, h := range cgroups {
		found = found || exists(h.path(name, ""))
	}
	_ = os.Remove(lockPath(name)) // still held; the next waiter makes a new file
	if !found {
		return fmt.Errorf("%w: %s%s", ErrNoLab, name, otherLabs(name))
	}
	if err := remove(name, cgroups); err != nil {
		return fmt.Errorf("lab %s is not quite down: %w", name, err)
	}
	return nil
}

func remove(name string, cgroups []hierarchy) error {
	ctx, cancel := context.WithTimeout(context.Background(), downTimeout)
	defer cancel()
	if err := killAll(ctx, name, "", cgroups); err != nil {
		return err
	}
	for _, h := range cgroups {
		if err := removeCgroup(ctx, h.path(name, "")); err != nil {
			return err
		}
	}
	for _, dir := range []string{filepath.Join(StateDirectory, name), runDirectory(name)} {
		if err := removeTree(dir); err != nil {
			return err
		}
	}
	return nil
}

// killAll kills all processes of the lab, or of one of its machines, and waits until they are gone.
func killAll(ctx context.Context, name, machine string, cgroups []hierarchy) error {
	left := 0
	err := poll(ctx, func() (bool, error) {
		pids := labProcesses(name, machine, cgroups)
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // it may already be gone
		}
		for _, h := range cgroups {
			thaw(h.path(name, machine))
		}
		left = len(pids)
		return left == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%d processes do not end: %w", left, err)
	}
	return nil
}

// labProcesses finds the processes in the lab's cgroups and those in the lab's description, if there is
// one. Killing a node's init kills all processes of the node; killing the others too is faster and helps if
// the init is stuck.
func labProcesses(name, machine string, cgroups []hierarchy) []int {
	var pids []int
	for _, h := range cgroups {
		pids = append(pids, cgroupProcesses(h.path(name, machine))...)
	}
	s, err := loadState(name)
	if err != nil {
		return pids
	}
	for _, m := range s.machines() {
		if m.alive() && (machine == "" || m.Name == machine) {
			pids = append(pids, m.PID)
		}
	}
	if s.relayAlive() && machine == "" {
		pids = append(pids, s.RelayPID)
	}
	return pids
}

// cgroupProcesses lists the processes of a cgroup and all below it.
func cgroupProcesses(dir string) []int {
	var pids []int
	walkCgroups(dir, func(dir string) { pids = append(pids, directProcesses(dir)...) })
	return pids
}

// directProcesses lists the processes of one cgroup, but never the machine's init or this process.
func directProcesses(dir string) []int {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil // the cgroup went away
	}
	var pids []int
	for _, field := range strings.Fields(string(data)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 1 && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// walkCgroups visits a cgroup and all below it, parents first.
func walkCgroups(dir string, visit func(dir string)) {
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir // it went away meanwhile
		}
		if entry.IsDir() {
			visit(path)
		}
		return nil
	})
}

// thaw thaws the frozen processes of a version 1 freezer so that they can die. Those of version 2 die
// anyway.
func thaw(dir string) {
	walkCgroups(dir, func(dir string) {
		_ = writeControl(filepath.Join(dir, "freezer.state"), "THAWED")
	})
}

// removeCgroup removes a cgroup and all below it. A cgroup stays busy for a moment after its last process
// has ended.
func removeCgroup(ctx context.Context, dir string) error {
	var last error
	err := poll(ctx, func() (bool, error) {
		var all []string
		walkCgroups(dir, func(dir string) { all = append(all, dir) })
		last = nil
		for i := len(all) - 1; i >= 0; i-- {
			if err := os.Remove(all[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				last = err
			}
		}
		return last == nil, nil
	})
	return errors.Join(err, last)
}

// removeTree removes a directory of the lab, but never the contents of mounts in it.
func removeTree(dir string) error {
	mounts, err := kernel.OwnMounts()
	if err != nil {
		return err
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		if point := mounts[i].Point; point == dir || strings.HasPrefix(point, dir+"/") {
			if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
				return fmt.Errorf("unmount %s: %w", point, err)
			}
		}
	}
	return os.RemoveAll(dir)
}

// removeShared removes the common files of all labs if this was the last lab.
func removeShared(cgroups []hierarchy) error {
	unlock, err := lockLabs()
	if err != nil {
		return err
	}
	defer unlock()
	defer os.Remove(RunDirectory + ".lock")
	for _, h := range cgroups {
		_ = os.Remove(h.path("", "")) // fails while there is another lab
	}
	if names, err := List(); err != nil || len(names) > 0 {
		return err
	}
	if err := removeMountPoints(); err != nil {
		return err
	}
	_ = os.Remove(StateDirectory)
	_ = os.Remove(RunDirectory)
	return nil
}
