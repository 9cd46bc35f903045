package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/engine/shim"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/memory/pager"
	"github.com/godwit/godwit/internal/patience"
)

// reasonPatience is how long to wait for the reason of a failure.
const reasonPatience = 5 * time.Second

// arrival is a container that its engine is starting, and that waits in the restore proxy for its state.
type arrival struct {
	arrivals   *arrivals
	title      string // of the engine
	definition engine.Definition
	expected   Expected
	engineID   string // the engine's ID of the container
	log        string // path of the engine's future log; "" if the source's log does not come
	root       mounts.Overlay
	shm        string // directory that the engine makes for its /dev/shm; "" if there is none
	restoreDir shim.Dir
	coming     *checkpoint.Coming
	job        shim.Job
	// root of the /dev/shm that was made before the engine's start; nil: there is none
	shmMade  os.FileInfo
	pages    *memory.Store // source of its memory once the engine has started it; nil: nothing is filled
	once     sync.Once
	startErr error

	mu        sync.Mutex
	started   chan struct{} // closed when the start has ended, with startErr; nil: it has not begun
	startAt   time.Time     // when the start began
	restoring bool
	closed    bool
}

var _ engine.LateArrival = (*arrival)(nil)

// PrepareRestore makes the engine create and start the container. When it returns, the runtime waits in the
// restore proxy, unless the container is started late.
func (r *arrivals) PrepareRestore(
	ctx context.Context, d engine.Definition, _ string,
) (engine.Arrival, error) {
	problems, err := r.Reserve(ctx, d)
	if err == nil && len(problems) > 0 {
		err = fmt.Errorf("%s: %s", problems[0].What, problems[0].Why)
	}
	var x Expected
	if err == nil {
		x, err = r.adapter.Expect(d)
	}
	if err != nil {
		return nil, fmt.Errorf("prepare the arrival of container %s: %w", d.Name, err)
	}
	defer r.locks.Lock(d.ID)()
	a := &arrival{arrivals: r, title: r.adapter.Title(), definition: d, expected: x}
	if err := a.prepare(ctx); err != nil {
		cleanup := context.WithoutCancel(ctx)
		return nil, errors.Join(fmt.Errorf("prepare the arrival of container %s: %w", d.Name, err), a.Close(),
			r.endings.discard(cleanup, d.ID))
	}
	r.waiting.Add(d.ID, a)
	return a, nil
}

func (a *arrival) prepare(ctx context.Context) error {
	if err := a.create(ctx); err != nil {
		return err
	}
	if err := a.openRestoreDir(ctx); err != nil {
		return err
	}
	var err error
	dir := a.restoreDir
	if a.coming, err = checkpoint.Expect(dir.Proxy(), dir.Images(),
		a.definition.Limits.MemoryBytes); err != nil {
		return err
	}
	if a.expected.Late {
		return a.waitForStart(ctx)
	}
	if err := a.restoreDir.Admit(a.job); err != nil {
		return err
	}
	if err := a.start(ctx); err != nil {
		return err
	}
	if err := a.agree(); err != nil {
		return err
	}
	if err := a.connect(ctx); err != nil {
		return err
	}
	// Podman makes /etc/mtab and mount points, which come from the source as they are
	if err := files.EmptyTree(a.root.Upper); err != nil {
		return fmt.Errorf("empty its writable layer: %w", err)
	}
	return errors.Join(a.arrivals.volumes.emptyVolumes(ctx, a.definition), a.restoreDir.EmptyMemories())
}

// create records the arrival and then makes the engine create the container.
func (a *arrival) create(ctx context.Context) error {
	e, d := a.arrivals, a.definition
	boot, err := kernel.BootID()
	if err != nil {
		return err
	}
	record := arrivalRecord{Definition: d, Restart: a.expected.Restart, Boot: boot, Began: time.Now()}
	for _, v := range Coming(d) {
		record.Volumes = append(record.Volumes, v.Name)
	}
	// records of an earlier arrival would be taken for this one's
	if err := e.records.forget(d.ID); err != nil {
		return err
	}
	if err := save(e.records.arrivalPath(d.ID), record); err != nil {
		return err
	}
	if err := a.make(ctx, &record); err != nil {
		return err
	}
	return a.check(ctx)
}

// make makes the engine create the container, and records its ID. If a previous container with this ID
// still has to be cleaned up, that happens either before or at the end of this one.
func (a *arrival) make(ctx context.Context, record *arrivalRecord) error {
	e, d := a.arrivals, a.definition
	if reuser, is := e.adapter.(IDReuser); is {
		engineID, err := reuser.EngineID(d)
		if err != nil {
			return err
		}
		defer e.lookup.engineIDs.Lock(engineID)()
	}
	engineID, err := a.createPatiently(ctx)
	if err != nil {
		err = fmt.Errorf("create it with %s: %w", a.title, err)
		// the engine reported a failure and will not create it later
		if !errors.Is(err, context.DeadlineExceeded) {
			record.Unmade = true
			err = errors.Join(err, save(e.records.arrivalPath(d.ID), record))
		}
		return err
	}
	a.engineID, record.EngineID = engineID, engineID
	return errors.Join(e.lookup.disown(engineID, d.ID), e.records.remember(d.ID, engineID),
		save(e.records.passedPath(d.ID), checkpoint.KnownCalls(d.Passed)),
		save(e.records.arrivalPath(d.ID), record))
}

// createPatiently makes the engine create the container, and waits for the engine even if ctx ends
// meanwhile. Docker and containerd create the container although nobody waits for it any more, after the
// undo has looked for leftovers. A Podman that is killed halfway leaves files that keep the name in use.
func (a *arrival) createPatiently(ctx context.Context) (engineID string, err error) {
	ctx, cancel := createLimit.For(context.WithoutCancel(ctx), a.title, a.arrivals.lookup.signs())
	defer cancel()
	engineID, err = a.arrivals.adapter.Create(ctx, a.definition, idLabel, a.definition.ID)
	return engineID, patience.Explain(ctx, err)
}

// check checks that the engine has made what it was told to make.
func (a *arrival) check(ctx context.Context) error {
	found, err := a.arrivals.lookup.ask(ctx, a.engineID)
	if err != nil {
		return err
	}
	if made := found.Container.Definition.Volumes; !SameVolumes(made, a.definition.Volumes) {
		return fmt.Errorf("%s has made the volumes %v, not %v", a.title, made, a.definition.Volumes)
	}
	if a.expected.Log {
		if a.log, err = a.arrivals.adapter.Log(ctx, found); err != nil {
			return err
		}
		if err := ownLog(a.log, found); err != nil {
			return err
		}
	}
	a.shm = a.arrivals.adapter.Shm(found)
	a.root, err = a.arrivals.adapter.Root(found)
	return err
}

// openRestoreDir makes the directory from which godwit-runc restores.
func (a *arrival) openRestoreDir(ctx context.Context) error {
	e := a.arrivals
	tool, err := e.criu.Tool()
	if err != nil {
		return err
	}
	runc, err := checkpoint.FindRunc()
	if err != nil {
		return err
	}
	path, err := checkpoint.ProxyPath(filepath.Join(e.config.RunDir, "gate-bin"), e.config.Executable)
	if err != nil {
		return err
	}
	if a.restoreDir, err = e.lookup.restoreDir(a.engineID); err != nil {
		return err
	}
	settings := criu.ProxySettings{
		Socket: a.restoreDir.Proxy(), Record: e.records.recordPath(a.definition.ID), Tool: tool,
		CgroupNamespace: a.expected.PrivateCgroup,
	}
	early, err := e.networksLate(ctx, a.definition)
	if err != nil {
		return err
	}
	if early {
		settings.Placeholder = a.restoreDir.Placeholder()
	}
	environment := append(criu.ProxyEnv(settings), "PATH="+path)
	a.job = shim.Job{Runc: runc, Record: settings.Record, Env: environment, Early: early}
	if err := a.restoreDir.Open(); err != nil {
		return err
	}
	return criu.WriteDescriptors(a.restoreDir.Images(), a.expected.Stdio)
}

// networksLate reports whether the engine makes the container's network after creating the container.
func (r *arrivals) networksLate(ctx context.Context, d engine.Definition) (bool, error) {
	networker, is := r.adapter.(Networker)
	if !is {
		return false, nil
	}
	return networker.NetworksLate(ctx, d)
}

// start makes the engine start the container, and waits until the container waits in the restore proxy.
func (a *arrival) start(ctx context.Context) error {
	started, err := a.begin()
	if err != nil {
		return err
	}
	ready, cancel := arrivalLimit.For(ctx, a.title, a.arrivals.lookup.signs())
	defer cancel()
	go func() {
		defer close(started)
		a.startErr = a.arrivals.adapter.Start(context.WithoutCancel(ctx), a.engineID)
		if a.startErr != nil {
			cancel()
			a.endWaiting()
		}
	}()
	err = a.coming.WaitReady(ready)
	if err == nil {
		return nil
	}
	select { // the engine's error says more than a missing restore proxy
	case <-started:
		if a.startErr != nil {
			return fmt.Errorf("start it with %s: %w", a.title, a.startErr)
		}
	case <-time.After(reasonPatience):
	case <-ctx.Done():
	}
	return err
}

// endWaiting ends a runtime that waits for the state although its engine's start has failed. The shim waits
// for its runtime, and a shim that does not answer is left behind. Once the restore has begun, Restore
// itself checks whether the engine still waits.
func (a *arrival) endWaiting() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.restoring {
		_ = a.coming.EndWaiting() // Close reports the error
	}
}

// beginRestore keeps endWaiting from ending the runtime.
func (a *arrival) beginRestore() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.restoring = true
}

// connect makes the container's network if its engine does not.
func (a *arrival) connect(ctx context.Context) error {
	creator, is := a.arrivals.adapter.(NetworkCreator)
	if !is || !a.definition.Network.OnBridge() {
		return nil
	}
	netns, err := a.Netns()
	if err == nil {
		err = creator.Connect(ctx, a.engineID, netns, a.definition)
	}
	if err != nil {
		return fmt.Errorf("make its network: %w", err)
	}
	return nil
}

// begin records that the engine starts the container.
func (a *arrival) begin() (started chan struct{}, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.started != nil {
		return nil, fmt.Errorf("%w: its arrival has ended, or it has already been started", engine.ErrBusy)
	}
	a.started, a.startAt = make(chan struct{}), time.Now()
	return a.started, nil
}

// begun returns a channel that is closed when the engine's start has ended, or nil if it has not begun.
func (a *arrival) begun() chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.started
}

// Until returns when the engine's patience ends. Zero: never, or the engine was not told to start the
// container.
func (a *arrival) Until() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.started == nil || a.expected.Patience == 0 {
		return time.Time{}
	}
	return a.startAt.Add(a.expected.Patience)
}

// Netns returns the container's network namespace, with everything that the engine makes in it.
func (a *arrival) Netns() (string, error) { return a.restoreDir.Netns() }

// ImagesDir returns the directory, in memory, into which the execution state must be written.
func (a *arrival) ImagesDir() string { return a.restoreDir.Images() }

// TreePath returns where the content of the source's tree of this kind and name must be put.
func (a *arrival) TreePath(kind files.TreeKind, name string) (string, error) {
	switch {
	case kind == files.Writable && name == "":
		return a.root.Upper, nil
	case kind == files.Private && name == "":
		private := a.arrivals.records.private(a.definition.ID)
		return private, makePrivate(private)
	case kind == files.Memory && name == treeShm && a.shm != "":
		return a.shm, nil
	case kind == files.Memory && a.expected.Late && a.begun() == nil:
		return a.restoreDir.MakeEarly(name)
	case kind == files.Memory:
		path, err := a.restoreDir.Tmpfs(name)
		if err != nil {
			return "", fmt.Errorf("container %s has no %.40q in memory here: %w", a.definition.Name, name,
				err)
		}
		return path, nil
	}
	for _, v := range Coming(a.definition) {
		if kind == files.VolumeOf && name == v.Key() {
			return a.arrivals.volumes.VolumePath(v)
		}
	}
	return "", fmt.Errorf("container %s has no tree %.40q of kind %.40q", a.definition.Name, name, kind)
}

// FillFrom makes Restore leave out the memory that can be filled while the processes run.
func (a *arrival) FillFrom(ctx context.Context, pages *memory.Store) error {
	if a.expected.Late && a.begun() == nil { // it has no cgroup yet
		a.pages = pages
		return nil
	}
	group, err := a.cgroup()
	if err != nil {
		return err
	}
	return a.coming.FillFrom(ctx, pages, pager.Config{
		Executable: a.arrivals.config.Executable,
		WorkDir:    a.restoreDir.CRIU(), Report: a.restoreDir.Memory(), Log: a.restoreDir.PagerLog(),
		Cgroup: group, Remote: a.restoreDir.RemotePages(),
	})
}

// cgroup returns the container's cgroup, which runc has made by now.
func (a *arrival) cgroup() (string, error) {
	path, err := a.restoreDir.Cgroup()
	if err != nil {
		return "", err
	}
	if _, err := cgroup.Open(path); err != nil {
		return "", fmt.Errorf("cgroup of container %s: %w", a.definition.Name, err)
	}
	return path, nil
}

// Close undoes PrepareRestore if the container has not been resumed.
func (a *arrival) Close() error {
	var err error
	a.once.Do(func() {
		a.arrivals.waiting.Remove(a.definition.ID, a)
		a.mu.Lock()
		a.closed = true
		a.mu.Unlock()
		if a.coming != nil {
			err = a.coming.Close() // this ends a waiting restore proxy, then runc, then the start
		}
		if started := a.begun(); started != nil {
			select {
			case <-started:
			case <-time.After(patience.Question.Still):
				err = errors.Join(err, fmt.Errorf("end the arrival of container %s: the start by %s does "+
					"not end", a.definition.Name, a.title))
			}
		}
	})
	return err
}
