package oci

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// remains removes what is left of containers: processes, and what their engine and its adapter keep.
type remains struct {
	adapter Adapter
	records *records
	lookup  *lookup
}

// forgetGone forgets a container that no longer exists. If the adapter fails, the record of the container's
// ID stays, so the call can be repeated. If the engine has reused the ID, data kept by this ID stays until
// the new container is gone, too.
func (r *remains) forgetGone(ctx context.Context, id string) error {
	engineID, err := r.lookup.engineID(id)
	if err != nil {
		return err
	}
	_, err = r.lookup.whileUnused(ctx, id, engineID, func() error {
		if err := r.adapter.Gone(engineID); err != nil {
			return err
		}
		if err := r.removeRestoreDir(id); err != nil {
			return err
		}
		return r.records.unremember(id)
	})
	if err != nil {
		return err
	}
	return errors.Join(durable.Remove(r.records.camePath(id)), r.records.forget(id))
}

// removeRestoreDir removes the restore directory and the cgroup of a container that no longer exists. An
// engine does not always make the runtime delete a container that it has removed (Podman, if conmon was
// killed).
func (r *remains) removeRestoreDir(id string) error {
	engineID, err := r.lookup.engineID(id)
	if err != nil || engineID == id { // it was started here
		return err
	}
	dir, err := r.lookup.restoreDir(engineID)
	if err != nil || dir.Waits() && !durable.Exists(r.records.arrivalPath(id)) { // another arrives there
		return err
	}
	runs, err := occupied(dir)
	if runs {
		err = fmt.Errorf("%w: processes of container %.12s still run", engine.ErrBusy, id)
	}
	if err != nil {
		return err
	}
	r.lookup.removeGroup(engineID)
	return dir.Remove()
}

// kill kills the frozen processes so that no other host notices. It does not need the engine.
func (r *remains) kill(ctx context.Context, id string) error {
	var was departureRecord
	err := durable.Load(r.records.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !was.First.Alive() {
		return was.resumeEmpty()
	}
	if err := takeLinksDown(was.First.PID); err != nil {
		return err
	}
	group, err := cgroup.Of(was.First.PID)
	if err != nil {
		return err
	}
	return group.Kill(ctx)
}

// takeLinksDown takes down the links of a process's network namespace, unless this process shares it.
func takeLinksDown(pid int) error {
	path := fmt.Sprintf("/proc/%d/ns/net", pid)
	same, err := sameFile(path, "/proc/self/ns/net")
	if err != nil || same {
		return err
	}
	return checkpoint.TakeLinksDown(path)
}

// removeGone makes the engine remove a container whose processes have been killed, and the volumes that
// have moved with it.
func (r *remains) removeGone(ctx context.Context, found Container, stay []string) error {
	defer r.lookup.engineIDs.Lock(found.ID)()
	if err := r.adapter.Remove(ctx, found.ID, RemoveOptions{Force: true}); err != nil {
		return fmt.Errorf("remove container %s of %s: %w", found.name(), r.adapter.Title(), err)
	}
	if err := r.lookup.awaitRemoved(ctx, found.ID); err != nil {
		return err
	}
	for _, v := range found.Container.Definition.Volumes {
		if v.Sort() != engine.Named || slices.Contains(stay, v.Key()) {
			continue
		}
		if err := r.adapter.RemoveVolume(ctx, v.Name); err != nil {
			return err
		}
	}
	return nil
}

// sameFile reports whether two paths lead to the same file.
func sameFile(a, b string) (bool, error) {
	first, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	second, err := os.Stat(b)
	if err != nil {
		return false, err
	}
	return os.SameFile(first, second), nil
}
