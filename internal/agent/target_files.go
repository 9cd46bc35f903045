package agent

import (
	"context"

	treefiles "github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/copies"
	"github.com/godwit/godwit/internal/migrate"
	"github.com/godwit/godwit/internal/transfer/files"
)

// receivingFiles makes what takes the container's files.
func receivingFiles(t *target) *files.Receiver {
	return files.NewReceiver(files.ReceiverConfig{
		Migration: t.move.Tracker.Spec, Arrival: arrivingFiles{t}, OfferedBytes: t.offer.GetTreesBytes(),
		Kept: t.agent.kept, Interrupted: migrate.ErrInterrupted,
		Dir: t.agent.moves.Dir(t.move.Tracker.Spec.ID), Cores: t.agent.cores, Log: t.agent.log,
	})
}

// arrivingFiles is what the files of a target need of it.
type arrivingFiles struct{ *target }

// Ready implements files.Arrival.
func (a arrivingFiles) Ready() <-chan struct{} { return a.arrived }

// Place implements files.Arrival.
func (a arrivingFiles) Place() copies.Place { return a.arrival.TreePath }

// Salvage implements files.Arrival.
func (a arrivingFiles) Salvage(ctx context.Context, take func(treefiles.Tree) error) error {
	return a.agent.engines.EngineFor(a.definition).Salvage(ctx, a.definition.ID, take)
}

// Ended implements files.Arrival.
func (a arrivingFiles) Ended() <-chan struct{} { return a.move.Done() }
