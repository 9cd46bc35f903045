package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
)

var errBusyMachine = errors.New("the migration is busy and cannot answer yet")

// outcomes are the migrations of a node, as a source that is in doubt asks about them. They answer from the
// journals and from what the engines have.
type outcomes struct{ *Moves }

// With finds a migration that another node has to do with.
func (m *Moves) With(node, id string) (*Move, error) {
	found, err := m.Find(id)
	if err != nil {
		return nil, err
	}
	if found.Tracker.Spec.Source != node && found.Tracker.Spec.Target != node {
		return nil, status.Errorf(codes.PermissionDenied, "node %s does not take part in migration %s",
			node, id)
	}
	return found, nil
}

// Outcome answers a source that does not know where its container runs. If this node has no journal
// of the migration, the container never ran here, provided that this is the state that took the
// reservation, or would have, and that the engine has no such container. The answer is made durable
// with the migration's id first, so the container never will run here.
func (m *Moves) Outcome(ctx context.Context, from string, request *api.OutcomeRequest) (*migration.Message,
	error) {
	var answer *migration.Message
	move, err := m.With(from, request.Migration)
	switch {
	case m.wasPutBack(request.Migration):
		answer, err = &migration.Message{Kind: migration.KindUnknown, Error: errPutBack.Error()}, nil
	case errors.Is(err, engine.ErrNotFound):
		answer, err = outcomes{m}.unrecorded(ctx, from, request)
	case err == nil:
		answer, err = outcomes{m}.recorded(ctx, move, request)
	}
	if err != nil {
		return nil, err
	}
	answer.Incarnation = m.config.Incarnation
	return answer, nil
}

// unrecorded answers for a migration without a journal on this node.
func (m outcomes) unrecorded(ctx context.Context, from string,
	request *api.OutcomeRequest) (*migration.Message, error) {
	if err := m.ban(request.Migration, from); err != nil {
		return nil, err
	}
	return m.deny(ctx, request, &migration.Message{Kind: migration.KindNeverRan,
		Error: "this migration is not known here"}), nil
}

// recorded answers from the journal. It does not answer never-ran while the engine runs such a
// container: a journal that was restored from a backup does not have the end of the migration.
func (m outcomes) recorded(ctx context.Context, move *Move, request *api.OutcomeRequest) (*migration.Message,
	error) {
	answer, err := move.Step(migration.Asked{Abort: request.Abort})
	if answer == nil {
		return nil, fmt.Errorf("no answer yet: %w", errors.Join(err, errBusyMachine))
	}
	if answer.Kind == migration.KindNeverRan && move.Ended() {
		answer = m.deny(ctx, request, answer)
	}
	return answer, nil
}

// deny answers never-ran if that is certain, and otherwise unknown.
func (m outcomes) deny(ctx context.Context, request *api.OutcomeRequest,
	never *migration.Message) *migration.Message {
	evidence := migration.Evidence{Reserved: request.Incarnation, Incarnation: m.config.Incarnation,
		Presence: migration.Absent}
	record := m.RecordOf(request.Migration)
	evidence.Journaled = record != nil && record.Spec.Container == request.Container
	if request.Container != "" {
		sought := engine.Definition{EngineName: request.Engine, ID: request.Container, Name: request.Name}
		ctx, cancel := context.WithTimeout(ctx, m.config.Timeout) // the source waits no longer
		defer cancel()
		evidence.Presence, evidence.Since = m.presence(ctx, sought)
	}
	why, may := migration.MayDeny(evidence)
	if may {
		return never
	}
	return &migration.Message{Kind: migration.KindUnknown, Error: why}
}

// RecordOf returns the journal of a migration; nil: this node has none.
func (m *Moves) RecordOf(id string) *migration.Record {
	found, err := m.Find(id)
	if err != nil {
		return nil
	}
	record := found.Record()
	return &record
}

// presence looks for a container in its engine.
func (m outcomes) presence(ctx context.Context, sought engine.Definition) (migration.Presence, time.Time) {
	one, err := m.config.Engines.Lookup(sought)
	if errors.Is(err, engine.ErrNoEngine) {
		return migration.Absent, time.Time{} // this node has never had it
	}
	var found engine.Container
	if err == nil {
		found, err = one.Inspect(ctx, sought.ID)
	}
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return migration.Absent, time.Time{}
	case err != nil:
		m.config.Log.Warn("cannot find out whether a container is on this node", "container", sought.Name,
			"error", err)
		return migration.Unlooked, time.Time{}
	case found.State == engine.Running:
		return migration.RunsThere, found.Started
	}
	return migration.Standing, time.Time{}
}

// errPutBack says that a journal is older than the last one that this node wrote.
var errPutBack = errors.New("its engine runs the container, but the journal says that the container was " +
	"not resumed: an older state was restored")

// contradicted checks a journal that rules out that the container runs here. It returns an error unless the
// engine confirms that the container does not run here. Nobody waits for the answer, so only the engine's
// own limits bound it.
func (m outcomes) contradicted(definition engine.Definition) error {
	switch presence, _ := m.presence(m.ctx, definition); presence {
	case migration.RunsThere:
		return errPutBack
	case migration.Unlooked:
		return journal.ErrUnconfirmed
	default:
		return nil
	}
}

// wasPutBack reports whether an older journal of the migration was put back.
func (m *Moves) wasPutBack(id string) bool {
	return errors.Is(m.unread.Why(id), errPutBack)
}
