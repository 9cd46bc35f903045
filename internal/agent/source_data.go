package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/anew"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/state"
	"github.com/godwit/godwit/internal/wire/stream"
)

// stage opens the data connection, measures it, and has the target begin to get the layers that it has not.
// What else begins with the connection depends on the mode.
func (s *source) stage(ctx context.Context, begin func()) error {
	if err := s.examineSpillKey(); err != nil {
		return err
	}
	if err := s.openData(ctx); err != nil {
		return err
	}
	defer s.guard(ctx)()
	begin()
	// In a cold migration nothing else leaves before the prepare: on a long way measuring takes long.
	beside := s.move.tracker.Spec.Mode == migration.Cold && !s.lacksImage()
	if !beside {
		if err := s.link.Measure(ctx, s.expectedState()); err != nil {
			return err
		}
	}
	s.beginLayers()
	if err := s.takeStaged(ctx); err != nil {
		return fmt.Errorf("take over what was staged: %w", err)
	}
	if err := s.bringFirst(ctx); err != nil {
		return err
	}
	if err := s.link.Section(kindStaged, "", nil); err != nil {
		return err
	}
	if err := s.link.Data().Flush(); err != nil {
		return err
	}
	if beside {
		s.link.MeasureBeside(s.agent.ctx, s.expectedState())
	}
	return nil
}

// expectedState is how much leaves at once, at most, mostly: in the freeze of a cold migration, or
// in the first round.
func (s *source) expectedState() int64 {
	if s.lacksImage() {
		return 0 // that is much
	}
	if expected := s.auto.FrozenBytes(); expected > 0 && s.move.tracker.Spec.Mode == migration.Cold {
		return int64(predict.StateMargin * expected)
	}
	return max(predict.LeastState, s.offered.MemoryBytes/predict.StateShare)
}

// expectedRest is how much leaves at once in the freeze when rounds have gone before, at most,
// mostly. The first of them may have been large.
func (s *source) expectedRest() int64 {
	if s.memory == nil {
		return s.expectedState()
	}
	last, ok := s.memory.LastBytes()
	if !ok {
		return s.expectedState()
	}
	return max(predict.LeastState, 2*last)
}

func (s *source) openData(ctx context.Context) error {
	data, err := s.link.Open(ctx, purposeMigration)
	if err != nil {
		return err
	}
	go s.move.guarded(func() { s.listen(data) })()
	go s.agent.guarded(func() {
		<-s.move.done
		_ = data.Close() // Nothing is under way on it any more.
	})()
	return nil
}

// guard ends the data connection when a step that uses it is interrupted: a write to a link that is
// gone would wait for as long as TCP does.
func (s *source) guard(ctx context.Context) (done func()) {
	stop := context.AfterFunc(ctx, func() {
		s.closePages(context.Cause(ctx))
		s.files.Close()
		if !s.control.Stands() {
			_ = s.link.Data().Close() // There is nobody to tell why.
			return
		}
		_ = s.link.Data().Abort(plain(context.Cause(ctx)))
	})
	return func() { stop() }
}

// listen notices that the target ends the data connection, so that nobody waits for a link that is gone.
func (s *source) listen(data *stream.Session) {
	for {
		if err := guard.Do(func() error { return s.hearSection(data) }); err != nil {
			s.agent.logPanic(err)
			s.closePages(err)
			s.move.tell(migration.PeerLost{Error: err.Error()})
			return
		}
	}
}

func (s *source) hearSection(data *stream.Session) error {
	section, err := data.Next()
	switch {
	case err != nil:
		return err
	case section.Kind == precopy.KindPlaced, section.Kind == precopy.KindClaims:
		return s.hearPages(section)
	case section.Kind == kindHeard:
		return s.known.Hear(section.Name)
	case section.Kind == kindReady:
		return s.hearReady()
	case section.Kind == anew.KindRedirected:
		return s.packets.Redirect()
	default:
		return fmt.Errorf("a section %.40q comes from the target", section.Kind)
	}
}

// sendKnown sends ahead what CRIU's images will have in them that hardly ever changes. Without that
// the freeze is longer, no more.
func (s *source) sendKnown(ctx context.Context) error {
	if s.memory == nil {
		return nil // all of it is one freeze
	}
	known, err := s.findKnown(ctx)
	defer known.Release()
	if err != nil {
		s.agent.log.Warn("all changed pages of files are sent in the freeze", "container", s.definition.Name,
			"error", err)
		return nil
	}
	return s.known.Send(known, func(content []byte) error {
		if err := s.link.Section(kindKnown, "", content); err != nil {
			return err
		}
		return s.link.Data().Flush()
	})
}

// awaitKnown waits until the target has what was sent ahead, or has said that it cannot have it.
func (s *source) awaitKnown(ctx context.Context) error {
	refused, err := s.known.Await(ctx)
	if refused {
		s.agent.log.Warn("all changed pages of files are sent in the freeze: the target could not take "+
			"them from the image's layers; see its log",
			"container", s.definition.Name)
	}
	return err
}

func (s *source) findKnown(ctx context.Context) (*state.Known, error) {
	known := state.NewKnown(s.agent.layersOf(s.definition))
	pids, err := s.agent.engines.EngineFor(s.definition).Processes(ctx, s.definition.ID)
	if err != nil {
		return known, err
	}
	return known, memory.ChangedFilePages(pids, known.Add)
}

// transfer sends what is left, and the final marker with the content that the mode gives it. The
// journal is written and the frozen copy is held while the bytes leave. The marker leaves only when
// nobody else can run the copy here: with the marker, the target may have the only one.
func (s *source) transfer(ctx context.Context, content func(context.Context) ([]byte, error)) error {
	defer s.guard(ctx)()
	s.frozen.WithholdFinal()
	held := guard.Go(func() error { return s.frozen.AwaitHeld(ctx) })
	permission := guard.Go(func() error { return s.move.mayEmitFinal(ctx) }) // the journal takes as long
	manifest, err := content(ctx)
	if err = errors.Join(err, <-held, <-permission); err == nil {
		err = s.sendFinal(ctx, manifest)
	}
	if err != nil {
		return err
	}
	s.move.tracker.Counted(carried(s.sent()))
	if s.memory == nil {
		return nil
	}
	return s.push.Begin(ctx, s.memory, s.pages)
}

// sendFinal sends the final marker: from now on this node does not decide alone.
func (s *source) sendFinal(ctx context.Context, manifest []byte) error {
	if err := s.frozen.ReleaseFinal(ctx); err != nil {
		return err
	}
	if err := s.link.Section(kindFinal, "", manifest); err != nil {
		return err
	}
	return s.link.Data().Finish()
}

// sendState sends the state of the frozen processes, and what of memory and files is left. It
// returns the content of the final marker.
func (s *source) sendState(ctx context.Context) ([]byte, error) {
	if s.memory != nil {
		if err := s.memory.Finish(ctx, dumped{s.departure, s.imagesDir()}, s.link.Out()); err != nil {
			return nil, err
		}
	}
	if err := refused(s.volumes.HandOver(ctx)); err != nil {
		return nil, err
	}
	sent, err := s.sender.Rest()
	if err != nil {
		return nil, err
	}
	if err := s.files.Last(ctx, s.link.Out()); err != nil {
		return nil, err
	}
	return json.Marshal(finalMarker{State: sent})
}
