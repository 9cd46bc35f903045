package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/kernel"
	"github.com/godwit/godwit/internal/transfer/state"
)

// prepare waits for the image's layers, and does what takes time before the container stops in its
// mode's way.
func (s *source) prepare(ctx context.Context, forMode func(context.Context) error) error {
	if err := s.layers.Await(ctx); err != nil {
		return err
	}
	s.move.putOffGC()
	defer s.guard(ctx)()
	return forMode(ctx)
}

// prepareDump does all that a dump needs and that takes time, here and at the target.
func (s *source) prepareDump(ctx context.Context) error {
	if err := s.tellNear(); err != nil {
		return err
	}
	if err := s.openDump(ctx); err != nil {
		return err
	}
	if err := s.awaitReady(ctx); err != nil {
		return err
	}
	return s.examineInodes(ctx)
}

// openDump does what is to be done here.
func (s *source) openDump(ctx context.Context) error {
	if err := errors.Join(s.examineAgain(ctx), refused(s.volumes.ProveAgain(ctx))); err != nil {
		return err
	}
	if err := refused(s.volumes.Release(ctx)); err != nil { // so that little is left for the freeze
		return err
	}
	if err := mountMemory(s.imagesDir()); err != nil {
		return err
	}
	departure, err := s.agent.engines.EngineFor(s.definition).PrepareDump(ctx, s.definition.ID,
		engine.DumpOptions{
			LeaveMemory: s.memory != nil, Leave: s.leave(),
		})
	if err != nil {
		return err
	}
	s.departure = departure
	if err := s.leaveBridge(ctx); err != nil {
		return err
	}
	if err = s.packets.Prepare(); err != nil {
		return err
	}
	same := guard.Beside(ctx, s.sameAgain) // an engine may take long to answer
	return same(s.catchUp(ctx))
}

// catchUp sends all that need not be sent in the freeze.
func (s *source) catchUp(ctx context.Context) error {
	if err := s.sendKnown(ctx); err != nil {
		return err
	}
	if s.memory == nil {
		if err := s.files.Cold(ctx); err != nil {
			return err
		}
		return s.link.Warm(ctx, s.expectedRest())
	}
	if err := s.foresee(); err != nil {
		return err
	}
	if err := s.openWays(ctx); err != nil {
		return err
	}
	if err := s.memory.CatchUp(ctx); err != nil {
		return err
	}
	return s.awaitKnown(ctx)
}

// foresee refuses memory that does not fit the container's limit at the target.
func (s *source) foresee() error {
	why, err := s.memory.Foresee(s.definition.Limits.MemoryBytes)
	if err != nil || why == "" {
		return err
	}
	return refuse([]engine.Problem{{
		What: "the container's memory", Why: why,
		Remedy: "move it with --mode cold, or give it a higher limit",
	}})
}

// openWays has all connections be ready for the freeze, and brings the files up to date. Each takes
// round trips, over a connection of its own: so they go beside each other.
func (s *source) openWays(ctx context.Context) error {
	warmed := guard.Beside(ctx, func(ctx context.Context) error { return s.link.Warm(ctx, s.expectedRest()) })
	opened := guard.Beside(ctx, func(ctx context.Context) error {
		if !s.memory.Leaving() {
			return nil
		}
		if s.settings.Get().Spill {
			s.push.WantSpill()
		}
		return s.push.Open(ctx)
	})
	return warmed(opened(s.files.Round(ctx)))
}

// unprepare ends what waits for the dump. After a crash of the agent only the engine knows what there is.
func (s *source) unprepare(ctx context.Context) error {
	var err error
	s.frozen.EndKeeping()
	s.frozen.EndKeeper()
	if s.departure != nil {
		err = s.departure.Close()
	} else {
		err = s.agent.engines.EngineFor(s.definition).Resume(ctx, s.definition.ID)
	}
	err = errors.Join(err, s.packets.CloseUnused(), s.push.End(), s.agent.network.LetGo(s.definition.ID))
	// An agent that was killed may have left both of them mounted.
	err = errors.Join(err, kernel.UnmountMemory(s.imagesDir()), kernel.UnmountMemory(s.residualDir()))
	return errors.Join(err, os.RemoveAll(filepath.Dir(s.imagesDir())))
}

// quiescedQuickly is how long quiescing may take without another round: memory written since is little.
const quiescedQuickly = 10 * time.Millisecond

// holdPackets holds packets for the container, those that open connections first, so that no connection
// is half open at the freeze. That may take a round trip, or more.
func (s *source) holdPackets(ctx context.Context) error { return s.packets.Hold(ctx, s.settle) }

// settle waits until no TCP handshake or close is in flight.
func (s *source) settle(ctx context.Context) error {
	began := time.Now()
	if err := s.departure.Settle(ctx); err != nil {
		return err
	}
	if s.memory != nil && s.memory.Fits() && time.Since(began) > quiescedQuickly {
		return s.memory.Round(ctx)
	}
	return nil
}

func (s *source) freeze(ctx context.Context) (time.Time, error) {
	at, err := s.departure.Freeze(ctx)
	for errors.Is(err, engine.ErrUnsettled) {
		if err = s.holdPackets(ctx); err == nil {
			at, err = s.departure.Freeze(ctx)
		}
	}
	if err != nil {
		return time.Time{}, err
	}
	s.move.tracker.Frozen(at)
	if s.memory != nil {
		if err := s.memory.EndThrottle(ctx); err != nil { // what CRIU runs in its processes counts as theirs
			return time.Time{}, err
		}
	}
	s.packets.Quiesce()
	return time.Time{}, nil
}

// resume lets the container go on here. It is heard again first: what it sends at once is not lost.
// Its engine may hang: it has the container back when the packets that are held for it have been
// let go (unprepare).
func (s *source) resume(ctx context.Context) error {
	err := s.push.End()
	s.frozen.EndKeeping()
	return errors.Join(err, s.packets.EndQuiesce(), s.frozen.Resume(ctx))
}

// dump writes the execution state into memory, and sends what only grows while it does.
func (s *source) dump(ctx context.Context) error {
	defer s.guard(ctx)()
	if s.memory != nil {
		if err := s.memory.LeaveShared(s.departure.LeaveShared); err != nil {
			return err
		}
	}
	s.sender = state.NewSender(s.imagesDir(),
		func(name string) (io.WriteCloser, error) { return s.link.Begin(kindState, name) })
	s.sender.Refer(s.known.Known(),
		func(name string) (io.WriteCloser, error) { return s.link.Begin(kindRefers, name) })
	complete := make(chan struct{})
	followed := guard.Go(func() error { return s.sender.Follow(ctx, complete) })
	last := func(context.Context) error { return nil }
	if s.memory != nil {
		last = s.memory.Last
	}
	copied := guard.Beside(ctx,
		func(ctx context.Context) error { return s.files.Final(ctx, s.link.Out()) })
	sent := guard.Beside(ctx, last)
	// What a socket sends or gets after CRIU has looked at it is unknown to its copy, which may
	// then take what its peer says for invalid.
	err := s.packets.AwaitQuiesced()
	if err == nil {
		err = s.departure.Dump(ctx, s.imagesDir())
	}
	if err == nil {
		s.frozen.Keep()
	}
	close(complete)
	err = copied(sent(err))
	return errors.Join(err, <-followed)
}
