package rpc

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/journal"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
)

// OutcomeService answers other nodes for migrations that this node has to do with.
type OutcomeService struct {
	Node        string
	Incarnation string // of the node's state
	Moves       *migrate.Moves
	// LeavesYet tells by an error that a container here leaves for a migration that is not known, or may.
	LeavesYet func(migration string) error
	// Sync brings to the disk what came with a container.
	Sync func(journal *journal.Journal) error
}

// Outcome answers a source that does not know where its container runs.
func (s *OutcomeService) Outcome(ctx context.Context, request *api.OutcomeRequest) (*api.OutcomeReply,
	error) {
	from, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkQuestion(request); err != nil {
		return nil, err
	}
	answer, err := s.Moves.Outcome(ctx, from, request)
	if err != nil {
		return nil, Error(err)
	}
	encoded, err := envelopes.Encode(*answer)
	if err != nil {
		return nil, Error(err)
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

// with finds a migration that the calling node has to do with.
func (s *OutcomeService) with(ctx context.Context, id string) (*migrate.Move, error) {
	from, err := Caller(ctx)
	if err != nil {
		return nil, err
	}
	return s.Moves.With(from, id)
}

// Tell hands a message to a migration. A target that says that the container of a migration runs, of which
// this node knows nothing, has the only copy: what is forgotten had come to its end, see migrate's prune.
// Unless only the journal is lost, and the container is here still.
func (s *OutcomeService) Tell(ctx context.Context, request *api.TellRequest) (*api.TellReply, error) {
	if request.Message == nil {
		return nil, status.Error(codes.InvalidArgument, "no message")
	}
	m, err := s.with(ctx, request.Migration)
	if errors.Is(err, engine.ErrNotFound) && request.Message.Kind == string(migration.KindRunning) {
		if err := s.LeavesYet(request.Migration); err != nil {
			return nil, Error(err)
		}
		return &api.TellReply{Answer: &api.Message{Kind: string(migration.KindConfirm)}}, nil
	}
	if err != nil {
		return nil, Error(err)
	}
	if migration.MessageKind(request.Message.Kind).NeedsSession() {
		return nil, status.Errorf(codes.InvalidArgument, "message %.40q was sent outside of a session",
			request.Message.Kind)
	}
	m.Deliver(request.Message)
	reply := &api.TellReply{}
	if m.Tracker.Spec.Side == migration.Source {
		reply.Word = string(m.Record().SourceWord())
	}
	return reply, nil
}

// Durable answers when what came with a container is on disk.
func (s *OutcomeService) Durable(ctx context.Context, request *api.DurableRequest) (*api.DurableReply,
	error) {
	m, err := s.with(ctx, request.Migration)
	lost := status.Errorf(codes.DataLoss,
		"%s has lost its journal of migration %s, and does not know whether it has all files",
		s.Node, request.Migration)
	// it stays lost: a source that only tried again would keep its copy frozen for ever
	if errors.Is(err, engine.ErrNotFound) {
		return nil, lost
	}
	if err != nil {
		return nil, Error(err)
	}
	switch record := m.Record(); {
	case record.Decision != migration.NeverRan || record.State != migration.Done:
	case record.Overruled:
		return nil, status.Errorf(codes.DataLoss,
			"an operator has taken the container of migration %s back: it is no longer at %s",
			request.Migration, s.Node)
	default: // it was asked for the outcome since it lost its journal
		return nil, lost
	}
	if err := s.sameState(request.Incarnation); err != nil {
		return nil, err
	}
	if m.Record().Decision != migration.Ran {
		return nil, status.Errorf(codes.FailedPrecondition, "migration %s has not brought a container here",
			request.Migration)
	}
	if err := s.Sync(m.Journal); err != nil {
		return nil, Error(err)
	}
	return &api.DurableReply{}, nil
}

// sameState refuses to promise anything for the state that took a container, if this is another one: a copy
// of a state on another machine, or one from a backup, has journals of containers that are not here.
func (s *OutcomeService) sameState(expected string) error {
	if expected != "" && expected != s.Incarnation {
		return status.Errorf(codes.DataLoss,
			"%s no longer has the state that accepted the container: expected %s, found %s",
			s.Node, expected, s.Incarnation)
	}
	return nil
}
