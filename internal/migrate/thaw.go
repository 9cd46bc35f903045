package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/patience"
)

// thawPatience bounds how long an operator waits until a container that may be thawed runs again.
const thawPatience = 30 * time.Second

// Thaw lets a container that a migration has left frozen here run on, unless the container runs at
// the target. The target is asked first, as for any decision of an operator.
func (o *Operators) Thaw(ctx context.Context, reference string, force bool) (notice string, err error) {
	m, err := o.leaving(ctx, reference)
	if err != nil {
		return "", err
	}
	switch spec := m.Tracker.Spec; {
	case spec.Side == migration.Target:
		return "", fmt.Errorf("%w: %s is moving to this node: run \"godwit thaw\" on %s", api.ErrRefused,
			spec.Name, spec.Source)
	case m.Record().State == migration.Undoing:
	default:
		notice, err = o.Resolve(ctx, m, Decision{RunsAt: migration.Source, Force: force})
		if errors.Is(err, migration.ErrNotInDoubt) {
			err = m.Busy()
		}
		if err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, thawPatience)
	defer cancel()
	if patience.UntilClosed(ctx, m.done) != nil {
		what, _ := m.Tracker.Waiting(m.Record().State, time.Now())
		return notice, fmt.Errorf("%w: %s is still being thawed: \"godwit migration show %s\" shows the "+
			"progress. %s", engine.ErrBusy, m.Tracker.Spec.Name, m.Tracker.Spec.ID, what)
	}
	return notice, nil
}

// leaving finds the migration of a container that is leaving or was left frozen. The container's
// engine may be away, or may have renamed the copy.
func (o *Operators) leaving(ctx context.Context, reference string) (*Move, error) {
	moves := o.recovery.moves
	if m := moves.underWayOf(reference); m != nil {
		return m, nil
	}
	one, err := o.containers.Inspect(ctx, reference)
	if err != nil {
		return nil, err
	}
	if one.Leaving != nil {
		o.recovery.Rebuild(ctx, moves.config.Engines.EngineFor(one.Definition))
	}
	if m := moves.Of(one.Definition.ID); m != nil {
		return m, nil
	}
	if one.Leaving != nil {
		return nil, fmt.Errorf("%w: the journal of the migration of %s can be neither used nor rebuilt: "+
			"see the agent's log", engine.ErrBusy,
			one.Definition.Name)
	}
	return nil, fmt.Errorf("%w: no migration has left %s frozen: it is %s", api.ErrRefused,
		one.Definition.Name, one.State)
}

// underWayOf finds a migration under way by the name, the id or the beginning of the id of its
// container. It returns nil if there is none, or more than one.
func (m *Moves) underWayOf(reference string) (found *Move) {
	_, name, qualified := strings.Cut(reference, ":")
	if !qualified {
		name = reference
	}
	for _, one := range m.List() {
		spec := one.Tracker.Spec
		if one.Ended() || spec.Name != name && (name == "" || !strings.HasPrefix(spec.Container, name)) {
			continue
		}
		if found != nil {
			return nil
		}
		found = one
	}
	return found
}
