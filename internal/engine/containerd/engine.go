package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	version "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containernetworking/cni/libcni"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/contentstore"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/shim"
)

// Config says where the engine keeps its files and finds containerd.
type Config struct {
	StateDir   string // the agent's; this engine's records are below it
	RunDir     string
	Executable string // this program; "" for the running one
}

// Engine moves containers of containerd. It implements engine.Engine.
type Engine struct {
	*oci.Engine
	containerd *adapter
}

var _ engine.Engine = (*Engine)(nil)

// New makes the engine. containerd need not run, or be installed.
func New(config Config) (*Engine, error) {
	if config.Executable == "" {
		path, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		config.Executable = path
	}
	made, err := newAdapter(DefaultSocket)
	if err != nil {
		return nil, err
	}
	made.executable = config.Executable
	made.run = filepath.Join(config.RunDir, "engines", Name+"-exec")
	made.networks.directory = filepath.Join(config.StateDir, "engines", Name+"-networks")
	made.logFiles = logFiles{filepath.Join(config.StateDir, "engines", Name+"-logs")}
	e, err := oci.New(oci.Config{StateDir: config.StateDir, RunDir: config.RunDir,
		Executable: config.Executable}, made)
	if err != nil {
		return nil, err
	}
	return &Engine{Engine: e, containerd: made}, nil
}

// SweepImages removes what was made, before a time, for images that have not come.
func (e *Engine) SweepImages(ctx context.Context, before time.Time) error {
	ctx, cancel := asking(ctx)
	defer cancel()
	return e.containerd.images.Sweep(ctx, before)
}

// adapter uses containerd's API, by its parts.
type adapter struct {
	*networks
	noVolumes
	logFiles
	changes

	socket     string
	executable string
	run        string // directory of what does not survive a reboot
	namespaces namespaces.NamespacesClient
	containers containers.ContainersClient
	tasks      tasks.TasksClient
	snapshots  snapshots.SnapshotsClient
	version    version.VersionClient
	images     *contentstore.Store
	starting   processesMade
}

var (
	_ oci.Adapter = (*adapter)(nil)
	_ oci.Guarder = (*adapter)(nil)
	_ oci.Marker  = (*adapter)(nil)
)

func newAdapter(socket string) (*adapter, error) {
	connection, err := contentstore.Dial(socket)
	if err != nil {
		return nil, fmt.Errorf("client of containerd: %w", err)
	}
	a := &adapter{
		socket: socket, namespaces: namespaces.NewNamespacesClient(connection),
		containers: containers.NewContainersClient(connection),
		tasks:      tasks.NewTasksClient(connection), snapshots: snapshots.NewSnapshotsClient(connection),
		version:  version.NewVersionClient(connection),
		starting: processesMade{all: map[string]bool{}},
		networks: &networks{
			cni: libcni.NewCNIConfig(pluginDirs(), &pluginExec{}), adding: make(chan struct{}, 1),
		},
	}
	a.changes = changes{a.containers}
	a.images = contentstore.New(contentstore.Config{
		Connection: connection, Away: a.Away, Check: checkNamespace,
		// not changed, as for Kubernetes' images: names are the operator's
		Name: func(id, _ string) string { return id },
	})
	return a, nil
}

// Name of the engine.
func (a *adapter) Name() string { return Name }

// Title returns the engine's name in messages.
func (a *adapter) Title() string { return Name }

// Away says why containerd is not available.
func (a *adapter) Away() error {
	if _, err := os.Stat(a.socket); err != nil {
		return fmt.Errorf("containerd: %w: nothing listens at %s", engine.ErrAway, a.socket)
	}
	return nil
}

// RestoreDir contains the namespace, too: runc gets it as the directory of its state.
func (a *adapter) RestoreDir(engineID string) string { return restoreDir(engineID) }

// runtimePath returns the path of godwit-runc: beside the program to which it is a link.
func (a *adapter) runtimePath() (string, error) {
	program, err := filepath.EvalSymlinks(a.executable)
	path := filepath.Join(filepath.Dir(program), shim.Program)
	if err == nil {
		_, err = os.Stat(path)
	}
	return path, err
}

// Process finds a container's shim and runc's state of it.
func (a *adapter) Process(found oci.Container) (oci.Process, error) {
	namespace, id := splitEngineID(found.ID)
	return oci.ShimProcess(found, filepath.Join(stateDir, "runc", namespace, id, "state.json"))
}

var errNoVolumes = errors.New("containerd has no volumes")

// noVolumes: containerd has no volumes, and runc mounts /dev/shm.
type noVolumes struct{}

// VolumePath fails: containerd has no volumes.
func (noVolumes) VolumePath(engine.Volume) (string, error) { return "", errNoVolumes }

// RemoveVolume does nothing: there are no volumes.
func (noVolumes) RemoveVolume(context.Context, string) error { return nil }

// MadeFor is false: there are no volumes.
func (noVolumes) MadeFor(context.Context, string, string, string) (bool, error) { return false, nil }

// Shm returns "": runc mounts it.
func (noVolumes) Shm(oci.Container) string { return "" }

// processesMade are containers whose processes are being made, by the engine's IDs.
type processesMade struct {
	mu  sync.Mutex
	all map[string]bool
}

// has reports whether a container's processes are being made.
func (p *processesMade) has(engineID string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.all[engineID]
}

// begin notes that a container's processes are being made, until the returned function is called.
func (p *processesMade) begin(engineID string) (done func()) {
	p.set(engineID, true)
	return func() { p.set(engineID, false) }
}

func (p *processesMade) set(engineID string, is bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if is {
		p.all[engineID] = true
	} else {
		delete(p.all, engineID)
	}
}
