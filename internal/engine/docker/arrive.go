package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/door"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/engine/moving"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
)

// arrivalPatience bounds how long Docker and runc may take to come to the gate.
const arrivalPatience = time.Minute

// arrival is a container that Docker is starting, and that waits in the gate for its state.
type arrival struct {
	engine     *Engine
	definition engine.Definition
	extra      extra
	dockerID   string
	root       mounts.Overlay
	place      door.Place
	coming     *moving.Coming
	once       sync.Once
	started    chan struct{} // closed when Docker's start has ended, with startErr; nil: it was not begun
	startErr   error
}

var _ engine.Arrival = (*arrival)(nil)

// Arrive has Docker make and start the container. When it returns its runtime waits in the gate.
func (e *Engine) Arrive(ctx context.Context, d engine.Definition, _ string) (engine.Arrival, error) {
	problems, err := e.Reserve(ctx, d)
	if err == nil && len(problems) > 0 {
		err = fmt.Errorf("%s: %s", problems[0].What, problems[0].Why)
	}
	var x extra
	if err == nil {
		x, err = decode(d)
	}
	if err != nil {
		return nil, fmt.Errorf("prepare the arrival of container %s: %w", d.Name, err)
	}
	defer e.lock(d.ID)()
	a := &arrival{engine: e, definition: d, extra: x}
	if err := a.prepare(ctx); err != nil {
		cleanup := context.WithoutCancel(ctx)
		return nil, errors.Join(fmt.Errorf("prepare the arrival of container %s: %w", d.Name, err), a.Close(), e.discard(cleanup, d.ID))
	}
	e.mu.Lock()
	e.arrivals[d.ID] = a
	e.mu.Unlock()
	return a, nil
}

func (a *arrival) prepare(ctx context.Context) error {
	if err := a.create(ctx); err != nil {
		return err
	}
	if err := a.openPlace(); err != nil {
		return err
	}
	var err error
	if a.coming, err = moving.Expect(a.place.Gate(), a.place.Images(), a.definition.Limits.MemoryBytes); err != nil {
		return err
	}
	if err := a.start(ctx); err != nil {
		return err
	}
	return a.engine.emptyVolumes(a.definition)
}

// create has Docker make the container, with a record of it before.
func (a *arrival) create(ctx context.Context) error {
	e, d := a.engine, a.definition
	record := arrivalRecord{Definition: d, Restart: a.extra.Host.RestartPolicy}
	for _, v := range coming(d) {
		record.Volumes = append(record.Volumes, v.Name)
	}
	if err := e.forget(d.ID); err != nil { // what is left of an earlier arrival would be taken for this one's
		return err
	}
	if err := save(e.arrivalPath(d.ID), record); err != nil {
		return err
	}
	if err := e.makeVolumes(ctx, d); err != nil {
		return err
	}
	config := *a.extra.Config
	config.Labels = maps.Clone(config.Labels)
	if config.Labels == nil {
		config.Labels = map[string]string{}
	}
	config.Labels[idLabel] = d.ID
	config.Image = e.imageHere(ctx, d, a.extra)
	binds, mounts, err := takeMounts(d, a.extra.Host)
	if err != nil {
		return err
	}
	host := hostConfig(a.extra.Host, binds, mounts)
	made, err := e.api.ContainerCreate(ctx, client.ContainerCreateOptions{Config: &config, HostConfig: host, Name: d.Name})
	if err != nil {
		return fmt.Errorf("have Docker make it: %w", err)
	}
	a.dockerID, record.DockerID = made.ID, made.ID
	if err := errors.Join(e.remember(d.ID, made.ID), save(e.arrivalPath(d.ID), record)); err != nil {
		return err
	}
	return a.check(ctx)
}

// check wants Docker to have made what it was told.
func (a *arrival) check(ctx context.Context) error {
	found, err := a.engine.ask(ctx, a.dockerID)
	if err != nil {
		return err
	}
	if made := volumesOf(found.Mounts); !sameVolumes(made, a.definition.Volumes) {
		return fmt.Errorf("Docker has made the volumes %v, not %v", made, a.definition.Volumes) //nolint:staticcheck // its name
	}
	a.root, err = rootOf(found)
	return err
}

// openPlace makes the place in which godwit-runc restores.
func (a *arrival) openPlace() error {
	e := a.engine
	tool, err := e.criu.Tool()
	if err != nil {
		return err
	}
	runc, err := moving.FindRunc()
	if err != nil {
		return err
	}
	path, err := moving.GatePath(filepath.Join(e.config.RunDir, "gate-bin"), e.config.Executable)
	if err != nil {
		return err
	}
	if a.place, err = e.place(a.dockerID); err != nil {
		return err
	}
	settings := criu.GateSettings{
		Socket: a.place.Gate(), Record: e.recordPath(a.definition.ID), Tool: tool, CgroupNamespace: a.extra.Host.CgroupnsMode.IsPrivate(),
	}
	job := door.Job{Runc: runc, Record: settings.Record, Env: append(criu.GateEnv(settings), "PATH="+path)}
	if err := a.place.Open(job); err != nil {
		return err
	}
	return criu.WriteDescriptors(a.place.Images(), a.extra.Stdio)
}

// start has Docker start the container, and waits until that waits in the gate.
func (a *arrival) start(ctx context.Context) error {
	a.started = make(chan struct{})
	ready, cancel := context.WithTimeout(ctx, arrivalPatience)
	defer cancel()
	go func() {
		defer close(a.started)
		_, a.startErr = a.engine.api.ContainerStart(context.WithoutCancel(ctx), a.dockerID, client.ContainerStartOptions{})
		if a.startErr != nil {
			cancel()
		}
	}()
	err := a.coming.WaitReady(ready)
	if err == nil {
		return nil
	}
	select { // why Docker failed says more than that its gate is not there
	case <-a.started:
		if a.startErr != nil {
			return fmt.Errorf("have Docker start it: %w", a.startErr)
		}
	default:
	}
	return err
}

// ImagesDir is the directory, in memory, into which the execution state must be written.
func (a *arrival) ImagesDir() string { return a.place.Images() }

// TreePath is where the content of the source's tree of this kind and name must be put.
func (a *arrival) TreePath(kind files.TreeKind, name string) (string, error) {
	switch {
	case kind == files.Writable && name == "":
		return a.root.Upper, nil
	case kind == files.Private && name == "":
		return a.engine.private(a.definition.ID), makePrivate(a.engine.private(a.definition.ID))
	}
	for _, v := range coming(a.definition) {
		if kind == files.VolumeOf && name == v.Key() {
			return a.engine.VolumePath(v)
		}
	}
	return "", fmt.Errorf("container %s has no tree %.40q of kind %.40q", a.definition.Name, name, kind)
}

// FillFrom makes Restore leave out the memory that can be filled while the processes run.
func (a *arrival) FillFrom(ctx context.Context, pages *memory.Store) error {
	group, err := a.cgroup()
	if err != nil {
		return err
	}
	return a.coming.FillFrom(ctx, pages, pager.Config{
		Executable: a.engine.config.Executable, WorkDir: a.place.CRIU(), Report: a.place.Memory(), Log: a.place.PagerLog(),
		Cgroup: group, Late: a.place.Late(),
	})
}

// cgroup is the container's, which runc has made by now.
func (a *arrival) cgroup() (string, error) {
	path, err := a.place.Cgroup()
	if err != nil {
		return "", err
	}
	if _, err := kernel.OpenCgroup(path); err != nil {
		return "", fmt.Errorf("cgroup of container %s: %w", a.definition.Name, err)
	}
	return path, nil
}

// Close ends what Arrive started if the container has not been resumed.
func (a *arrival) Close() error {
	var err error
	a.once.Do(func() {
		a.engine.mu.Lock()
		if a.engine.arrivals[a.definition.ID] == a {
			delete(a.engine.arrivals, a.definition.ID)
		}
		a.engine.mu.Unlock()
		if a.coming != nil {
			err = a.coming.Close() // on which a gate that waits ends, then runc, then Docker's start
		}
		if a.started != nil {
			select {
			case <-a.started:
			case <-time.After(patience):
				err = errors.Join(err, fmt.Errorf("end the arrival of container %s: Docker's start does not end", a.definition.Name))
			}
		}
	})
	return err
}
