package agent

import (
	"context"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/transfer/volumes"
)

// describe makes the offer, when it is decided what becomes of the volumes.
func (s *source) describe(ctx context.Context) error {
	if err := s.chooseVolumes(ctx); err != nil {
		return err
	}
	moved := s.volumes.Chosen().Moved
	offer, err := s.agent.departures.Offer(ctx, s.move.tracker.Spec, s.moving(), moved)
	if err != nil {
		return err
	}
	s.offered = offer
	s.move.tracker.Volumes(moved)
	return nil
}

// chooseVolumes decides what becomes of the volumes, and has it journalled from now on: whoever
// removes the copy here must know what does not go with it.
func (s *source) chooseVolumes(ctx context.Context) error {
	err := refused(s.volumes.Choose(ctx, s.move.tracker.Spec.Mode, s.settings.Get().Volumes))
	if err != nil {
		return err
	}
	s.move.describe(s.moving())
	return nil
}

// moving is the definition of the container with the volumes that stay marked.
func (s *source) moving() engine.Definition { return s.volumes.Moving() }

// stay are the keys of the volumes that stay.
func (s *source) stay() []string { return volumes.StayingKeys(s.moving()) }

// trees are the directories that move.
func (s *source) trees(ctx context.Context) ([]files.Tree, error) {
	return s.agent.volumes.Trees(ctx, s.moving())
}

// proveAgain refuses to go on if the nodes do not both mount any more what is shared.
func (s *source) proveAgain(ctx context.Context) error { return refused(s.volumes.ProveAgain(ctx)) }

// releaseShared hands the volumes that stay to the target, before the freeze.
func (s *source) releaseShared(ctx context.Context) error {
	return refused(s.volumes.Release(ctx, s.move.tracker.Spec.Mode, s.packets.StoppedNow()))
}

// handOverShared is releaseShared in the freeze.
func (s *source) handOverShared(ctx context.Context) error {
	return refused(s.volumes.HandOver(ctx, s.move.tracker.Spec.Mode, s.packets.StoppedNow()))
}

// forgetShared drops what is cached here of volumes that are the target's now.
func (s *source) forgetShared(ctx context.Context) { s.agent.volumes.Forget(ctx, s.moving()) }

// refused is refuse for what may not be known.
func refused(found []engine.Problem, err error) error {
	if err != nil {
		return err
	}
	return refuse(found)
}
