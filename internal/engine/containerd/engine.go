package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	namespaces "github.com/containerd/containerd/api/services/namespaces/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	version "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containernetworking/cni/libcni"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/contentstore"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/engine/shim"
)

// Name is the name of the engine.
const Name = "containerd"

// oldest is the oldest version that was tested.
const oldest = "1.6"

// DefaultSocket is containerd's default socket. In stateDir, containerd and its shims keep what does not
// survive a reboot.
const (
	DefaultSocket = "/run/containerd/containerd.sock"
	stateDir      = "/run/containerd"
)

// snapshotter is the snapshotter that uses overlays.
const snapshotter = oci.Snapshotter

// namePattern matches names that containerd accepts for namespaces and IDs (identifiers/validate.go).
var namePattern = regexp.MustCompile(`^[A-Za-z0-9]+(?:[._-](?:[A-Za-z0-9]+))*$`)

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

var _ oci.Adapter = (*adapter)(nil)

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

// engineID returns the engine's ID of a container; splitEngineID is its inverse.
func engineID(namespace, id string) string { return namespace + "/" + id }

func splitEngineID(engineID string) (namespace, id string) {
	namespace, id, _ = strings.Cut(engineID, "/")
	return namespace, id
}

// RestoreDir contains the namespace, too: runc gets it as the directory of its state.
func (a *adapter) RestoreDir(engineID string) string { return restoreDir(engineID) }

func restoreDir(engineID string) string { return shim.InRoot(splitEngineID(engineID)) }

// within returns a context for calls in a namespace.
func within(ctx context.Context, namespace string) context.Context {
	return contentstore.Within(ctx, namespace)
}

func missing(err error) bool { return status.Code(err) == codes.NotFound }

// runtimePath returns the path of godwit-runc: beside the program to which it is a link.
func (a *adapter) runtimePath() (string, error) {
	program, err := filepath.EvalSymlinks(a.executable)
	path := filepath.Join(filepath.Dir(program), shim.Program)
	if err == nil {
		_, err = os.Stat(path)
	}
	return path, err
}

// bundle returns the directory of a container's shim.
func bundle(namespace, id string) string {
	return filepath.Join(stateDir, "io.containerd.runtime.v2.task", namespace, id)
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
