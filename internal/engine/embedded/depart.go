package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
)

// tool finds CRIU once.
func (e *Engine) tool() (criu.Tool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.criu.Path != "" {
		return e.criu, nil
	}
	tool, err := criu.Find()
	if err == nil {
		e.criu = tool
	}
	return tool, err
}

// departure is a running container that is about to be frozen.
type departure struct {
	files    container
	name     string
	terminal bool
	stdio    []string
	group    *kernel.Cgroup
	init     identity
	dump     *criu.Dump
}

var _ engine.Departure = (*departure)(nil)

// Depart prepares a running container's move: CRIU is started and knows what it will dump.
func (e *Engine) Depart(ctx context.Context, id string) (engine.Departure, error) {
	defer e.lock(id)()
	one, err := e.running(id)
	if err != nil {
		return nil, err
	}
	d, err := e.depart(ctx, one)
	if err != nil {
		return nil, fmt.Errorf("prepare container %s for its move: %w", one.Definition.Name, err)
	}
	return d, nil
}

func (e *Engine) depart(ctx context.Context, one engine.Container) (*departure, error) {
	d := &departure{files: e.paths.of(one.Definition.ID), name: one.Definition.Name, terminal: one.Definition.TTY}
	x, err := decodeExtra(one.Definition)
	if err != nil {
		return nil, err
	}
	d.stdio = x.Stdio
	if d.init, err = identify(one.PID); err != nil {
		return nil, err
	}
	if d.group, err = kernel.OpenCgroup(d.files.cgroup()); err != nil {
		return nil, fmt.Errorf("open its cgroup: %w", err)
	}
	spec, err := loadSpec(d.files)
	if err != nil {
		return nil, err
	}
	if err := saveJSON(d.files.departure(), departureRecord{Started: time.Now()}); err != nil {
		return nil, err
	}
	if err := e.warmDump(ctx, d, spec); err != nil {
		return nil, errors.Join(err, os.Remove(d.files.departure()))
	}
	return d, nil
}

// warmDump starts the CRIU that will dump the container.
func (e *Engine) warmDump(ctx context.Context, d *departure, spec *specs.Spec) error {
	tool, err := e.tool()
	if err != nil {
		return err
	}
	externals, err := criu.ExternalFor(spec, d.files.rootfs(), d.init.PID)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.files.criuWork(), 0o700); err != nil {
		return fmt.Errorf("make directory for CRIU's log: %w", err)
	}
	pids, err := d.group.Procs()
	if err != nil {
		return err
	}
	network, err := criu.NetworkFor(spec, pids)
	if err != nil {
		return err
	}
	watched, err := watchedPaths(ctx, d.init.PID, pids)
	if err != nil {
		return err
	}
	d.dump, err = tool.StartDump(ctx, criu.DumpRequest{
		RootPID:        d.init.PID,
		Root:           d.files.rootfs(),
		WorkDir:        d.files.criuWork(),
		FreezeCgroup:   d.group.FreezerDir(),
		ExternalMounts: externals.Mounts,
		External:       externals.External,
		Network:        network,
		TTY:            d.terminal,
		Watched:        watched,
	})
	return err
}

// takePatience is how long a server has to accept the connections and to read the datagrams that wait for it. It still
// runs meanwhile; one that is so busy that it takes longer loses them.
const takePatience = 250 * time.Millisecond

// awaitTaken lets the container take what waits for it and a dump would lose: connections that are not accepted,
// datagrams that are not read. It helps because the caller lets no new ones through any more.
func (d *departure) awaitTaken(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, takePatience)
	defer cancel()
	for ctx.Err() == nil {
		pending, err := kernel.PendingConnections(d.init.PID)
		unread, unreadErr := kernel.UnreadDatagrams(d.init.PID)
		if err != nil || unreadErr != nil || pending == 0 && unread == 0 {
			return // A process that has ended is noticed by the freeze.
		}
		time.Sleep(time.Millisecond)
	}
}

// Freeze stops the container's processes. All they have written is in the log then.
func (d *departure) Freeze(ctx context.Context) (time.Time, error) {
	d.awaitTaken(ctx)
	at, err := d.group.Freeze(ctx)
	if err != nil && !d.init.alive() {
		err = errJustEnded // and its cgroup with it
	}
	if err != nil {
		return at, fmt.Errorf("freeze container %s: %w", d.name, err)
	}
	if err := d.afterFreeze(ctx); err != nil {
		return at, errors.Join(fmt.Errorf("freeze container %s: %w", d.name, err), d.group.Thaw())
	}
	return at, nil
}

var errJustEnded = fmt.Errorf("%w: it has just ended", engine.ErrNotRunning)

// afterFreeze checks what only now can no longer change.
func (d *departure) afterFreeze(ctx context.Context) error {
	if !d.init.alive() {
		return errJustEnded
	}
	return askMonitor(ctx, d.files, opDrain)
}

// Dump writes the execution state to a directory in memory. The container stays frozen.
func (d *departure) Dump(ctx context.Context, directory string) error {
	if err := d.dump.Run(ctx, directory); err != nil {
		return fmt.Errorf("dump container %s: %w", d.name, err)
	}
	err := criu.WriteDescriptors(directory, d.stdio)
	if err == nil {
		err = d.dump.Release(func() error {
			_, err := d.group.Freeze(ctx)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("dump container %s: %w", d.name, err)
	}
	return nil
}

// Close ends what Depart started.
func (d *departure) Close() error {
	err := d.dump.Close()
	if !frozen(d.files) {
		err = errors.Join(err, removeIfThere(d.files.departure()))
	}
	return err
}

// Trees are the directories that make up the container's own state.
func (e *Engine) Trees(_ context.Context, id string) ([]files.Tree, error) {
	place, err := e.find(id)
	if err != nil {
		return nil, err
	}
	var d engine.Definition
	if err := loadJSON(place.definition(), &d); err != nil {
		return nil, fmt.Errorf("list trees of container %.12s: %w", id, err)
	}
	trees := []files.Tree{
		{Kind: files.Writable, Path: place.upper()},
		{Kind: files.Private, Path: place.private()},
		{Kind: files.Memory, Name: treeShm, Path: place.shm()},
	}
	for _, v := range d.Volumes {
		trees = append(trees, files.Tree{Kind: files.VolumeOf, Name: v.Name, Path: e.paths.volume(v.Name)})
	}
	return trees, nil
}
