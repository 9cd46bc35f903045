package agent

import (
	"context"

	"github.com/godwit/godwit/internal/staging"
	"github.com/godwit/godwit/internal/transfer/layers"
)

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
	bandwidth := s.move.Tracker.Link().BandwidthBitsPerSecond
	if limit := s.settings.Get().BandwidthLimit; limit > 0 && (bandwidth == 0 || limit < bandwidth) {
		bandwidth = limit
	}
	s.move.Tracker.ExpectMore(s.agent.layers.StoredBytes(s.definition.Layers,
		s.reservation.GetMissingLayers()))
	delivery := s.agent.layers.Deliver(s.agent.ctx, layers.Order{
		Bringing: layers.Bringing{
			Node: s.target, Container: s.definition, Bandwidth: bandwidth,
			Transfer: &layers.Transfer{ID: s.id(), Node: s.target.Name, Limiter: s.link.Limiter(),
				Sent: s.move.Tracker.Transferred},
			Progress: s.move.Tracker.BroughtLayers,
		},
		Before: func(ctx context.Context) error { return s.move.Fault(ctx, faultLayers, "before") },
		Note:   s.move.Tracker.Decided,
	})
	s.mu.Lock()
	s.layers = delivery
	s.mu.Unlock()
}

// bringFirst waits until the target has the image, if its engine makes no container without it.
func (s *source) bringFirst(ctx context.Context) error {
	images, err := s.agent.imagesOf(s.definition)
	if err != nil || images == nil {
		return err
	}
	return s.layers.Await(ctx)
}

// besideLayers does what can be done while layers come, and gives it up if they cannot be brought.
func (s *source) besideLayers(ctx context.Context, do func(context.Context) error) error {
	defer s.guard(ctx)()
	return s.layers.Beside(ctx, func(why error) {
		s.memory.ClosePages(why)
		s.files.Close()
	}, do)
}

// copyAhead brings files to the target while layers come, and memory if it moves (nil: it does
// not), and keeps them up to date there. Afterwards less is left for the rounds that count.
func (s *source) copyAhead(ctx context.Context, memory func(context.Context) error) error {
	if !s.layers.UnderWay() {
		return nil
	}
	if err := s.files.Open(ctx); err != nil {
		return err
	}
	rounds := []func(context.Context) error{s.files.Round}
	if memory != nil {
		rounds = append(rounds, memory)
	}
	if err := s.layers.Meanwhile(ctx, &staging.Pacer{}, rounds...); err != nil {
		return err
	}
	s.memory.StopAhead()
	return s.layers.Await(ctx)
}
