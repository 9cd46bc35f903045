package leaving

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/frozen"
	"github.com/godwit/godwit/internal/memory/postcopy"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/transfer/memory/push"
)

// newPush makes what sends the pages that stay here.
func (m *Memory) newPush() *push.Source {
	after := m.config.After
	return push.NewSource(m.ctx, push.SourceConfig{
		Copy: frozenPages{after.Copy}, Link: m.config.Link, Migration: after.Migration,
		Figures: m.config.Figures, Spill: push.SpillConfig{
			Path: after.Spill, Migration: m.config.Migration, Exchange: m.exchangeKey,
			Note: m.config.Figures.Decided,
		},
		Name: m.config.Container.Name, Target: m.config.Target, Decide: after.Decide, Silence: after.Silence,
		Log: m.config.Log,
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

// exchangeKey gives the target a key to keep, if there is one, and returns the one that it keeps.
func (m *Memory) exchangeKey(ctx context.Context, key []byte) (
	kept postcopy.SpillKey, known bool, err error) {
	var reply *api.SpillReply
	err = m.config.After.Ask(ctx, func(ctx context.Context, peer api.PeerClient) (err error) {
		reply, err = peer.Spill(ctx, &api.SpillRequest{Migration: m.config.Migration, Key: key})
		return err
	})
	if status.Code(err) == codes.Unimplemented { // an older version runs there now, and the key is gone
		return kept, false, nil
	}
	if err != nil {
		return kept, false, fmt.Errorf("key of the pages on the disk: %s: %s", m.config.Target,
			api.Plain(err))
	}
	return kept, copy(kept[:], reply.Key) == len(kept), nil
}

// ExamineKey refuses a target that cannot keep the key of pages on the disk, before anything moves.
func (m *Memory) ExamineKey() error {
	needed := push.SpillBytes(m.config.Mode, m.config.Settings.Get(), m.config.Terms.Offer().GetMemoryBytes())
	keeps := m.config.Terms.Reservation().GetKeepsSpillKey()
	if problem := push.KeepsNoKey(m.config.Target, needed, keeps); problem != nil {
		return &migration.Refusal{Problems: []migration.Problem{*problem}}
	}
	return nil
}

// OpenPush opens the connections of the pages that follow, if some do.
func (m *Memory) OpenPush(ctx context.Context) error {
	if !m.rounds.Leaving() {
		return nil
	}
	if m.config.Settings.Get().Spill {
		m.push.WantSpill()
	}
	return m.push.Open(ctx)
}

// HandOver begins to serve remote faults, when all that the restore needs has left.
func (m *Memory) HandOver(ctx context.Context) error {
	if m.rounds == nil {
		return nil
	}
	return m.push.Begin(ctx, m.rounds, m.current())
}

// Push stays until the target has all pages that stayed here.
func (m *Memory) Push(ctx context.Context) error {
	if m.rounds == nil { // an earlier agent has handed the container over
		return m.push.Run(ctx, nil)
	}
	return m.push.Run(ctx, m.rounds)
}

// EndPush ends the push, wherever it is.
func (m *Memory) EndPush() error { return m.push.End() }

// Healthy reports whether the target has taken pages not longer ago than that.
func (m *Memory) Healthy(limit time.Duration) bool { return m.push.Healthy(limit) }
