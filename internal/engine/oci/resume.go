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

// ResumeProcesses resumes a container that a departure froze, whether or not its engine answers.
func (e *Engine) ResumeProcesses(ctx context.Context, id string) error {
	unlock, err := e.lockBefore(ctx, id)
	if err != nil {
		return fmt.Errorf("resume container %.12s: %w", id, err)
	}
	defer unlock()
	var was departureRecord
	err = durable.Load(e.records.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !was.Resumed {
		was.Resumed = true
		// best effort: the container must continue even on a full disk
		_ = save(e.records.departurePath(id), was)
	}
	if err == nil {
		err = e.resume(ctx, id, was)
	}
	if err != nil {
		return fmt.Errorf("resume container %.12s: %w", id, err)
	}
	return nil
}

func (e *Engine) resume(ctx context.Context, id string, was departureRecord) error {
	if err := checkpoint.Unprotect(e.records.sparedPath(id)); err != nil {
		return err
	}
	return was.resume(ctx)
}

// Resume resumes a container that a departure froze. It does so before it queries the engine.
func (e *Engine) Resume(ctx context.Context, id string) error {
	unlock, err := e.lockBefore(ctx, id)
	if err != nil {
		return fmt.Errorf("resume container %.12s: %w", id, err)
	}
	defer unlock()
	var was departureRecord
	err = durable.Load(e.records.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		if durable.Exists(e.records.arrivalPath(id)) {
			return nil
		}
		return e.records.forget(id) // what was made for a move that failed before the freeze
	}
	if err == nil {
		err = e.resume(ctx, id, was)
	}
	if err == nil {
		err = e.starts.restartsAgain(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("resume container %.12s: %w", id, err)
	}
	return nil
}

// Destroy kills a frozen container and makes the engine remove all of it.
func (e *Engine) Destroy(ctx context.Context, id string, stay []string) error {
	unlock, err := e.lockBefore(ctx, id)
	if err != nil {
		return fmt.Errorf("destroy container %.12s: %w", id, err)
	}
	defer unlock()
	if err := e.destroy(ctx, id, stay); err != nil {
		return fmt.Errorf("destroy container %.12s: %w", id, err)
	}
	return nil
}

func (e *Engine) destroy(ctx context.Context, id string, stay []string) error {
	if err := e.kill(ctx, id); err != nil {
		return err
	}
	found, err := e.lookup.find(ctx, id)
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	if err == nil {
		if err := e.removeGone(ctx, found, stay); err != nil {
			return err
		}
	}
	e.held.drop(id)
	return e.forgetGone(ctx, id)
}

// forgetGone forgets a container that no longer exists. If the adapter fails, the record of the container's
// ID stays, so the call can be repeated. If the engine has reused the ID, data kept by this ID stays until
// the new container is gone, too.
func (e *Engine) forgetGone(ctx context.Context, id string) error {
	engineID, err := e.lookup.engineID(id)
	if err != nil {
		return err
	}
	_, err = e.lookup.whileUnused(ctx, id, engineID, func() error {
		if err := e.adapter.Gone(engineID); err != nil {
			return err
		}
		if err := e.removeRestoreDir(id); err != nil {
			return err
		}
		return e.records.unremember(id)
	})
	if err != nil {
		return err
	}
	return errors.Join(durable.Remove(e.records.camePath(id)), e.records.forget(id))
}

// removeRestoreDir removes the restore directory and the cgroup of a container that no longer exists. An
// engine does not always make the runtime delete a container that it has removed (Podman, if conmon was
// killed).
func (e *Engine) removeRestoreDir(id string) error {
	engineID, err := e.lookup.engineID(id)
	if err != nil || engineID == id { // it was started here
		return err
	}
	dir, err := e.lookup.restoreDir(engineID)
	if err != nil || dir.Waits() && !durable.Exists(e.records.arrivalPath(id)) { // another arrives there
		return err
	}
	runs, err := occupied(dir)
	if runs {
		err = fmt.Errorf("%w: processes of container %.12s still run", engine.ErrBusy, id)
	}
	if err != nil {
		return err
	}
	e.lookup.removeGroup(engineID)
	return dir.Remove()
}

// kill kills the frozen processes so that no other host notices. It does not need the engine.
func (e *Engine) kill(ctx context.Context, id string) error {
	var was departureRecord
	err := durable.Load(e.records.departurePath(id), &was)
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
func (e *Engine) removeGone(ctx context.Context, found Container, stay []string) error {
	defer e.lookup.engineIDs.Lock(found.ID)()
	if err := e.adapter.Remove(ctx, found.ID, RemoveOptions{Force: true}); err != nil {
		return fmt.Errorf("remove container %s of %s: %w", found.name(), e.adapter.Title(), err)
	}
	if err := e.lookup.awaitRemoved(ctx, found.ID); err != nil {
		return err
	}
	for _, v := range found.Container.Definition.Volumes {
		if v.Sort() != engine.Named || slices.Contains(stay, v.Key()) {
			continue
		}
		if err := e.adapter.RemoveVolume(ctx, v.Name); err != nil {
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
