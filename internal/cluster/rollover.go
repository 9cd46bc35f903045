package cluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire/identity"
)

// rolloverNow is how long nodes have to renew their certificates after rollover --now. Nodes that can be
// reached need a few seconds.
const rolloverNow = 30 * time.Second

// maxRolloverTime bounds --within. Certificates live for 30 days.
const maxRolloverTime = 365 * 24 * time.Hour

// RollOver begins or ends a rollover of the authority.
func (m *Members) RollOver(ctx context.Context, request *api.RolloverRequest) (*api.RolloverReply, error) {
	if request.Finish {
		return m.endRollover(ctx, request.Now)
	}
	within, err := rolloverTime(request)
	if err != nil {
		return nil, err
	}
	m.greetAll(ctx) // to hear of a rollover that another node has begun
	if old := m.peers.cannotRollOver(); len(old) > 0 {
		return nil, fmt.Errorf("%w: these nodes run a release of godwit that cannot follow a rollover: %s: "+
			"upgrade or remove them (\"godwit node rm\"), and try again", api.ErrRefused,
			strings.Join(old, ", "))
	}
	signers := m.otherSigners()
	if err := m.peers.id.BeginRollover(within, request.Now, request.Force); err != nil {
		return nil, fmt.Errorf("%w: %w", api.ErrRefused, err)
	}
	m.peers.log.Warn("rollover of the authority begun", "version", m.peers.id.RolloverStatus().Version,
		"within", within)
	if err := m.renewNow(ctx); err != nil {
		return nil, fmt.Errorf("the rollover goes on, but this node could not renew its certificate: %w", err)
	}
	_, silent := m.greetAll(ctx)
	reply := m.RolloverStatus()
	reply.NotPromoted, reply.NotReached = signers, silent
	return reply, nil
}

// endRollover ends a rollover on a user's request.
func (m *Members) endRollover(ctx context.Context, cut bool) (*api.RolloverReply, error) {
	_, silent := m.greetAll(ctx) // another node may know of a rollover that supersedes this one
	if err := m.finishRollover(cut); err != nil {
		return nil, fmt.Errorf("%w: %w", api.ErrRefused, err)
	}
	m.greetAll(ctx)
	reply := m.RolloverStatus()
	reply.NotReached = silent
	return reply, nil
}

func rolloverTime(request *api.RolloverRequest) (time.Duration, error) {
	if request.Now {
		return rolloverNow, nil
	}
	if request.WithinSeconds == 0 {
		return identity.DefaultRolloverTime, nil
	}
	if request.WithinSeconds < 0 || request.WithinSeconds > maxRolloverTime.Seconds() {
		return 0, fmt.Errorf("%w: nodes cannot have %g s to renew their certificates; the limit is a year",
			api.ErrInvalid, request.WithinSeconds)
	}
	return time.Duration(request.WithinSeconds * float64(time.Second)), nil
}

// otherSigners returns the other nodes that report to have the authority. Their claim is no reason to give
// them the new key: any member could make it.
func (m *Members) otherSigners() []string {
	var names []string
	for _, node := range m.peers.Others() {
		if m.peers.signs(node.Name) {
			names = append(names, node.Name)
		}
	}
	return names
}

// advanceRollover ends a rollover that this node has begun, once all nodes have renewed their certificates,
// or their time is over. It first greets all nodes: they hear of this rollover, and one of them may know of
// another that supersedes it. So a node that reaches no other does not end a rollover by itself.
func (m *Members) advanceRollover(ctx context.Context, now time.Time) error {
	s := m.peers.id.RolloverStatus()
	if !s.UnderWay || s.Ends.IsZero() {
		return nil
	}
	if _, waiting := m.peers.cameAlong(); len(waiting) > 0 && now.Before(s.Ends) {
		return nil
	}
	answered, silent := m.greetAll(ctx)
	if !m.peers.id.HasAuthority() || len(answered) == 0 && len(silent) > 0 {
		return nil
	}
	if len(silent) > 0 {
		m.peers.log.Warn("ending the rollover of the authority; some nodes cannot be reached", "nodes",
			silent)
	}
	return m.finishRollover(s.Cut)
}

func (m *Members) finishRollover(cut bool) error {
	if err := m.peers.id.FinishRollover(cut); err != nil {
		return err
	}
	m.peers.retire()
	return nil
}

// RolloverStatus returns the progress of a rollover.
func (m *Members) RolloverStatus() *api.RolloverReply {
	s := m.peers.id.RolloverStatus()
	reply := &api.RolloverReply{
		UnderWay: s.UnderWay, Version: s.Version, Authority: s.Authority, Previous: s.Previous, Cut: s.Cut,
	}
	if !s.Ends.IsZero() {
		reply.EndsUnixSeconds = s.Ends.Unix()
	}
	reply.Renewed, reply.Waiting = m.peers.cameAlong()
	return reply
}
