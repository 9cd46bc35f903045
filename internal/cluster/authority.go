package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Members are the nodes of the cluster from the authority's view: admission and removal, who has the key,
// renewal of certificates, and how another node takes over the authority.
type Members struct {
	peers    *Peers
	underWay func() []migration.Spec // migrations of this node
}

// NewMembers returns the members of the cluster that peers knows. underWay lists this node's migrations.
func NewMembers(peers *Peers, underWay func() []migration.Spec) *Members {
	return &Members{peers: peers, underWay: underWay}
}

// RemoveNode removes a node from the cluster for good.
func (m *Members) RemoveNode(ctx context.Context, name string, force bool) (*api.RemoveNodeReply, error) {
	if err := m.needsAuthority(); err != nil {
		return nil, err
	}
	peer, err := m.removable(name, force)
	if err != nil {
		return nil, err
	}
	one, err := m.peers.id.RemoveNode(peer)
	if m.peers.id.Removed(peer) {
		m.peers.Drop([]identity.Revocation{one}) // even if not everything could be written
	}
	if err != nil {
		return nil, err
	}
	reply := &api.RemoveNodeReply{Version: m.peers.id.RevocationVersion()}
	reply.Told, reply.Untold = m.tellAll(ctx)
	return reply, nil
}

// removable finds the node that a user wants to remove. Without force it refuses a removal that does harm.
func (m *Members) removable(name string, force bool) (identity.Peer, error) {
	if name == m.peers.id.Node.Name {
		return identity.Peer{},
			fmt.Errorf("%w: a node does not remove itself: run this on another node with the authority%s",
				api.ErrRefused, m.Elsewhere())
	}
	node, err := m.peers.Find(name)
	if err != nil {
		for _, one := range m.peers.id.Revocations() { // again, so that all other nodes are told
			if one.Name == name {
				return identity.Peer{Name: one.Name, Number: one.Number}, nil
			}
		}
		return identity.Peer{}, err
	}
	if !force {
		err = m.mayRemove(node)
	}
	return identity.Peer{Name: node.Name, Number: node.Number}, err
}

func (m *Members) mayRemove(node identity.Node) error {
	if slices.ContainsFunc(m.peers.authorities(),
		func(n identity.Node) bool { return n.Number == node.Number }) &&
		m.peers.signs(node.Name) {
		return fmt.Errorf("%w: %s has the key of the authority: \"godwit node demote %s\" first; if it "+
			"cannot be reached, --force removes "+
			"it, but whoever has its disk can still admit nodes", api.ErrRefused, node.Name, node.Name)
	}
	for _, spec := range m.underWay() {
		if spec.Source == node.Name || spec.Target == node.Name {
			return fmt.Errorf("%w: migration %s of container %s is under way between this node and %s: "+
				"wait for its end, cancel it, or "+
				"decide it with \"godwit migration resolve\" once the node is removed (--force)",
				api.ErrRefused, spec.ID, spec.Name, node.Name)
		}
	}
	return nil
}

// greetAll greets all nodes now, so that this node and they exchange news, and returns which of them
// answered.
func (m *Members) greetAll(ctx context.Context) (answered, silent []string) {
	others := m.peers.Others()
	var all sync.WaitGroup
	for _, node := range others {
		// Peers.Reaches has the result.
		all.Go(guard.Logged(m.peers.log, func() { _ = m.peers.Hello(ctx, node) }))
	}
	all.Wait()
	for _, node := range others {
		if m.peers.Reaches(node.Name) {
			answered = append(answered, node.Name)
		} else {
			silent = append(silent, node.Name)
		}
	}
	return answered, silent
}

// tellAll greets all nodes now and returns which of them know everything that this node knows.
func (m *Members) tellAll(ctx context.Context) (told, untold []string) {
	answered, untold := m.greetAll(ctx)
	known, err := m.peers.knowledge()
	for _, name := range answered {
		if err == nil && bytes.Equal(m.peers.knows(name), known.digest) {
			told = append(told, name)
		} else {
			untold = append(untold, name)
		}
	}
	return told, untold
}

// needsAuthority returns an error that names the nodes with the authority if this node does not have it.
func (m *Members) needsAuthority() error {
	if m.peers.id.HasAuthority() {
		return nil
	}
	return fmt.Errorf("%w: %s does not have the cluster's authority: run this on the node that was "+
		"initialised first, or one that was "+
		"promoted%s", api.ErrRefused, m.peers.id.Node.Name, m.Elsewhere())
}

// Elsewhere names the nodes with the authority, in brackets, for the end of a message.
func (m *Members) Elsewhere() string {
	var names []string
	for _, node := range m.peers.authorities() {
		names = append(names, node.Name)
	}
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}

// PromoteNode gives another node the authority.
func (m *Members) PromoteNode(ctx context.Context, name string) error {
	node, err := m.otherMember(name)
	if err != nil {
		return err
	}
	if err := m.peers.Hello(ctx, node); err != nil {
		return err
	}
	if m.peers.signs(name) {
		return nil
	}
	client, err := m.peers.Client(node)
	if err != nil {
		return err
	}
	handover, err := m.peers.id.HandOver(identity.Peer{Name: node.Name, Number: node.Number})
	if err != nil {
		return err
	}
	if _, err := api.NewPeerClient(client).TakeAuthority(ctx,
		&api.TakeAuthorityRequest{HandoverJson: handover}); err != nil {
		return fmt.Errorf("node %s did not take the authority: %w", name, err)
	}
	return m.peers.Hello(ctx, node)
}

// DemoteNode takes the authority away from another node.
func (m *Members) DemoteNode(ctx context.Context, name string) error {
	node, err := m.otherMember(name)
	if err != nil {
		return err
	}
	peer := identity.Peer{Name: node.Name, Number: node.Number}
	order, err := m.peers.id.OrderDemotion(peer)
	if err != nil {
		return err
	}
	client, err := m.peers.Client(node)
	if err != nil {
		return err
	}
	reply, err := api.NewPeerClient(client).DropAuthority(ctx, &api.DropAuthorityRequest{OrderJson: order})
	if err != nil {
		return fmt.Errorf("node %s did not give up the authority: %w", name, err)
	}
	return errors.Join(m.peers.id.TakeNumbersBack(peer, reply.RestJson), m.peers.Hello(ctx, node))
}

// otherMember returns a node to which this node can give the authority, or from which it can take it.
func (m *Members) otherMember(name string) (identity.Node, error) {
	if err := m.needsAuthority(); err != nil {
		return identity.Node{}, err
	}
	if name == m.peers.id.Node.Name {
		return identity.Node{}, fmt.Errorf("%w: %s has the authority; another node that has it, too, can "+
			"take it away%s", api.ErrRefused, name,
			m.Elsewhere())
	}
	return m.peers.Find(name)
}
