package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/latestart"
	"github.com/godwit/godwit/internal/transfer/dump"
	"github.com/godwit/godwit/internal/transfer/files"
	"github.com/godwit/godwit/internal/transfer/link"
	"github.com/godwit/godwit/internal/transfer/state"
	"github.com/godwit/godwit/internal/wire/stream"
)

// awaitStaged waits until the source has staged, and makes room for memory that comes ahead of the freeze.
func (t *target) awaitStaged(ctx context.Context) error {
	if err := t.link.AwaitStaged(ctx); err != nil {
		return err
	}
	return t.memory.Open(ctx, t.arrival, t.startsLate())
}

// receive takes the state, the files and the final marker.
func (t *target) receive(ctx context.Context,
	take func(context.Context, context.CancelCauseFunc) error) error {
	if t.arrival == nil {
		return errors.New("nothing is prepared for the state that comes")
	}
	t.move.PutOffGC()
	if err := t.awaitStaged(ctx); err != nil {
		return err
	}
	coming, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	stop := context.AfterFunc(coming, func() { _ = t.link.Data().Abort(plain(context.Cause(coming))) })
	defer stop()
	err := take(ctx, giveUp)
	if cause := context.Cause(coming); errors.Is(cause, latestart.ErrPatience) {
		return cause // err says that the connection was closed, for this
	}
	return err
}

// receiveState takes the state, the files and the final marker of a container that is restored.
func (t *target) receiveState(ctx context.Context, giveUp context.CancelCauseFunc) error {
	images := dump.NewReceiver(dump.ReceiverConfig{
		Name: t.definition.Name, Dir: t.arrival.ImagesDir(), Limit: t.stateLimit(),
		Layers: t.agent.layersOf(t.definition), Answer: t.link.Answer, Log: t.agent.log,
	})
	for {
		section, err := t.link.Data().Next()
		if err != nil {
			return err
		}
		switch section.Kind {
		case latestart.KindNear:
			err = t.start.Do(ctx, t.arrival, giveUp)
		case files.KindRound:
			err = t.files.Take(ctx, section)
		case link.KindFinal:
			if !t.memory.Whole() {
				return errors.New("the final marker comes before the map of the memory")
			}
			return t.final(section, images.Check)
		default:
			err = takeFirst(section, images.Take,
				func(section stream.Section) (bool, error) { return t.memory.Take(ctx, section) })
		}
		if err != nil {
			return err
		}
	}
}

// takeFirst gives a section to the first that takes it.
func takeFirst(section stream.Section, takers ...func(stream.Section) (taken bool, err error)) error {
	for _, take := range takers {
		if taken, err := take(section); taken {
			return err
		}
	}
	return fmt.Errorf("a section %.40q comes in the freeze", section.Kind)
}

// stateLimit bounds the memory that the source can fill.
func (t *target) stateLimit() int64 { return envelopes.MemoryLimit(t.offer) }

// final takes the final marker, and looks whether all has come that it names.
func (t *target) final(section stream.Section, check func(sent map[string]int64) error) error {
	err := t.link.Final(section, func(marker link.Marker) error {
		return errors.Join(check(marker.State), t.files.Finish())
	})
	if err != nil {
		return err
	}
	t.move.Tracker.Counted(carried(t.link.Data().Counters()))
	return nil
}

// layersOf are the layers of a container's image, where this node's own engine keeps them. Other engines
// keep layers where only they know.
func (a *Agent) layersOf(definition engine.Definition) state.Layers {
	if definition.EngineName != "" {
		return state.Layers{}
	}
	return state.NewLayers(a.images, definition.Layers)
}
