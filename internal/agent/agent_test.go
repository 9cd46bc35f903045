package agent

import (
	"context"
	"log/slog"
	"testing"

	"github.com/godwit/godwit/internal/cluster/clustertest"
	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/embedded"
	"github.com/godwit/godwit/internal/files/image"
	"github.com/godwit/godwit/internal/reserve"
	"github.com/godwit/godwit/internal/residual"
	"github.com/godwit/godwit/internal/transfer/kept"
	"github.com/godwit/godwit/internal/wire/identity"
)

const testMigration = "0123456789abcdef"

// emptyEngine is the node's own engine, without containers.
type emptyEngine struct{ *embedded.Engine }

// Processes finds no container.
func (emptyEngine) Processes(context.Context, string) ([]int, error) { return nil, engine.ErrNotFound }

// newTestAgent makes what of an agent needs no kernel: node b, which knows node a.
func newTestAgent(t *testing.T) *Agent {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	a := &Agent{
		config: Config{StateDir: t.TempDir(), RunDir: t.TempDir()}, log: slog.New(slog.DiscardHandler),
		ctx: ctx, stop: stop,
	}
	a.reservations, a.residuals = reserve.New(), residual.New(residual.Config{})
	a.engines = engine.NewSet(emptyEngine{})
	var err error
	if a.images, err = image.Open(a.config.StateDir); err != nil {
		t.Fatal(err)
	}
	if a.kept, err = kept.New(kept.Config{StateDir: a.config.StateDir, Keep: kept.DefaultKeep,
		Log: a.log}); err != nil {
		t.Fatal(err)
	}
	a.id = clustertest.New(t, "a", "b")[1].ID
	a.self = a.id.Node
	saved := []identity.Node{{Name: "a", Number: 1, Address: "192.0.2.1:7443"}}
	if err := identity.SaveNodes(a.config.StateDir, saved); err != nil {
		t.Fatal(err)
	}
	if a.peers, err = newPeers(a); err != nil {
		t.Fatal(err)
	}
	a.spare = durable.NewSpare(a.config.StateDir)
	openMoves(a)
	a.lists, a.leases = newLists(a), newLeases(a)
	openAttachments(a, nil)
	a.stages, a.stagedCopies = newStages(a), newStagedCopies(a)
	if a.placements, err = openPlacements(a); err != nil {
		t.Fatal(err)
	}
	a.admission = newAdmission(a)
	a.departures = newDepartures(a)
	return a
}
