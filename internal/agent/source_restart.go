package agent

import (
	"context"
	"errors"

	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/anew"
	"github.com/godwit/godwit/internal/transfer/link"
)

// stopAnew makes what stops the container in mode restart.
func stopAnew(s *source) *anew.Source {
	return anew.NewSource(anew.SourceConfig{
		Container: s.definition, Engines: s.agent.engines, Packets: s.packets, Leave: s.leave,
		Forget: s.volumes.Forget, Here: s.agent.self.Name, Figures: s.move.Tracker,
	})
}

// stopping has the steps of a source in mode restart, which stops the container and dumps nothing.
type stopping struct{ *source }

// examineAnew finds what stands against stopping the container here and starting it at the target.
func (s stopping) examineAnew(ctx context.Context) error {
	ports, problems, err := s.anew.Examine(ctx)
	if err := refused(problems, err); err != nil {
		return err
	}
	if err := s.describe(ctx); err != nil {
		return err
	}
	s.move.Tracker.Expect(s.offered.TreesBytes)
	s.offered.PortsJson = ports
	return nil
}

// checkpoints copies the files while the container runs: as often as was asked for, or as helps.
func (s stopping) checkpoints(ctx context.Context) error {
	wanted := s.settings.Get().Checkpoints
	switch {
	case wanted == migration.NoCheckpoints:
		return s.files.Make(ctx)
	case wanted == 0:
		if err := s.copyAhead(ctx, nil); err != nil {
			return err
		}
		return s.files.Copy(ctx)
	}
	return s.files.Checkpoints(ctx, wanted, s.layers.Await)
}

// prepareStop does what takes time and need not be done when the container has been stopped.
func (s stopping) prepareStop(ctx context.Context) error {
	if err := refused(s.volumes.ProveAgain(ctx)); err != nil {
		return err
	}
	err := s.packets.Prepare()
	if err == nil {
		err = s.link.WarmFully(ctx)
	}
	if err != nil {
		return err
	}
	return errors.Join(s.files.EndRounds(ctx), s.sameAgain(ctx))
}

// holdNew has those who want to connect wait, until a container runs again that they can connect to. All that
// belongs to connections that there are goes on to the container: it can bring them to their end.
func (s stopping) holdNew(context.Context) error { return s.packets.HoldRequests() }

// sendFiles sends what has changed in the files of the container that was stopped.
func (s stopping) sendFiles(ctx context.Context) (marker link.Marker, err error) {
	if err := refused(s.volumes.HandOver(ctx)); err != nil {
		return marker, err
	}
	if err := s.files.Final(ctx, s.link.Out()); err != nil {
		return marker, err
	}
	return marker, s.files.Last(ctx, s.link.Out())
}
