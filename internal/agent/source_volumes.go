package agent

import (
	"context"

	"github.com/godwit/godwit/internal/engine"
)

// describe makes the offer, when it is decided what becomes of the volumes. That is journalled from now on:
// whoever removes the copy here must know what does not go with it.
func (s *source) describe(ctx context.Context) error {
	if err := refused(s.volumes.Choose(ctx, s.settings.Get().Volumes)); err != nil {
		return err
	}
	s.move.Describe(s.volumes.Moving())
	moved := s.volumes.Chosen().Moved
	offer, err := s.agent.departures.Offer(ctx, s.move.Tracker.Spec, s.volumes.Moving(), moved)
	if err != nil {
		return err
	}
	s.offered = offer
	s.move.Tracker.Volumes(moved)
	return nil
}

// refused is refuse for what may not be known.
func refused(found []engine.Problem, err error) error {
	if err != nil {
		return err
	}
	return refuse(found)
}
