package agent

import (
	"context"
	"errors"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/uplink"
)

// runUplink keeps the node connected to its controller, if it has one. The agent does without.
func runUplink(ctx context.Context, a *Agent) {
	up, err := uplink.New(uplink.Options{
		State: a.config.StateDir, Node: uplinked{a}, Certificate: a.id.Certificate, Log: a.log,
	})
	if err != nil {
		a.log.Error("the node takes no commands of a controller", "error", err)
		return
	}
	up.Run(ctx)
}

// uplinked is the agent as the package uplink needs it.
type uplinked struct{ agent *Agent }

func (u uplinked) Containers(ctx context.Context, fresh bool) ([]engine.Container, error) {
	if fresh {
		return u.agent.engines.ListAnswered(ctx)
	}
	return u.agent.lists.All(ctx)
}

func (u uplinked) Moving() map[string]bool { return u.agent.moves.AllMoving() }
func (u uplinked) Nodes() []*api.Node      { return u.agent.peers.Describe() }

func (u uplinked) Memory(ctx context.Context, id string) (int64, error) {
	return u.agent.admission.MemoryOf(ctx, id)
}

func (u uplinked) Migrate(ctx context.Context, request *api.MigrateRequest) error {
	_, err := departing{u.agent.departures, u.agent}.Migrate(ctx, request)
	return err
}

func (u uplinked) Cancel(id string) error {
	m, err := u.agent.moves.Find(id)
	if err == nil {
		_, err = m.Step(migration.Cancel{Reason: "by a user of the controller"})
	}
	return err
}

// Report: a migration whose journal cannot be read now is known, as it may go on.
func (u uplinked) Report(id string) (report migration.Report, ended, known bool) {
	m, err := u.agent.moves.Find(id)
	if err != nil {
		return migration.Report{}, false, !errors.As(err, new(migrate.UnknownError))
	}
	return m.Report(), m.Ended(), true
}
