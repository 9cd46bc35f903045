package agent

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/staging"
	"github.com/godwit/godwit/internal/transfer/layers"
)

// comingLayers are the layers of the image on their way to the target, beside all else that comes
// before the freeze. Nothing at the target needs them before the restore.
type comingLayers struct {
	transfer *layers.Transfer
	cancel   context.CancelFunc
	done     chan struct{} // closed when they are there, or cannot be brought
	err      error         // why not, when done
}

// faultLayers can happen while layers come: there is no step of this name.
const faultLayers = "layers"

// lacksImage reports whether the target has not all of the image.
func (s *source) lacksImage() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reservation.GetMissingImage() || len(s.reservation.GetMissingLayers()) > 0
}

// beginLayers has the target get what it has not of the image, from whomever it is nearest, and
// does not wait for it.
func (s *source) beginLayers() {
	if !s.lacksImage() {
		return
	}
	ctx, cancel := context.WithCancel(s.agent.ctx)
	coming := &comingLayers{
		transfer: &layers.Transfer{ID: s.id(), Node: s.target.Name, Limiter: s.link.Limiter(),
			Sent: s.move.tracker.Transferred},
		cancel: cancel, done: make(chan struct{}),
	}
	s.mu.Lock()
	s.layers = coming
	s.mu.Unlock()
	s.move.tracker.ExpectMore(s.lackedBytes())
	go s.agent.guarded(func() {
		defer close(coming.done)
		err := guard.Do(func() error { return s.bringLayers(ctx, coming.transfer) })
		if err != nil {
			coming.err = fmt.Errorf("bring the image: %w", err)
		}
	})()
}

// lackedBytes is what the target lacks of the image, as it is sent.
func (s *source) lackedBytes() (bytes int64) {
	missing := func(diffID string) bool { return slices.Contains(s.reservation.GetMissingLayers(), diffID) }
	lacked := slices.DeleteFunc(slices.Clone(s.definition.Layers),
		func(diffID string) bool { return !missing(diffID) })
	for _, layer := range s.agent.layers.Here(lacked) { // of others nobody need find out how large they are
		bytes += layer.StoredBytes
	}
	return bytes
}

func (s *source) bringLayers(ctx context.Context, outgoing *layers.Transfer) error {
	if err := s.move.fault(ctx, faultLayers, "before"); err != nil {
		return err
	}
	link := s.move.tracker.Link().BandwidthBitsPerSecond
	if limit := s.settings.Get().BandwidthLimit; limit > 0 && (link == 0 || limit < link) {
		link = limit
	}
	brought, err := s.agent.layers.Bring(ctx, layers.Bringing{
		Node: s.target, Container: s.definition, Transfer: outgoing, Bandwidth: link,
		Progress: s.move.tracker.BroughtLayers,
	})
	s.move.tracker.BroughtLayers(brought)
	return err
}

// bringFirst waits until the target has the image, if its engine makes no container without it.
func (s *source) bringFirst(ctx context.Context) error {
	images, err := s.agent.imagesOf(s.definition)
	if err != nil || images == nil {
		return err
	}
	return s.awaitLayers(ctx)
}

// endLayers gives up what is still on its way. What has come stays there: it is whole.
func (s *source) endLayers() {
	if s.layers != nil {
		s.layers.cancel()
	}
}

// layersCome reports whether layers are still on their way.
func (s *source) layersCome() bool {
	if s.layers == nil {
		return false
	}
	select {
	case <-s.layers.done:
		return false
	default:
		return true
	}
}

// awaitLayers waits until the target has all of the image.
func (s *source) awaitLayers(ctx context.Context) error {
	if s.layers == nil {
		return nil
	}
	began := time.Now()
	if err := waitFor(ctx, s.layers.done); err != nil {
		return err
	}
	if waited := time.Since(began); waited > waitWorthTelling {
		s.move.tracker.Decided(fmt.Sprintf("waited %s for layers of the image, after all other "+
			"preparations were done", waited.Round(waitWorthTelling)))
	}
	return s.layers.err
}

const waitWorthTelling = 100 * time.Millisecond

// besideLayers does what can be done while layers come, and gives it up if they cannot be brought.
func (s *source) besideLayers(ctx context.Context, do func(context.Context) error) error {
	defer s.guard(ctx)()
	if s.layers == nil {
		return do(ctx)
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go s.move.guarded(func() {
		if waitFor(ctx, s.layers.done) == nil && s.layers.err != nil {
			giveUp(s.layers.err)
		}
	})()
	defer context.AfterFunc(ctx, func() { // whoever waits for the target, or for the link, waits no longer
		s.memory.ClosePages(context.Cause(ctx))
		s.closeFiles()
	})()
	err := do(ctx)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// copyAhead brings files to the target while layers come, and memory if it moves (nil: it does
// not), and keeps them up to date there. It decides nothing: what it sees of the link, it shares
// with the layers. Afterwards less is left for the rounds that count.
func (s *source) copyAhead(ctx context.Context, memory func(context.Context) error) error {
	if !s.layersCome() {
		return nil
	}
	if err := s.openFiles(ctx); err != nil {
		return err
	}
	for pace := (staging.Pacer{}); s.layersCome(); {
		began := time.Now()
		if _, err := s.files.round(ctx); err != nil {
			return err
		}
		if memory != nil && s.layersCome() {
			if err := memory(ctx); err != nil {
				return err
			}
		}
		pace.Did(began, time.Now())
		if err := s.awaitTurn(ctx, pace); err != nil {
			return err
		}
	}
	s.memory.StopAhead()
	return s.awaitLayers(ctx)
}

// awaitTurn waits until the next round beside layers is due, or they are there.
func (s *source) awaitTurn(ctx context.Context, pace staging.Pacer) error {
	due := time.NewTimer(time.Until(pace.Next()))
	defer due.Stop()
	select {
	case <-due.C:
		return nil
	case <-s.layers.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
