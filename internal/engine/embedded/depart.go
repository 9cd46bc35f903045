package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel/cgroup"
)

// departures examines containers and prepares them for their moves, keeps or resumes the frozen copies, and
// destroys them in the end.
type departures struct {
	catalog   *catalog
	paths     paths
	processes *processes
	volumes   *volumes
	notes     *notes
	criu      *checkpoint.CRIU
}

// departure is a leaving container, with its record.
type departure struct {
	*checkpoint.Departure
	files container
}

// PrepareDump prepares a running container's move: it starts CRIU and tells it what to dump.
func (ds *departures) PrepareDump(
	ctx context.Context, id string, options engine.DumpOptions,
) (engine.Departure, error) {
	defer ds.catalog.lock(id)()
	ctr, err := ds.catalog.running(id)
	if err != nil {
		return nil, err
	}
	if err := checkpoint.RefuseFilling(ds.paths.of(id).memory()); err != nil {
		return nil, fmt.Errorf("container %s: %w", ctr.Definition.Name, err)
	}
	d, err := ds.depart(ctx, ctr, options)
	if err != nil {
		return nil, fmt.Errorf("prepare container %s for its move: %w", ctr.Definition.Name, err)
	}
	return d, nil
}

func (ds *departures) depart(
	ctx context.Context, ctr engine.Container, options engine.DumpOptions,
) (*departure, error) {
	place := ds.paths.of(ctr.Definition.ID)
	leaving, err := ds.leaving(place, ctr)
	if err != nil {
		return nil, err
	}
	note := departureRecord{Started: time.Now(), Leave: options.Leave}
	if err := ds.notes.noteDeparture(place, note); err != nil {
		return nil, errors.Join(err, forgetDeparture(place))
	}
	d, err := checkpoint.PrepareDump(ctx, ds.criu, leaving, options)
	if err != nil {
		return nil, errors.Join(err, forgetDeparture(place))
	}
	return &departure{Departure: d, files: place}, nil
}

// leaving returns what a move must know about a container.
func (ds *departures) leaving(place container, ctr engine.Container) (checkpoint.Leaving, error) {
	l := checkpoint.Leaving{
		Name: ctr.Definition.Name, First: ctr.PID, Root: place.rootfs(), Terminal: ctr.Definition.TTY,
		WorkDir: place.criuWork(),
		Drain:   func(ctx context.Context) error { return askMonitor(ctx, place, opDrain) },
	}
	x, err := decodeExtra(ctr.Definition)
	if err != nil {
		return l, err
	}
	l.Stdio = x.Stdio
	if l.Cgroup, err = cgroup.Open(place.cgroup()); err != nil {
		return l, fmt.Errorf("open its cgroup: %w", err)
	}
	spec, err := loadSpec(place)
	if err != nil {
		return l, err
	}
	if l.Externals, err = criu.ExternalFor(spec, place.rootfs(), ctr.PID); err != nil {
		return l, err
	}
	pids, err := l.Cgroup.Procs()
	if err != nil {
		return l, err
	}
	l.Network, err = criu.NetworkFor(spec, pids)
	return l, err
}

// Close undoes PrepareDump.
func (d *departure) Close() error {
	err := d.Departure.Close()
	if !frozen(d.files) {
		err = errors.Join(err, forgetDeparture(d.files))
	}
	return err
}

// Trees returns the directories that make up the container's own state.
func (ds *departures) Trees(_ context.Context, id string) ([]files.Tree, error) {
	place, err := ds.catalog.find(id)
	if err != nil {
		return nil, err
	}
	var d engine.Definition
	if err := durable.Load(place.definition(), &d); err != nil {
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
