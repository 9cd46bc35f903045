package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire/identity"
)

// rolloverNow is how long nodes have to renew their certificates if the old ones are to end now. Nodes that
// can be reached need a few seconds.
const rolloverNow = 30 * time.Second

// maxRolloverTime bounds --within: certificates do not live for longer than that by far.
const maxRolloverTime = 365 * 24 * time.Hour

// rollOver makes a new authority take over from the present one, or ends a rollover.
func (a *Agent) rollOver(ctx context.Context, request *api.RolloverRequest) (*api.RolloverReply, error) {
	if request.Finish {
		if err := a.finishRollover(request.Now); err != nil {
			return nil, fmt.Errorf("%w: %w", errRefused, err)
		}
		a.tellAll(ctx)
		return a.rolloverStatus(), nil
	}
	within, err := rolloverTime(request)
	if err != nil {
		return nil, err
	}
	a.tellAll(ctx) // and hear whether another node has begun one
	if old := a.peers.cannotRollOver(); len(old) > 0 {
		return nil, fmt.Errorf("%w: these nodes run a release of godwit that cannot follow a rollover: %s: "+
			"upgrade or remove them (\"godwit node rm\"), and try again", errRefused, strings.Join(old, ", "))
	}
	signers := a.otherSigners()
	if err := a.id.BeginRollover(within, request.Now, request.Force); err != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	a.log.Warn("rollover of the authority begun", "version", a.id.RolloverStatus().Version, "within", within)
	if err := a.renewNow(ctx); err != nil {
		return nil, fmt.Errorf("the rollover has begun and goes on; renew this node's certificate: %w", err)
	}
	a.tellAll(ctx)
	reply := a.rolloverStatus()
	for _, name := range signers {
		if err := a.promoteNode(ctx, name); err != nil {
			a.log.Warn("node did not get the authority's new key", "node", name, "error", err)
			reply.NotPromoted = append(reply.NotPromoted, name)
		} else {
			reply.Promoted = append(reply.Promoted, name)
		}
	}
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
		return 0, fmt.Errorf("%w: %g s to renew certificates; at most a year makes sense", errInvalid,
			request.WithinSeconds)
	}
	return seconds(request.WithinSeconds), nil
}

// otherSigners are the other nodes that say that they have the authority.
func (a *Agent) otherSigners() []string {
	var names []string
	for _, node := range a.peers.others() {
		if a.peers.signs(node.Name) {
			names = append(names, node.Name)
		}
	}
	return names
}

// advanceRollover ends a rollover that this node has begun, once all nodes have renewed their certificates,
// or their time is over.
func (a *Agent) advanceRollover(now time.Time) error {
	s := a.id.RolloverStatus()
	if !s.UnderWay || s.Ends.IsZero() {
		return nil
	}
	if _, waiting := a.peers.cameAlong(); len(waiting) > 0 && now.Before(s.Ends) {
		return nil
	}
	return a.finishRollover(s.Cut)
}

func (a *Agent) finishRollover(cut bool) error {
	if err := a.id.FinishRollover(cut); err != nil {
		return err
	}
	a.peers.retire()
	return nil
}

func (a *Agent) rolloverStatus() *api.RolloverReply {
	s := a.id.RolloverStatus()
	reply := &api.RolloverReply{
		UnderWay: s.UnderWay, Version: s.Version, Authority: s.Authority, Previous: s.Previous, Cut: s.Cut,
	}
	if !s.Ends.IsZero() {
		reply.EndsUnixSeconds = s.Ends.Unix()
	}
	reply.Renewed, reply.Waiting = a.peers.cameAlong()
	return reply
}

// cameAlong divides the nodes into those whose certificates are of the newest authority, and the others.
func (p *peers) cameAlong() (renewed, waiting []string) {
	for _, node := range p.list() {
		if p.id.CameAlong(node) {
			renewed = append(renewed, node.Name)
		} else {
			waiting = append(waiting, node.Name)
		}
	}
	return renewed, waiting
}

// cannotRollOver lists the nodes that were heard, and run a release that knows no rollover.
func (p *peers) cannotRollOver() []string {
	nodes := p.others()
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for _, node := range nodes {
		if known := p.known[node.Name]; known != nil && known.version != "" && !known.rollsOver {
			names = append(names, node.Name)
		}
	}
	return names
}

// hearSuccession takes what another node tells of a rollover. If the old authority counts no more, retire is
// to be called once the entries of nodes that came along are known.
func (p *peers) hearSuccession(document []byte) (retired bool, err error) {
	if len(document) == 0 {
		return false, nil
	}
	heard, err := identity.ParseSuccession(document)
	if err != nil {
		return false, fmt.Errorf("%w: %w", errInvalid, err)
	}
	return p.id.Follow(heard)
}

// retire is called when the old authority counts no more. Nodes that have not renewed their certificates are
// no members until they join again. Connections to the others that began under the old authority may end by
// themselves, so that migrations go on, unless its key may have been stolen.
func (p *peers) retire() {
	succession, _ := p.id.Succession()
	cut := succession.Retirement != nil && succession.Retirement.Cut
	own := p.id.Node.Number
	gone := p.forget(func(n identity.Node) bool { return n.Number != own && p.id.VerifyNode(n) != nil })
	member := map[int]bool{}
	for _, node := range p.list() {
		member[node.Number] = true
	}
	p.id.CutConnections(func(peer identity.Peer) bool { return !cut && member[peer.Number] })
	p.mu.Lock()
	for _, known := range p.known {
		known.disconnect()
	}
	p.mu.Unlock()
	p.log.Warn("the rollover of the authority has ended: certificates of the old one are not valid any more",
		"version", p.id.RolloverStatus().Version, "must_join_again", gone)
	if !p.id.Current() {
		p.log.Error("this node did not renew its certificate in time, and has to join its cluster again: " +
			"\"godwit node token --node " + p.id.Node.Name + "\" on a node with the authority, then " +
			"\"godwit node join --force\" here")
	}
	for _, name := range gone {
		p.lost(name)
	}
}

// Rollover makes a new authority take over.
func (s *localService) Rollover(ctx context.Context,
	request *api.RolloverRequest) (*api.RolloverReply, error) {
	reply, err := s.agent.rollOver(ctx, request)
	return reply, wireError(err)
}

// RolloverStatus tells how far a rollover is.
func (s *localService) RolloverStatus(context.Context,
	*api.RolloverStatusRequest) (*api.RolloverReply, error) {
	return s.agent.rolloverStatus(), nil
}
