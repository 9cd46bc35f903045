package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/migration"
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
		s.keepResidual(ctx)
	})()
	stop := s.frozen.Marking(ctx, markAfter)
	err := s.awaitCopy(ctx)
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
		return err
	}
	s.agent.adopter.Drop(s.definition.ID) // its address is not given back
	s.volumes.Forget(ctx)
	s.agent.placements.Left(s.definition.ID, s.target.Name, s.id(), s.residualCopy())
	return nil
}

// awaitCopy waits until the copy here is not needed any more.
func (s *source) awaitCopy(ctx context.Context) error {
	if s.move.record().Resolved {
		return nil
	}
	err := s.awaitDurable(ctx)
	if status.Code(err) == codes.DataLoss {
		return s.lossy(err)
	}
	if err != nil {
		return fmt.Errorf("files at %s: %s", s.target.Name, plain(err))
	}
	return nil
}

func (s *source) awaitDurable(ctx context.Context) error {
	return s.control.AskFor(ctx, durableTimeout, func(ctx context.Context, peer api.PeerClient) error {
		request := &api.DurableRequest{Migration: s.id(), Incarnation: s.move.record().Incarnation}
		_, err := peer.Durable(ctx, request)
		return err
	})
}

// lossy makes a refusal of a target that does not know whether it still has the files: the copy
// here is the only one that is whole for sure, and an operator has to decide.
func (s *source) lossy(err error) error {
	return &migration.Refusal{Problems: []migration.Problem{{
		What: "files at " + s.target.Name, Why: plain(err), Remedy: s.decideRemedy(),
	}}}
}

// decideRemedy is what an operator can do who has to decide.
func (s *source) decideRemedy() string {
	return fmt.Sprintf(
		`decide: "godwit migration resolve %s --runs-at source" resumes the frozen copy here, `+
			`"--runs-at target" removes it`, s.id())
}

// durableTimeout bounds how long a busy disk may take; the step is tried again.
const durableTimeout = time.Minute

func (s *source) cleanup(ctx context.Context) error {
	err := errors.Join(s.unprepare(ctx), s.untrack(ctx))
	return errors.Join(err, s.agent.network.Detach(s.definition.ID), s.straighten())
}

// straighten forgets the way to a container that has come home: packets take it anyway. The way to
// another node is forgotten when that node no longer has the container.
func (s *source) straighten() error {
	address := s.definition.Network.Address
	if !s.definition.Network.Pooled() {
		return nil
	}
	home, err := s.agent.network.Home(address)
	if err != nil {
		return err
	}
	if home != s.target.Number {
		s.agent.locations.MovedTo(s.target.Name, s.definition)
		return nil
	}
	return s.agent.network.Unroute(address)
}
