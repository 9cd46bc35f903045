package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/inodes"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/proof"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Mover decides what becomes of the volumes of containers that leave this node or come to it.
type Mover struct {
	machine Machine
	engines Engines
	prover  Prover
	log     *slog.Logger

	openFiles inodes.Finder
}

// Engines have the containers and volumes of this node. See engine.Set.
type Engines interface {
	List(ctx context.Context) ([]engine.Container, error)
	EngineFor(definition engine.Definition) engine.Engine
	VolumePath(of engine.Volume) (string, error)
}

// Prover finds out which volumes another node shares with this one. See proof.Prover.
type Prover interface {
	Prove(ctx context.Context, node identity.Node, volumes []engine.Volume) ([]proof.Proof, error)
}

// New returns the Mover of a node.
func New(machine Machine, engines Engines, prover Prover, log *slog.Logger) *Mover {
	return &Mover{machine: machine, engines: engines, prover: prover, log: log}
}

// Trees are the directories of a container that move, in the order of its engine.
func (m *Mover) Trees(ctx context.Context, moving engine.Definition) ([]files.Tree, error) {
	trees, err := m.engines.EngineFor(moving).Trees(ctx, moving.ID)
	if err != nil {
		return nil, err
	}
	return treesThatMove(trees, moving.Volumes), nil
}

func treesThatMove(trees []files.Tree, volumes []engine.Volume) []files.Tree {
	return files.Without(trees, func(tree files.Tree) bool {
		return slices.ContainsFunc(volumes,
			func(v engine.Volume) bool { return v.Stays && isTreeOf(tree, v) })
	})
}

// isTreeOf reports whether a tree is a volume. Others may have its name: a container's shared memory
// has one, too.
func isTreeOf(tree files.Tree, v engine.Volume) bool {
	kind := files.VolumeOf
	if v.Sort() == engine.Tmpfs {
		kind = files.Memory
	}
	return tree.Kind == kind && tree.Name == v.Key()
}

// TreesSize is how much there is in the directories that move. Each volume's part is noted.
func (m *Mover) TreesSize(ctx context.Context, definition engine.Definition,
	volumes []migration.VolumeMoved) (int64, error) {
	trees, err := m.Trees(ctx, definition)
	if err != nil {
		return 0, err
	}
	defer files.LetGo(trees)
	var total int64
	for _, tree := range trees {
		size, err := TreeSize(ctx, tree)
		if err != nil {
			return 0, err
		}
		total += size.Bytes
		for i, v := range definition.Volumes {
			if isTreeOf(tree, v) && i < len(volumes) {
				volumes[i].Bytes, volumes[i].Files = size.Bytes, size.Entries
			}
		}
	}
	return total, nil
}

// TreeSize is how much there is in a directory that moves.
func TreeSize(ctx context.Context, tree files.Tree) (files.Size, error) {
	size, err := files.TreeSize(ctx, tree)
	if err != nil {
		return size, fmt.Errorf("size of %s: %w", tree.Path, err)
	}
	return size, nil
}

// StayingKeys are the keys of the volumes that stay.
func StayingKeys(moving engine.Definition) []string {
	var keys []string
	for _, v := range moving.Volumes {
		if v.Stays {
			keys = append(keys, v.Key())
		}
	}
	return keys
}

// Sync makes sure that the volumes that came with a container are on disk, which may be
// disks of their own. One that has been removed since nobody needs.
func (m *Mover) Sync(definition engine.Definition) error {
	for _, v := range definition.Volumes {
		if v.Stays || v.Sort() == engine.Tmpfs {
			continue
		}
		path, err := m.engines.VolumePath(v)
		if err == nil {
			err = files.Sync(path)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}
