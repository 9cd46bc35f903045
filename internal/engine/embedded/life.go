package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/embedded/account"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// life creates, starts, stops and removes containers.
type life struct {
	catalog   *catalog
	paths     paths
	bundles   *bundles
	volumes   *volumes
	processes *processes
	notes     *notes
	restarts  *restarts
}

// Create makes a container that does not run yet. netns is the path of its network namespace, which must
// exist when the container is started. Errors: ErrNameTaken.
func (l *life) Create(ctx context.Context, d engine.Definition, netns string) error {
	if err := errors.Join(validate(d), l.volumes.checkBinds(d)); err != nil {
		return err
	}
	d = own(d)
	unlockNames := l.catalog.lock("") // names are checked and taken by one caller at a time
	defer unlockNames()
	defer l.catalog.lock(d.ID)()
	if err := l.catalog.nameFree(ctx, d); err != nil {
		return err
	}
	made, err := l.volumes.makeVolumes(d)
	if err == nil {
		err = l.bundles.makeFiles(d)
	}
	if err == nil {
		err = l.bundles.makePrivate(d)
	}
	if err == nil {
		err = l.bundles.saveSpec(d, netns, account.Account{Home: "/"})
	}
	if err == nil {
		err = durable.Save(l.paths.of(d.ID).definition(), d)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("create container %s: %w", d.Name, err),
			removeFiles(l.paths.of(d.ID), made))
	}
	return nil
}

// errLeaving refuses to start a container that may run at the target of its migration.
var errLeaving = fmt.Errorf("%w: a migration has moved it away, or is moving it away: "+
	`"godwit migration ls" shows that migration`, engine.ErrBusy)

// Prepare makes what a container that is about to be started needs from others, such as its network, or
// refuses the start.
type Prepare func(context.Context, engine.Definition) error

// Start is StartAfter for a container that needs nothing from others.
func (l *life) Start(ctx context.Context, id string) error {
	return l.StartAfter(ctx, id, func(context.Context, engine.Definition) error { return nil })
}

// start starts a container that was created or has ended. It returns when the first process runs its
// program. With the container locked, due returns what to record about the start, or refuses the start.
func (l *life) start(
	ctx context.Context, id string, prepare Prepare, due func(engine.Container) (restartRecord, error),
) error {
	defer l.catalog.lock(id)()
	ctr, err := l.catalog.inspect(id)
	if err != nil {
		return err
	}
	var note restartRecord
	switch {
	case ctr.Leaving != nil:
		err = errLeaving
	case ctr.State != engine.Created && ctr.State != engine.Exited:
		err = fmt.Errorf("%w: it is %s", engine.ErrBusy, ctr.State)
	default:
		note, err = due(ctr)
	}
	if err == nil {
		err = prepare(ctx, ctr.Definition)
	}
	if err == nil {
		err = l.processes.settle(ctx, l.paths.of(id))
	}
	if err == nil {
		err = l.startNoted(ctx, ctr, note)
	}
	if err != nil {
		return fmt.Errorf("start container %s: %w", ctr.Definition.Name, err)
	}
	return nil
}

// startNoted records the start of a container that nothing prevents any more, and starts it. The record is
// undone if the start is broken off, because the agent ends or the user does not wait: that was no failure
// of the container.
func (l *life) startNoted(ctx context.Context, ctr engine.Container, note restartRecord) error {
	place := l.paths.of(ctr.Definition.ID)
	was, known := loadRestarts(place)
	err := l.notes.noteStart(place, note)
	if err != nil {
		return err
	}
	if err = l.bringUpUnseen(ctx, place, ctr); err == nil {
		return nil
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), controlTimeout)
	defer cancel()
	// a process that does not end must not keep the container locked
	ended := l.processes.endProbation(ending, place)
	if ended == nil && known == nil && errors.Is(ctx.Err(), context.Canceled) {
		ended = l.notes.room.save(place.restarts(), was)
	}
	return errors.Join(err, ended)
}

// bringUpUnseen is bringUp for a container that does not count as running until that is over.
func (l *life) bringUpUnseen(ctx context.Context, place container, ctr engine.Container) error {
	defer l.catalog.markStarting(place.id)()
	return l.processes.bringUp(ctx, place, ctr.Definition, ctr.State == engine.Exited)
}

// Stop asks the first process to end, and kills it when grace is over.
func (l *life) Stop(ctx context.Context, id string, grace time.Duration) error {
	defer l.catalog.lock(id)()
	ctr, err := l.catalog.running(id)
	if errors.Is(err, engine.ErrNotRunning) && ctr.State == engine.Exited {
		return l.stoppedAs(ctr, nil) // its policy would restart it
	}
	if err != nil {
		return err
	}
	return l.stoppedAs(ctr, func() error { return l.stop(ctx, ctr, grace) })
}

// stoppedAs records that somebody stops a container, before stop does so: its policy must not restart it,
// even if this agent dies now. A full disk does not prevent the stop.
func (l *life) stoppedAs(ctr engine.Container, stop func() error) error {
	noted := l.notes.noteStopped(l.paths.of(ctr.Definition.ID))
	if stop != nil {
		if err := stop(); err != nil {
			return err
		}
	}
	if noted == nil || !restartable(ctr.Definition) {
		return nil
	}
	return fmt.Errorf("container %s has been stopped, but the stop cannot be recorded, so its restart "+
		"policy will start it again when the agent restarts: free some disk space, and stop it again: %w",
		ctr.Definition.Name, noted)
}

func (l *life) stop(ctx context.Context, ctr engine.Container, grace time.Duration) error {
	id := ctr.Definition.ID
	init, err := checkpoint.Identify(ctr.PID)
	if err != nil {
		return err
	}
	signal, err := engine.ParseSignal(ctr.Definition.StopSignal)
	if err != nil {
		return err
	}
	if err := init.Signal(signal); err != nil {
		return err
	}
	if grace < 0 {
		grace = ctr.Definition.StopPatience()
	}
	waiting, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if _, err := l.catalog.Wait(waiting, id); err == nil || ctx.Err() != nil {
		return err
	}
	return l.kill(ctx, id)
}

// kill ends a container's processes and waits until its monitor has recorded that.
func (l *life) kill(ctx context.Context, id string) error {
	group, err := cgroup.Open(l.paths.of(id).cgroup())
	if err == nil {
		err = group.Kill(ctx)
	}
	// the container's monitor removes it, too
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("kill container %.12s: %w", id, err)
	}
	waiting, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	_, err = l.catalog.Wait(waiting, id)
	return err
}

// Remove deletes a container, which must not run unless force is set. Its volumes stay.
func (l *life) Remove(ctx context.Context, id string, force bool) error {
	defer l.catalog.lock(id)()
	ctr, err := l.catalog.inspect(id)
	if err != nil {
		return err
	}
	name := ctr.Definition.Name
	switch {
	case ctr.State == engine.Frozen || ctr.State == engine.Arriving:
		return fmt.Errorf("remove container %s: %w: it is being moved", name, engine.ErrBusy)
	case ctr.State == engine.Running && !force:
		return fmt.Errorf("remove container %s: %w: it runs; stop it first", name, engine.ErrBusy)
	case ctr.State == engine.Running:
		if err := l.kill(ctx, id); err != nil {
			return err
		}
	}
	place := l.paths.of(id)
	if err := l.processes.settle(ctx, place); err != nil {
		return fmt.Errorf("remove container %s: %w", name, err)
	}
	return removeFiles(place, nil)
}

// StartAfter starts a container that has ended, for a caller that knows that this node has it. With the
// container locked, prepare makes what the container needs from others, or refuses.
func (l *life) StartAfter(ctx context.Context, id string, prepare Prepare) error {
	return l.start(ctx, id, prepare, func(engine.Container) (restartRecord, error) {
		return restartRecord{Holder: l.restarts.state}, nil
	})
}

// Restart is StartAfter for a container that is due by its policy. Error: engine.ErrBusy if it is no longer
// due. A failed start counts as a failure only if no obstacle prevented it.
func (l *life) Restart(ctx context.Context, id string, prepare Prepare) error {
	return l.start(ctx, id, prepare, func(ctr engine.Container) (restartRecord, error) {
		standing, note, err := l.restarts.standing(ctr)
		if err == nil && !standing.Due {
			err = fmt.Errorf("%w: %s", engine.ErrBusy, standing.Why)
		}
		if err == nil {
			note.Boot, err = kernel.BootID()
		}
		note.Failures = standing.Failures + 1
		return note, err
	})
}
