package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/moving"
	"github.com/godwit/godwit/internal/kernel"
)

// noRestarts has Docker not start a container again, whatever becomes of it, and records what it was to do.
func (e *Engine) noRestarts(ctx context.Context, id string, found container.InspectResponse, first moving.Identity) error {
	record := departureRecord{Started: time.Now(), First: first, Restart: found.HostConfig.RestartPolicy}
	var was departureRecord
	err := load(e.departurePath(id), &was)
	if err == nil { // of an agent that was killed, before or after Docker had been told
		record.Restart = was.Restart
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := save(e.departurePath(id), record); err != nil {
		return err
	}
	return e.restart(ctx, found, container.RestartPolicy{Name: container.RestartPolicyDisabled})
}

// restart says whether Docker is to start a container again that has ended.
func (e *Engine) restart(ctx context.Context, found container.InspectResponse, policy container.RestartPolicy) error {
	if samePolicy(found.HostConfig.RestartPolicy, policy) {
		return nil
	}
	_, err := e.api.ContainerUpdate(ctx, found.ID, client.ContainerUpdateOptions{RestartPolicy: &policy})
	if err != nil {
		return fmt.Errorf("restart policy of container %s: %w", nameOf(found), err)
	}
	return nil
}

func samePolicy(a, b container.RestartPolicy) bool {
	if a.IsNone() || b.IsNone() {
		return a.IsNone() == b.IsNone()
	}
	return a == b
}

// restartsAgain gives a container that stays back to Docker.
func (e *Engine) restartsAgain(ctx context.Context, id string) error {
	var was departureRecord
	err := load(e.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	found, err := e.find(ctx, id)
	if err == nil {
		err = e.restart(ctx, found, was.Restart)
	}
	if err != nil && !errors.Is(err, engine.ErrNotFound) { // it has been removed
		return err
	}
	if err := removeIfThere(e.departurePath(id)); err != nil {
		return err
	}
	return e.forget(id) // the copy of its log, and CRIU's
}

// Thaw lets a container that a departure froze go on. It runs before Docker is asked for anything.
func (e *Engine) Thaw(ctx context.Context, id string) error {
	defer e.lock(id)()
	var was departureRecord
	err := load(e.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) {
		if exists(e.arrivalPath(id)) {
			return nil
		}
		return e.forget(id) // what was made for a move that did not come that far
	}
	if err == nil && was.First.Alive() {
		var group *kernel.Cgroup
		if group, err = kernel.CgroupOf(was.First.PID); err == nil {
			err = moving.Thaw(ctx, group)
		}
	}
	if err == nil {
		err = e.restartsAgain(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("thaw container %.12s: %w", id, err)
	}
	return nil
}

// Destroy kills a frozen container and has Docker remove all of it.
func (e *Engine) Destroy(ctx context.Context, id string, stay []string) error {
	defer e.lock(id)()
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
	return errors.Join(removeIfThere(e.remembered(id)), e.forget(id))
}

// kill ends the frozen processes so that nobody hears of it. Docker need not be there for that.
func (e *Engine) kill(ctx context.Context, id string) error {
	var was departureRecord
	err := load(e.departurePath(id), &was)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !was.First.Alive() {
		return nil
	}
	if err != nil {
		return err
	}
	if err := silence(was.First.PID); err != nil {
		return err
	}
	group, err := kernel.CgroupOf(was.First.PID)
	if err != nil {
		return err
	}
	return group.Kill(ctx)
}

// silence takes down the links of a process's network, if that is not this process's own.
func silence(pid int) error {
	path := fmt.Sprintf("/proc/%d/ns/net", pid)
	same, err := sameFile(path, "/proc/self/ns/net")
	if err != nil || same {
		return err
	}
	return moving.Silence(path)
}

// removeGone has Docker remove a container whose processes have been killed, and the volumes that went with it.
func (e *Engine) removeGone(ctx context.Context, found container.InspectResponse, stay []string) error {
	_, err := e.api.ContainerRemove(ctx, found.ID, client.ContainerRemoveOptions{Force: true})
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) { // with --rm Docker does so itself
		return fmt.Errorf("remove container %s of Docker: %w", nameOf(found), err)
	}
	if err := e.awaitRemoved(ctx, found.ID); err != nil {
		return err
	}
	for _, v := range volumesOf(found.Mounts) {
		if v.Sort() != engine.Named || contains(stay, v.Key()) {
			continue
		}
		_, err := e.api.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{})
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) { // another container has it
			return fmt.Errorf("remove %s of Docker: %w", v, err)
		}
	}
	return nil
}

// awaitRemoved waits until Docker knows a container no more.
func (e *Engine) awaitRemoved(ctx context.Context, dockerID string) error {
	const pause = 10 * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		_, err := e.ask(ctx, dockerID)
		if errors.Is(err, engine.ErrNotFound) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for Docker to remove container %.12s: %w", dockerID, errors.Join(ctx.Err(), err))
		case <-time.After(pause):
		}
	}
}
