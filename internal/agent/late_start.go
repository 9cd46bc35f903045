package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/godwit/godwit/internal/engine"
)

// An engine that starts a container tells nobody anything until that runs, and gives it up if that
// takes long. So the source says when its freeze is near (kindNear), and does not freeze before the
// target has answered (kindReady).

// tellNear has the target's engine start the container, if it is to be told.
func (s *source) tellNear() error {
	s.mu.Lock()
	late := s.reservation.GetStartsLate()
	if late {
		s.ready = make(chan struct{})
	}
	s.mu.Unlock()
	if !late {
		return nil
	}
	if err := s.link.Section(kindNear, "", nil); err != nil {
		return err
	}
	return s.link.Data().Push()
}

// awaitReady waits until it has.
func (s *source) awaitReady(ctx context.Context) error {
	s.mu.Lock()
	ready := s.ready
	s.mu.Unlock()
	if ready == nil {
		return nil
	}
	return waitFor(ctx, ready)
}

// hearReady takes what the target says of that.
func (s *source) hearReady() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready == nil || s.heardReady {
		return errors.New("the target reported that it is ready, without a request")
	}
	s.heardReady = true
	close(s.ready)
	return nil
}

// startsLate reports whether the engine of what is to come is to be told when to start it.
func (a *Agent) startsLate(definition engine.Definition) bool {
	one := a.engines.EngineFor(definition).Capabilities().LateStarter
	return one != nil && one.StartsLate(definition)
}

// errEnginePatience ends a move before the target's engine stops waiting for the container to start.
var errEnginePatience = errors.New("the start timeout of the target's engine is about to expire: reduce " +
	"the state that is sent during the freeze")

// startLate has the engine start the container, while no files come, and answers. When the engine
// is about to give it up, whatever comes then comes in vain: so the move is given up, which lets
// the container go on at the source.
func (t *target) startLate(ctx context.Context, giveUp context.CancelCauseFunc) error {
	arrival, is := t.arrival.(engine.LateArrival)
	if !is || t.startedLate {
		return fmt.Errorf("%w: the container is started already", errInvalid)
	}
	t.startedLate = true
	if err := t.agent.network.ResaveConntrack(t.definition.ID, t.definition.Network.Address); err != nil {
		return err
	}
	if err := t.startSuppressed(ctx, arrival); err != nil {
		return err
	}
	close(t.fills)
	limitWait(arrival.Until(), giveUp)
	t.telling.Lock()
	defer t.telling.Unlock()
	if err := t.data.Begin(kindReady, ""); err != nil {
		return err
	}
	return errors.Join(t.data.End(), t.data.Push())
}

// startSuppressed makes the engine start the container while no files arrive. Nobody on a bridge of this node
// hears of the container before its namespace is blocked; if the start fails, not until it is discarded.
func (t *target) startSuppressed(ctx context.Context, arrival engine.LateArrival) error {
	own := t.definition.Network
	if own.OnBridge() {
		if err := t.agent.network.SuppressARP(own.Address, own.MAC); err != nil {
			return err
		}
	}
	err := t.files.Between(func() error { return arrival.Start(ctx) })
	if err == nil {
		err = t.arriveOnBridge(ctx, t.arrival)
	}
	if err != nil {
		return err
	}
	return t.agent.network.AllowARP(own.Address)
}

// limitWait gives up at a time, unless it is none.
func limitWait(until time.Time, giveUp context.CancelCauseFunc) {
	if !until.IsZero() {
		// nobody listens any more when all has come
		time.AfterFunc(time.Until(until), func() { giveUp(errEnginePatience) })
	}
}
