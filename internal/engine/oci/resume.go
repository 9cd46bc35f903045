package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel"
)

// noRestarts has the engine not start a container again, whatever becomes of it and whoever asks,
// and records what it was to do.
func (e *Engine) noRestarts(
	ctx context.Context, id string, a alive, first checkpoint.Identity, leave engine.Leave,
) error {
	boot, err := kernel.BootID()
	if err != nil {
		return err
	}
	found := a.found
	record := departureRecord{
		Started: time.Now(), First: first, Freezer: a.group.FreezerDir(), Restart: found.Restart, Boot: boot,
		Leave: leave,
		Name:  found.name(),
	}
	var was departureRecord
	err = durable.Load(e.departurePath(id), &was)
	if err == nil { // of an agent that was killed, before or after the engine had been told
		record.Restart, record.Name = was.Restart, cmp.Or(was.Name, record.Name)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := save(e.departurePath(id), record); err != nil {
		return err
	}
	if err := e.adapter.Restart(ctx, found, nil); err != nil {
		return err
	}
	if guarder, is := e.adapter.(Guarder); is {
		return guarder.Guard(ctx, found)
	}
	return nil
}

// unguard lets the engine start a container again that stays.
func (e *Engine) unguard(ctx context.Context, id string) error {
	guarder, is := e.adapter.(Guarder)
	if !is {
		return nil
	}
	found, err := e.find(ctx, id)
	if errors.Is(err, engine.ErrNotFound) { // it has been removed, and its guard with it
		return nil
	}
	if err == nil {
		err = guarder.Unguard(ctx, found)
	}
	return err
}

// restartsAgain gives a container that stays back to its engine.
func (e *Engine) restartsAgain(ctx context.Context, id string) error {
	unlock, err := e.marks.LockBefore(ctx, id) // until nobody marks the container any more
	if err != nil {
		return err
	}
	defer unlock()
	var was departureRecord
	err = durable.Load(e.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := errors.Join(e.unmark(ctx, id, was.moved()), e.unguard(ctx, id)); err != nil {
		return err
	}
	failed, err := e.giveBack(ctx, id, withheld{Restart: was.Restart, Boot: was.Boot, Since: was.Started})
	if errors.Is(err, engine.ErrNotFound) { // it has been removed
		err = e.gone(ctx, id)
	}
	if err == nil {
		err = durable.Remove(e.departurePath(id))
	}
	if err != nil {
		return errors.Join(failed, err)
	}
	return errors.Join(failed, e.forget(id)) // the copy of its log, and CRIU's
}

// ResumeProcesses lets a container that a departure froze go on, whether or not its engine answers.
func (e *Engine) ResumeProcesses(ctx context.Context, id string) error {
	unlock, err := e.lockBefore(ctx, id)
	if err != nil {
		return fmt.Errorf("resume container %.12s: %w", id, err)
	}
	defer unlock()
	var was departureRecord
	err = durable.Load(e.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !was.Resumed {
		was.Resumed = true
		_ = save(e.departurePath(id), was) // best effort: the container must go on even if the disk is full
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
	if err := checkpoint.Unprotect(e.sparedPath(id)); err != nil {
		return err
	}
	return was.resume(ctx)
}

// Resume lets a container that a departure froze go on. It runs before the engine is asked for
// anything.
func (e *Engine) Resume(ctx context.Context, id string) error {
	unlock, err := e.lockBefore(ctx, id)
	if err != nil {
		return fmt.Errorf("resume container %.12s: %w", id, err)
	}
	defer unlock()
	var was departureRecord
	err = durable.Load(e.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		if durable.Exists(e.arrivalPath(id)) {
			return nil
		}
		return e.forget(id) // what was made for a move that did not come that far
	}
	if err == nil {
		err = e.resume(ctx, id, was)
	}
	if err == nil {
		err = e.restartsAgain(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("resume container %.12s: %w", id, err)
	}
	return nil
}

// thaw lets the processes go on, or the group that they have left: see kernel.Cgroup.Kill.
func (d departureRecord) resume(ctx context.Context) error {
	if !d.First.Alive() {
		return d.resumeEmpty()
	}
	group, err := kernel.CgroupOf(d.First.PID)
	if err != nil {
		return err
	}
	return checkpoint.Resume(ctx, group)
}

// resumeEmpty lets go of a group whose processes somebody else has ended while they were frozen.
func (d departureRecord) resumeEmpty() error {
	if d.Freezer == "" { // of an older agent
		return nil
	}
	group, err := kernel.CgroupAt(d.Freezer)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return group.Thaw()
}

// Destroy kills a frozen container and has the engine remove all of it.
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
	found, err := e.find(ctx, id)
	if err != nil && !errors.Is(err, engine.ErrNotFound) {
		return err
	}
	if err == nil {
		if err := e.removeGone(ctx, found, stay); err != nil {
			return err
		}
	}
	e.mu.Lock()
	e.dropMemories(func(other string, _ memories) bool { return other == id })
	e.mu.Unlock()
	return e.forgetGone(ctx, id)
}

// forgetGone forgets a container that is no more. If the adapter cannot now, it can be told again
// which one it is. What is kept by an id that the engine has given again meanwhile stays until that
// one is no more, either.
func (e *Engine) forgetGone(ctx context.Context, id string) error {
	engineID, err := e.engineID(id)
	if err != nil {
		return err
	}
	_, err = e.whileUnused(ctx, id, engineID, func() error {
		if err := e.adapter.Gone(engineID); err != nil {
			return err
		}
		if err := e.removeRestoreDir(id); err != nil {
			return err
		}
		return e.unremember(id)
	})
	if err != nil {
		return err
	}
	return errors.Join(durable.Remove(e.camePath(id)), e.forget(id))
}

// removeRestoreDir removes the restore directory of a container that is no more, and its cgroup:
// its engine does not always have the runtime delete what the engine has removed (Podman, if conmon
// was killed).
func (e *Engine) removeRestoreDir(id string) error {
	engineID, err := e.engineID(id)
	if err != nil || engineID == id { // it was started here
		return err
	}
	dir, err := e.restoreDir(engineID)
	if err != nil || dir.Waits() && !durable.Exists(e.arrivalPath(id)) { // another one comes there
		return err
	}
	runs, err := occupied(dir)
	if runs {
		err = fmt.Errorf("%w: processes of container %.12s still run", engine.ErrBusy, id)
	}
	if err != nil {
		return err
	}
	e.removeGroup(engineID)
	return dir.Remove()
}

// gone forgets what the adapter keeps of a container that is no more.
func (e *Engine) gone(ctx context.Context, id string) error {
	engineID, err := e.engineID(id)
	if err != nil {
		return err
	}
	_, err = e.whileUnused(ctx, id, engineID, func() error { return e.adapter.Gone(engineID) })
	return err
}

// kill ends the frozen processes so that nobody hears of it. The engine need not be there for that.
func (e *Engine) kill(ctx context.Context, id string) error {
	var was departureRecord
	err := durable.Load(e.departurePath(id), &was)
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
	group, err := kernel.CgroupOf(was.First.PID)
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

// removeGone has the engine remove a container whose processes have been killed, and the volumes
// that went with it.
func (e *Engine) removeGone(ctx context.Context, found Container, stay []string) error {
	defer e.engineIDs.Lock(found.ID)()
	if err := e.adapter.Remove(ctx, found.ID, RemoveOptions{Force: true}); err != nil {
		return fmt.Errorf("remove container %s of %s: %w", found.name(), e.adapter.Title(), err)
	}
	if err := e.awaitRemoved(ctx, found.ID); err != nil {
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

// awaitRemoved waits until the engine knows a container no more.
func (e *Engine) awaitRemoved(ctx context.Context, engineID string) error {
	const pause = 10 * time.Millisecond
	ctx, cancel := e.asking(ctx)
	defer cancel()
	for {
		_, err := e.ask(ctx, engineID)
		if errors.Is(err, engine.ErrNotFound) {
			return nil
		}
		select {
		case <-ctx.Done():
			err = errors.Join(ctx.Err(), err)
			return fmt.Errorf("wait for %s to remove container %.12s: %w", e.adapter.Title(), engineID, err)
		case <-time.After(pause):
		}
	}
}

// sameFile tells whether two paths lead to the same.
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
