package agent

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/shared"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/proof"
	"github.com/godwit/godwit/internal/wire/identity"
)

// chosenVolumes is what becomes of a container's volumes in a migration.
type chosenVolumes struct {
	volumes  []engine.Volume         // with those that stay marked
	moved    []migration.VolumeMoved // in the same order
	locked   []bool                  // locks in it hold on both nodes
	same     []bool                  // its files have the same inodes on both nodes
	problems []engine.Problem
}

// checkVolumeWays refuses what was chosen for volumes that the container has not, or cannot be.
func checkVolumeWays(definition engine.Definition, ways migration.VolumeWays) error {
	for _, name := range ways.Named() {
		i := slices.IndexFunc(definition.Volumes,
			func(v engine.Volume) bool { return name == v.Key() || name == v.Path })
		if i < 0 {
			if len(definition.Volumes) == 0 {
				return fmt.Errorf("%w: container %s has no volumes", errInvalid, definition.Name)
			}
			var have []string
			for _, v := range definition.Volumes {
				have = append(have, v.Key())
			}
			return fmt.Errorf("%w: container %s has no volume %.80q; it has: %s", errInvalid, definition.Name,
				name, strings.Join(have, ", "))
		}
		v := definition.Volumes[i]
		if way, _ := ways.For(v.Key(), v.Path); v.Sort() == engine.Tmpfs && way == migration.VolumeShared {
			return fmt.Errorf("%w: %s is memory of the container, which no other node can share: choose %s "+
				"or %s", errInvalid, v,
				migration.VolumeMove, migration.VolumeSkip)
		}
	}
	return nil
}

// chooseVolumes decides what becomes of each volume: what a user chose, but that what both nodes
// mount is not moved.
func (a *Agent) chooseVolumes(
	ctx context.Context, mode migration.Mode, definition engine.Definition, node identity.Node,
	ways migration.VolumeWays,
) (chosenVolumes, error) {
	n := len(definition.Volumes)
	c := chosenVolumes{
		volumes: slices.Clone(definition.Volumes), moved: make([]migration.VolumeMoved, n),
		locked: make([]bool, n), same: make([]bool, n),
	}
	var asked []engine.Volume
	var at []int
	for i, v := range c.volumes {
		way, _ := ways.For(v.Key(), v.Path)
		why := ""
		switch {
		case v.Sort() == engine.Tmpfs && mode == migration.Restart:
			way, why = migration.VolumeSkip, "its contents are in memory, which ends with the stopped "+
				"processes"
		case v.Sort() == engine.Tmpfs && way == migration.VolumeShared:
			way = migration.VolumeMove
		// other engines' do not move
		case v.Sort() == engine.Bind && v.ReadOnly && way == migration.VolumeMove &&
			definition.EngineName != "":
			way, why = migration.VolumeSkip, "the container can only read it, and will read what exists on "+
				node.Name
		}
		c.moved[i] = migration.VolumeMoved{Volume: v.Key(), Kind: string(v.Sort()), Source: v.Source,
			Path: v.Path, Way: way, Why: why}
		// and nothing is written there
		refused := v.Sort() == engine.Bind && way == migration.VolumeMove && a.ofTheNode(v.Source)
		if way != migration.VolumeSkip && v.Sort() != engine.Tmpfs && !refused {
			asked, at = append(asked, v), append(at, i)
		}
	}
	proofs, err := a.proofs.Prove(ctx, node, asked)
	if err != nil {
		return c, err
	}
	for j, i := range at {
		c.judge(i, proofs[j], node)
	}
	for i, v := range c.volumes {
		c.volumes[i].Stays = c.moved[i].Way != migration.VolumeMove
		switch {
		case v.Sort() != engine.Bind || c.volumes[i].Stays:
		case v.ReadOnly:
			c.moved[i].Why = "it stays on " + a.self.Name + " as well: the container can only read it"
		default:
			c.moved[i].Why = "it is removed from " + a.self.Name + " when all of it is on " + node.Name
		}
	}
	return c, a.examineVolumes(ctx, mode, definition, &c)
}

// judge applies what was found out about a volume.
func (c *chosenVolumes) judge(i int, found proof.Proof, node identity.Node) {
	v, moved := c.volumes[i], &c.moved[i]
	switch {
	case found.Shared:
		if moved.Way == migration.VolumeMove {
			moved.Why = "both nodes mount it: one wrote a token there, and the other answered it"
		}
		moved.Way, c.locked[i], c.same[i] = migration.VolumeShared, found.Locked, found.Same
	case moved.Way == migration.VolumeShared:
		c.problems = append(c.problems, engine.Problem{
			What: v.String(),
			Why: fmt.Sprintf("it should be shared with %s, but that could not be proven: %s", node.Name,
				found.Why),
			Remedy: "mount the same storage at this place on both nodes, or have it moved (--volumes " +
				v.Key() + "=move)",
		})
	case found.Unsure:
		c.problems = append(c.problems, engine.Problem{
			What: v.String(), Why: fmt.Sprintf("cannot find out whether %s mounts the same storage: %s",
				node.Name, found.Why),
			Remedy: "let root write there on both nodes, or choose --volumes " + v.Key() + "=skip if it does",
		})
	case found.OneWay:
		c.problems = append(c.problems, engine.Problem{
			What: v.String(), Why: fmt.Sprintf("%s has the same data there as this node, so it cannot be "+
				"moved there: %s", node.Name, found.Why),
			Remedy: "end the program that copies it there, or choose --volumes " + v.Key() + "=skip",
		})
	}
}

// examineVolumes adds what stands against moving the volumes that are to move, and against leaving
// those that stay.
func (a *Agent) examineVolumes(ctx context.Context, mode migration.Mode, definition engine.Definition,
	c *chosenVolumes) error {
	if len(c.volumes) == 0 {
		return nil
	}
	all, err := a.engines.List(ctx)
	if err != nil {
		return err
	}
	for i, v := range c.volumes {
		if v.Sort() == engine.Tmpfs {
			continue
		}
		path, err := a.engines.VolumePath(v)
		if err != nil {
			return err
		}
		var found []engine.Problem
		if v.Stays {
			found, err = a.examineLocks(ctx, definition, v, path, c.locked[i] && mode != migration.Restart)
		} else {
			found, err = a.examineMoving(all, definition.ID, v, path)
		}
		if err != nil {
			return err
		}
		if c.problems = append(c.problems, found...); len(found) > 0 {
			c.volumes[i].Stays = true // so that nobody looks how much would move
		}
	}
	return nil
}

// examineMoving lists what stands against taking a volume away from this node.
func (a *Agent) examineMoving(all []engine.Container, id string, v engine.Volume,
	path string) ([]engine.Problem, error) {
	skip := fmt.Sprintf("leave it here (--volumes %s=%s)", v.Key(), migration.VolumeSkip)
	if others := engine.Sharing(all, id, v); len(others) > 0 {
		return []engine.Problem{{
			What: v.String(),
			Why: fmt.Sprintf("container %s on this node also uses it, and the volume cannot be on two "+
				"nodes; containers that share a volume cannot be moved together yet",
				strings.Join(others, ", ")),
			Remedy: fmt.Sprintf("remove container %s first, keep it on storage that both nodes mount, or %s",
				others[0], skip),
		}}, nil
	}
	if v.Sort() == engine.Bind && a.ofTheNode(path) {
		return []engine.Problem{{What: v.String(), Why: "it belongs to this machine, and cannot be moved " +
			"away", Remedy: skip}}, nil
	}
	below, err := mountsBelow(path)
	if err != nil || len(below) == 0 {
		return nil, err
	}
	return []engine.Problem{{
		What: v.String(), Why: "another file system is mounted in it, at " + below[0] +
			", which the container does not see",
		Remedy: "unmount that, or " + skip,
	}}, nil
}

// examineArriving finds host directories to which nothing may be moved, or which a container that
// another node describes must not have: they are parts of this machine.
func (a *Agent) examineArriving(definition engine.Definition) []migration.Problem {
	var problems []migration.Problem
	for _, v := range definition.Volumes {
		if v.Sort() != engine.Bind {
			continue
		}
		add := func(why string) {
			problems = append(problems, migration.Problem{What: v.String(),
				Why: "it is a part of " + a.self.Name + ", and " + why, Remedy: "use another directory"})
		}
		switch {
		case !v.Stays && a.ofTheNode(v.Source):
			add("nothing is moved there")
		case v.Stays && a.keptFrom(v):
			add("containers from other nodes must not use it")
		}
	}
	return problems
}

// keptFrom tells of host directories that a container from another node does not get, though
// nothing is moved there: whoever can write there, or read what is secret there, has the machine.
// What every program may read it may, too.
func (a *Agent) keptFrom(v engine.Volume) bool {
	// What engines and people give to containers; links of the machine's own lead from some of it.
	given := []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/localtime", "/etc/timezone",
		"/etc/ssl/certs"}
	public := []string{"/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr"}
	if v.ReadOnly && slices.Contains(given, v.Source) {
		return false
	}
	sources := []string{v.Source}
	if there, err := filepath.EvalSymlinks(v.Source); err == nil {
		sources = append(sources, there) // it may lead elsewhere
	}
	return slices.ContainsFunc(sources, func(source string) bool {
		within := func(directory string) bool { return engine.Within(source, directory) }
		if v.ReadOnly && slices.ContainsFunc(public, within) {
			return false
		}
		return a.ofTheNode(source) || slices.ContainsFunc(secret, within) || within(a.config.StateDir) ||
			within(a.config.RunDir)
	})
}

// secret are directories of root's, of engines and of what starts programs.
var secret = []string{
	"/root", "/run", "/var/run", "/var/lib/containerd", "/var/lib/containers", "/var/lib/docker",
	"/var/lib/kubelet", "/var/lib/lxc",
	"/var/lib/dpkg", "/var/lib/systemd", "/var/spool",
}

// ofTheNode tells of host directories that belong to a machine whatever runs on it.
func (a *Agent) ofTheNode(path string) bool {
	whole := []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc",
		"/sbin", "/sys", "/usr"}
	itself := []string{"/home", "/media", "/mnt", "/opt", "/root", "/run", "/srv", "/tmp", "/var", "/var/lib",
		"/var/cache", "/var/log", "/var/run", "/var/tmp"}
	within := func(directory string) bool { return engine.Within(path, directory) }
	return slices.ContainsFunc(whole, within) || slices.Contains(itself, path) ||
		engine.Within(a.config.StateDir, path) || engine.Within(a.config.RunDir, path)
}

// mountsBelow lists what is mounted below a directory.
func mountsBelow(directory string) ([]string, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var found []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if m, ok := kernel.ParseMount(lines.Text()); ok && m.Point != directory &&
			engine.Within(m.Point, directory) {
			found = append(found, m.Point)
		}
	}
	return found, lines.Err()
}

// examineLocks finds locks that the target could not take as long as the frozen container here has them.
func (a *Agent) examineLocks(ctx context.Context, definition engine.Definition, v engine.Volume, path string,
	locked bool) ([]engine.Problem, error) {
	if !locked {
		return nil, nil
	}
	pids, err := a.engines.EngineFor(definition).Processes(ctx, definition.ID)
	if err != nil {
		return nil, err
	}
	held, err := shared.Locked(path, pids)
	if err != nil || len(held) == 0 {
		return nil, err
	}
	return []engine.Problem{{
		What: v.String() + ", file " + held[0], Why: "the container has locked the file, and locks there " +
			"hold on both nodes: the target could not lock it before this copy is gone",
		Remedy: "move it when it has released the lock, or mount the storage so that locks are each node's " +
			"own (nfs: local_lock=all)",
	}}, nil
}

// findVolume finds a volume of this node by its name.
func (a *Agent) findVolume(ctx context.Context, name string) (engine.StoredVolume, error) {
	all, err := a.embedded.Volumes(ctx)
	if err != nil {
		return engine.StoredVolume{}, err
	}
	for _, one := range all {
		if one.Name == name {
			return one, nil
		}
	}
	return engine.StoredVolume{}, fmt.Errorf("%w: %.80q; \"godwit volume ls\" lists them", engine.ErrNoVolume,
		name)
}

// volumesOf are the volumes that a user wants for a new container.
func volumesOf(request *api.RunRequest) []engine.Volume {
	var volumes []engine.Volume
	for _, v := range request.Volumes {
		one := proof.DecodeVolume(v)
		one.Engine = "" // Godwit's own: it is to run the container
		volumes = append(volumes, one)
	}
	return volumes
}
