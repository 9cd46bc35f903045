package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
)

// Names of the engine, and of the runtime that Docker must have.
const (
	Name    = "docker"
	title   = "Docker"
	Runtime = oci.Runtime
)

// oldest is the oldest version that was tested.
const oldest = "20.10"

// Docker's default socket and directory.
const (
	DefaultSocket  = "/run/docker.sock"
	DefaultDataDir = "/var/lib/docker"
)

// Config says where the engine keeps its files and finds Docker.
type Config struct {
	StateDir   string // the agent's; this engine's records are below it
	RunDir     string
	Socket     string // "" for DefaultSocket
	Executable string // this program; "" for the running one
}

// Engine moves containers of Docker. It implements engine.Engine.
type Engine struct {
	*oci.Engine
	docker *adapter
	images *imageStore
}

var _ engine.Engine = (*Engine)(nil)

// New makes the engine. Docker need not run, or be installed.
func New(config Config) (*Engine, error) {
	docker, err := newAdapter(config.Socket)
	if err != nil {
		return nil, err
	}
	e, err := oci.New(oci.Config{StateDir: config.StateDir, RunDir: config.RunDir,
		Executable: config.Executable}, docker)
	if err != nil {
		return nil, err
	}
	return &Engine{Engine: e, docker: docker, images: &imageStore{docker: docker}}, nil
}

// adapter uses Docker's API, by its parts.
type adapter struct {
	*server
	*ownContents
	*volumes
	*starts
	*logFiles

	mu sync.Mutex
	// routed tells, by Docker's network ID, whether the network is routed: see engine.RoutedNetwork.
	routed map[string]bool
}

// server is Docker's daemon.
type server struct {
	socket string
	*connection

	mu   sync.Mutex
	root string // Docker's directory, once known
}

var _ oci.Adapter = (*adapter)(nil)

func newAdapter(socket string) (*adapter, error) {
	if socket == "" {
		socket = DefaultSocket
	}
	connected, err := connect(socket)
	if err != nil {
		return nil, err
	}
	s := &server{socket: socket, connection: connected}
	return &adapter{
		server: s, ownContents: &ownContents{server: s}, volumes: &volumes{s}, starts: &starts{s},
		logFiles: &logFiles{s}, routed: map[string]bool{},
	}, nil
}

// Name of the engine.
func (a *adapter) Name() string { return Name }

// Title returns the engine's name in messages.
func (a *adapter) Title() string { return title }

// Away says why Docker is not available. It may have been stopped, while its containers run on.
func (a *server) Away() error {
	if _, err := os.Stat(a.socket); err != nil {
		return fmt.Errorf("Docker: %w: nothing listens at %s", //nolint:staticcheck // its name
			engine.ErrAway,
			a.socket)
	}
	return nil
}

// directory returns the directory of Docker's own files.
func (a *server) directory(ctx context.Context) (string, error) {
	a.mu.Lock()
	known := a.root
	a.mu.Unlock()
	if known != "" {
		return known, nil
	}
	info, err := a.api(ctx).Info(ctx, client.InfoOptions{})
	if err != nil {
		return "", fmt.Errorf("ask Docker where it keeps its files: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.root = info.Info.DockerRootDir
	return a.root, nil
}

// List lists all containers.
func (a *adapter) List(ctx context.Context, busy func(string) bool) ([]oci.Container, error) {
	listed, err := a.api(ctx).ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, err
	}
	var all []oci.Container
	for _, item := range listed.Items {
		found := summary(item)
		if !busy(item.ID) {
			whole, err := a.Find(ctx, item.ID)
			if errors.Is(err, engine.ErrNotFound) { // removed meanwhile
				continue
			}
			if err == nil { // otherwise Docker is busy with the container
				found = whole
			}
		}
		all = append(all, found)
	}
	return all, nil
}

// summary returns what a list says about a container.
func summary(item container.Summary) oci.Container {
	d := engine.Definition{ID: item.ID, Image: item.Image, ImageID: item.ImageID, Labels: item.Labels}
	if len(item.Names) > 0 {
		d.Name = strings.TrimPrefix(item.Names[0], "/")
	}
	ctr := engine.Container{Definition: d, State: engine.Exited}
	switch item.State {
	case container.StateRunning, container.StatePaused:
		ctr.State = engine.Running
	case container.StateCreated:
		ctr.State = engine.Created
	}
	return oci.Container{ID: item.ID, Container: ctr}
}

// Find queries Docker for a container.
func (a *adapter) Find(ctx context.Context, ref string) (oci.Container, error) {
	found, err := a.api(ctx).ContainerInspect(ctx, ref, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return oci.Container{}, fmt.Errorf("container %.80q of Docker: %w", ref, engine.ErrNotFound)
	}
	if err != nil {
		return oci.Container{}, fmt.Errorf("ask Docker about container %.80q: %w", ref, err)
	}
	c := found.Container
	if c.State == nil || c.Config == nil || c.HostConfig == nil {
		//nolint:staticcheck // its name
		return oci.Container{}, fmt.Errorf("Docker says too little about container %.80q",
			ref)
	}
	ctr := describe(c)
	if own := &ctr.Definition.Network; own.OnBridge() {
		own.Routed = a.isRouted(ctx, c.NetworkSettings.Networks[own.Bridge])
	}
	restart, err := json.Marshal(c.HostConfig.RestartPolicy)
	return oci.Container{ID: c.ID, Container: ctr, Paused: c.State.Paused, Restart: restart, Native: c}, err
}

// native returns Docker's answer about a container.
func native(found oci.Container) container.InspectResponse {
	told, _ := found.Native.(container.InspectResponse) // Find has put it there
	return told
}

// Process finds a container's shim and runc's state of it.
func (a *adapter) Process(found oci.Container) (oci.Process, error) {
	return oci.ShimProcess(found, filepath.Join(filepath.Dir(a.socket), "docker", "runtime-*", "moby",
		found.ID, "state.json"))
}
