package agent

import (
	"context"
	"errors"
	"time"

	"github.com/godwit/godwit/internal/placement"
	"github.com/godwit/godwit/internal/residual"
)

// markAfter is how long a copy that is about to be removed may stay without its engine showing that it
// has moved.
const markAfter = time.Second

// destroy removes the frozen copy, once the target has on disk what it received: in the freeze it
// had no time for that. An operator who says that the container runs at the target may say so
// because that node cannot be asked.
func (s *source) destroy(ctx context.Context) error {
	kept := make(chan struct{})
	go s.agent.guarded(func() { // while the target's disk is busy
		defer close(kept)
		s.memory.KeepResidual(ctx)
	})()
	stop := s.frozen.Marking(ctx, markAfter)
	err := s.frozen.AwaitUnneeded(ctx, s.control.AskFor)
	stop()
	<-kept
	if err != nil {
		s.frozen.MarkMoved(ctx)
		return err
	}
	if err := s.agent.network.SaveConntrack(s.definition.Network.Address); err != nil {
		return err
	}
	stay := s.volumes.StayingKeys()
	if err := s.agent.engines.EngineFor(s.definition).Destroy(ctx, s.definition.ID, stay); err != nil {
		// the step is repeated, and clients do not wait for it
		return errors.Join(err, s.agent.network.OpenAgain(s.definition.Network.Address))
	}
	s.agent.adopter.Drop(s.definition.ID) // its address is not given back
	s.volumes.Forget(ctx)
	s.agent.placements.Left(s.definition.ID, s.target.Name, s.id(),
		residualCopy(s.agent.residuals, s.definition.ID, s.agent.self.Name))
	return nil
}

// residualCopy describes the copy of a container at this node for its policy. If there is none, the result
// names no node.
func residualCopy(copies *residual.Copies, container, node string) placement.Copy {
	bytes, fresh, there := copies.Holds(container)
	if !there {
		return placement.Copy{}
	}
	return placement.Copy{Node: node, Bytes: bytes, Fresh: fresh}
}

func (s *source) cleanup(ctx context.Context) error {
	err := errors.Join(s.unprepare(ctx), s.memory.Untrack(ctx))
	return errors.Join(err, s.agent.network.Detach(s.definition.ID),
		s.agent.locations.Left(s.target, s.definition))
}

// MayTakeBack refuses to let the container go on here that has been handed over, if it must not.
func (s *source) MayTakeBack(ctx context.Context, force bool) error {
	return s.frozen.MayTakeBack(ctx, force,
		func() bool { return s.memory.Healthy(s.agent.config.peerTimeout()) })
}
