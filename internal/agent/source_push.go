package agent

import (
	"cmp"
	"context"
	"fmt"

	"github.com/godwit/godwit/internal/frozen"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/memory/push"
	"github.com/godwit/godwit/internal/wire/stream"
)

// newPush makes what sends the pages that stay here.
func (s *source) newPush() *push.Source {
	return push.NewSource(s.agent.ctx, push.SourceConfig{
		Copy: frozenPages{s.frozen}, Link: pushLink{s}, Migration: s.move.Move,
		Figures: s.move.tracker, Spill: push.SpillConfig{
			Path: s.agent.spillPath(s.id()), Migration: s.id(),
			Exchange: s.exchangeSpillKey, Note: s.move.tracker.Decided,
		},
		Name: s.definition.Name, Target: s.target.Name, Decide: s.decideRemedy(),
		Silence: s.agent.config.peerTimeout(), Log: s.agent.log,
	})
}

// frozenPages is the frozen copy, for the push of its pages.
type frozenPages struct{ *frozen.Copy }

// Memory implements push.FrozenCopy.
func (c frozenPages) Memory(ctx context.Context, elsewhere bool) (push.Frozen, error) {
	opened, err := c.Copy.Memory(ctx, elsewhere)
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// pushLink is the way of pages that stayed here.
type pushLink struct{ source *source }

// OpenWith implements push.Link.
func (l pushLink) OpenWith(ctx context.Context, hello stream.Hello,
	options stream.Options) (*stream.Session, error) {
	return l.source.link.OpenWith(ctx, hello, options)
}

// Codec implements push.Link.
func (l pushLink) Codec() stream.Codec { return l.source.link.Codec() }

// BitsPerSecond implements push.Link.
func (l pushLink) BitsPerSecond() float64 {
	if l.source.link.Data() == nil { // this agent was started after the container had been handed over
		return 0
	}
	return cmp.Or(l.source.linkSeen(), l.source.move.tracker.Link().BandwidthBitsPerSecond)
}

// pushPages stays until the target has all pages that stayed here.
func (s *source) pushPages(ctx context.Context) error {
	if s.memory == nil { // an earlier agent has handed the container over
		return s.push.Run(ctx, nil)
	}
	return s.push.Run(ctx, s.memory)
}

// MayTakeBack refuses to let the container go on here that has been handed over, if it is not here
// any more, or if the target is well and takes its memory.
func (s *source) MayTakeBack(ctx context.Context, force bool) error {
	if !force && s.frozen.Killed(ctx) {
		return fmt.Errorf("%w: another program on this node has killed the frozen copy of %s: it would "+
			"exit as soon as it was thawed. Wait for %s, or decide that the container runs there; --force "+
			"ends the copy here", errRefused, s.definition.Name, s.target.Name)
	}
	if s.move.record().State != migration.Committed {
		return nil // the machine says whether there is something to resolve
	}
	s.frozen.KeepAgain(ctx)
	gone, err := s.frozen.Gone(ctx)
	if gone {
		return fmt.Errorf("%w: this node no longer has the frozen copy of %s: the container runs at %s or "+
			"nowhere", errRefused, s.definition.Name, s.target.Name)
	}
	if err == nil && s.push.Healthy(s.agent.config.peerTimeout()) {
		return fmt.Errorf("%w: %s appears to be receiving the memory of %s. If it has failed, this node "+
			"notices within seconds: try again then", errRefused, s.target.Name, s.definition.Name)
	}
	return err
}
