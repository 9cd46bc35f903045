package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migration"
)

// thawPatience bounds how long an operator waits until a container that may be thawed runs again.
const thawPatience = 30 * time.Second

// thaw lets a container that a migration has left frozen here run on, unless the container runs at
// the target. The target is asked first, as for any decision of an operator.
func (a *Agent) thaw(ctx context.Context, reference string, force bool) (notice string, err error) {
	m, err := a.leaving(ctx, reference)
	if err != nil {
		return "", err
	}
	switch spec := m.tracker.Spec; {
	case spec.Side == migration.Target:
		return "", fmt.Errorf("%w: %s is moving to this node: run \"godwit thaw\" on %s", errRefused,
			spec.Name, spec.Source)
	case m.record().State == migration.Undoing:
	default:
		notice, err = a.resolve(ctx, m, decision{runsAt: migration.Source, force: force})
		if errors.Is(err, migration.ErrNotInDoubt) {
			err = m.busy()
		}
		if err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, thawPatience)
	defer cancel()
	if waitFor(ctx, m.done) != nil {
		what, _ := m.tracker.Waiting(m.record().State, time.Now())
		return notice, fmt.Errorf("%w: %s is still being thawed: \"godwit migration show %s\" shows the "+
			"progress. %s", engine.ErrBusy, m.tracker.Spec.Name, m.tracker.Spec.ID, what)
	}
	return notice, nil
}

// leaving finds the migration of a container that is leaving or was left frozen. The container's
// engine may be away, or may have renamed the copy.
func (a *Agent) leaving(ctx context.Context, reference string) (*move, error) {
	if m := a.moves.underWayOf(reference); m != nil {
		return m, nil
	}
	one, err := a.inspect(ctx, reference)
	if err != nil {
		return nil, err
	}
	if one.Leaving != nil {
		a.moves.rebuilder.Rebuild(ctx, a.engines.EngineFor(one.Definition))
	}
	if m := a.moves.of(one.Definition.ID); m != nil {
		return m, nil
	}
	if one.Leaving != nil {
		return nil, fmt.Errorf("%w: the journal of the migration of %s can be neither used nor rebuilt: "+
			"see the agent's log", engine.ErrBusy,
			one.Definition.Name)
	}
	return nil, fmt.Errorf("%w: no migration has left %s frozen: it is %s", errRefused, one.Definition.Name,
		one.State)
}

// underWayOf finds a migration under way by the name, the id or the beginning of the id of its
// container. It returns nil if there is none, or more than one.
func (m *moves) underWayOf(reference string) (found *move) {
	_, name, qualified := strings.Cut(reference, ":")
	if !qualified {
		name = reference
	}
	for _, one := range m.list() {
		spec := one.tracker.Spec
		if one.ended() || spec.Name != name && (name == "" || !strings.HasPrefix(spec.Container, name)) {
			continue
		}
		if found != nil {
			return nil
		}
		found = one
	}
	return found
}
