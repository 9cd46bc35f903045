package lxc

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/network/nsstate"
)

// departures examines containers and prepares them for their moves, keeps or resumes the frozen copies, and
// destroys them in the end.
type departures struct {
	identities *identities
	catalog    *catalog
	remover    *remover
	criu       *checkpoint.CRIU
}

// departure is a container that is about to be frozen.
type departure struct {
	*checkpoint.Departure
	place  place
	group  *cgroup.Cgroup
	netns  string
	usual  nsstate.Fresh // network namespace for comparison
	frozen bool          // Freeze has succeeded: from then on Resume or Destroy decides
}

// PrepareDump prepares a running container's move. From now on only Godwit starts it, should it end, or the
// node go down, before the outcome of the move is known.
func (ds *departures) PrepareDump(
	ctx context.Context, id string, options engine.DumpOptions,
) (engine.Departure, error) {
	defer ds.catalog.lock(id)()
	ctr, err := ds.catalog.running(ctx, id)
	if err != nil {
		return nil, err
	}
	d, err := ds.depart(ctx, ctr, options)
	if err != nil {
		return nil, fmt.Errorf("prepare LXC container %s for its move: %w", ctr.Definition.Name, err)
	}
	return d, nil
}

func (ds *departures) depart(
	ctx context.Context, ctr engine.Container, options engine.DumpOptions,
) (*departure, error) {
	p := ds.identities.place(ctr.Definition.ID, ctr.Definition.Name)
	if err := checkpoint.RefuseFilling(p.memory()); err != nil {
		return nil, err
	}
	root, err := rootOf(ctr)
	if err != nil {
		return nil, err
	}
	group, err := groupOf(ctr)
	if err != nil {
		return nil, err
	}
	first, err := checkpoint.Identify(ctr.PID)
	if err != nil {
		return nil, err
	}
	usual, err := nsstate.NewFresh()
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{p.state, p.run} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make directory: %w", err)
		}
	}
	if err := durable.Save(p.departure(),
		departureRecord{Started: time.Now().UTC(), First: first, Leave: options.Leave}); err != nil {
		return nil, err
	}
	if err := p.guard(); err != nil {
		return nil, errors.Join(err, p.unguard())
	}
	netns := fmt.Sprintf("/proc/%d/ns/net", ctr.PID)
	inner, err := checkpoint.PrepareDump(ctx, ds.criu, checkpoint.Leaving{
		Name: ctr.Definition.Name, First: ctr.PID, Cgroup: group, Root: root, FindMounts: true,
		Network: netns, WorkDir: p.criuWork(),
		Drain: func(context.Context) error { return nil }, // it has no log of ours
	}, options)
	if err != nil {
		return nil, errors.Join(err, p.unguard())
	}
	return &departure{Departure: inner, place: p, group: group, netns: netns, usual: usual}, nil
}

// Freeze stops the container's processes.
func (d *departure) Freeze(ctx context.Context) (time.Time, error) {
	at, err := d.Departure.Freeze(ctx)
	d.frozen = d.frozen || err == nil
	return at, err
}

// Dump writes the execution state to a directory in memory, with the control groups and the settings of the
// network that CRIU does not save.
func (d *departure) Dump(ctx context.Context, directory string) error {
	pids, err := d.group.Procs()
	if err != nil {
		return err
	}
	if found := examineMounts(pids); len(found) > 0 { // new since the examination
		return fmt.Errorf("%s: %s", found[0].What, found[0].Why)
	}
	groups, err := d.group.Inner()
	if err == nil {
		err = writeGroups(directory, groups)
	}
	if err != nil {
		return fmt.Errorf("control groups of LXC container %s: %w", d.place.name, err)
	}
	settings, err := d.usual.Changed(d.netns)
	if err == nil {
		err = writeSettings(directory, settings)
	}
	if err != nil {
		return fmt.Errorf("settings of the network of LXC container %s: %w", d.place.name, err)
	}
	return d.Departure.Dump(ctx, directory)
}

// Close ends what PrepareDump started.
func (d *departure) Close() error {
	err := d.Departure.Close()
	if !d.frozen {
		err = errors.Join(err, d.place.unguard())
	}
	return err
}

// guard replaces the container's configuration by one with which LXC never starts it. The container's own
// is kept, even if a killed agent had put it aside.
func (p place) guard() error {
	text, err := readConfig(p.aside())
	if errors.Is(err, fs.ErrNotExist) {
		text, err = readConfig(p.config())
	}
	if err != nil {
		return err
	}
	settings, err := parseConfig(text)
	if err != nil {
		return err
	}
	root := strings.TrimPrefix(last(settings, "lxc.rootfs.path"), "dir:")
	if err := kernel.WriteFileAtomic(p.aside(), []byte(text), 0o644); err != nil {
		return fmt.Errorf("keep the configuration: %w", err)
	}
	if err := kernel.WriteFileAtomic(p.config(), []byte(render(settings, root, true)), 0o644); err != nil {
		return fmt.Errorf("change the configuration: %w", err)
	}
	return nil
}

// unguard puts the container's own configuration back. Doing nothing is success.
func (p place) unguard() error {
	if err := os.Rename(p.aside(), p.config()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("put the configuration back: %w", err)
	}
	return durable.Remove(p.departure())
}

// Resume lets a container continue that a departure froze. It does not ask LXC, which may not answer.
func (ds *departures) Resume(ctx context.Context, id string) error {
	defer ds.catalog.lock(id)()
	if err := ds.resume(ctx, id); err != nil {
		return fmt.Errorf("resume LXC container %.12s: %w", id, err)
	}
	return nil
}

func (ds *departures) resume(ctx context.Context, id string) error {
	was, err := ds.identities.departureOf(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := checkpoint.Unprotect(ds.identities.place(id, "").spared()); err != nil {
		return err
	}
	if was.First.Alive() {
		group, err := containerGroup(was.First.PID)
		if err == nil {
			err = checkpoint.Resume(ctx, group)
		}
		if err != nil {
			return err
		}
	}
	p, err := ds.identities.find(id)
	if errors.Is(err, engine.ErrNotFound) { // it has been removed meanwhile
		return durable.Remove(ds.identities.place(id, "").departure())
	}
	if err != nil {
		return err
	}
	return p.unguard()
}

// Destroy kills a frozen container and removes it completely, without anybody noticing its end.
func (ds *departures) Destroy(ctx context.Context, id string, _ []string) error {
	defer ds.catalog.lock(id)()
	if err := ds.destroy(ctx, id); err != nil {
		return fmt.Errorf("destroy LXC container %.12s: %w", id, err)
	}
	return nil
}

func (ds *departures) destroy(ctx context.Context, id string) error {
	was, err := ds.identities.departureOf(id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	frozen := was.First.Alive()
	if frozen {
		if err := killQuietly(ctx, was.First.PID); err != nil {
			return err
		}
	}
	p, err := ds.identities.find(id)
	if errors.Is(err, engine.ErrNotFound) {
		return ds.gone(id)
	}
	if err == nil && !frozen {
		err = ds.endHere(ctx, p)
	}
	if err != nil {
		return err
	}
	return ds.remover.remove(ctx, p)
}

// gone removes our records of a container that LXC no longer has.
func (ds *departures) gone(id string) error {
	if !idPattern.MatchString(id) {
		return nil
	}
	return ds.identities.place(id, "").forget()
}

// endHere kills the processes of a running container that has not left.
func (ds *departures) endHere(ctx context.Context, p place) error {
	if !durable.Exists(p.config()) { // its removal had begun
		return nil
	}
	ctr, err := ds.catalog.named(ctx, p.name)
	if err != nil || ctr.PID == 0 {
		return err
	}
	return killQuietly(ctx, ctr.PID)
}

// killQuietly kills all processes of the container to which this one belongs.
func killQuietly(ctx context.Context, pid int) error {
	group, err := containerGroup(pid)
	if err != nil {
		return err
	}
	if err := checkpoint.TakeLinksDown(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil {
		return err
	}
	return killGroup(ctx, group)
}

// Trees returns the directories that make up the container's own state.
func (ds *departures) Trees(ctx context.Context, id string) ([]files.Tree, error) {
	ctr, err := ds.catalog.Inspect(ctx, id)
	if err != nil {
		return nil, err
	}
	root, err := rootOf(ctr)
	if err != nil {
		return nil, err
	}
	return []files.Tree{{Kind: files.Writable, Path: root}}, nil
}
