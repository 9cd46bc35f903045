package agent

import (
	"context"
	"fmt"

	"github.com/godwit/godwit/internal/frozen"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/latestart"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/predict"
	"github.com/godwit/godwit/internal/transfer/anew"
	"github.com/godwit/godwit/internal/transfer/dump"
	"github.com/godwit/godwit/internal/transfer/link"
	"github.com/godwit/godwit/internal/transfer/memory/leaving"
	"github.com/godwit/godwit/internal/wire/stream"
)

// stage opens the data connection, measures it, and has the target begin to get the layers that it has not.
// What else begins with the connection depends on the mode.
func (s *source) stage(ctx context.Context, begin func()) error {
	if err := s.memory.ExamineKey(); err != nil {
		return err
	}
	if err := s.openData(ctx); err != nil {
		return err
	}
	defer s.guard(ctx)()
	begin()
	// In a cold migration nothing else leaves before the prepare: on a long way measuring takes long.
	beside := s.move.Tracker.Spec.Mode == migration.Cold && !s.lacksImage()
	if !beside {
		if err := s.link.Measure(ctx, s.expectedState()); err != nil {
			return err
		}
	}
	s.beginLayers()
	if err := s.memory.TakeStaged(ctx); err != nil {
		return fmt.Errorf("take over what was staged: %w", err)
	}
	if err := s.bringFirst(ctx); err != nil {
		return err
	}
	if err := s.link.Send(link.KindStaged, "", nil); err != nil {
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
	if expected := s.auto.FrozenBytes(); expected > 0 && s.move.Tracker.Spec.Mode == migration.Cold {
		return int64(predict.StateMargin * expected)
	}
	return max(predict.LeastState, s.offered.MemoryBytes/predict.StateShare)
}

// expectedRest is how much leaves at once in the freeze when rounds have gone before, at most,
// mostly. The first of them may have been large.
func (s *source) expectedRest() int64 {
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
	go s.move.Guarded(func() { // it notices that the target ends it: nobody waits for a link that is gone
		err := guard.Do(func() error { return s.hear(data) })
		s.agent.logPanic(err)
		s.memory.ClosePages(err)
		s.move.Happen(migration.PeerLost{Error: err.Error()})
	})()
	go s.agent.guarded(func() {
		<-s.move.Done()
		_ = data.Close() // Nothing is under way on it any more.
	})()
	return nil
}

// guard ends the data connection when a step that uses it is interrupted: a write to a link that is
// gone would wait for as long as TCP does.
func (s *source) guard(ctx context.Context) (done func()) {
	stop := context.AfterFunc(ctx, func() {
		s.memory.ClosePages(context.Cause(ctx))
		s.files.Close()
		if !s.control.Stands() {
			_ = s.link.Data().Close() // There is nobody to tell why.
			return
		}
		_ = s.link.Data().Abort(plain(context.Cause(ctx)))
	})
	return func() { stop() }
}

// hear passes on what the target says, until the data connection ends.
func (s *source) hear(data *stream.Session) error {
	for {
		section, err := data.Next()
		switch {
		case err != nil:
		case leaving.Hears(section.Kind):
			err = s.memory.Hear(section)
		case section.Kind == dump.KindHeard:
			err = s.dump.HearKnown(section.Name)
		case section.Kind == latestart.KindReady:
			err = s.start.Hear()
		case section.Kind == anew.KindRedirected:
			err = s.packets.Redirect()
		default:
			err = fmt.Errorf("a section %.40q comes from the target", section.Kind)
		}
		if err != nil {
			return err
		}
	}
}

// transfer sends what is left, which depends on the mode, and the final marker.
func (s *source) transfer(ctx context.Context, content func(context.Context) (link.Marker, error)) error {
	defer s.guard(ctx)()
	var marker link.Marker
	err := s.frozen.SendFinal(ctx, frozen.Sending{
		Content: func(ctx context.Context) (err error) {
			marker, err = content(ctx)
			return err
		},
		Permit: s.move.MayEmitFinal,
		Emit:   func() error { return s.link.Final(marker) },
	})
	if err != nil {
		return err
	}
	s.move.Tracker.Counted(carried(s.link.Sent()))
	return s.memory.HandOver(ctx)
}

// sendState sends the state of the frozen processes, and what of memory and files is left. It
// returns the content of the final marker.
func (s dumping) sendState(ctx context.Context) (marker link.Marker, err error) {
	if err := s.memory.Finish(ctx, s.dump); err != nil {
		return marker, err
	}
	if err := refused(s.volumes.HandOver(ctx)); err != nil {
		return marker, err
	}
	if marker.State, err = s.dump.Rest(); err != nil {
		return marker, err
	}
	return marker, s.files.Last(ctx, s.link.Out())
}
