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
	"github.com/godwit/godwit/internal/memory"
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

// kernelFacts are found out once; nil if that is not possible.
func (e *Engine) kernelFacts(ctx context.Context, tool criu.Tool) *criu.KernelFacts {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.facts == nil {
		e.facts, _ = tool.KernelFacts(ctx) // without them CRIU does all itself
	}
	return e.facts
}

// departure is a running container that is about to be frozen.
type departure struct {
	files    container
	name     string
	terminal bool
	stdio    []string
	group    *kernel.Cgroup
	init     identity
	tcp      *kernel.TCPWatch
	settled  bool      // Settle has seen nothing under way
	stuck    bool      // connections wait that it does not accept
	refused  int       // how often Freeze has wanted Settle again
	givenUp  time.Time // connections within the container that are older have had their time
	dump     *criu.Dump
}

var _ engine.Departure = (*departure)(nil)

// Processes are all processes of a container at this moment.
func (e *Engine) Processes(_ context.Context, id string) ([]int, error) {
	place, err := e.find(id)
	if err != nil {
		return nil, err
	}
	group, err := kernel.OpenCgroup(place.cgroup())
	if err == nil {
		var pids []int
		if pids, err = group.Procs(); err == nil {
			return pids, nil
		}
	}
	return nil, fmt.Errorf("list the processes of container %.12s: %w", id, err)
}

// Depart prepares a running container's move: CRIU is started and knows what it will dump.
func (e *Engine) Depart(ctx context.Context, id string, options engine.DepartOptions) (engine.Departure, error) {
	defer e.lock(id)()
	one, err := e.running(id)
	if err != nil {
		return nil, err
	}
	if err := refuseFilling(e.paths.of(id)); err != nil {
		return nil, fmt.Errorf("container %s: %w", one.Definition.Name, err)
	}
	d, err := e.depart(ctx, one, options)
	if err != nil {
		return nil, fmt.Errorf("prepare container %s for its move: %w", one.Definition.Name, err)
	}
	return d, nil
}

func (e *Engine) depart(ctx context.Context, one engine.Container, options engine.DepartOptions) (*departure, error) {
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
	if d.tcp, err = kernel.OpenTCPWatch(one.PID); err != nil {
		return nil, err
	}
	if err := saveJSON(d.files.departure(), departureRecord{Started: time.Now()}); err != nil {
		return nil, errors.Join(err, d.tcp.Close())
	}
	if err := e.warmDump(ctx, d, spec, options); err != nil {
		return nil, errors.Join(err, d.tcp.Close(), os.Remove(d.files.departure()))
	}
	return d, nil
}

// warmDump starts the CRIU that will dump the container.
func (e *Engine) warmDump(ctx context.Context, d *departure, spec *specs.Spec, options engine.DepartOptions) error {
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
	request := criu.DumpRequest{
		RootPID:        d.init.PID,
		Root:           d.files.rootfs(),
		WorkDir:        d.files.criuWork(),
		FreezeCgroup:   d.group.FreezerDir(),
		ExternalMounts: externals.Mounts,
		External:       externals.External,
		Network:        network,
		TTY:            d.terminal,
		Watched:        watched,
		LazyPages:      options.LeaveMemory,
	}
	if !options.Whole {
		request.Large = large(pids, options.LeaveMemory)
	}
	if options.LeaveMemory {
		request.Facts = e.kernelFacts(ctx, tool) // nil: CRIU dumps shared memory itself, which takes longer
	}
	d.dump, err = tool.StartDump(ctx, request)
	return err
}

// Processes are large from this much memory of their own on, used or reserved. Some runtimes reserve 1 TiB.
const (
	largeUsed     = 32 << 20
	largeReserved = 4 << 30
)

// large lists the processes with so much memory, used by them or not, that it pays not to have CRIU look at it.
func large(pids []int, used bool) []int {
	var found []int
	for _, pid := range pids {
		use, err := kernel.ReadMemoryUse(pid)
		if err == nil && (used && use.Anonymous >= largeUsed || use.Reserved >= largeReserved) { // one that has ended is not large
			found = append(found, pid)
		}
	}
	return found
}

// Freeze stops the container's processes. All they have written is in the log then.
func (d *departure) Freeze(ctx context.Context) (time.Time, error) {
	at, err := d.freezeTaken(ctx)
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

// LeaveShared leaves the content of shared memory to the caller.
func (d *departure) LeaveShared(inodes []uint64) (bool, error) {
	left, err := d.dump.LeaveShared(inodes)
	if err != nil {
		return false, fmt.Errorf("container %s: %w", d.name, err)
	}
	return left, nil
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

// LeftOut tells which memory a dump has left to the caller.
func (d *departure) LeftOut(directory string) (memory.Left, error) {
	listed, err := leftOut(directory)
	if err != nil {
		return memory.Left{}, fmt.Errorf("look at the dump of container %s: %w", d.name, err)
	}
	return memory.Left{Listed: listed, Unseen: taskMaps(d.dump.Cut())}, nil
}

// Touched tells which pages the restore and the first instructions after it touch.
func (d *departure) Touched(directory string) ([]memory.Want, error) {
	touched, err := criu.Touched(directory)
	if err != nil {
		return nil, fmt.Errorf("look at the dump of container %s: %w", d.name, err)
	}
	wanted := make([]memory.Want, 0, len(touched))
	for _, one := range touched {
		wanted = append(wanted, memory.Want{Task: memory.Task(one.PID), Address: one.Address})
	}
	return wanted, nil
}

// Close ends what Depart started.
func (d *departure) Close() error {
	err := d.dump.Close()
	if d.tcp != nil {
		err, d.tcp = errors.Join(err, d.tcp.Close()), nil
	}
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
	for i, v := range d.Volumes {
		trees = append(trees, files.Tree{Kind: treeKind(v), Name: v.Key(), Path: place.volumePath(i, v)})
	}
	return trees, nil
}
