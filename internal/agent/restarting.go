package agent

import (
	"context"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/location"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/restart"
)

// newRestarts is made before the attachments.
func newRestarts(a *Agent) *restart.Restarts {
	return restart.New(a.ctx, restart.Config{
		Engine: a.embedded, Migrations: migrate.NewStarts(a.moves),
		Members: location.Members{Others: a.peers.AllOthers, Reaches: a.peers.Reaches,
			Presence: location.Connect(a.peers.Asking).Presence, Log: a.log},
		Prepare: a.prepareStart, Changed: func() { a.lists.Changed(a.embedded) }, Log: a.log,
	})
}

// prepareStart makes what a container that is about to start needs of this node.
func (a *Agent) prepareStart(ctx context.Context, d engine.Definition) error {
	if err := a.moves.CheckVolumes(d); err != nil {
		return err
	}
	if _, err := a.attachments.Attach(ctx, d); err != nil {
		return err
	}
	return a.network.Route(d.Network.Address, network.Local(d.ID))
}
