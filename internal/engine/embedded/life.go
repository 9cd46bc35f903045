package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// removingPrefix is the prefix of the directory of a container whose removal has begun.
const removingPrefix = ".removing-"

// Create makes a container that does not run yet. netns is the path of its network namespace, which must
// exist when the container is started. Errors: ErrNameTaken.
func (e *Engine) Create(ctx context.Context, d engine.Definition, netns string) error {
	if err := errors.Join(validate(d), e.checkBinds(d)); err != nil {
		return err
	}
	d = own(d)
	unlockNames := e.lock("") // names are checked and taken by one caller at a time
	defer unlockNames()
	defer e.lock(d.ID)()
	if err := e.nameFree(ctx, d); err != nil {
		return err
	}
	made, err := e.makeVolumes(d)
	if err == nil {
		err = e.makeFiles(d)
	}
	if err == nil {
		err = e.makePrivate(d)
	}
	if err == nil {
		err = e.saveSpec(d, netns, account{home: "/"})
	}
	if err == nil {
		err = durable.Save(e.paths.of(d.ID).definition(), d)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("create container %s: %w", d.Name, err),
			e.removeFiles(e.paths.of(d.ID), made))
	}
	return nil
}

// nameFree refuses a name or an ID that is taken.
func (e *Engine) nameFree(ctx context.Context, d engine.Definition) error {
	all, err := e.List(ctx)
	if err != nil {
		return err
	}
	for _, ctr := range all {
		if ctr.Definition.Name == d.Name || ctr.Definition.ID == d.ID {
			return fmt.Errorf("container %s (%.12s): %w by container %.12s; remove that one or choose "+
				"another name",
				d.Name, d.ID, engine.ErrNameTaken, ctr.Definition.ID)
		}
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
func (e *Engine) Start(ctx context.Context, id string) error {
	return e.StartAfter(ctx, id, func(context.Context, engine.Definition) error { return nil })
}

// start starts a container that was created or has ended. It returns when the first process runs its
// program. With the container locked, due returns what to record about the start, or refuses the start.
func (e *Engine) start(
	ctx context.Context, id string, prepare Prepare, due func(engine.Container) (restartRecord, error),
) error {
	defer e.lock(id)()
	ctr, err := e.inspect(id)
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
		err = e.settle(ctx, e.paths.of(id))
	}
	if err == nil {
		err = e.startNoted(ctx, ctr, note)
	}
	if err != nil {
		return fmt.Errorf("start container %s: %w", ctr.Definition.Name, err)
	}
	return nil
}

// startNoted records the start of a container that nothing prevents any more, and starts it. The record is
// undone if the start is broken off, because the agent ends or the user does not wait: that was no failure
// of the container.
func (e *Engine) startNoted(ctx context.Context, ctr engine.Container, note restartRecord) error {
	place := e.paths.of(ctr.Definition.ID)
	was, known := loadRestarts(place)
	err := e.noteStart(place, note)
	if err != nil {
		return err
	}
	if err = e.bringUpUnseen(ctx, place, ctr); err == nil {
		return nil
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), controlTimeout)
	defer cancel()
	ended := e.endProbation(ending, place) // a process that does not end must not keep the container locked
	if ended == nil && known == nil && errors.Is(ctx.Err(), context.Canceled) {
		ended = e.room.save(place.restarts(), was)
	}
	return errors.Join(err, ended)
}

// bringUpUnseen is bringUp for a container that does not count as running until that is over.
func (e *Engine) bringUpUnseen(ctx context.Context, place container, ctr engine.Container) error {
	e.starting.Store(place.id, true)
	defer e.starting.Delete(place.id)
	return e.bringUp(ctx, place, ctr.Definition, ctr.State == engine.Exited)
}

// bringUp makes what a container needs from the kernel, and then its processes. If attended, it makes no
// processes once this agent has died.
func (e *Engine) bringUp(ctx context.Context, place container, d engine.Definition, attended bool) error {
	steps := []func() error{
		func() error { return durable.Remove(place.lost()) },
		func() error { return freshDev(place) },
		func() error { return e.mountRoot(d) },
		func() error { return mountMemories(place, d) },
		func() error { return e.refreshSpec(d) },
		func() error { return forgetCalls(place) },
		func() error { return e.launch(ctx, place, job{Terminal: d.TTY, Attended: attended}) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// forgetCalls forgets the system calls that came with a container from another node: its new processes get
// this node's filter.
func forgetCalls(place container) error {
	var d engine.Definition
	if err := durable.Load(place.definition(), &d); err != nil || d.Passed == nil {
		return err
	}
	d.Passed = nil
	return durable.Save(place.definition(), d)
}

// settle waits for the monitor of a container that has ended, and removes what a killed monitor has left.
func (e *Engine) settle(ctx context.Context, place container) error {
	if monitor, err := monitorProcess(place); err == nil {
		ctx, cancel := context.WithTimeout(ctx, controlTimeout)
		defer cancel()
		if err := waitGone(ctx, monitor); err != nil {
			return err
		}
	}
	if err := sweep(ctx, e.runc, place); err != nil {
		return err
	}
	return os.RemoveAll(place.runDir())
}

// launch starts a container's monitor and waits until the container runs.
func (e *Engine) launch(ctx context.Context, place container, j job) error {
	reports, err := e.startMonitor(place, j)
	if err != nil {
		return err
	}
	defer reports.Close()
	stop := context.AfterFunc(ctx, func() { _ = reports.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	decoder := json.NewDecoder(reports)
	answer, err := readReport(decoder)
	if err == nil && answer.Waiting {
		answer, err = readReport(decoder)
	}
	if err == nil || answer.Error != "" {
		return err
	}
	return errors.Join(ctx.Err(), err, killMonitor(place))
}

// startMonitor starts a monitor, which reports its progress. The monitor survives this process.
func (e *Engine) startMonitor(place container, j job) (*os.File, error) {
	j.ID, j.StateDir, j.RunDir = place.id, e.paths.state, e.paths.run
	j.Cgroup, j.Runc = e.paths.group, e.runc.path
	if err := os.MkdirAll(place.runDir(), 0o700); err != nil {
		return nil, fmt.Errorf("make run directory: %w", err)
	}
	if err := durable.Save(place.job(), j); err != nil {
		return nil, err
	}
	output, err := os.OpenFile(place.monitorLog(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the monitor's log: %w", err)
	}
	defer output.Close()
	reports, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe for the monitor's reports: %w", err)
	}
	defer theirs.Close()
	cmd := exec.Command(e.config.Executable, MonitorCommand, place.job())
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", output, output
	cmd.ExtraFiles = []*os.File{theirs}
	if err := kernel.StartLasting(cmd); err != nil {
		reports.Close()
		return nil, fmt.Errorf("start the container's monitor: %w", err)
	}
	go func() { _ = cmd.Wait() }() // the container's record has its exit code
	return reports, nil
}

// readReport reads a monitor's next report. An error report is returned with an error.
func readReport(decoder *json.Decoder) (report, error) {
	var r report
	if err := decoder.Decode(&r); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it ended without a report; see its log")
		}
		return r, fmt.Errorf("the container's monitor: %w", err)
	}
	if r.Error != "" {
		return r, errors.New(r.Error)
	}
	return r, nil
}

// killMonitor ends a container's monitor, if there is one.
func killMonitor(place container) error {
	monitor, err := monitorProcess(place)
	if err != nil || !monitor.Alive() {
		return err
	}
	return monitor.Kill()
}

// Wait waits until a container has ended and returns its exit code.
func (e *Engine) Wait(ctx context.Context, id string) (int, error) {
	const pause = 20 * time.Millisecond
	for {
		ctr, err := e.inspect(id)
		if err != nil {
			return 0, err
		}
		if ctr.State == engine.Exited {
			return ctr.ExitCode, nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for container %s: %w", ctr.Definition.Name, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// Stop asks the first process to end, and kills it when grace is over.
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	defer e.lock(id)()
	ctr, err := e.running(id)
	if errors.Is(err, engine.ErrNotRunning) && ctr.State == engine.Exited {
		return e.stoppedAs(ctr, nil) // its policy would restart it
	}
	if err != nil {
		return err
	}
	return e.stoppedAs(ctr, func() error { return e.stop(ctx, ctr, grace) })
}

// stoppedAs records that somebody stops a container, before stop does so: its policy must not restart it,
// even if this agent dies now. A full disk does not prevent the stop.
func (e *Engine) stoppedAs(ctr engine.Container, stop func() error) error {
	noted := e.noteStopped(e.paths.of(ctr.Definition.ID))
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

func (e *Engine) stop(ctx context.Context, ctr engine.Container, grace time.Duration) error {
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
	if _, err := e.Wait(waiting, id); err == nil || ctx.Err() != nil {
		return err
	}
	return e.kill(ctx, id)
}

// kill ends a container's processes and waits until its monitor has recorded that.
func (e *Engine) kill(ctx context.Context, id string) error {
	group, err := cgroup.Open(e.paths.of(id).cgroup())
	if err == nil {
		err = group.Kill(ctx)
	}
	// the container's monitor removes it, too
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("kill container %.12s: %w", id, err)
	}
	waiting, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	_, err = e.Wait(waiting, id)
	return err
}

// running inspects a container, which must be running and not be moving.
func (e *Engine) running(id string) (engine.Container, error) {
	ctr, err := e.inspect(id)
	switch {
	case err != nil:
		return ctr, err
	case ctr.State == engine.Running && ctr.PID > 0:
		return ctr, nil
	case ctr.State == engine.Frozen || ctr.State == engine.Arriving:
		return ctr, fmt.Errorf("container %s: %w: it is being moved", ctr.Definition.Name, engine.ErrBusy)
	case ctr.State == engine.Running:
		return ctr, fmt.Errorf("container %s: %w: it has processes, but their record in %s is gone: "+
			`only "godwit rm --force" can end it`, ctr.Definition.Name, engine.ErrBusy,
			e.paths.of(id).runDir())
	}
	return ctr, fmt.Errorf("container %s: %w: it is %s", ctr.Definition.Name, engine.ErrNotRunning, ctr.State)
}

// Remove deletes a container, which must not run unless force is set. Its volumes stay.
func (e *Engine) Remove(ctx context.Context, id string, force bool) error {
	defer e.lock(id)()
	ctr, err := e.inspect(id)
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
		if err := e.kill(ctx, id); err != nil {
			return err
		}
	}
	place := e.paths.of(id)
	if err := e.settle(ctx, place); err != nil {
		return fmt.Errorf("remove container %s: %w", name, err)
	}
	return e.removeFiles(place, nil)
}

// removeFiles removes a container's directory, and the given directories of volumes. A crash leaves either
// everything, or a directory that the next start of the engine removes.
func (e *Engine) removeFiles(place container, volumes []string) error {
	for _, path := range volumes {
		if err := removeVolume(path); err != nil {
			return err
		}
	}
	doomed := filepath.Join(e.paths.containers(), removingPrefix+place.id)
	err := os.Rename(place.dir(), doomed)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = kernel.SyncDir(e.paths.containers())
	}
	if err == nil {
		err = files.RemoveTree(doomed)
	}
	if err != nil {
		return fmt.Errorf("remove place of container %.12s: %w", place.id, err)
	}
	return nil
}
