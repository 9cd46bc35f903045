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
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// processes makes and ends the processes of containers, with all that these need from the kernel. Callers
// have locked the container.
type processes struct {
	paths      paths
	runc       runc
	executable string // this program, which becomes monitors
	bundles    *bundles
}

// bringUp makes what a container needs from the kernel, and then its processes. If attended, it makes no
// processes once this agent has died.
func (p *processes) bringUp(ctx context.Context, place container, d engine.Definition, attended bool) error {
	steps := []func() error{
		func() error { return durable.Remove(place.lost()) },
		func() error { return freshDev(place) },
		func() error { return p.bundles.mountRoot(d) },
		func() error { return mountMemories(place, d) },
		func() error { return p.bundles.refreshSpec(d) },
		func() error { return forgetCalls(place) },
		func() error { return p.launch(ctx, place, job{Terminal: d.TTY, Attended: attended}) },
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
func (p *processes) settle(ctx context.Context, place container) error {
	if monitor, err := monitorProcess(place); err == nil {
		ctx, cancel := context.WithTimeout(ctx, controlTimeout)
		defer cancel()
		if err := waitGone(ctx, monitor); err != nil {
			return err
		}
	}
	if err := sweep(ctx, p.runc, place); err != nil {
		return err
	}
	return os.RemoveAll(place.runDir())
}

// launch starts a container's monitor and waits until the container runs.
func (p *processes) launch(ctx context.Context, place container, j job) error {
	reports, err := p.startMonitor(place, j)
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
func (p *processes) startMonitor(place container, j job) (*os.File, error) {
	j.ID, j.StateDir, j.RunDir = place.id, p.paths.state, p.paths.run
	j.Cgroup, j.Runc = p.paths.group, p.runc.path
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
	cmd := exec.Command(p.executable, MonitorCommand, place.job())
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

// endProbation ends a container on probation, and the session that is about to start it.
func (p *processes) endProbation(ctx context.Context, place container) error {
	if err := endSession(ctx, place); err != nil {
		return err
	}
	if err := killCgroup(ctx, place); err != nil {
		return err
	}
	return p.settle(ctx, place)
}

// end tells a container's first process to end, kills all processes when its grace is over, and waits until
// the end is recorded.
func (p *processes) end(
	ctx context.Context, place container, ctr engine.Container, init checkpoint.Identity,
	patience time.Duration,
) error {
	signal, err := engine.ParseSignal(ctr.Definition.StopSignal)
	if err != nil {
		return err
	}
	if err := init.Signal(signal); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if waitEnded(waiting, place) == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return p.endNow(ctx, place)
}

// endNow kills a container's processes and waits until the end is recorded.
func (p *processes) endNow(ctx context.Context, place container) error {
	group, err := cgroup.Open(place.cgroup())
	if err == nil {
		err = group.Kill(ctx)
	}
	// the container's monitor removes it, too
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	return waitEnded(waiting, place)
}

// endMonitor waits for the monitor of a container whose processes are gone, and kills a monitor that does
// not end.
func (p *processes) endMonitor(ctx context.Context, place container) error {
	monitor, err := monitorProcess(place)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if waitGone(waiting, monitor) == nil {
		return nil
	}
	return errors.Join(ctx.Err(), monitor.Kill())
}
