package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/files"
	"github.com/godwit/godwit/internal/files/compare"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/link"
)

// In mode restart, the source stops the container and dumps nothing.

// examineAnew finds what stands against stopping the container here and starting it at the target.
func (s *source) examineAnew(ctx context.Context) error {
	problems, err := s.agent.engines.EngineFor(s.definition).ExamineAnew(ctx, s.definition.ID)
	if err == nil {
		err = refuse(problems)
	}
	if err != nil {
		return err
	}
	ports, err := s.agent.engines.EngineFor(s.definition).Ports(ctx, s.definition.ID)
	if err != nil {
		return err
	}
	if err := s.describe(ctx); err != nil {
		return err
	}
	s.move.tracker.Expect(s.offered.TreesBytes)
	s.offered.PortsJson, err = json.Marshal(ports)
	return err
}

// remedyPatience bounds how long a remedy is looked into.
const remedyPatience = 2 * time.Second

// restartRemedy names mode restart where it would do.
func (a *Agent) restartRemedy(ctx context.Context, definition engine.Definition,
	problems []engine.Problem) []engine.Problem {
	if len(problems) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, remedyPatience)
	defer cancel()
	if anew, err := a.engines.EngineFor(definition).ExamineAnew(ctx, definition.ID); err != nil ||
		len(anew) > 0 {
		return problems // it would not help, as far as is known
	}
	problems = slices.Clone(problems)
	for i, p := range problems {
		problems[i].Remedy = "move it with --mode restart: its files move, and its processes start anew there"
		if p.Remedy != "" {
			problems[i].Remedy = p.Remedy + "; or " + problems[i].Remedy
		}
	}
	return problems
}

// checkpoints copies the files while the container runs: as often as was asked for, or as helps.
func (s *source) checkpoints(ctx context.Context) error {
	wanted := s.settings.Get().Checkpoints
	switch {
	case wanted == migration.NoCheckpoints:
		return s.makeFiles(ctx)
	case wanted == 0:
		if err := s.copyAhead(ctx, nil); err != nil {
			return err
		}
		return s.copyFiles(ctx)
	}
	if err := s.openFiles(ctx); err != nil {
		return fmt.Errorf("open a connection for files to %s: %w", s.target.Name, err)
	}
	for n := range wanted {
		if n == wanted-1 { // it stops soon after the last of them
			if err := s.awaitLayers(ctx); err != nil {
				return err
			}
		}
		if _, err := s.files.round(ctx); err != nil {
			return err
		}
		if n > 0 { // what changes is known then
			s.move.tracker.ExpectFiles(s.filesTakeInFreeze())
		}
	}
	return nil
}

// prepareStop does what takes time and need not be done when the container has been stopped.
func (s *source) prepareStop(ctx context.Context) error {
	if err := s.proveAgain(ctx); err != nil {
		return err
	}
	err := s.packets.Prepare()
	if err == nil {
		err = s.link.WarmFully(ctx)
	}
	if err != nil {
		return err
	}
	if len(s.files.history) > 0 && s.settings.Get().Checkpoints == 0 {
		err = s.followFiles(ctx)
	}
	s.closeFiles() // what is left goes over the other one
	return errors.Join(err, s.sameAgain(ctx))
}

// holdNew has those who want to connect wait, until a container runs again that they can connect to. All that
// belongs to connections that there are goes on to the container: it can bring them to their end.
func (s *source) holdNew(context.Context) error { return s.packets.HoldRequests() }

// stop ends the container.
func (s *source) stop(ctx context.Context) error {
	at, err := s.agent.engines.EngineFor(s.definition).Halt(ctx, s.definition.ID, s.leave())
	if !at.IsZero() {
		s.move.tracker.Frozen(at)
	}
	if err != nil {
		return err
	}
	s.packets.Stopped()
	return nil
}

// mapped tells which files are mapped by processes; after the stop there are none.
func (s *source) mapped(ctx context.Context) (compare.Mapped, error) {
	if s.packets.StoppedNow() {
		return compare.Mapped{}, nil
	}
	return s.agent.mappedFiles(ctx, s.definition)
}

// movable leaves out the trees that do not move in a mode: what is in memory ends with the
// processes that are stopped.
func (s *source) movable(trees []files.Tree) []files.Tree {
	if s.move.tracker.Spec.Mode != migration.Restart {
		return trees
	}
	return slices.DeleteFunc(trees, func(t files.Tree) bool { return t.Kind == files.Memory })
}

// sendFiles sends what has changed in the files of the container that was stopped.
func (s *source) sendFiles(ctx context.Context) (marker link.Marker, err error) {
	if err := s.handOverShared(ctx); err != nil {
		return marker, err
	}
	for _, round := range []freezeRound{s.files.trees.Final, s.files.trees.Last} {
		if err := s.files.freeze(ctx, s.link.Out(), round); err != nil {
			return marker, err
		}
	}
	return marker, nil
}

// revive starts the container again that was stopped here. Nothing of the old one's connections may
// be in the way of the new one, so it gets a network of its own; those who want to connect go on
// waiting until it is healthy.
func (s *source) revive(ctx context.Context) error {
	s.packets.Reviving()
	halted, err := s.agent.engines.EngineFor(s.definition).Halted(ctx, s.definition.ID)
	if err != nil || !halted {
		return err
	}
	if err := s.packets.Renew(ctx); err != nil {
		return fmt.Errorf("network of %s: %w", s.definition.Name, err)
	}
	s.forgetShared(ctx) // what was on probation at the target may have written there
	health, err := s.agent.engines.EngineFor(s.definition).Revive(ctx, s.definition.ID)
	if err != nil {
		return err
	}
	s.move.tracker.Decided("started again at " + s.agent.self.Name + ": " + health)
	return nil
}
