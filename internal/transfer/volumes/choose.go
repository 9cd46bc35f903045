package volumes

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files/shared"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/proof"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Chosen is what becomes of a container's volumes in a migration.
type Chosen struct {
	Volumes  []engine.Volume         // with those that stay marked
	Moved    []migration.VolumeMoved // in the same order
	Locked   []bool                  // locks in it hold on both nodes
	Same     []bool                  // its files have the same inodes on both nodes
	Problems []engine.Problem
}

// CheckWays refuses what was chosen for volumes that the container has not, or cannot be.
func CheckWays(definition engine.Definition, ways migration.VolumeWays) error {
	for _, name := range ways.Named() {
		i := slices.IndexFunc(definition.Volumes,
			func(v engine.Volume) bool { return name == v.Key() || name == v.Path })
		if i < 0 {
			if len(definition.Volumes) == 0 {
				return fmt.Errorf("%w: container %s has no volumes", api.ErrInvalid, definition.Name)
			}
			var have []string
			for _, v := range definition.Volumes {
				have = append(have, v.Key())
			}
			return fmt.Errorf("%w: container %s has no volume %.80q; it has: %s", api.ErrInvalid,
				definition.Name, name, strings.Join(have, ", "))
		}
		v := definition.Volumes[i]
		if way, _ := ways.For(v.Key(), v.Path); v.Sort() == engine.Tmpfs && way == migration.VolumeShared {
			return fmt.Errorf("%w: %s is memory of the container, which no other node can share: choose %s "+
				"or %s", api.ErrInvalid, v,
				migration.VolumeMove, migration.VolumeSkip)
		}
	}
	return nil
}

// Choose decides what becomes of each volume: what a user chose, but that what both nodes
// mount is not moved.
func (m *Mover) Choose(
	ctx context.Context, mode migration.Mode, definition engine.Definition, node identity.Node,
	ways migration.VolumeWays,
) (Chosen, error) {
	n := len(definition.Volumes)
	c := Chosen{
		Volumes: slices.Clone(definition.Volumes), Moved: make([]migration.VolumeMoved, n),
		Locked: make([]bool, n), Same: make([]bool, n),
	}
	var asked []engine.Volume
	var at []int
	for i, v := range c.Volumes {
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
		c.Moved[i] = migration.VolumeMoved{Volume: v.Key(), Kind: string(v.Sort()), Source: v.Source,
			Path: v.Path, Way: way, Why: why}
		// and nothing is written there
		refused := v.Sort() == engine.Bind && way == migration.VolumeMove && m.machine.owns(v.Source)
		if way != migration.VolumeSkip && v.Sort() != engine.Tmpfs && !refused {
			asked, at = append(asked, v), append(at, i)
		}
	}
	proofs, err := m.prover.Prove(ctx, node, asked)
	if err != nil {
		return c, err
	}
	for j, i := range at {
		c.judge(i, proofs[j], node)
	}
	for i, v := range c.Volumes {
		c.Volumes[i].Stays = c.Moved[i].Way != migration.VolumeMove
		switch {
		case v.Sort() != engine.Bind || c.Volumes[i].Stays:
		case v.ReadOnly:
			c.Moved[i].Why = "it stays on " + m.machine.Name + " as well: the container can only read it"
		default:
			c.Moved[i].Why = "it is removed from " + m.machine.Name + " when all of it is on " + node.Name
		}
	}
	return c, m.examineVolumes(ctx, mode, definition, &c)
}

// judge applies what was found out about a volume.
func (c *Chosen) judge(i int, found proof.Proof, node identity.Node) {
	v, moved := c.Volumes[i], &c.Moved[i]
	switch {
	case found.Shared:
		if moved.Way == migration.VolumeMove {
			moved.Why = "both nodes mount it: one wrote a token there, and the other answered it"
		}
		moved.Way, c.Locked[i], c.Same[i] = migration.VolumeShared, found.Locked, found.Same
	case moved.Way == migration.VolumeShared:
		c.Problems = append(c.Problems, engine.Problem{
			What: v.String(),
			Why: fmt.Sprintf("it should be shared with %s, but that could not be proven: %s", node.Name,
				found.Why),
			Remedy: "mount the same storage at this place on both nodes, or have it moved (--volumes " +
				v.Key() + "=move)",
		})
	case found.Unsure:
		c.Problems = append(c.Problems, engine.Problem{
			What: v.String(), Why: fmt.Sprintf("cannot find out whether %s mounts the same storage: %s",
				node.Name, found.Why),
			Remedy: "let root write there on both nodes, or choose --volumes " + v.Key() + "=skip if it does",
		})
	case found.OneWay:
		c.Problems = append(c.Problems, engine.Problem{
			What: v.String(), Why: fmt.Sprintf("%s has the same data there as this node, so it cannot be "+
				"moved there: %s", node.Name, found.Why),
			Remedy: "end the program that copies it there, or choose --volumes " + v.Key() + "=skip",
		})
	}
}

// examineVolumes adds what stands against moving the volumes that are to move, and against leaving
// those that stay.
func (m *Mover) examineVolumes(ctx context.Context, mode migration.Mode, definition engine.Definition,
	c *Chosen) error {
	if len(c.Volumes) == 0 {
		return nil
	}
	all, err := m.engines.List(ctx)
	if err != nil {
		return err
	}
	for i, v := range c.Volumes {
		if v.Sort() == engine.Tmpfs {
			continue
		}
		path, err := m.engines.VolumePath(v)
		if err != nil {
			return err
		}
		var found []engine.Problem
		if v.Stays {
			found, err = m.examineLocks(ctx, definition, v, path, c.Locked[i] && mode != migration.Restart)
		} else {
			found, err = m.examineMoving(all, definition.ID, v, path)
		}
		if err != nil {
			return err
		}
		if c.Problems = append(c.Problems, found...); len(found) > 0 {
			c.Volumes[i].Stays = true // so that nobody looks how much would move
		}
	}
	return nil
}

// examineMoving lists what stands against taking a volume away from this node.
func (m *Mover) examineMoving(all []engine.Container, id string, v engine.Volume,
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
	if v.Sort() == engine.Bind && m.machine.owns(path) {
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

// examineLocks finds locks that the target could not take as long as the frozen container here has them.
func (m *Mover) examineLocks(ctx context.Context, definition engine.Definition, v engine.Volume, path string,
	locked bool) ([]engine.Problem, error) {
	if !locked {
		return nil, nil
	}
	pids, err := m.engines.EngineFor(definition).Processes(ctx, definition.ID)
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
