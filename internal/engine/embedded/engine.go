package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/godwit/godwit/internal/criu"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
)

// Config says where the engine keeps its files and finds its tools.
type Config struct {
	StateDir   string
	RunDir     string
	Runc       string    // path; "" to look for it
	Criu       criu.Tool // zero to look for it when it is needed
	Images     Images
	Executable string // this program, which becomes monitors and restore proxies; "" for the running one
	ResolvConf string // "" for /etc/resolv.conf
	Cgroup     string // parent of the containers' cgroups; "" for /godwit
	// names the content of StateDir; if the name differs, the content may be older than what this node last
	// had
	State string
}

// Engine runs containers with runc. It implements engine.Engine by its parts, each of which has its own
// state.
type Engine struct {
	*catalog
	*life
	*logs
	*execs
	*meters
	*volumes
	*notes
	*restarts
	*processes
	*departures
	*halts
	*arrivals

	config Config
	paths  paths
}

var _ engine.Engine = (*Engine)(nil)

// New opens the engine. It starts nothing; running containers continue.
func New(config Config) (*Engine, error) {
	if config.Images == nil {
		return nil, errors.New("embedded engine: no source of images")
	}
	if config.Runc == "" {
		path, err := checkpoint.FindRunc()
		if err != nil {
			return nil, err
		}
		config.Runc = path
	}
	if config.Executable == "" {
		path, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		config.Executable = path
	}
	if config.ResolvConf == "" {
		config.ResolvConf = "/etc/resolv.conf"
	}
	if config.Cgroup == "" {
		config.Cgroup = "/godwit"
	}
	e := assemble(config)
	return e, e.prepare()
}

// assemble makes the engine of its parts, the lowest first.
func assemble(config Config) *Engine {
	p := paths{state: config.StateDir, run: config.RunDir, group: config.Cgroup}
	e := &Engine{config: config, paths: p}
	runtime, tool := runc{path: config.Runc, root: p.runcRoot()}, checkpoint.NewCRIU(config.Criu)
	e.catalog = &catalog{paths: p}
	e.logs = &logs{e.catalog}
	e.execs = &execs{e.catalog, runtime}
	e.meters = &meters{e.catalog, p}
	e.volumes = &volumes{e.catalog, p}
	e.notes = newNotes(e.catalog)
	e.restarts = &restarts{catalog: e.catalog, paths: p, notes: e.notes, state: config.State}
	files := &bundles{paths: p, images: config.Images, resolv: config.ResolvConf}
	e.processes = &processes{paths: p, runc: runtime, executable: config.Executable, bundles: files}
	e.life = &life{
		catalog: e.catalog, paths: p, bundles: files, volumes: e.volumes, processes: e.processes,
		notes: e.notes, restarts: e.restarts,
	}
	e.halts = &halts{
		catalog: e.catalog, paths: p, processes: e.processes, execs: e.execs, notes: e.notes,
	}
	e.departures = &departures{
		catalog: e.catalog, paths: p, processes: e.processes, volumes: e.volumes, notes: e.notes, criu: tool,
	}
	e.arrivals = &arrivals{
		catalog: e.catalog, paths: p, bundles: files, volumes: e.volumes, processes: e.processes,
		execs: e.execs, criu: tool,
	}
	return e
}

// prepare makes the engine's directories and finishes removals that a crash interrupted.
func (e *Engine) prepare() error {
	for _, dir := range []string{e.paths.containers(), e.paths.volumes(), e.paths.runContainers(),
		e.paths.runcRoot()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make directory of the embedded engine: %w", err)
		}
	}
	entries, err := os.ReadDir(e.paths.containers())
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), removingPrefix) {
			if err := os.RemoveAll(filepath.Join(e.paths.containers(), entry.Name())); err != nil {
				return fmt.Errorf("finish the removal of a container: %w", err)
			}
		}
		if idPattern.MatchString(entry.Name()) && e.keepNotesOf(entry.Name()) != nil {
			e.setPending(entry.Name()) // an agent must start on a full disk: KeepNotes retries, and reports
		}
	}
	_ = e.room.keep() // KeepNotes reports errors
	return nil
}

// Name of the engine.
func (e *Engine) Name() string { return Name }

// ResumeOf is Resume for a container that leaves by this migration: see departures.ResumeOf. It is a method
// of the Engine, so that who only passes it on needs no engine.
func (e *Engine) ResumeOf(ctx context.Context, id, migration string) error {
	return e.departures.ResumeOf(ctx, id, migration)
}
