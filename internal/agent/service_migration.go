package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/node/rpc"
)

// watchEvery is how often a watcher is told how far a migration is.
const watchEvery = 100 * time.Millisecond

func (s *localService) Migrate(ctx context.Context, request *api.MigrateRequest) (*api.MigrateReply, error) {
	m, err := s.agent.migrate(ctx, request)
	if err != nil {
		return nil, rpc.Error(err)
	}
	return &api.MigrateReply{Migration: m.tracker.Spec.ID}, nil
}

func (s *localService) Plan(ctx context.Context, request *api.MigrateRequest) (*api.PlanReply, error) {
	plan, err := s.agent.plan(ctx, request)
	if err != nil {
		return nil, rpc.Error(err)
	}
	document, err := json.Marshal(plan)
	if err != nil {
		return nil, rpc.Error(err)
	}
	return &api.PlanReply{PlanJson: document}, nil
}

// Watch tells of a migration until it has ended on this node.
func (s *localService) Watch(request *api.MigrationRequest,
	stream grpc.ServerStreamingServer[api.MigrationUpdate]) error {
	m, err := s.agent.moves.named(request.Migration)
	if err != nil {
		return rpc.Error(err)
	}
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for !m.ended() {
		progress, err := json.Marshal(m.progress(time.Now()))
		if err != nil {
			return rpc.Error(err)
		}
		if err := stream.Send(&api.MigrationUpdate{ProgressJson: progress}); err != nil {
			return err
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-m.done:
		case <-ticker.C:
		}
	}
	report, err := json.Marshal(m.report())
	if err != nil {
		return rpc.Error(err)
	}
	return stream.Send(&api.MigrationUpdate{ReportJson: report})
}

// Migrations sends the reports of all migrations that this node knows, the oldest first, one message each.
func (s *localService) Migrations(_ *api.MigrationsRequest,
	stream grpc.ServerStreamingServer[api.MigrationsReply]) error {
	for _, m := range s.agent.moves.list() {
		if err := sendReport(stream, m.report()); err != nil {
			return err
		}
	}
	for _, one := range s.agent.moves.unread.List() {
		if err := sendReport(stream, one.Report()); err != nil {
			return err
		}
	}
	return nil
}

func sendReport(stream grpc.ServerStreamingServer[api.MigrationsReply], report migration.Report) error {
	document, err := json.Marshal(report)
	if err != nil {
		return rpc.Error(err)
	}
	return stream.Send(&api.MigrationsReply{ReportJson: document})
}

// Set changes settings of a migration from this node that is under way.
func (s *localService) Set(_ context.Context, request *api.SetRequest) (*api.SetReply, error) {
	giver, err := s.agent.giver(request.Migration, "its settings are changed")
	limitOnly := request.DowntimeTargetSeconds == nil && request.MaxRounds == nil &&
		request.OnNoConvergence == nil
	if err == nil && giver.move.record().State == migration.Committed && !limitOnly {
		err = fmt.Errorf("%w: %s was handed over to %s: only the bandwidth limit can still be changed",
			errRefused, giver.definition.Name, giver.target.Name)
	}
	if err == nil {
		err = giver.change(request)
	}
	return &api.SetReply{}, rpc.Error(err)
}

// giver finds the source of a migration that is under way.
func (a *Agent) giver(id, what string) (*source, error) {
	m, err := a.moves.named(id)
	if err != nil {
		return nil, err
	}
	giver, ok := m.work().(*source)
	switch {
	case m.ended():
		return nil, fmt.Errorf("%w: migration %s has ended: %s", errRefused, id, m.record().Result)
	case !ok:
		return nil, fmt.Errorf("%w: migration %s comes to this node; %s at its source, on %s", errRefused,
			id, what, m.tracker.Spec.Source)
	}
	return giver, nil
}

// Switch ends the rounds of a migration from this node: what has not been sent follows.
func (s *localService) Switch(_ context.Context, request *api.MigrationRequest) (*api.SwitchReply, error) {
	giver, err := s.agent.giver(request.Migration, "it is switched")
	if err == nil {
		if why := giver.memory.Split().Request(); why != "" {
			err = fmt.Errorf("%w: %s", errRefused, why)
		}
	}
	if err == nil {
		err = giver.memory.Turn().Ask("a user requested it")
	}
	return &api.SwitchReply{}, rpc.Error(err)
}

func (s *localService) Cancel(_ context.Context, request *api.MigrationRequest) (*api.CancelReply, error) {
	m, err := s.agent.moves.named(request.Migration)
	if err != nil {
		return nil, rpc.Error(err)
	}
	if m.ended() {
		return nil, rpc.Error(fmt.Errorf("%w: migration %s has ended: %s", errRefused, request.Migration,
			m.record().Result))
	}
	_, err = m.step(migration.Cancel{Reason: "by a user"})
	return &api.CancelReply{}, rpc.Error(err)
}

// Thaw lets a container go on that a migration has left frozen here.
func (s *localService) Thaw(ctx context.Context, request *api.ThawRequest) (*api.ThawReply, error) {
	notice, err := s.agent.thaw(ctx, request.Reference, request.Force)
	return &api.ThawReply{Notice: notice}, rpc.Error(err)
}

// Resolve carries out an operator's decision.
func (s *localService) Resolve(ctx context.Context, request *api.ResolveRequest) (*api.ResolveReply, error) {
	side := migration.Side(request.RunsAt)
	if side != migration.Source && side != migration.Target {
		return nil, rpc.Error(fmt.Errorf("%w: it runs at the source or at the target, not at %.40q",
			errInvalid, request.RunsAt))
	}
	m, err := s.agent.moves.named(request.Migration)
	if err != nil {
		return nil, rpc.Error(err)
	}
	notice, err := s.agent.resolve(ctx, m,
		decision{runsAt: side, missing: request.MissingPages, force: request.Force})
	return &api.ResolveReply{Notice: notice}, rpc.Error(err)
}
