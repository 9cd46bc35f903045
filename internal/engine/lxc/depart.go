package lxc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/godwit/godwit/internal/criu/examine"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/checkpoint"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/kernel/cgroup"
	"github.com/godwit/godwit/internal/network/nsstate"
)

// settingsOf returns a container's configuration as written, and with its includes.
func settingsOf(ctr engine.Container) (written, all []setting, err error) {
	var x extra
	if err := json.Unmarshal(ctr.Definition.Engine, &x); err != nil {
		return nil, nil, err
	}
	if written, err = parseConfig(x.Config); err == nil {
		all, err = expand(written)
	}
	return written, all, err
}

// rootOf returns the path of a container's root file system.
func (e *Engine) rootOf(ctr engine.Container) (string, error) {
	_, all, err := settingsOf(ctr)
	if err != nil {
		return "", err
	}
	root := strings.TrimPrefix(last(all, "lxc.rootfs.path"), "dir:")
	if !filepath.IsAbs(root) {
		return "", fmt.Errorf("LXC container %s: %w: its root file system is %.80q, and not a directory",
			ctr.Definition.Name, errNotMovable, root)
	}
	return root, nil
}

// Examine lists obstacles to moving this running container.
func (e *Engine) Examine(ctx context.Context, id string) ([]engine.Problem, error) {
	return checkpoint.LookTwice(ctx, func() ([]engine.Problem, error) {
		problems, err := e.examine(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("examine LXC container %.12s: %w", id, err)
		}
		return problems, nil
	})
}

func (e *Engine) examine(ctx context.Context, id string) ([]engine.Problem, error) {
	ctr, err := e.running(ctx, id)
	if err != nil {
		return nil, err
	}
	written, all, err := settingsOf(ctr)
	if err != nil {
		return nil, err
	}
	problems := checkSettings(written, all)
	group, err := groupOf(ctr)
	if err != nil {
		return nil, err
	}
	if frozen, err := group.Paused(); err == nil && frozen { // at the target it would run
		name := ctr.Definition.Name
		problems = append(problems, engine.Problem{What: "container " + name, Why: "it is paused",
			Remedy: "lxc-unfreeze -n " + name})
	}
	pids, err := group.Procs()
	if err != nil {
		return nil, err
	}
	problems = append(problems, examineGroups(group)...)
	problems = append(problems, examineMounts(pids)...)
	filling, err := checkpoint.ExamineMemory(e.place(id, ctr.Definition.Name).memory())
	if err != nil {
		return nil, err
	}
	problems = append(problems, filling...)
	made, err := checkpoint.ExamineNetwork(ctx, checkpoint.Surroundings{
		PID: ctr.PID, PIDs: pids, Network: ctr.Definition.Network, Alone: true, System: true,
	})
	if err != nil {
		return nil, err
	}
	problems = append(problems, made...)
	found, err := checkpoint.Examine(ctx, ctr.PID, examine.Subject{PIDs: pids, Groups: true})
	return append(problems, found...), err
}

// examineGroups finds groups within the container's that could not be made again at the target.
func examineGroups(group *cgroup.Cgroup) []engine.Problem {
	_, err := group.Inner()
	if !errors.Is(err, kernel.ErrUnsupported) {
		return nil // a container that has just ended has none
	}
	return []engine.Problem{{
		What: "control groups within the container", Why: "they would not be the same at the target: " +
			err.Error(),
		Remedy: "use an init that makes none, such as that of busybox, or have the container run on a " +
			"node with controllers of cgroup version 1",
	}}
}

// examineMounts finds contents of file systems that CRIU mounts anew and empty: systemd has one for the
// credentials of each service, most of which have none. Each process may have mounts of its own.
func examineMounts(pids []int) (problems []engine.Problem) {
	seen := map[string]bool{}
	for _, pid := range pids {
		space, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err == nil && seen[space] {
			continue
		}
		seen[space] = true
		found, err := kernel.ReadMounts(pid)
		if err != nil && !isGone(err) {
			problems = append(problems, engine.Problem{What: fmt.Sprintf("mounts of process %d", pid),
				Why: err.Error(), Remedy: "look at the node's log"})
		}
		for _, one := range found {
			if one.Type == "ramfs" || one.Type == "hugetlbfs" {
				problems = append(problems, examineMount(pid, one)...)
			}
		}
	}
	return problems
}

func examineMount(pid int, one kernel.Mount) []engine.Problem {
	why := "its contents would not move"
	directory, err := os.Open(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), one.Point))
	if err == nil {
		_, err = directory.Readdirnames(1)
		err = errors.Join(err, directory.Close())
	}
	switch {
	case errors.Is(err, io.EOF), isGone(err):
		return nil
	case err != nil:
		why = "its contents cannot be read: " + err.Error()
	}
	return []engine.Problem{{
		What: fmt.Sprintf("mount of %.200s (%s)", one.Point, one.Type), Why: why,
		Remedy: "empty it, or unmount it",
	}}
}

// isGone reports that a process, or one of its files, has just ended.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// departureRecord exists from PrepareDump until the container is resumed or destroyed.
type departureRecord struct {
	Started time.Time `json:"started"`
	// a process of the container: with it, LXC need not be asked
	First checkpoint.Identity `json:"first"`
	Leave engine.Leave        `json:"leave,omitzero"`
}

// departure is a container that is about to be frozen.
type departure struct {
	*checkpoint.Departure
	place  place
	group  *cgroup.Cgroup
	netns  string
	usual  nsstate.Fresh // network namespace for comparison
	frozen bool          // Freeze has succeeded: from then on Resume or Destroy decides
}

// PrepareDump prepares a running container's move. From now on only Godwit starts it, should it end, or the
// node go down, before the outcome of the move is known.
func (e *Engine) PrepareDump(
	ctx context.Context, id string, options engine.DumpOptions,
) (engine.Departure, error) {
	defer e.lock(id)()
	ctr, err := e.running(ctx, id)
	if err != nil {
		return nil, err
	}
	d, err := e.depart(ctx, ctr, options)
	if err != nil {
		return nil, fmt.Errorf("prepare LXC container %s for its move: %w", ctr.Definition.Name, err)
	}
	return d, nil
}

func (e *Engine) depart(
	ctx context.Context, ctr engine.Container, options engine.DumpOptions,
) (*departure, error) {
	p := e.place(ctr.Definition.ID, ctr.Definition.Name)
	if err := checkpoint.RefuseFilling(p.memory()); err != nil {
		return nil, err
	}
	root, err := e.rootOf(ctr)
	if err != nil {
		return nil, err
	}
	group, err := groupOf(ctr)
	if err != nil {
		return nil, err
	}
	first, err := checkpoint.Identify(ctr.PID)
	if err != nil {
		return nil, err
	}
	usual, err := nsstate.NewFresh()
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{p.state, p.run} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make directory: %w", err)
		}
	}
	if err := durable.Save(p.departure(),
		departureRecord{Started: time.Now().UTC(), First: first, Leave: options.Leave}); err != nil {
		return nil, err
	}
	if err := p.guard(); err != nil {
		return nil, errors.Join(err, p.unguard())
	}
	netns := fmt.Sprintf("/proc/%d/ns/net", ctr.PID)
	inner, err := checkpoint.PrepareDump(ctx, e.config.Criu, checkpoint.Leaving{
		Name: ctr.Definition.Name, First: ctr.PID, Cgroup: group, Root: root, FindMounts: true,
		Network: netns, WorkDir: p.criuWork(),
		Drain: func(context.Context) error { return nil }, // it has no log of ours
	}, options)
	if err != nil {
		return nil, errors.Join(err, p.unguard())
	}
	return &departure{Departure: inner, place: p, group: group, netns: netns, usual: usual}, nil
}

// Freeze stops the container's processes.
func (d *departure) Freeze(ctx context.Context) (time.Time, error) {
	at, err := d.Departure.Freeze(ctx)
	d.frozen = d.frozen || err == nil
	return at, err
}

// Dump writes the execution state to a directory in memory, with the control groups and the settings of the
// network that CRIU does not save.
func (d *departure) Dump(ctx context.Context, directory string) error {
	pids, err := d.group.Procs()
	if err != nil {
		return err
	}
	if found := examineMounts(pids); len(found) > 0 { // new since the examination
		return fmt.Errorf("%s: %s", found[0].What, found[0].Why)
	}
	groups, err := d.group.Inner()
	if err == nil {
		err = writeGroups(directory, groups)
	}
	if err != nil {
		return fmt.Errorf("control groups of LXC container %s: %w", d.place.name, err)
	}
	settings, err := d.usual.Changed(d.netns)
	if err == nil {
		err = writeSettings(directory, settings)
	}
	if err != nil {
		return fmt.Errorf("settings of the network of LXC container %s: %w", d.place.name, err)
	}
	return d.Departure.Dump(ctx, directory)
}

// Close ends what PrepareDump started.
func (d *departure) Close() error {
	err := d.Departure.Close()
	if !d.frozen {
		err = errors.Join(err, d.place.unguard())
	}
	return err
}

// guard replaces the container's configuration by one with which LXC never starts it. The container's own
// is kept, even if a killed agent had put it aside.
func (p place) guard() error {
	text, err := readConfig(p.aside())
	if errors.Is(err, fs.ErrNotExist) {
		text, err = readConfig(p.config())
	}
	if err != nil {
		return err
	}
	settings, err := parseConfig(text)
	if err != nil {
		return err
	}
	root := strings.TrimPrefix(last(settings, "lxc.rootfs.path"), "dir:")
	if err := kernel.WriteFileAtomic(p.aside(), []byte(text), 0o644); err != nil {
		return fmt.Errorf("keep the configuration: %w", err)
	}
	if err := kernel.WriteFileAtomic(p.config(), []byte(render(settings, root, true)), 0o644); err != nil {
		return fmt.Errorf("change the configuration: %w", err)
	}
	return nil
}

// unguard puts the container's own configuration back. Doing nothing is success.
func (p place) unguard() error {
	if err := os.Rename(p.aside(), p.config()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("put the configuration back: %w", err)
	}
	return durable.Remove(p.departure())
}

// Resume lets a container continue that a departure froze. It does not ask LXC, which may not answer.
func (e *Engine) Resume(ctx context.Context, id string) error {
	defer e.lock(id)()
	if err := e.resume(ctx, id); err != nil {
		return fmt.Errorf("resume LXC container %.12s: %w", id, err)
	}
	return nil
}

func (e *Engine) resume(ctx context.Context, id string) error {
	was, err := e.departureOf(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := checkpoint.Unprotect(e.place(id, "").spared()); err != nil {
		return err
	}
	if was.First.Alive() {
		group, err := containerGroup(was.First.PID)
		if err == nil {
			err = checkpoint.Resume(ctx, group)
		}
		if err != nil {
			return err
		}
	}
	p, err := e.find(id)
	if errors.Is(err, engine.ErrNotFound) { // it has been removed meanwhile
		return durable.Remove(e.place(id, "").departure())
	}
	if err != nil {
		return err
	}
	return p.unguard()
}

// departureOf reads the record of a departure. Error: fs.ErrNotExist.
func (e *Engine) departureOf(id string) (departureRecord, error) {
	var was departureRecord
	if !idPattern.MatchString(id) {
		return was, fs.ErrNotExist
	}
	err := durable.Load(e.place(id, "").departure(), &was)
	return was, err
}

// Leaves are the notes of all containers that leave.
func (e *Engine) Leaves() (all []engine.Leave, err error) {
	each := e.place("", "")
	departures, err := durable.LoadEach[departureRecord](each.state, filepath.Base(each.departure()))
	for _, one := range departures {
		all = append(all, one.Leave)
	}
	return all, err
}

// Destroy kills a frozen container and removes it completely, without anybody noticing its end.
func (e *Engine) Destroy(ctx context.Context, id string, _ []string) error {
	defer e.lock(id)()
	if err := e.destroy(ctx, id); err != nil {
		return fmt.Errorf("destroy LXC container %.12s: %w", id, err)
	}
	return nil
}

func (e *Engine) destroy(ctx context.Context, id string) error {
	was, err := e.departureOf(id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	frozen := was.First.Alive()
	if frozen {
		if err := killQuietly(ctx, was.First.PID); err != nil {
			return err
		}
	}
	p, err := e.find(id)
	if errors.Is(err, engine.ErrNotFound) {
		return e.gone(id)
	}
	if err == nil && !frozen {
		err = e.endHere(ctx, p)
	}
	if err != nil {
		return err
	}
	return e.remove(ctx, p)
}

// gone removes our records of a container that LXC no longer has.
func (e *Engine) gone(id string) error {
	if !idPattern.MatchString(id) {
		return nil
	}
	return e.place(id, "").forget()
}

// endHere kills the processes of a running container that has not left.
func (e *Engine) endHere(ctx context.Context, p place) error {
	if !durable.Exists(p.config()) { // its removal had begun
		return nil
	}
	ctr, err := e.named(ctx, p.name)
	if err != nil || ctr.PID == 0 {
		return err
	}
	return killQuietly(ctx, ctr.PID)
}

// killQuietly kills all processes of the container to which this one belongs.
func killQuietly(ctx context.Context, pid int) error {
	group, err := containerGroup(pid)
	if err != nil {
		return err
	}
	if err := checkpoint.TakeLinksDown(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil {
		return err
	}
	return killGroup(ctx, group)
}

// endPatience is how long LXC's monitor may take to end after the container.
const endPatience = 10 * time.Second

// remove removes a container whose processes are gone, or about to go, with LXC's tool, and all our files
// of it.
func (e *Engine) remove(ctx context.Context, p place) error {
	if err := e.awaitEnd(ctx, p); err != nil {
		return err
	}
	if durable.Exists(p.config()) {
		if _, err := e.tool(ctx, "lxc-destroy", p.name); err != nil {
			return err
		}
	}
	// The files that LXC leaves in the directory are ours. Anything else, such as a mount of a user, is not
	// removed.
	for _, path := range []string{p.own(), p.aside(), p.lxc} {
		if err := durable.Remove(path); err != nil {
			return fmt.Errorf("remove what is left: %w", err)
		}
	}
	return p.forget()
}

// awaitEnd waits until LXC's monitor has ended, and ends a monitor that does not.
func (e *Engine) awaitEnd(ctx context.Context, p place) error {
	const pause = 5 * time.Millisecond
	for deadline := time.Now().Add(endPatience); ; {
		monitors, err := e.monitors()
		if err != nil || !monitors[p.name] {
			return err
		}
		if time.Now().After(deadline) {
			return p.sweep(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for LXC's monitor of container %s: %w", p.name, ctx.Err())
		case <-time.After(pause):
		}
	}
}
