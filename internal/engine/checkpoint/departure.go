package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/criu/examine"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/memory"
)

// Leaving is a running container that is to be frozen and dumped.
type Leaving struct {
	Name      string // in messages
	First     int    // PID of the first process
	Cgroup    *cgroup.Cgroup
	Root      string         // root file system, as this process sees it
	Externals criu.Externals // objects from outside the container
	// FindMounts makes CRIU find external mounts by itself, for a runtime whose restore does so, too.
	FindMounts bool
	Network    string // network namespace that the engine keeps for it; "": it is in the images
	Terminal   bool
	Stdio      []string                    // stdin, stdout and stderr, in CRIU's notation
	WorkDir    string                      // for CRIU's log
	Drain      func(context.Context) error // waits until all output of the frozen container is in its log
}

// Departure is a container that is about to be frozen. It implements engine.Departure.
type Departure struct {
	leaving Leaving
	group   *cgroup.Cgroup
	first   Identity
	tcp     *kernel.TCPWatch
	settled bool // Settle has seen nothing in flight
	stuck   bool // connections wait that the container does not accept
	refused int  // how often Freeze has requested another Settle
	// how often Freeze has requested another Settle because of a process in a sandbox
	sandboxes int
	givenUp   time.Time // older connections within the container have had their time
	dump      *criu.Dump
}

var _ engine.Departure = (*Departure)(nil)

// PrepareDump starts the CRIU that will dump a container, and tells it what to dump.
func PrepareDump(
	ctx context.Context, c *CRIU, leaving Leaving, options engine.DumpOptions,
) (*Departure, error) {
	d := &Departure{leaving: leaving, group: leaving.Cgroup}
	var err error
	if d.first, err = Identify(leaving.First); err != nil {
		return nil, err
	}
	if err := examine.ReplaceMultipath(ctx, d.group.Procs); err != nil {
		return nil, err
	}
	if d.tcp, err = kernel.OpenTCPWatch(leaving.First); err != nil {
		return nil, err
	}
	if err := d.warmDump(ctx, c, options); err != nil {
		return nil, errors.Join(err, d.tcp.Close())
	}
	return d, nil
}

func (d *Departure) warmDump(ctx context.Context, c *CRIU, options engine.DumpOptions) error {
	tool, err := c.Tool()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.leaving.WorkDir, 0o700); err != nil {
		return fmt.Errorf("make directory for CRIU's log: %w", err)
	}
	pids, err := d.group.Procs()
	if err != nil {
		return err
	}
	watched, err := watchedPaths(ctx, d.first.PID, pids)
	if err != nil {
		return err
	}
	request := criu.DumpRequest{
		RootPID:        d.first.PID,
		Root:           d.leaving.Root,
		WorkDir:        d.leaving.WorkDir,
		FreezeCgroup:   d.group.FreezerDir(),
		ExternalMounts: d.leaving.Externals.Mounts,
		External:       d.leaving.Externals.External,
		Auto:           d.leaving.FindMounts,
		Network:        d.leaving.Network,
		TTY:            d.leaving.Terminal,
		Watched:        watched,
		LazyPages:      options.LeaveMemory,
	}
	if !options.Whole {
		request.Large = large(pids, options.LeaveMemory)
	}
	if options.LeaveMemory {
		request.Facts = c.kernelFacts(ctx, tool) // nil: CRIU itself dumps shared memory, which takes longer
	}
	d.dump, err = tool.StartDump(ctx, request)
	return err
}

// A process is large with this much memory of its own, used or reserved. Some runtimes reserve 1 TiB.
const (
	largeUsed     = 32 << 20
	largeReserved = 4 << 30
)

// large lists the processes with so much memory, used by them or not, that it pays to keep CRIU from
// examining it.
func large(pids []int, used bool) []int {
	var found []int
	for _, pid := range pids {
		use, err := kernel.ReadMemoryUse(pid)
		// an ended process is not large
		if err == nil && (used && use.Anonymous >= largeUsed || use.Reserved >= largeReserved) {
			found = append(found, pid)
		}
	}
	return found
}

// Freeze stops the container's processes, and returns when all of their output is in the log.
func (d *Departure) Freeze(ctx context.Context) (time.Time, error) {
	at, err := d.freezeTaken(ctx)
	if err != nil && !d.first.Alive() {
		err = errJustEnded // and its cgroup with it
	}
	if err != nil {
		return at, fmt.Errorf("freeze container %s: %w", d.leaving.Name, err)
	}
	if err := d.afterFreeze(ctx); err != nil {
		return at, errors.Join(fmt.Errorf("freeze container %s: %w", d.leaving.Name, err), d.group.Thaw())
	}
	return at, nil
}

var errJustEnded = fmt.Errorf("%w: it has just ended", engine.ErrNotRunning)

// afterFreeze checks what can no longer change.
func (d *Departure) afterFreeze(ctx context.Context) error {
	if !d.first.Alive() {
		return errJustEnded
	}
	return d.leaving.Drain(ctx)
}

// LeaveShared leaves the contents of shared memory to the caller.
func (d *Departure) LeaveShared(inodes []uint64) (bool, error) {
	left, err := d.dump.LeaveShared(inodes)
	if err != nil {
		return false, fmt.Errorf("container %s: %w", d.leaving.Name, err)
	}
	return left, nil
}

// Dump writes the execution state to a directory in memory. The container stays frozen.
func (d *Departure) Dump(ctx context.Context, directory string) error {
	frozen, err := d.group.ToldToFreeze()
	if err == nil && !frozen { // CRIU would freeze it again, but what was sent of it would be outdated
		err = engine.ErrThawed
	}
	if err == nil {
		err = d.dump.Run(ctx, directory)
	}
	if err != nil {
		return fmt.Errorf("dump container %s: %w", d.leaving.Name, err)
	}
	err = criu.WriteDescriptors(directory, d.leaving.Stdio)
	if err == nil {
		err = d.dump.Release(func() error {
			_, err := d.group.Freeze(ctx)
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("dump container %s: %w", d.leaving.Name, err)
	}
	return nil
}

// LeftOut returns which memory a dump has left to the caller.
func (d *Departure) LeftOut(directory string) (memory.Left, error) {
	listed, err := leftOut(directory)
	if err != nil {
		return memory.Left{}, fmt.Errorf("look at the dump of container %s: %w", d.leaving.Name, err)
	}
	return memory.Left{Listed: listed, Unseen: taskMaps(d.dump.Cut())}, nil
}

// Touched returns which pages the restore and the first instructions after it touch.
func (d *Departure) Touched(directory string) ([]memory.RemoteFault, error) {
	touched, err := criu.Touched(directory)
	if err != nil {
		return nil, fmt.Errorf("look at the dump of container %s: %w", d.leaving.Name, err)
	}
	wanted := make([]memory.RemoteFault, 0, len(touched))
	for _, one := range touched {
		wanted = append(wanted, memory.RemoteFault{Task: memory.Task(one.PID), Address: one.Address})
	}
	return wanted, nil
}

// Close undoes PrepareDump. It neither resumes nor destroys the container.
func (d *Departure) Close() error {
	err := d.dump.Close()
	if d.tcp != nil {
		err, d.tcp = errors.Join(err, d.tcp.Close()), nil
	}
	return err
}
