package docker

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

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/door"
	"github.com/godwit/godwit/internal/engine/moving"
)

// Name of the engine, and of the runtime that must be known to it.
const (
	Name    = "docker"
	Runtime = "godwit"
)

// Where Docker listens, and keeps its files.
const (
	DefaultSocket  = "/run/docker.sock"
	DefaultDataDir = "/var/lib/docker"
)

// patience bounds a question to Docker that it answers at once unless it is busy with that very container.
const patience = 10 * time.Second

// listPatience bounds a list: who wants to know of all containers of the node must not wait for one engine.
const listPatience = 3 * time.Second

var idPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Config says where the engine keeps its files and finds Docker.
type Config struct {
	StateDir   string // the agent's; this engine's records are below it
	RunDir     string
	Socket     string // "" for DefaultSocket
	Executable string // this program; "" for the running one
}

// Engine moves containers of Docker. It implements engine.Engine.
type Engine struct {
	config Config
	api    *client.Client
	criu   *moving.CRIU

	mu       sync.Mutex
	locks    map[string]*sync.Mutex
	arrivals map[string]*arrival // of this process
	root     string              // Docker's directory, once it is known
	logs     map[string]os.FileInfo
}

var _ engine.Engine = (*Engine)(nil)

// New makes the engine. Docker need not run, or be there.
func New(config Config) (*Engine, error) {
	if config.Socket == "" {
		config.Socket = DefaultSocket
	}
	if config.Executable == "" {
		path, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		config.Executable = path
	}
	api, err := client.New(client.WithHost("unix://" + config.Socket))
	if err != nil {
		return nil, fmt.Errorf("client of Docker: %w", err)
	}
	e := &Engine{
		config: config, api: api, criu: &moving.CRIU{}, locks: map[string]*sync.Mutex{}, arrivals: map[string]*arrival{},
		logs: map[string]os.FileInfo{},
	}
	return e, nil
}

// Sweep removes what was made for moves that have not come to anything.
func (e *Engine) Sweep() error {
	entries, err := os.ReadDir(e.records(""))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("records of Docker's containers: %w", err)
	}
	for _, entry := range entries {
		id := entry.Name()
		if !idPattern.MatchString(id) || exists(e.arrivalPath(id)) || exists(e.departurePath(id)) {
			continue
		}
		if err := e.forget(id); err != nil {
			return err
		}
	}
	return nil
}

// Name of the engine.
func (e *Engine) Name() string { return Name }

// lock keeps other changes of a container away until the returned function is called.
func (e *Engine) lock(id string) (unlock func()) {
	e.mu.Lock()
	l := e.locks[id]
	if l == nil {
		l = &sync.Mutex{}
		e.locks[id] = l
	}
	e.mu.Unlock()
	l.Lock()
	return l.Unlock
}

// here tells whether this node has a Docker at all.
func (e *Engine) here() bool {
	_, err := os.Stat(e.config.Socket)
	return err == nil
}

// away is the error of who asks a Docker that is not here. It may have been stopped, and what it had may run on.
func (e *Engine) away() error {
	return fmt.Errorf("Docker: %w: nobody listens at %s", engine.ErrAway, e.config.Socket) //nolint:staticcheck // its name
}

// directory of Docker's own files.
func (e *Engine) directory(ctx context.Context) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.root != "" {
		return e.root, nil
	}
	info, err := e.api.Info(ctx, client.InfoOptions{})
	if err != nil {
		return "", fmt.Errorf("ask Docker where it keeps its files: %w", err)
	}
	e.root = info.Info.DockerRootDir
	return e.root, nil
}

// List tells of every container, in Docker's order. Error: engine.ErrAway.
func (e *Engine) List(ctx context.Context) ([]engine.Container, error) {
	if !e.here() {
		return nil, e.away()
	}
	asking, cancel := context.WithTimeout(ctx, listPatience)
	defer cancel()
	listed, err := e.api.ContainerList(asking, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("list the containers of Docker: %w", err)
	}
	var all []engine.Container
	for _, item := range listed.Items {
		one, err := e.describeListed(asking, item)
		if errors.Is(err, engine.ErrNotFound) { // removed meanwhile
			continue
		}
		if err != nil { // Docker is busy with it
			one = e.summary(item)
		}
		all = append(all, one)
	}
	return all, ctx.Err()
}

// summary is what a list tells of a container.
func (e *Engine) summary(item container.Summary) engine.Container {
	d := engine.Definition{EngineName: Name, ID: e.identity(item.ID, item.Labels), Image: item.Image, ImageID: item.ImageID, Labels: item.Labels}
	if len(item.Names) > 0 {
		d.Name = strings.TrimPrefix(item.Names[0], "/")
	}
	one := engine.Container{Definition: d, State: engine.Exited}
	switch item.State {
	case container.StateRunning, container.StatePaused:
		one.State = engine.Running
	case container.StateCreated:
		one.State = engine.Created
	}
	return one
}

// describeListed asks for all about a container of the list.
func (e *Engine) describeListed(ctx context.Context, item container.Summary) (engine.Container, error) {
	id := e.identity(item.ID, item.Labels)
	if one, arriving, err := e.arriving(id); arriving || err != nil {
		return one, err
	}
	found, err := e.ask(ctx, item.ID)
	if err != nil {
		return engine.Container{}, err
	}
	return e.describe(found)
}

// ask asks Docker about a container, by its own id or a name.
func (e *Engine) ask(ctx context.Context, ref string) (container.InspectResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	found, err := e.api.ContainerInspect(ctx, ref, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return container.InspectResponse{}, fmt.Errorf("container %.80q of Docker: %w", ref, engine.ErrNotFound)
	}
	if err != nil {
		return container.InspectResponse{}, fmt.Errorf("ask Docker about container %.80q: %w", ref, err)
	}
	if found.Container.State == nil || found.Container.Config == nil || found.Container.HostConfig == nil {
		return container.InspectResponse{}, fmt.Errorf("Docker says too little about container %.80q", ref) //nolint:staticcheck // its name
	}
	return found.Container, nil
}

// find finds a container by the id that all nodes know it by. Errors: engine.ErrNotFound; engine.ErrAway, of which nobody may conclude
// that the container does not run.
func (e *Engine) find(ctx context.Context, id string) (container.InspectResponse, error) {
	if !idPattern.MatchString(id) {
		return container.InspectResponse{}, fmt.Errorf("container %.80q of Docker: %w", id, engine.ErrNotFound)
	}
	if !e.here() {
		return container.InspectResponse{}, e.away()
	}
	own, err := e.dockerID(id)
	if err != nil {
		return container.InspectResponse{}, err
	}
	return e.ask(ctx, own)
}

// Inspect finds a container by name, id, or unique prefix of an id, as Docker does. Errors: engine.ErrNotFound, engine.ErrAway.
func (e *Engine) Inspect(ctx context.Context, ref string) (engine.Container, error) {
	if one, arriving, err := e.arriving(ref); arriving || err != nil {
		return one, err
	}
	if !e.here() {
		return engine.Container{}, e.away()
	}
	if idPattern.MatchString(ref) {
		found, err := e.find(ctx, ref)
		if err != nil {
			return engine.Container{}, err
		}
		return e.describeWhole(ctx, found)
	}
	found, err := e.ask(ctx, ref)
	if err != nil {
		return engine.Container{}, err
	}
	if one, arriving, err := e.arriving(e.identity(found.ID, found.Config.Labels)); arriving || err != nil {
		return one, err
	}
	return e.describeWhole(ctx, found)
}

// running finds a container that must be running and not be moving.
func (e *Engine) running(ctx context.Context, id string) (container.InspectResponse, error) {
	if _, arriving, err := e.arriving(id); arriving || err != nil {
		return container.InspectResponse{}, errors.Join(err, fmt.Errorf("container %.12s: %w: it is being moved", id, engine.ErrBusy))
	}
	found, err := e.find(ctx, id)
	if err != nil {
		return found, err
	}
	if !found.State.Running || found.State.Pid <= 0 {
		return found, fmt.Errorf("container %s: %w: it is %s", nameOf(found), engine.ErrNotRunning, found.State.Status)
	}
	return found, nil
}

// records is where this engine keeps what it must know of a container's move.
func (e *Engine) records(id string) string {
	return filepath.Join(e.config.StateDir, "engines", Name, id)
}

func (e *Engine) arrivalPath(id string) string { return filepath.Join(e.records(id), "arrival.json") }
func (e *Engine) departurePath(id string) string {
	return filepath.Join(e.records(id), "departure.json")
}
func (e *Engine) recordPath(id string) string { return filepath.Join(e.records(id), "resumed") }
func (e *Engine) private(id string) string    { return filepath.Join(e.records(id), "private") }

// workDir is for CRIU's logs of a container that leaves.
func (e *Engine) workDir(id string) string {
	return filepath.Join(e.config.RunDir, "engines", Name, id)
}

// place is where a container arrives, by Docker's id.
func (e *Engine) place(dockerID string) (door.Place, error) {
	return door.At(e.config.RunDir, dockerID)
}
