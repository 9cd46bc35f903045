package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/node/rpc"
)

var errBusyMachine = errors.New("the migration is busy and cannot answer yet")

// incarnation is that of this node's state.
func (a *Agent) incarnation() string {
	if a.state == nil {
		return ""
	}
	return a.state.Incarnation
}

// Outcome answers a source that does not know where its container runs. If this node has no journal
// of the migration, the container never ran here, provided that this is the state that took the
// reservation, or would have, and that the engine has no such container. The answer is made durable
// with the migration's id first, so the container never will run here.
func (s *peerService) Outcome(ctx context.Context, request *api.OutcomeRequest) (*api.OutcomeReply, error) {
	from, err := rpc.Caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkQuestion(request); err != nil {
		return nil, err
	}
	var answer *migration.Message
	m, err := s.peerMove(ctx, request.Migration)
	switch {
	case s.agent.moves.wasPutBack(request.Migration):
		answer, err = &migration.Message{Kind: migration.KindUnknown, Error: errPutBack.Error()}, nil
	case status.Code(err) == codes.NotFound:
		answer, err = s.unrecorded(ctx, from, request)
	case err == nil:
		answer, err = s.recorded(ctx, m, request)
	}
	if err != nil {
		return nil, rpc.Error(err)
	}
	answer.Incarnation = s.agent.incarnation()
	encoded, err := envelopes.Encode(*answer)
	if err != nil {
		return nil, rpc.Error(err)
	}
	return &api.OutcomeReply{Message: encoded}, nil
}

// checkQuestion refuses a request that no source sends. A source older than incarnations names only
// the migration.
func checkQuestion(request *api.OutcomeRequest) error {
	err := migration.CheckID(request.Migration)
	if err == nil && request.Container != "" {
		err = migration.CheckContainerID(request.Container)
	}
	if err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// unrecorded answers for a migration without a journal on this node.
func (s *peerService) unrecorded(ctx context.Context, from string,
	request *api.OutcomeRequest) (*migration.Message, error) {
	if err := s.agent.moves.ban(request.Migration, from); err != nil {
		return nil, err
	}
	return s.deny(ctx, request, &migration.Message{Kind: migration.KindNeverRan,
		Error: "this migration is not known here"}), nil
}

// recorded answers from the journal. It does not answer never-ran while the engine runs such a
// container: a journal that was restored from a backup does not have the end of the migration.
func (s *peerService) recorded(ctx context.Context, m *move, request *api.OutcomeRequest) (*migration.Message,
	error) {
	answer, err := m.step(migration.Asked{Abort: request.Abort})
	if answer == nil {
		return nil, fmt.Errorf("no answer yet: %w", errors.Join(err, errBusyMachine))
	}
	if answer.Kind == migration.KindNeverRan && m.ended() {
		answer = s.deny(ctx, request, answer)
	}
	return answer, nil
}

// deny answers never-ran if that is certain, and otherwise unknown.
func (s *peerService) deny(ctx context.Context, request *api.OutcomeRequest,
	never *migration.Message) *migration.Message {
	evidence := migration.Evidence{Reserved: request.Incarnation, Incarnation: s.agent.incarnation(),
		Presence: migration.Absent}
	record := s.agent.moves.recordOf(request.Migration)
	evidence.Journaled = record != nil && record.Spec.Container == request.Container
	if request.Container != "" {
		sought := engine.Definition{EngineName: request.Engine, ID: request.Container, Name: request.Name}
		ctx, cancel := context.WithTimeout(ctx, s.agent.config.callTimeout()) // the source waits no longer
		defer cancel()
		evidence.Presence, evidence.Since = s.agent.presence(ctx, sought)
	}
	why, may := migration.MayDeny(evidence)
	if may {
		return never
	}
	return &migration.Message{Kind: migration.KindUnknown, Error: why}
}

// recordOf returns the journal of a migration, if this node has one.
func (m *moves) recordOf(id string) *migration.Record {
	found, err := m.find(id)
	if err != nil {
		return nil
	}
	record := found.record()
	return &record
}

// presence looks for a container in its engine.
func (a *Agent) presence(ctx context.Context, sought engine.Definition) (migration.Presence, time.Time) {
	one, err := a.engines.Lookup(sought)
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
		a.log.Warn("cannot find out whether a container is on this node", "container", sought.Name, "error",
			err)
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
func (a *Agent) contradicted(definition engine.Definition) error {
	switch presence, _ := a.presence(a.ctx, definition); presence {
	case migration.RunsThere:
		return errPutBack
	case migration.Unlooked:
		return journal.ErrUnconfirmed
	default:
		return nil
	}
}

// wasPutBack reports whether an older journal of the migration was put back.
func (m *moves) wasPutBack(id string) bool {
	return errors.Is(m.unread.Why(id), errPutBack)
}
