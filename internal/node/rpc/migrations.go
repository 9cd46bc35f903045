package rpc

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
)

// WatchEvery is how often a watcher is told how far a migration, or a copy, is.
const WatchEvery = 100 * time.Millisecond

// MigrationService answers for the migrations of this node.
type MigrationService struct {
	Moves     *migrate.Moves
	Departing Departing
	Operators Operators
}

// Departing lets containers leave.
type Departing interface {
	// Migrate begins to move a container away.
	Migrate(ctx context.Context, request *api.MigrateRequest) (*migrate.Move, error)
	// Plan reports whether a migration would work, and what it would cost.
	Plan(ctx context.Context, request *api.MigrateRequest) (predict.Plan, error)
}

// Operators carry out operators' decisions. The notice is for the operator. See migrate.Operators.
type Operators interface {
	Thaw(ctx context.Context, reference string, force bool) (notice string, err error)
	Resolve(ctx context.Context, m *migrate.Move, d migrate.Decision) (notice string, err error)
}

// Leaving is the work of a migration from this node, as far as its user can change it.
type Leaving interface {
	// Change applies what a user wants changed, all of it or nothing.
	Change(request *api.SetRequest) error
	// Switch ends the rounds: what has not been sent follows.
	Switch() error
}

// Migrate begins to move a container away.
func (s *MigrationService) Migrate(ctx context.Context, request *api.MigrateRequest) (*api.MigrateReply,
	error) {
	m, err := s.Departing.Migrate(ctx, request)
	if err != nil {
		return nil, Error(err)
	}
	return &api.MigrateReply{Migration: m.Tracker.Spec.ID}, nil
}

// Plan reports whether a migration would work, and what it would cost.
func (s *MigrationService) Plan(ctx context.Context, request *api.MigrateRequest) (*api.PlanReply, error) {
	plan, err := s.Departing.Plan(ctx, request)
	if err != nil {
		return nil, Error(err)
	}
	document, err := json.Marshal(plan)
	if err != nil {
		return nil, Error(err)
	}
	return &api.PlanReply{PlanJson: document}, nil
}

// Watch tells of a migration until it has ended on this node.
func (s *MigrationService) Watch(request *api.MigrationRequest,
	stream grpc.ServerStreamingServer[api.MigrationUpdate]) error {
	m, err := s.Moves.Named(request.Migration)
	if err != nil {
		return Error(err)
	}
	ticker := time.NewTicker(WatchEvery)
	defer ticker.Stop()
	for !m.Ended() {
		progress, err := json.Marshal(m.Progress(time.Now()))
		if err != nil {
			return Error(err)
		}
		if err := stream.Send(&api.MigrationUpdate{ProgressJson: progress}); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-m.Done():
		case <-ticker.C:
		}
	}
	report, err := json.Marshal(m.Report())
	if err != nil {
		return Error(err)
	}
	return stream.Send(&api.MigrationUpdate{ReportJson: report})
}

// Migrations sends the reports of all migrations that this node knows, the oldest first, one message each.
func (s *MigrationService) Migrations(_ *api.MigrationsRequest,
	stream grpc.ServerStreamingServer[api.MigrationsReply]) error {
	for _, m := range s.Moves.List() {
		if err := sendReport(stream, m.Report()); err != nil {
			return err
		}
	}
	for _, one := range s.Moves.Unread().List() {
		if err := sendReport(stream, one.Report()); err != nil {
			return err
		}
	}
	return nil
}

func sendReport(stream grpc.ServerStreamingServer[api.MigrationsReply], report migration.Report) error {
	document, err := json.Marshal(report)
	if err != nil {
		return Error(err)
	}
	return stream.Send(&api.MigrationsReply{ReportJson: document})
}

// Set changes settings of a migration from this node that is under way.
func (s *MigrationService) Set(_ context.Context, request *api.SetRequest) (*api.SetReply, error) {
	m, giver, err := s.leaving(request.Migration, "its settings are changed")
	limitOnly := request.DowntimeTargetSeconds == nil && request.MaxRounds == nil &&
		request.OnNoConvergence == nil
	if err == nil && m.Record().State == migration.Committed && !limitOnly {
		err = fmt.Errorf("%w: %s was handed over to %s: only the bandwidth limit can still be changed",
			api.ErrRefused, m.Tracker.Spec.Name, m.Tracker.Spec.Target)
	}
	if err == nil {
		err = giver.Change(request)
	}
	return &api.SetReply{}, Error(err)
}

// leaving finds a migration from this node that is under way.
func (s *MigrationService) leaving(id, what string) (*migrate.Move, Leaving, error) {
	m, err := s.Moves.Named(id)
	if err != nil {
		return nil, nil, err
	}
	giver, ok := m.Work().(Leaving)
	switch {
	case m.Ended():
		return nil, nil, fmt.Errorf("%w: migration %s has ended: %s", api.ErrRefused, id, m.Record().Result)
	case !ok:
		return nil, nil, fmt.Errorf("%w: migration %s comes to this node; %s at its source, on %s",
			api.ErrRefused, id, what, m.Tracker.Spec.Source)
	}
	return m, giver, nil
}

// Switch ends the rounds of a migration from this node: what has not been sent follows.
func (s *MigrationService) Switch(_ context.Context, request *api.MigrationRequest) (*api.SwitchReply,
	error) {
	_, giver, err := s.leaving(request.Migration, "it is switched")
	if err == nil {
		err = giver.Switch()
	}
	return &api.SwitchReply{}, Error(err)
}

// Cancel undoes a migration that is under way.
func (s *MigrationService) Cancel(_ context.Context, request *api.MigrationRequest) (*api.CancelReply,
	error) {
	m, err := s.Moves.Named(request.Migration)
	if err != nil {
		return nil, Error(err)
	}
	if m.Ended() {
		return nil, Error(fmt.Errorf("%w: migration %s has ended: %s", api.ErrRefused, request.Migration,
			m.Record().Result))
	}
	_, err = m.Step(migration.Cancel{Reason: "by a user"})
	return &api.CancelReply{}, Error(err)
}

// Thaw lets a container go on that a migration has left frozen here.
func (s *MigrationService) Thaw(ctx context.Context, request *api.ThawRequest) (*api.ThawReply, error) {
	notice, err := s.Operators.Thaw(ctx, request.Reference, request.Force)
	return &api.ThawReply{Notice: notice}, Error(err)
}

// Resolve carries out an operator's decision.
func (s *MigrationService) Resolve(ctx context.Context, request *api.ResolveRequest) (*api.ResolveReply,
	error) {
	side := migration.Side(request.RunsAt)
	if side != migration.Source && side != migration.Target {
		return nil, Error(fmt.Errorf("%w: it runs at the source or at the target, not at %.40q",
			api.ErrInvalid, request.RunsAt))
	}
	m, err := s.Moves.Named(request.Migration)
	if err != nil {
		return nil, Error(err)
	}
	notice, err := s.Operators.Resolve(ctx, m,
		migrate.Decision{RunsAt: side, Missing: request.MissingPages, Force: request.Force})
	return &api.ResolveReply{Notice: notice}, Error(err)
}
