package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/envelopes"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/memory"
	"github.com/godwit/godwit/internal/transfer/files"
	"github.com/godwit/godwit/internal/transfer/memory/precopy"
	"github.com/godwit/godwit/internal/transfer/state"
	"github.com/godwit/godwit/internal/wire/stream"
)

// attach takes the data connection and waits for what comes over it first.
func (t *target) attach(data *stream.Session) (first bool) {
	t.once.Do(func() {
		first = true
		t.data = data
		go t.agent.guarded(func() {
			t.stageErr = guard.Do(t.stage)
			close(t.staged)
		})()
	})
	return first
}

// stage waits until the source says that all is here that comes before the freeze.
func (t *target) stage() error {
	section, err := t.data.Next()
	if err == nil && section.Kind != kindStaged {
		err = fmt.Errorf("stage: a section %.40q comes before the freeze", section.Kind)
	}
	return err
}

// awaitStaged waits until the source has staged, and makes room for memory that comes ahead of the freeze.
func (t *target) awaitStaged(ctx context.Context) error {
	if err := waitFor(ctx, t.staged); err != nil {
		return err
	}
	if t.stageErr != nil {
		return t.stageErr
	}
	return t.takePages(ctx)
}

// receive takes the state, the files and the final marker.
func (t *target) receive(ctx context.Context,
	take func(context.Context, context.CancelCauseFunc) error) error {
	if t.arrival == nil {
		return errors.New("nothing is prepared for the state that comes")
	}
	t.move.putOffGC()
	if err := t.awaitStaged(ctx); err != nil {
		return err
	}
	coming, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	stop := context.AfterFunc(coming, func() { _ = t.data.Abort(plain(context.Cause(coming))) })
	defer stop()
	err := take(ctx, giveUp)
	if cause := context.Cause(coming); errors.Is(cause, errEnginePatience) {
		return cause // err says that the connection was closed, for this
	}
	return err
}

// receiveState takes the state, the files and the final marker of a container that is restored.
func (t *target) receiveState(ctx context.Context, giveUp context.CancelCauseFunc) error {
	images := state.NewReceiver(t.arrival.ImagesDir(), t.stateLimit())
	mapped := !t.memory.Ahead()
	var frame, known []byte
	for {
		section, err := t.data.Next()
		if err != nil {
			return err
		}
		switch section.Kind {
		case kindNear:
			err = t.startLate(ctx, giveUp)
		case kindKnown:
			known, err = t.takeKnown(section)
		case kindRefers:
			err = images.Refers(section.Name, section, known)
		case precopy.KindKey:
			err = t.takeKey(section)
		case precopy.KindPages:
			frame, err = t.memory.Frame(section, frame)
		case precopy.KindRemote:
			err = t.memory.Remote(section)
		case precopy.KindMap:
			mapped = true
			err = t.memory.Map(ctx, section)
		case kindState:
			err = images.Piece(section.Name, section)
		case files.KindRound:
			err = t.files.Take(ctx, section)
		case kindFinal:
			if !mapped {
				return errors.New("the final marker comes before the map of the memory")
			}
			return t.final(section, images)
		default:
			err = fmt.Errorf("a section %.40q comes in the freeze", section.Kind)
		}
		if err != nil {
			return err
		}
	}
}

// takeKey begins to receive pages.
func (t *target) takeKey(section io.Reader) error {
	incoming := precopy.Incoming{Data: t.data, Announced: t.residual != nil,
		Most: precopy.MaxClaims(t.offer.GetMemoryBytes())}
	incoming.Barrier = func(number uint64, missing []memory.TaskMap) error {
		t.telling.Lock()
		defer t.telling.Unlock()
		return precopy.TellPlaced(t.data, number, missing)
	}
	if t.residual != nil {
		incoming.Residual = t.residual.Pages()
	}
	return t.memory.Key(section, incoming)
}

// takeKnown takes the pages that come ahead. If the layers of the image do not allow that, all go
// in the freeze.
func (t *target) takeKnown(section io.Reader) ([]byte, error) {
	answer := state.HeardAll
	known, err := state.ReceiveKnown(section, t.agent.layersOf(t.definition))
	if errors.Is(err, state.ErrLacking) {
		t.agent.log.Warn("changed pages of files all come in the freeze", "container", t.definition.Name,
			"error", err)
		answer, err = state.HeardNone, nil
	}
	if err != nil {
		return nil, err
	}
	t.telling.Lock()
	defer t.telling.Unlock()
	if err := t.data.Begin(kindHeard, answer); err != nil {
		return nil, err
	}
	return known, errors.Join(t.data.End(), t.data.Push())
}

// stateLimit bounds the memory that the source can fill.
func (t *target) stateLimit() int64 { return envelopes.MemoryLimit(t.offer) }

func (t *target) final(section stream.Section, images *state.Receiver) error {
	marker, err := readFinal(section)
	if err != nil {
		return err
	}
	if err := errors.Join(images.Check(marker.State), t.files.Finish()); err != nil {
		return err
	}
	if _, err := t.data.Next(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("after the final marker: %w", errors.Join(err, errMoreComes))
	}
	t.move.tracker.Counted(carried(t.data.Counters()))
	return nil
}

// maxFinal bounds the final marker: it has a name and a number for each file of the state.
const maxFinal = 16 << 20

func readFinal(content io.Reader) (finalMarker, error) {
	var marker finalMarker
	data, err := io.ReadAll(io.LimitReader(content, maxFinal+1))
	if err == nil && len(data) > maxFinal {
		err = fmt.Errorf("it has more than %d bytes", maxFinal)
	}
	if err == nil {
		err = json.Unmarshal(data, &marker)
	}
	if err != nil {
		return marker, fmt.Errorf("final marker: %w", err)
	}
	return marker, nil
}

var errMoreComes = errors.New("the stream has not ended")

// layersOf are the layers of a container's image, where this node's own engine keeps them. Other engines
// keep layers where only they know.
func (a *Agent) layersOf(definition engine.Definition) state.Layers {
	if definition.EngineName != "" {
		return state.Layers{}
	}
	return state.NewLayers(a.images, definition.Layers)
}
