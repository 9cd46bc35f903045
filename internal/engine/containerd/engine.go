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

// Name of the engine.
const Name = "containerd"

// oldest is the first version that was tried.
const oldest = "1.6"

// DefaultSocket is where containerd listens, and stateDir where it and its shims keep what is gone
// after a reboot.
const (
	DefaultSocket = "/run/containerd/containerd.sock"
	stateDir      = "/run/containerd"
)

// snapshotter is the one whose snapshots are overlays.
const snapshotter = oci.Snapshotter

// namePattern is what containerd allows as a namespace and as an id (identifiers/validate.go).
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

// New makes the engine. containerd need not run, or be there.
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
	made.networks = filepath.Join(config.StateDir, "engines", Name+"-networks")
	made.logs = filepath.Join(config.StateDir, "engines", Name+"-logs")
	e, err := oci.New(oci.Config{StateDir: config.StateDir, RunDir: config.RunDir,
		Executable: config.Executable}, made)
	if err != nil {
		return nil, err
	}
	return &Engine{Engine: e, containerd: made}, nil
}

// Images are those of containerd's own store.
func (e *Engine) Images() engine.Images { return e.containerd.images }

// SweepImages removes what was made of images that have not come, before a time.
func (e *Engine) SweepImages(ctx context.Context, before time.Time) error {
	ctx, cancel := asking(ctx)
	defer cancel()
	return e.containerd.images.Sweep(ctx, before)
}

// adapter asks containerd by its API.
type adapter struct {
	socket     string
	executable string
	logs       string // directory of the output of containers that have come
	run        string // directory of what is gone after a reboot
	networks   string // directory of what plugins of CNI have been told of containers that have come
	cni        *libcni.CNIConfig
	namespaces namespaces.NamespacesClient
	containers containers.ContainersClient
	tasks      tasks.TasksClient
	snapshots  snapshots.SnapshotsClient
	version    version.VersionClient
	images     *contentstore.Store

	adding   chan struct{} // holds who has plugins connect a container, see add
	mu       sync.Mutex
	starting map[string]bool // engine's IDs of containers whose processes are being made
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
		starting: map[string]bool{}, adding: make(chan struct{}, 1),
		cni: libcni.NewCNIConfig(pluginDirs(), &pluginExec{}),
	}
	a.images = contentstore.New(contentstore.Config{
		Connection: connection, Away: a.Away, Check: checkNamespace,
		// as those of Kubernetes' have: names are the operator's
		Name: func(id, _ string) string { return id },
	})
	return a, nil
}

// Name of the engine.
func (a *adapter) Name() string { return Name }

// Title is its name for people.
func (a *adapter) Title() string { return Name }

// Away is why containerd is not here.
func (a *adapter) Away() error {
	if _, err := os.Stat(a.socket); err != nil {
		return fmt.Errorf("containerd: %w: nothing listens at %s", engine.ErrAway, a.socket)
	}
	return nil
}

// engineID is the engine's ID of a container, which splitEngineID takes apart.
func engineID(namespace, id string) string { return namespace + "/" + id }

func splitEngineID(engineID string) (namespace, id string) {
	namespace, id, _ = strings.Cut(engineID, "/")
	return namespace, id
}

// RestoreDir is named after the namespace, too: runc learns that by the directory of its state.
func (a *adapter) RestoreDir(engineID string) string { return shim.InRoot(splitEngineID(engineID)) }

// within says in which namespace a question is meant.
func within(ctx context.Context, namespace string) context.Context {
	return contentstore.Within(ctx, namespace)
}

func missing(err error) bool { return status.Code(err) == codes.NotFound }

// RuntimePath is where godwit-runc is: beside the program that it is.
func (a *adapter) runtimePath() (string, error) {
	program, err := filepath.EvalSymlinks(a.executable)
	path := filepath.Join(filepath.Dir(program), shim.Program)
	if err == nil {
		_, err = os.Stat(path)
	}
	return path, err
}

// bundle is the directory of a container's shim.
func bundle(namespace, id string) string {
	return filepath.Join(stateDir, "io.containerd.runtime.v2.task", namespace, id)
}

// Process finds the shim of a container and what runc knows of it.
func (a *adapter) Process(found oci.Container) (oci.Process, error) {
	namespace, id := splitEngineID(found.ID)
	return oci.ShimProcess(found, filepath.Join(stateDir, "runc", namespace, id, "state.json"))
}

var errNoVolumes = errors.New("containerd has no volumes")

// VolumePath is of none.
func (a *adapter) VolumePath(engine.Volume) (string, error) { return "", errNoVolumes }

// RemoveVolume removes none.
func (a *adapter) RemoveVolume(context.Context, string) error { return nil }

// MadeFor tells that none was.
func (a *adapter) MadeFor(context.Context, string, string, string) (bool, error) { return false, nil }

// Shm is none: runc makes it.
func (a *adapter) Shm(oci.Container) string { return "" }

func (a *adapter) isStarting(engineID string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.starting[engineID]
}

func (a *adapter) setStarting(engineID string, is bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if is {
		a.starting[engineID] = true
	} else {
		delete(a.starting, engineID)
	}
}
