package volumes

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Leaving is the volumes of one container that moves to another node.
type Leaving struct {
	mover      *Mover
	definition engine.Definition
	to         identity.Node

	mu     sync.Mutex
	chosen Chosen
}

// Leave returns the volumes of a container that is to move to a node, as its definition has them.
func (m *Mover) Leave(definition engine.Definition, to identity.Node) *Leaving {
	return &Leaving{mover: m, definition: definition, to: to, chosen: Chosen{Volumes: definition.Volumes}}
}

// Choose decides what becomes of the volumes. Nothing is chosen where there are problems.
func (l *Leaving) Choose(ctx context.Context, mode migration.Mode,
	ways migration.VolumeWays) ([]engine.Problem, error) {
	chosen, err := l.mover.Choose(ctx, mode, l.definition, l.to, ways)
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
func (l *Leaving) HandOver(ctx context.Context, mode migration.Mode, stopped bool) ([]engine.Problem, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handOverPatience,
		fmt.Errorf("a file server has not answered for %s", handOverPatience))
	defer cancel()
	return l.Release(ctx, mode, stopped)
}

// Release hands the volumes that stay to the target: when it returns, all that the container
// has written is where the target finds it, and nothing of it is written later. It is called before
// the freeze, so that little is left, and in it. stopped: no process of the container is left.
func (l *Leaving) Release(ctx context.Context, mode migration.Mode, stopped bool) ([]engine.Problem, error) {
	if err := l.mover.release(ctx, l.Moving(), stopped); err != nil {
		return nil, err
	}
	if mode == migration.Restart {
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
