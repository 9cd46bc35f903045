package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/kernel"
)

// prepare waits for the image's layers, and does what takes time before the container stops in its
// mode's way.
func (s *source) prepare(ctx context.Context, forMode func(context.Context) error) error {
	if err := s.layers.Await(ctx); err != nil {
		return err
	}
	s.move.PutOffGC()
	defer s.guard(ctx)()
	return forMode(ctx)
}

// dumping has the steps of a source in the modes in which CRIU dumps the container.
type dumping struct{ *source }

// prepareDump does all that a dump needs and that takes time, here and at the target.
func (s dumping) prepareDump(ctx context.Context) error {
	if s.agreed().GetStartsLate() {
		if err := s.start.Send(s.link.Tell); err != nil {
			return err
		}
	}
	if err := s.openDump(ctx); err != nil {
		return err
	}
	if err := s.start.Await(ctx); err != nil {
		return err
	}
	return s.examineInodes(ctx)
}

// openDump does what is to be done here.
func (s dumping) openDump(ctx context.Context) error {
	if err := errors.Join(s.examineAgain(ctx), refused(s.volumes.ProveAgain(ctx))); err != nil {
		return err
	}
	if err := refused(s.volumes.Release(ctx)); err != nil { // so that little is left for the freeze
		return err
	}
	if err := mountMemory(s.imagesDir()); err != nil {
		return err
	}
	if err := s.dump.Prepare(ctx, s.leave()); err != nil {
		return err
	}
	if err := s.leaveBridge(ctx); err != nil {
		return err
	}
	if err := s.packets.Prepare(); err != nil {
		return err
	}
	same := guard.Beside(ctx, s.sameAgain) // an engine may take long to answer
	return same(s.catchUp(ctx))
}

// catchUp sends all that need not be sent in the freeze.
func (s dumping) catchUp(ctx context.Context) error {
	if err := s.dump.SendKnown(ctx); err != nil {
		return err
	}
	if !s.memory.Ahead() {
		if err := s.files.Cold(ctx); err != nil {
			return err
		}
		return s.link.Warm(ctx, s.expectedRest())
	}
	if err := s.memory.Foresee(); err != nil {
		return err
	}
	if err := s.openWays(ctx); err != nil {
		return err
	}
	if err := s.memory.CatchUp(ctx); err != nil {
		return err
	}
	return s.dump.AwaitKnown(ctx)
}

// openWays has all connections be ready for the freeze, and brings the files up to date. Each takes
// round trips, over a connection of its own: so they go beside each other.
func (s dumping) openWays(ctx context.Context) error {
	warmed := guard.Beside(ctx, func(ctx context.Context) error { return s.link.Warm(ctx, s.expectedRest()) })
	opened := guard.Beside(ctx, s.memory.OpenPush)
	return warmed(opened(s.files.Round(ctx)))
}

// unprepare ends what waits for the dump. After a crash of the agent only the engine knows what there is.
func (s *source) unprepare(ctx context.Context) error {
	s.frozen.EndKeeping()
	s.frozen.EndKeeper()
	err := s.dump.Close(ctx)
	err = errors.Join(err, s.packets.CloseUnused(), s.memory.EndPush(),
		s.agent.network.LetGo(s.definition.ID))
	// An agent that was killed may have left both of them mounted.
	err = errors.Join(err, kernel.UnmountMemory(s.imagesDir()), s.memory.Unmount())
	return errors.Join(err, os.RemoveAll(filepath.Dir(s.imagesDir())))
}

// resume lets the container go on here. It is heard again first: what it sends at once is not lost.
// Its engine may hang: it has the container back when the packets that are held for it have been
// let go (unprepare).
func (s dumping) resume(ctx context.Context) error {
	err := s.memory.EndPush()
	s.frozen.EndKeeping()
	return errors.Join(err, s.packets.EndQuiesce(), s.frozen.Resume(ctx))
}

// writeState writes the execution state into memory, and sends what only grows while it does.
func (s dumping) writeState(ctx context.Context) error {
	defer s.guard(ctx)()
	return s.dump.Write(ctx)
}
