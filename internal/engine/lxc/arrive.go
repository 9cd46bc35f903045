package lxc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
	"github.com/godwit/godwit/internal/patience"
)

// arrivalLimit is how long LXC may take to start its CRIU.
var arrivalLimit = patience.Limit{Still: 30 * time.Second, Most: 5 * time.Minute}

// closePatience bounds how long LXC may take to end without its CRIU, settlePatience how long it may take
// to notice that the container runs.
const (
	closePatience  = 5 * time.Second
	settlePatience = 30 * time.Second
)

// arrivals makes containers that come from other nodes.
type arrivals struct {
	config     Config
	identities *identities
	tools      *tools
	catalog    *catalog
	remover    *remover
	waiting    checkpoint.Arrivals
}

// Reserve lists obstacles to restoring this container here.
func (r *arrivals) Reserve(ctx context.Context, d engine.Definition) ([]engine.Problem, error) {
	written, all, err := validate(d)
	if err != nil {
		return nil, err
	}
	v1, err := kernel.HasController("devices")
	if err != nil {
		return nil, err
	}
	told, err := version(ctx)
	if err != nil {
		return nil, err
	}
	problems := slices.Concat(checkSettings(written, all), cgroupProblems(all, told, v1),
		engine.TooOld("LXC", told, oldest))
	add := func(what, why, remedy string) {
		problems = append(problems, engine.Problem{What: what, Why: why, Remedy: remedy})
	}
	containers, err := r.catalog.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, ctr := range containers {
		switch {
		case ctr.Definition.ID == d.ID:
			add("LXC container "+d.Name, "it is here already ("+string(ctr.State)+")",
				"remove what is left of it on this node")
		case ctr.Definition.Name == d.Name:
			add("name "+d.Name, "an LXC container on this node has it", "remove or rename that container")
		}
	}
	if directory := r.identities.place(d.ID, d.Name).lxc; len(problems) == 0 && durable.Exists(directory) {
		add("directory "+directory, "it exists, but is not a container", "remove it")
	}
	if _, err := r.config.Criu.Tool(); err != nil {
		add("CRIU", err.Error(), "run \"godwit doctor\" on this node")
	}
	return problems, nil
}

// arrivalRecord exists from the start of an arrival until the container was resumed and everything is
// cleaned up.
type arrivalRecord struct {
	Name   string `json:"name"`
	Config string `json:"config"` // the container's final configuration
}

// arrival is a container that waits for its state, with the processes started for it.
type arrival struct {
	arrivals   *arrivals
	definition engine.Definition
	settings   []setting // with includes
	place      place
	netns      string
	coming     *checkpoint.Coming
	server     *exec.Cmd // the restore proxy's process
	lxc        *exec.Cmd // lxc-checkpoint
	once       sync.Once
	settled    chan struct{} // closed when LXC has the container, or has given up; then settleErr is set
	settleErr  error
}

var _ engine.Arrival = (*arrival)(nil)

// PrepareRestore prepares a container that will be restored here. When it returns, LXC has made its monitor
// and cgroups, and the process that LXC takes for CRIU waits for the state.
func (r *arrivals) PrepareRestore(
	ctx context.Context, d engine.Definition, netns string,
) (engine.Arrival, error) {
	defer r.catalog.lock("")() // of names
	defer r.catalog.lock(d.ID)()
	problems, err := r.Reserve(ctx, d)
	if err == nil && len(problems) > 0 {
		err = fmt.Errorf("%s: %s", problems[0].What, problems[0].Why)
	}
	if err != nil {
		return nil, fmt.Errorf("prepare the arrival of LXC container %s: %w", d.Name, err)
	}
	a := &arrival{
		arrivals: r, definition: d, place: r.identities.place(d.ID, d.Name), netns: netns,
		settled: make(chan struct{}),
	}
	if err := a.prepare(ctx, netns); err != nil {
		cleanup := context.WithoutCancel(ctx)
		return nil, errors.Join(fmt.Errorf("prepare the arrival of LXC container %s: %w", d.Name, err),
			a.Close(), r.discard(cleanup, a.place))
	}
	r.waiting.Add(d.ID, a)
	return a, nil
}

// prepare makes everything that can exist before the state arrives.
func (a *arrival) prepare(ctx context.Context, netns string) error {
	tool, err := a.arrivals.config.Criu.Tool()
	if err != nil {
		return err
	}
	if err := a.place.clearGroups(); err != nil {
		return err
	}
	if err := a.makeFiles(netns); err != nil {
		return err
	}
	a.coming, err = checkpoint.Expect(a.place.proxy(), a.place.images(), a.definition.Limits.MemoryBytes)
	if err != nil {
		return err
	}
	if err := a.startRestore(ctx, tool, netns); err != nil {
		return err
	}
	// LXC has read its configuration. Until the container has arrived, nothing else may start it from its
	// files.
	return a.writeConfig(true)
}

// makeFiles makes the container's directories. After the first one, Discard knows what to remove.
func (a *arrival) makeFiles(netns string) error {
	written, all, err := validate(a.definition)
	if err != nil {
		return err
	}
	a.settings = all
	for _, dir := range []string{a.place.state, a.place.criuWork()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	record := arrivalRecord{Name: a.definition.Name, Config: render(written, a.place.rootfs(), false)}
	if err := durable.Save(a.place.arrival(), record); err != nil {
		return err
	}
	if err := os.MkdirAll(a.place.rootfs(), 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := os.Chmod(a.place.lxc, 0o770); err != nil { // as lxc-create does
		return fmt.Errorf("protect directory: %w", err)
	}
	if err := durable.Save(a.place.own(),
		ownRecord{ID: a.definition.ID, Name: a.definition.Name}); err != nil {
		return err
	}
	// LXC's monitor needs the name to remove the device when the container ends.
	device, err := hostEnd(netns)
	if err != nil {
		return err
	}
	if err := a.writeConfig(false, setting{"lxc.net.0.veth.pair", device}); err != nil {
		return err
	}
	if err := mounts.Memory(a.place.images()); err != nil {
		return err
	}
	return criu.WriteDescriptors(a.place.images(), nil)
}

// writeConfig writes the configuration of a container that is not here yet.
func (a *arrival) writeConfig(guarded bool, more ...setting) error {
	written, _, err := validate(a.definition)
	if err != nil {
		return err
	}
	text := render(append(written, more...), a.place.rootfs(), guarded)
	return kernel.WriteFileAtomic(a.place.config(), []byte(text), 0o644)
}

// startRestore starts the restore proxy and lxc-checkpoint, and waits until the process that LXC takes for
// CRIU is there.
func (a *arrival) startRestore(ctx context.Context, tool criu.Tool, netns string) error {
	server := criu.ProxyServer{
		Proxy: a.place.proxy(), Record: a.place.resumed(), Socket: a.place.wrapper(),
		Images: a.place.images(), Work: a.place.criuWork(),
		Cgroup: a.place.payload(), Agreed: agreed(a.settings),
	}
	var err error
	if a.server, err = server.Start(a.arrivals.config.Executable); err != nil {
		return err
	}
	go func() { _ = a.server.Wait() }() // its result reaches the agent, or the record
	path, err := checkpoint.ProxyPath(a.arrivals.config.proxyDir(), a.arrivals.config.Executable)
	if err != nil {
		return err
	}
	a.lxc = exec.Command("lxc-checkpoint", "-P", a.arrivals.config.Path, "-n", a.definition.Name, "-r", "-D",
		a.place.images(), "-o", a.place.lxcLog(), "-l", "ERROR")
	wrapper := criu.WrapperEnv(criu.WrapperSettings{Socket: a.place.wrapper(), Network: netns, Tool: tool})
	a.lxc.Env = append(append(os.Environ(), wrapper...), "PATH="+path)
	if err := kernel.StartLasting(a.lxc); err != nil {
		a.lxc = nil
		return fmt.Errorf("start lxc-checkpoint: %w", err)
	}
	ctx, cancel := arrivalLimit.For(ctx, "lxc-checkpoint", patience.Programs("lxc-", "criu"))
	defer cancel()
	go a.watch(cancel)
	if err := a.coming.WaitReady(ctx); err != nil {
		select { // LXC's error says more than the absence of its CRIU
		case <-a.settled:
			return errors.Join(a.settleErr, err)
		default:
			return err
		}
	}
	return nil
}

// watch waits for LXC's result of the restore.
func (a *arrival) watch(failed func()) {
	defer close(a.settled)
	if err := a.lxc.Wait(); err != nil {
		text, _ := readConfig(a.place.lxcLog()) // bounded; optional detail for the error
		a.settleErr = fmt.Errorf("lxc-checkpoint: %w: %s", err, cause(text))
		failed()
	}
}

// ImagesDir returns the directory, in memory, for the execution state.
func (a *arrival) ImagesDir() string { return a.place.images() }

// TreePath returns where the content of the source's tree of this kind and name must be put.
func (a *arrival) TreePath(kind files.TreeKind, name string) (string, error) {
	if kind == files.Writable && name == "" {
		return a.place.rootfs(), nil
	}
	return "", fmt.Errorf("LXC container %s has no tree %.40q of kind %.40q", a.definition.Name, name, kind)
}

// FillFrom makes Restore leave out memory that can be filled while the processes run.
func (a *arrival) FillFrom(ctx context.Context, pages *memory.Store) error {
	err := a.coming.FillFrom(ctx, pages, pager.Config{
		Executable: a.arrivals.config.Executable, WorkDir: a.place.criuWork(), Report: a.place.memory(),
		Log: a.place.pagerLog(), Cgroup: a.place.payload(), Remote: a.place.remoteSocket(),
	})
	if err != nil {
		return fmt.Errorf("LXC container %s: %w", a.definition.Name, err)
	}
	return nil
}

// waiting fails if LXC no longer waits for the container: a container restored now would have no parent.
func (a *arrival) waiting() error {
	select {
	case <-a.settled:
		return errors.Join(errors.New("LXC has given up on the container"), a.settleErr)
	default:
	}
	monitors, err := a.arrivals.tools.monitors()
	if err == nil && !monitors[a.place.name] {
		err = errors.New("LXC's monitor of the container has ended")
	}
	return err
}

// Restore creates the processes from the current state files.
func (a *arrival) Restore(ctx context.Context, permission engine.Permission) (time.Time, error) {
	unlock := a.arrivals.catalog.lock(a.definition.ID)
	at, err := a.restore(ctx, permission)
	if err != nil {
		unlock()
		return time.Time{}, fmt.Errorf("restore LXC container %s: %w", a.definition.Name, err)
	}
	go a.end(context.WithoutCancel(ctx), settlePatience, unlock)
	return at, nil
}

// end waits, for a limited time, until LXC knows that the container runs: other operations on the container
// wait for that.
func (a *arrival) end(ctx context.Context, atMost time.Duration, unlock func()) {
	defer unlock()
	select {
	case <-a.settled:
	case <-time.After(atMost):
	}
	_ = a.arrivals.settle(ctx, a.place) // Arrived repeats it
}

func (a *arrival) restore(ctx context.Context, permission engine.Permission) (time.Time, error) {
	if err := a.waiting(); err != nil {
		return time.Time{}, err
	}
	groups, err := a.makeGroups()
	if err == nil {
		err = applySettings(a.place.images(), a.netns)
	}
	if err != nil {
		return time.Time{}, err
	}
	ask := func() error {
		group, err := a.payload()
		if err == nil {
			err = limit(a.settings, group)
		}
		if err == nil {
			err = seal(a.settings, group)
		}
		if err == nil {
			err = group.FillInner(groups)
		}
		if err != nil {
			return err
		}
		if err := permission.Ask(); err != nil {
			return err
		}
		return a.waiting()
	}
	resumed, err := a.coming.GoOn(ctx, "", engine.Permission{Ask: ask, Open: permission.Open})
	return resumed.At, err
}

// Close ends what PrepareRestore started if the container has not been resumed.
func (a *arrival) Close() error {
	var err error
	a.once.Do(func() {
		a.arrivals.waiting.Remove(a.definition.ID, a)
		if a.coming != nil {
			err = a.coming.Close() // this ends the restore proxy, then CRIU, then LXC
		}
		if a.lxc == nil {
			return
		}
		select {
		case <-a.settled:
		case <-time.After(closePatience):
			ctx, cancel := context.WithTimeout(context.Background(), 2*closePatience)
			defer cancel()
			_, endErr := a.arrivals.outcome(ctx, a.place)
			err = errors.Join(err, endErr)
		}
	})
	return err
}
