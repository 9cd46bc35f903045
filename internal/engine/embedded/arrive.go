package embedded

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/engine/embedded/account"
	"github.com/godwit/godwit/internal/engine/mounts"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/patience"
)

// arrivalLimit is how long runc may take to reach its restore proxy.
var arrivalLimit = patience.Limit{Still: 30 * time.Second, Most: 5 * time.Minute}

// arrivals makes containers that come from other nodes.
type arrivals struct {
	catalog   *catalog
	paths     paths
	bundles   *bundles
	volumes   *volumes
	processes *processes
	execs     *execs
	criu      *checkpoint.CRIU
	waiting   checkpoint.Arrivals
}

// Reserve lists the obstacles to restoring this container here.
func (r *arrivals) Reserve(ctx context.Context, d engine.Definition) ([]engine.Problem, error) {
	problems, err := r.ReserveAnew(ctx, d)
	if err != nil {
		return nil, err
	}
	if _, err := r.criu.Tool(); err != nil {
		problems = append(problems, engine.Problem{What: "CRIU", Why: err.Error(),
			Remedy: "run \"godwit doctor\" on this node"})
	}
	spec, err := r.bundles.specOf(d, "", account.Account{Home: "/"})
	if err != nil {
		return nil, err
	}
	return append(problems, checkpoint.CallObstacles("Godwit", spec.Linux.Seccomp, d.Passed)...), nil
}

// ReserveAnew lists the obstacles to making this container here.
func (r *arrivals) ReserveAnew(ctx context.Context, d engine.Definition) ([]engine.Problem, error) {
	if err := validate(d); err != nil {
		return nil, err
	}
	all, err := r.catalog.List(ctx)
	if err != nil {
		return nil, err
	}
	var problems []engine.Problem
	add := func(what, why, remedy string) {
		problems = append(problems, engine.Problem{What: what, Why: why, Remedy: remedy})
	}
	for _, ctr := range all {
		switch {
		case ctr.Definition.ID == d.ID:
			add("container "+d.Name, "it is here already ("+string(ctr.State)+")",
				"remove what is left of it on this node")
		case ctr.Definition.Name == d.Name:
			add("name "+d.Name, "a container on this node has it", "remove or rename that container")
		}
	}
	found, err := r.volumes.reserveVolumes(all, d)
	if err != nil {
		return nil, err
	}
	return append(problems, found...), nil
}

// arrival is a container that waits for its state, with everything that was started for it.
type arrival struct {
	arrivals   *arrivals
	definition engine.Definition
	files      container
	coming     *checkpoint.Coming // nil: no state comes, or not yet
	reports    *os.File           // of the monitor
	monitor    chan error
	once       sync.Once
	settled    chan struct{} // closed when the monitor has the container, or there is none
	patience   time.Duration // see closePatience
}

var _ engine.Arrival = (*arrival)(nil)

// PrepareRestore prepares a container that will be restored here. When it returns, `runc restore` waits at
// its last step before it needs the state.
func (r *arrivals) PrepareRestore(
	ctx context.Context, d engine.Definition, netns string,
) (engine.Arrival, error) {
	problems, err := r.Reserve(ctx, d)
	if err == nil {
		err = refusal(d, problems)
	}
	if err != nil {
		return nil, err
	}
	a, err := r.expect(ctx, d, func(a *arrival) error { return a.prepare(ctx, netns) })
	if err != nil {
		return nil, err
	}
	return a, nil
}

// refusal makes an error of the obstacles to an arrival.
func refusal(d engine.Definition, problems []engine.Problem) error {
	if len(problems) == 0 {
		return nil
	}
	p := problems[0]
	return fmt.Errorf("prepare the arrival of container %s: %s: %s", d.Name, p.What, p.Why)
}

// expect makes an arrival and prepares it.
func (r *arrivals) expect(
	ctx context.Context, d engine.Definition, prepare func(*arrival) error,
) (*arrival, error) {
	unlockNames := r.catalog.lock("")
	defer unlockNames()
	defer r.catalog.lock(d.ID)()
	if err := r.catalog.nameFree(ctx, d); err != nil {
		return nil, err
	}
	a := &arrival{arrivals: r, definition: d, files: r.paths.of(d.ID), settled: make(chan struct{}),
		patience: closePatience}
	if err := prepare(a); err != nil {
		cleanup := context.WithoutCancel(ctx)
		return nil, errors.Join(fmt.Errorf("prepare the arrival of container %s: %w", d.Name, err), a.Close(),
			r.discard(cleanup, a.files))
	}
	r.waiting.Add(d.ID, a)
	return a, nil
}

// prepare makes everything that can be made before the state has come.
func (a *arrival) prepare(ctx context.Context, netns string) error {
	tool, err := a.arrivals.criu.Tool()
	if err != nil {
		return err
	}
	if err := a.makeFiles(netns, false); err != nil {
		return err
	}
	if err := a.makeImages(); err != nil {
		return err
	}
	// runc makes mount points in the root file system now, which also come with the writable directory. So
	// runc gets an empty root, and CRIU finally gets the real one: until then nothing needs the image's
	// layers.
	if err := mounts.Scratch(a.files.rootfs()); err != nil {
		return err
	}
	a.coming, err = checkpoint.Expect(a.files.proxySocket(), a.files.images(),
		a.definition.Limits.MemoryBytes)
	if err != nil {
		return err
	}
	if err := a.startRestore(ctx, tool); err != nil {
		return err
	}
	return a.clearWay()
}

// makeFiles makes the container's directories. Once the first one exists, Discard knows what to remove.
func (a *arrival) makeFiles(netns string, anew bool) error {
	d := a.definition
	if err := os.MkdirAll(a.files.dir(), 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	record := a.arrivals.volumes.arrivalRecord(d, netns)
	record.Anew = anew
	if err := durable.Save(a.files.arrival(), record); err != nil {
		return err
	}
	if err := errors.Join(makeArriving(record.Made), a.arrivals.bundles.makeFiles(d)); err != nil {
		return err
	}
	if err := a.arrivals.bundles.makePrivate(d); err != nil {
		return err
	}
	if err := a.arrivals.bundles.saveSpec(d, netns, account.Account{Home: "/"}); err != nil {
		return err
	}
	d = own(d)
	if d.Passed = nil; !anew {
		d.Passed = checkpoint.KnownCalls(a.definition.Passed)
	}
	return durable.Save(a.files.definition(), d)
}

// makeImages makes the directory in memory for the state, with the files that runc reads when it starts.
func (a *arrival) makeImages() error {
	x, err := decodeExtra(a.definition)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(a.files.criuWork(), 0o700); err != nil {
		return fmt.Errorf("make directory for CRIU's log: %w", err)
	}
	if err := mounts.Memory(a.files.images()); err != nil {
		return err
	}
	if err := mountMemories(a.files, a.definition); err != nil {
		return err
	}
	if x.Stdio == nil {
		x.Stdio = []string{"", "", ""}
	}
	return criu.WriteDescriptors(a.files.images(), x.Stdio)
}

// startRestore starts the container's monitor, which starts `runc restore`, which starts this
// program as CRIU: the restore proxy.
func (a *arrival) startRestore(ctx context.Context, tool criu.Tool) error {
	path, err := checkpoint.ProxyPath(a.arrivals.paths.tools(), a.arrivals.processes.executable)
	if err != nil {
		return err
	}
	settings := criu.ProxySettings{
		Socket: a.files.proxySocket(), Record: a.files.resumed(), Tool: tool, CgroupNamespace: unified(),
	}
	environment := append(criu.ProxyEnv(settings), "PATH="+path)
	a.reports, err = a.arrivals.processes.startMonitor(a.files, job{
		Terminal: a.definition.TTY,
		Restore: &restoreJob{
			Environment: environment, Images: a.files.images(), Work: a.files.criuWork(),
		},
	})
	if err != nil {
		return err
	}
	ctx, cancel := arrivalLimit.For(ctx, "runc", patience.Programs("runc", "criu"))
	defer cancel()
	a.monitor = make(chan error, 1)
	go a.watch(cancel)
	if err := a.coming.WaitReady(ctx); err != nil {
		select { // runc's error says more than a missing restore proxy
		case monitorErr := <-a.monitor:
			a.monitor <- monitorErr
			return errors.Join(monitorErr, err)
		default:
			return err
		}
	}
	return nil
}

// watch waits for the monitor's report on the outcome of the restore.
func (a *arrival) watch(failed func()) {
	defer close(a.settled)
	decoder := json.NewDecoder(a.reports)
	answer, err := readReport(decoder)
	if err == nil && answer.Waiting {
		answer, err = readReport(decoder)
	}
	a.monitor <- err
	if err != nil {
		failed()
	}
}

// clearWay removes what only runc's preparation needed, so that the trees come into empty directories.
func (a *arrival) clearWay() error {
	err := errors.Join(mounts.Unmount(a.files.rootfs()), mountMemories(a.files, a.definition),
		a.clearVolumes())
	if err != nil {
		return err
	}
	return a.clearPrivate()
}

// clearPrivate removes the placeholders of private files that are still to come.
func (a *arrival) clearPrivate() error {
	for _, name := range privateMounts() {
		if err := os.Remove(filepath.Join(a.files.private(), name)); err != nil {
			return fmt.Errorf("remove placeholder: %w", err)
		}
	}
	return nil
}

// ImagesDir returns the directory, in memory, into which the execution state must be written.
func (a *arrival) ImagesDir() string { return a.files.images() }

// TreePath returns where to put the content of the source's tree of this kind and name.
func (a *arrival) TreePath(kind files.TreeKind, name string) (string, error) {
	switch {
	case kind == files.Writable && name == "":
		return a.files.upper(), nil
	case kind == files.Private && name == "":
		return a.files.private(), nil
	case kind == files.Memory && name == treeShm:
		return a.files.shm(), nil
	}
	for i, v := range a.definition.Volumes {
		if kind == treeKind(v) && name == v.Key() && !v.Stays {
			return a.files.volumePath(i, v), nil
		}
	}
	return "", fmt.Errorf("container %s has no tree %.40q of kind %.40q", a.definition.Name, name, kind)
}

// Restore makes the processes from the state that has arrived so far.
func (a *arrival) Restore(ctx context.Context, permission engine.Permission) (time.Time, error) {
	unlock := a.arrivals.catalog.lock(a.definition.ID)
	fail := func(err error) (time.Time, error) {
		unlock()
		return time.Time{}, fmt.Errorf("restore container %s: %w", a.definition.Name, err)
	}
	// The container must not choose the log's type: what came in its place must be a regular file.
	if err := checkPrivate(a.files); err != nil {
		return fail(err)
	}
	if err := a.arrivals.bundles.mountRoot(a.definition); err != nil {
		return fail(err)
	}
	resumed, err := a.coming.GoOn(ctx, a.files.rootfs(), permission)
	if err != nil {
		return fail(err)
	}
	// runc ends after the container runs. Other operations on the container wait for that.
	go func() {
		defer unlock()
		<-a.settled
		_ = a.arrivals.settleArrival(context.WithoutCancel(ctx), a.files) // Arrived repeats it
	}()
	return resumed.At, nil
}

// checkPrivate refuses private files that this engine would not have written: they come from another node.
func checkPrivate(place container) error {
	entries, err := os.ReadDir(place.private())
	if err != nil {
		return fmt.Errorf("look at the private files: %w", err)
	}
	for _, entry := range entries {
		if !entry.Type().IsRegular() {
			return fmt.Errorf("private file %.80q is not a regular file", entry.Name())
		}
	}
	for _, name := range privateMounts() {
		if !durable.Exists(filepath.Join(place.private(), name)) {
			return fmt.Errorf("private file %s has not come", name)
		}
	}
	return nil
}

// Close undoes PrepareRestore if the container has not been resumed.
func (a *arrival) Close() error {
	var err error
	a.once.Do(func() {
		a.arrivals.waiting.Remove(a.definition.ID, a)
		if a.coming != nil {
			err = a.coming.Close() // this ends a waiting restore proxy, then runc, then the monitor
		}
		if a.monitor != nil {
			err = errors.Join(err, a.awaitSettled())
		}
		if a.reports != nil {
			err = errors.Join(err, a.reports.Close())
		}
	})
	return err
}

// clearVolumes removes the mount points that runc has made in volumes whose contents are still to come.
func (a *arrival) clearVolumes() error {
	spec, err := loadSpec(a.files)
	if err != nil {
		return err
	}
	for i, v := range a.definition.Volumes {
		if v.Stays || v.Sort() == engine.Tmpfs {
			continue
		}
		root := a.files.volumePath(i, v)
		for _, m := range spec.Mounts {
			if m.Destination == v.Path || !engine.Within(m.Destination, v.Path) {
				continue
			}
			place := filepath.Join(root, strings.TrimPrefix(m.Destination, v.Path))
			if info, err := os.Lstat(place); err == nil &&
				(info.IsDir() || info.Mode().IsRegular() && info.Size() == 0) {
				// empty directories only
				for ; place != root && os.Remove(place) == nil; place = filepath.Dir(place) {
				}
			}
		}
	}
	return nil
}
