package agent

import (
	"context"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/location"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/restart"
)

// newRestarts is made before the migrations and the attachments.
func newRestarts(a *Agent) *restart.Restarts {
	return restart.New(a.ctx, restart.Config{
		Engine: a.embedded, Migrations: movesOf{a},
		Members: location.Members{Others: a.peers.AllOthers, Reaches: a.peers.Reaches,
			Presence: location.Connect(a.peers.Asking).Presence, Log: a.log},
		Prepare: a.prepareStart, Changed: func() { a.lists.Changed(a.embedded) }, Log: a.log,
	})
}

// prepareStart makes what a container that is about to start needs of this node.
func (a *Agent) prepareStart(ctx context.Context, d engine.Definition) error {
	if err := a.moves.checkVolumes(d); err != nil {
		return err
	}
	if _, err := a.attachments.Attach(ctx, d); err != nil {
		return err
	}
	return a.network.Route(d.Network.Address, network.Local(d.ID))
}

// movesOf are the migrations of this node, as those ask who want to start a container.
type movesOf struct{ agent *Agent }

// Busy implements restart.Migrations.
func (m movesOf) Busy(container string) error {
	if move := m.agent.moves.of(container); move != nil {
		return move.busy()
	}
	return nil
}

// Of implements restart.Migrations.
func (m movesOf) Of(container string) (id string, neverRuns bool) {
	move := m.agent.moves.of(container)
	if move == nil {
		return "", false
	}
	return move.tracker.Spec.ID, move.neverRuns()
}

// UnreadAmong implements restart.Migrations.
func (m movesOf) UnreadAmong(containers ...string) string {
	return m.agent.moves.unread.Among(containers...)
}

// Unusable implements restart.Migrations.
func (m movesOf) Unusable(of engine.Container) string { return m.agent.moves.unread.Advice(of) }
