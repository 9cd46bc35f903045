package volumes

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Leaving is the volumes of one container that moves to another node.
type Leaving struct {
	mover      *Mover
	definition engine.Definition
	to         identity.Node
	mode       migration.Mode
	stopped    func() bool

	mu     sync.Mutex
	chosen Chosen
}

// Leave returns the volumes of a container that is to move to a node in a mode, as its definition has them.
// stopped reports whether no process of the container is left.
func (m *Mover) Leave(definition engine.Definition, to identity.Node, mode migration.Mode,
	stopped func() bool) *Leaving {
	return &Leaving{mover: m, definition: definition, to: to, mode: mode, stopped: stopped,
		chosen: Chosen{Volumes: definition.Volumes}}
}

// Choose decides what becomes of the volumes. Nothing is chosen where there are problems.
func (l *Leaving) Choose(ctx context.Context, ways migration.VolumeWays) ([]engine.Problem, error) {
	chosen, err := l.mover.Choose(ctx, l.mode, l.definition, l.to, ways)
	if err != nil || len(chosen.Problems) > 0 {
		return chosen.Problems, err
	}
	l.mu.Lock()
	l.chosen = chosen
	l.mu.Unlock()
	return nil, nil
}

// Chosen is what was decided last.
func (l *Leaving) Chosen() Chosen {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.chosen
}

// Moving is the definition of the container with the volumes that stay marked.
func (l *Leaving) Moving() engine.Definition {
	definition := l.definition
	definition.Volumes = l.Chosen().Volumes
	return definition
}

// StayingKeys are the keys of the volumes that stay.
func (l *Leaving) StayingKeys() []string { return StayingKeys(l.Moving()) }

// Trees are the directories of the container that move, in the order of its engine. What is in memory does
// not move in mode restart: it ends with the processes that are stopped.
func (l *Leaving) Trees(ctx context.Context) ([]files.Tree, error) {
	trees, err := l.mover.Trees(ctx, l.Moving())
	if err != nil || l.mode != migration.Restart {
		return trees, err
	}
	return files.Without(trees, func(t files.Tree) bool { return t.Kind == files.Memory }), nil
}

// Forget drops what is cached here of volumes that are the target's now.
func (l *Leaving) Forget(ctx context.Context) { l.mover.Forget(ctx, l.Moving()) }

// ProveAgain wants both nodes to mount still what they mounted when it was decided what becomes of
// the volumes: what was unmounted or replaced since would leave the container without what it has
// written. It is called right before the freeze, which it does not make longer.
func (l *Leaving) ProveAgain(ctx context.Context) ([]engine.Problem, error) {
	chosen := l.Chosen()
	var asked []engine.Volume
	for i, v := range chosen.Volumes {
		if i < len(chosen.Moved) && chosen.Moved[i].Way == migration.VolumeShared {
			v.Stays = false
			asked = append(asked, v)
		}
	}
	proofs, err := l.mover.prover.Prove(ctx, l.to, asked)
	if err != nil {
		return nil, err
	}
	var problems []engine.Problem
	for i, found := range proofs {
		if !found.Shared {
			problems = append(problems, engine.Problem{
				What: asked[i].String(), Why: fmt.Sprintf("%s mounted the same storage when the migration "+
					"began, but no longer does: %s", l.to.Name, found.Why),
				Remedy: "mount it at this place on both nodes, and try again",
			})
		}
	}
	return problems, nil
}

// handOverPatience bounds how long a file server may take to write back the last changes, while the
// container is frozen.
const handOverPatience = 30 * time.Second

// HandOver is Release in the freeze: a server that does not answer must not keep the
// container frozen.
func (l *Leaving) HandOver(ctx context.Context) ([]engine.Problem, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handOverPatience,
		fmt.Errorf("a file server has not answered for %s", handOverPatience))
	defer cancel()
	return l.Release(ctx)
}

// Release hands the volumes that stay to the target: when it returns, all that the container
// has written is where the target finds it, and nothing of it is written later. It is called before
// the freeze, so that little is left, and in it.
func (l *Leaving) Release(ctx context.Context) ([]engine.Problem, error) {
	if err := l.mover.release(ctx, l.Moving(), l.stopped()); err != nil {
		return nil, err
	}
	if l.mode == migration.Restart {
		return nil, nil // the locks end with the processes
	}
	return l.checkLocks(ctx)
}

// checkLocks finds locks that the target could not take, which may have come since they were
// looked for first.
func (l *Leaving) checkLocks(ctx context.Context) ([]engine.Problem, error) {
	chosen := l.Chosen()
	for i, v := range chosen.Volumes {
		if i >= len(chosen.Locked) || !chosen.Locked[i] {
			continue
		}
		place, err := l.mover.engines.VolumePath(v)
		if err != nil {
			return nil, err
		}
		var problems []engine.Problem
		err = patiently(ctx, func() (err error) {
			problems, err = l.mover.examineLocks(ctx, l.definition, v, place, true)
			return err
		})
		if err != nil {
			return nil, err
		}
		if len(problems) > 0 {
			return problems, nil
		}
	}
	return nil, nil
}
