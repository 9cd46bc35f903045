package lxc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/patience"
)

// listLimit is how long lxc-info may take for one container of a list. It does not bound the whole list: a
// monitor that hangs must not hide all other containers.
var listLimit = patience.Limit{Still: 3 * time.Second, Most: 20 * time.Second}

// catalog combines what LXC, the disk and the kernel know about containers. Its locks keep changes of a
// container apart.
type catalog struct {
	config     Config
	identities *identities
	tools      *tools
	locks      checkpoint.Locks
	listed     patience.Limit // how long LXC may take for one container of a list
}

// lock blocks other changes of a container until the returned function is called.
func (c *catalog) lock(id string) (unlock func()) { return c.locks.Lock(id) }

// List returns all containers, sorted by name. With an error, it returns those that it knows nevertheless.
// A container for which LXC does not answer is listed as damaged.
func (c *catalog) List(ctx context.Context) ([]engine.Container, error) {
	entries, err := os.ReadDir(c.config.Path)
	if errors.Is(err, fs.ErrNotExist) { // its file system may not be mounted
		return nil, fmt.Errorf("list LXC containers: %w: there is no %s", engine.ErrAway, c.config.Path)
	}
	if err != nil {
		return nil, fmt.Errorf("list LXC containers: %w", err)
	}
	monitors, err := c.tools.monitors()
	if err != nil {
		return nil, err
	}
	var all []engine.Container
	var unknown error // of containers without an id
	for _, entry := range entries {
		if !namePattern.MatchString(entry.Name()) {
			continue
		}
		if !durable.Exists(filepath.Join(c.config.Path, entry.Name(), "config")) {
			if id := c.lacksConfig(entry.Name()); id != "" {
				all = append(all, engine.Container{Definition: engine.Definition{EngineName: Name, ID: id,
					Name: entry.Name()}, State: engine.Damaged})
			}
			continue
		}
		ctr, err := c.inspect(ctx, entry.Name(), monitors[entry.Name()], c.listed)
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
	return all, errors.Join(unknown, c.collectGarbage(), ctx.Err())
}

// lacksConfig returns the id of a container whose directory is there, but not its configuration, which a
// user may have moved away to edit it: lxc-destroy removes the whole directory. An arriving or leaving
// container has none for a moment.
func (c *catalog) lacksConfig(name string) string {
	own, err := c.identities.ownOf(name)
	if err != nil || own.Name != name {
		return ""
	}
	if p := c.identities.place(own.ID, name); durable.Exists(p.arrival()) || durable.Exists(p.departure()) {
		return ""
	}
	return own.ID
}

// Inspect finds a container by name, id, or unique prefix of an id.
func (c *catalog) Inspect(ctx context.Context, ref string) (engine.Container, error) {
	if namePattern.MatchString(ref) && durable.Exists(filepath.Join(c.config.Path, ref, "config")) {
		return c.named(ctx, ref)
	}
	all, err := c.List(ctx)
	all = slices.DeleteFunc(all, func(c engine.Container) bool {
		return ref == "" || !strings.HasPrefix(c.Definition.ID, ref) && c.Definition.Name != ref
	})
	switch {
	case len(all) == 1 && all[0].State == engine.Damaged:
		return c.damaged(ctx, all[0].Definition.Name)
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
func (c *catalog) damaged(ctx context.Context, name string) (engine.Container, error) {
	ctr, err := c.named(ctx, name)
	if errors.Is(err, engine.ErrNotFound) {
		err = fmt.Errorf("LXC container %s has no configuration: %s is not there", name,
			filepath.Join(c.config.Path, name, "config"))
	}
	return ctr, err
}

// named inspects the container of this name.
func (c *catalog) named(ctx context.Context, name string) (engine.Container, error) {
	monitors, err := c.tools.monitors()
	if err != nil {
		return engine.Container{}, err
	}
	return c.inspect(ctx, name, monitors[name], toolLimit)
}

// inspect combines what LXC and the kernel report about one container. limit is how long LXC may take.
func (c *catalog) inspect(
	ctx context.Context, name string, watched bool, limit patience.Limit,
) (engine.Container, error) {
	var ctr engine.Container
	text, err := readConfig(filepath.Join(c.config.Path, name, "config"))
	if aside := filepath.Join(c.config.Path, name, asideName); err == nil && durable.Exists(aside) {
		text, err = readConfig(aside) // the container is leaving, or was
	}
	if errors.Is(err, fs.ErrNotExist) {
		return ctr, fmt.Errorf("LXC container %s: %w", name, engine.ErrNotFound)
	}
	if err != nil {
		return ctr, err
	}
	id, err := c.identities.identityOf(name, watched)
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
	return ctr, c.addProcesses(ctx, &ctr, watched, limit)
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
func (c *catalog) addProcesses(
	ctx context.Context, ctr *engine.Container, watched bool, limit patience.Limit,
) error {
	p := c.identities.place(ctr.Definition.ID, ctr.Definition.Name)
	if was, err := c.identities.departureOf(ctr.Definition.ID); !errors.Is(err, fs.ErrNotExist) {
		ctr.Leaving = &was.Leave // an unreadable record only says that the container leaves
	}
	if durable.Exists(p.arrival()) && !durable.Exists(p.resumed()) {
		ctr.State = engine.Arriving
		return nil
	}
	if !watched {
		return nil
	}
	first, err := c.tools.first(ctx, ctr.Definition.Name, limit)
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

// running finds a running container.
func (c *catalog) running(ctx context.Context, id string) (engine.Container, error) {
	ctr, err := c.Inspect(ctx, id)
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

// Leaves are the notes of all containers that leave.
func (c *catalog) Leaves() (all []engine.Leave, err error) {
	each := c.identities.place("", "")
	departures, err := durable.LoadEach[departureRecord](each.state, filepath.Base(each.departure()))
	for _, one := range departures {
		all = append(all, one.Leave)
	}
	return all, err
}
