package lxc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/patience"
)

// Name of the engine in definitions.
const Name = "lxc"

// oldest is the first version that was tried.
const oldest = "5.0"

// unifiedOnly is the first version that does not support settings of cgroup version 1, and rejects a
// configuration with them.
const unifiedOnly = "7"

// Config has the engine's directories and programs.
type Config struct {
	StateDir string
	RunDir   string
	Path     string // where LXC keeps containers; "" to ask LXC
	// this program, which becomes proxies and wrappers (package criu); "" for the running one
	Executable string
	Criu       *checkpoint.CRIU // nil to look for it when it is needed
}

// proxyDir has the link by which LXC finds this program as CRIU.
func (c Config) proxyDir() string { return filepath.Join(c.RunDir, "lxc", "gate-bin") }

// Engine is LXC on this node. It implements engine.Engine.
type Engine struct {
	config Config
	naming sync.Mutex // held while a container gets its id

	locks    checkpoint.Locks
	arrivals checkpoint.Arrivals

	listed patience.Limit // how long LXC may take for one container of a list

	mu     sync.Mutex
	firsts map[string]checkpoint.Identity // first processes of containers by name, as far as known
}

var _ engine.Engine = (*Engine)(nil)

// Installed reports whether LXC is on this node.
func Installed() bool {
	_, err := exec.LookPath("lxc-checkpoint")
	return err == nil
}

// Readiness examines this node's LXC, which needs no setup. Error: engine.ErrAway.
func Readiness(ctx context.Context) (engine.Readiness, error) {
	ready := engine.Readiness{Title: "LXC"}
	if !Installed() {
		return ready, fmt.Errorf("LXC: %w: there is no lxc-checkpoint", engine.ErrAway)
	}
	var err error
	ready.Version, err = version(ctx)
	ready.Problems = engine.TooOld(ready.Title, ready.Version, oldest)
	return ready, err
}

// version returns the version of LXC's tools.
func version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "lxc-checkpoint", "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask LXC for its version: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// New opens the engine. It starts nothing.
func New(config Config) (*Engine, error) {
	if config.Path == "" {
		out, err := exec.Command("lxc-config", "lxc.lxcpath").Output()
		if err != nil {
			return nil, fmt.Errorf("ask LXC where its containers are: %w", err)
		}
		config.Path = strings.TrimSpace(string(out))
	}
	if !filepath.IsAbs(config.Path) {
		return nil, fmt.Errorf("the directory of LXC's containers, %.80q, is not absolute", config.Path)
	}
	if config.Executable == "" {
		path, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		config.Executable = path
	}
	if config.Criu == nil {
		config.Criu = &checkpoint.CRIU{}
	}
	for _, dir := range []string{filepath.Join(config.StateDir, "lxc"), filepath.Join(config.RunDir, "lxc")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make directory for LXC containers: %w", err)
		}
	}
	if _, err := checkpoint.ProxyPath(config.proxyDir(), config.Executable); err != nil {
		return nil, err
	}
	return &Engine{config: config, listed: listLimit, firsts: map[string]checkpoint.Identity{}}, nil
}

// Name of the engine.
func (e *Engine) Name() string { return Name }

// lock blocks other changes of a container until the returned function is called.
func (e *Engine) lock(id string) (unlock func()) { return e.locks.Lock(id) }

// listLimit is how long lxc-info may take for one container of a list. It does not bound the whole list: a
// monitor that hangs must not hide all other containers.
var listLimit = patience.Limit{Still: 3 * time.Second, Most: 20 * time.Second}

// toolLimit is how long one of LXC's tools may take to answer.
var toolLimit = patience.Limit{Still: 20 * time.Second, Most: 4 * time.Minute}

// tool runs one of LXC's tools on a container and returns its output. Its error contains the tool's
// message.
func (e *Engine) tool(ctx context.Context, name, container string, args ...string) (string, error) {
	return e.toolWithin(ctx, toolLimit, name, container, args...)
}

func (e *Engine) toolWithin(
	ctx context.Context, limit patience.Limit, name, container string, args ...string,
) (string, error) {
	ctx, cancel := limit.For(ctx, name, patience.Programs("lxc-"))
	defer cancel()
	cmd := exec.CommandContext(ctx, name, append([]string{"-P", e.config.Path, "-n", container}, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s of container %s: %w: %s", name, container, patience.Explain(ctx, err),
			lastLine(stderr.String()))
	}
	return string(out), nil
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// cause is the first error in a log of LXC, with the output of other programs that LXC quotes. Later errors
// only follow from the first.
func cause(log string) string {
	_, text, found := strings.Cut(log, " ERROR ")
	if !found {
		return lastLine(log)
	}
	first, quoted, _ := strings.Cut(text, "\n")
	words := []string{strings.Join(strings.Fields(first), " ")}
	for line := range strings.Lines(quoted) {
		if strings.HasPrefix(line, "lxc-") {
			break
		}
		words = append(words, strings.TrimSpace(line))
	}
	return strings.TrimSpace(strings.Join(words, " "))
}

// List returns all containers, sorted by name. With an error, it returns those that it knows nevertheless.
// A container for which LXC does not answer is listed as damaged.
func (e *Engine) List(ctx context.Context) ([]engine.Container, error) {
	entries, err := os.ReadDir(e.config.Path)
	if errors.Is(err, fs.ErrNotExist) { // its file system may not be mounted
		return nil, fmt.Errorf("list LXC containers: %w: there is no %s", engine.ErrAway, e.config.Path)
	}
	if err != nil {
		return nil, fmt.Errorf("list LXC containers: %w", err)
	}
	monitors, err := e.monitors()
	if err != nil {
		return nil, err
	}
	var all []engine.Container
	var unknown error // of containers without an id
	for _, entry := range entries {
		if !namePattern.MatchString(entry.Name()) {
			continue
		}
		if !durable.Exists(filepath.Join(e.config.Path, entry.Name(), "config")) {
			if id := e.lacksConfig(entry.Name()); id != "" {
				all = append(all, engine.Container{Definition: engine.Definition{EngineName: Name, ID: id,
					Name: entry.Name()}, State: engine.Damaged})
			}
			continue
		}
		ctr, err := e.inspect(ctx, entry.Name(), monitors[entry.Name()], e.listed)
		if errors.Is(err, engine.ErrNotFound) { // removed meanwhile
			continue
		}
		if err != nil {
			ctr.State = engine.Damaged
		}
		if ctr.Definition.ID != "" {
			all = append(all, ctr)
		} else {
			unknown = errors.Join(unknown, err)
		}
	}
	slices.SortFunc(all,
		func(a, b engine.Container) int { return cmp.Compare(a.Definition.Name, b.Definition.Name) })
	return all, errors.Join(unknown, e.collectGarbage(), ctx.Err())
}

// lacksConfig returns the id of a container whose directory is there, but not its configuration, which a
// user may have moved away to edit it: lxc-destroy removes the whole directory. An arriving or leaving
// container has none for a moment.
func (e *Engine) lacksConfig(name string) string {
	own, err := e.ownOf(name)
	if err != nil || own.Name != name {
		return ""
	}
	if p := e.place(own.ID, name); durable.Exists(p.arrival()) || durable.Exists(p.departure()) {
		return ""
	}
	return own.ID
}

// Inspect finds a container by name, id, or unique prefix of an id.
func (e *Engine) Inspect(ctx context.Context, ref string) (engine.Container, error) {
	if namePattern.MatchString(ref) && durable.Exists(filepath.Join(e.config.Path, ref, "config")) {
		return e.named(ctx, ref)
	}
	all, err := e.List(ctx)
	all = slices.DeleteFunc(all, func(c engine.Container) bool {
		return ref == "" || !strings.HasPrefix(c.Definition.ID, ref) && c.Definition.Name != ref
	})
	switch {
	case len(all) == 1 && all[0].State == engine.Damaged:
		return e.damaged(ctx, all[0].Definition.Name)
	case len(all) == 1:
		return all[0], nil
	case len(all) > 1:
		return engine.Container{}, fmt.Errorf("LXC container %.80q: %w: %d ids begin so; give more of it",
			ref, engine.ErrNotFound, len(all))
	case err != nil: // it may be one of those
		return engine.Container{}, err
	}
	return engine.Container{}, fmt.Errorf("LXC container %.80q: %w", ref, engine.ErrNotFound)
}

// damaged describes a container about which nothing is known, with the reason.
func (e *Engine) damaged(ctx context.Context, name string) (engine.Container, error) {
	ctr, err := e.named(ctx, name)
	if errors.Is(err, engine.ErrNotFound) {
		err = fmt.Errorf("LXC container %s has no configuration: %s is not there", name,
			filepath.Join(e.config.Path, name, "config"))
	}
	return ctr, err
}

// named inspects the container of this name.
func (e *Engine) named(ctx context.Context, name string) (engine.Container, error) {
	monitors, err := e.monitors()
	if err != nil {
		return engine.Container{}, err
	}
	return e.inspect(ctx, name, monitors[name], toolLimit)
}

// inspect combines what LXC and the kernel report about one container. limit is how long LXC may take.
func (e *Engine) inspect(
	ctx context.Context, name string, watched bool, limit patience.Limit,
) (engine.Container, error) {
	var ctr engine.Container
	text, err := readConfig(filepath.Join(e.config.Path, name, "config"))
	if aside := filepath.Join(e.config.Path, name, asideName); err == nil && durable.Exists(aside) {
		text, err = readConfig(aside) // the container is leaving, or was
	}
	if errors.Is(err, fs.ErrNotExist) {
		return ctr, fmt.Errorf("LXC container %s: %w", name, engine.ErrNotFound)
	}
	if err != nil {
		return ctr, err
	}
	id, err := e.identityOf(name, watched)
	if err != nil {
		return ctr, fmt.Errorf("LXC container %s: %w", name, err)
	}
	ctr.Definition = engine.Definition{EngineName: Name, ID: id, Name: name,
		Engine: encodeExtra(extra{Config: text})}
	ctr.State = engine.Exited
	settings, err := parseConfig(text)
	if err == nil {
		settings, err = expand(settings)
	}
	if err != nil {
		return ctr, fmt.Errorf("LXC container %s: %w", name, err)
	}
	describe(&ctr.Definition, settings)
	return ctr, e.addProcesses(ctx, &ctr, watched, limit)
}

// describe fills in a definition from the configuration.
func describe(d *engine.Definition, settings []setting) {
	d.Hostname = cmp.Or(last(settings, "lxc.uts.name"), d.Name)
	d.Args = strings.Fields(cmp.Or(last(settings, "lxc.init.cmd"), "/sbin/init"))
	d.Limits.MemoryBytes = memoryLimit(settings)
	if network, err := networkOf(settings); err == nil {
		d.Network = network
	}
}

// addProcesses adds the state of a container, and the properties of a running one.
func (e *Engine) addProcesses(
	ctx context.Context, ctr *engine.Container, watched bool, limit patience.Limit,
) error {
	p := e.place(ctr.Definition.ID, ctr.Definition.Name)
	if was, err := e.departureOf(ctr.Definition.ID); !errors.Is(err, fs.ErrNotExist) {
		ctr.Leaving = &was.Leave // an unreadable record only says that the container leaves
	}
	if durable.Exists(p.arrival()) && !durable.Exists(p.resumed()) {
		ctr.State = engine.Arriving
		return nil
	}
	if !watched {
		return nil
	}
	first, err := e.first(ctx, ctr.Definition.Name, limit)
	if err != nil || first.PID == 0 {
		return err
	}
	ctr.State, ctr.PID = engine.Running, first.PID
	if group, err := containerGroup(first.PID); err == nil && durable.Exists(p.departure()) {
		if frozen, err := group.ToldToFreeze(); err == nil && frozen {
			ctr.State = engine.Frozen
		}
	}
	ctr.Started = startOf(first.PID)
	if !ctr.Definition.Network.Address.IsValid() {
		return nil
	}
	addInterface(&ctr.Definition.Network, first.PID)
	return nil
}

// startOf returns when a process was started, or restored, according to its directory in /proc.
func startOf(pid int) time.Time {
	info, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime().UTC()
}

// first finds a container's first process, and remembers it.
func (e *Engine) first(ctx context.Context, name string, limit patience.Limit) (checkpoint.Identity, error) {
	e.mu.Lock()
	known := e.firsts[name]
	e.mu.Unlock()
	if known.Alive() {
		return known, nil
	}
	pid, err := e.firstProcess(ctx, name, limit)
	if err != nil || pid == 0 {
		return checkpoint.Identity{}, err
	}
	if known, err = checkpoint.Identify(pid); err != nil {
		return checkpoint.Identity{}, nil // it has just ended
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.firsts[name] = known
	return known, nil
}

// running finds a running container.
func (e *Engine) running(ctx context.Context, id string) (engine.Container, error) {
	ctr, err := e.Inspect(ctx, id)
	if err == nil && ctr.State != engine.Running && ctr.State != engine.Frozen {
		err = fmt.Errorf("LXC container %s: %w", ctr.Definition.Name, engine.ErrNotRunning)
	}
	return ctr, err
}

// groupOf returns the cgroup of a running container.
func groupOf(ctr engine.Container) (*cgroup.Cgroup, error) {
	group, err := containerGroup(ctr.PID)
	if err != nil {
		return nil, fmt.Errorf("LXC container %s: %w", ctr.Definition.Name, err)
	}
	return group, nil
}
