package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire/identity"
)

// withSelf puts this node's signed entry into the list of nodes that was saved, without those that have been
// removed since, or did not come along in a rollover of the authority. The entry stays as it was while its
// certificate does, so that nobody hears of a change that is none.
func withSelf(id *identity.Identity, saved []identity.Node) ([]identity.Node, error) {
	own, err := id.Entry()
	if err != nil {
		return nil, err
	}
	var others []identity.Node
	for _, node := range saved {
		same := node.Name == own.Name && node.Address == own.Address && node.Revision == own.Revision
		switch {
		case node.Number == own.Number && same && node.Certificate == own.Certificate && id.VerifyNode(node) == nil:
			own = node
		case node.Number != own.Number && id.MayBeMember(node):
			others = append(others, node)
		}
	}
	merged, _ := identity.Merge(others, []identity.Node{own})
	return merged, nil
}

// sign puts this node's entry into the list anew, after its certificate has been renewed.
func (p *peers) sign() error {
	p.mu.Lock()
	nodes, err := withSelf(p.id, p.nodes)
	if err == nil {
		p.nodes = nodes
	}
	p.mu.Unlock()
	if err == nil {
		p.keep(slices.Clone(nodes))
	}
	return err
}

// believable keeps the new entries that their own nodes have signed: then it does not matter which node
// passes them on. A node's first entry has no signature; it comes from the node that admitted it.
func (p *peers) believable(heard []identity.Node) []identity.Node {
	known := p.list()
	return slices.DeleteFunc(heard, func(node identity.Node) bool {
		return slices.Contains(known, node) || p.id.VerifyNode(node) != nil
	})
}

// knowledge is what a hello tells of the cluster, and its digest. A node with the same digest need not be
// told.
type knowledge struct {
	of      []identity.Node
	removed []identity.Revocation
	trust   []byte // see identity.Succession

	nodes, revoked, succession, digest []byte
}

// knowledge returns what is known now. It is put into words only when it has changed.
func (p *peers) knowledge() (*knowledge, error) {
	removed := p.id.Revocations()
	succession, trust := p.id.Succession()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.told != nil && slices.Equal(p.told.of, p.nodes) && bytes.Equal(p.told.trust, trust) &&
		slices.EqualFunc(p.told.removed, removed, sameRevocation) {
		return p.told, nil
	}
	k := &knowledge{of: slices.Clone(p.nodes), removed: removed, trust: trust}
	var err error
	if k.nodes, err = json.Marshal(k.of); err != nil {
		return nil, err
	}
	if k.revoked, err = json.Marshal(p.id.SignedRevocations()); err != nil {
		return nil, err
	}
	if k.succession, err = json.Marshal(succession); err != nil {
		return nil, err
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%d\n", len(k.nodes))
	hash.Write(k.nodes)
	hash.Write(k.revoked)
	hash.Write(trust)
	k.digest, p.told = hash.Sum(nil), k
	return k, nil
}

func sameRevocation(a, b identity.Revocation) bool {
	return a.Number == b.Number && a.Version == b.Version && bytes.Equal(a.Signature, b.Signature)
}

// knows tells what a node was told when it last said so.
func (p *peers) knows(name string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[name]; known != nil {
		return known.knows
	}
	return nil
}

// noteMember notes what a node knows of the cluster, and whether it has the authority.
func (p *peers) noteMember(name string, said greeting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[name]; known != nil && len(said.GetKnows()) <= sha256.Size {
		known.knows, known.authority = said.GetKnows(), said.GetAuthority()
		known.rollsOver = said.GetRollsOver()
	}
}

// hearRevoked takes another node's list of removed nodes. An entry without the authority's signature fails
// the hello.
func (p *peers) hearRevoked(document []byte) error {
	if len(document) == 0 {
		return nil
	}
	list, err := identity.ParseRevocations(document)
	if err != nil {
		return fmt.Errorf("%w: %w", errInvalid, err)
	}
	fresh, err := p.id.Revoke(list)
	p.drop(fresh)
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return nil
}

// keepRevoked writes or reads the list of removed nodes if that has failed before. A failure is told once.
func (p *peers) keepRevoked() {
	fresh, err := p.id.KeepRevocations()
	p.drop(fresh)
	why := ""
	if err != nil {
		why = err.Error()
	}
	if why != "" && why != p.unkept {
		p.log.Error("removed nodes", "error", err)
	}
	if why == "" && p.unkept != "" {
		p.log.Info("the list of removed nodes can be read and written again")
	}
	p.unkept = why
}

// drop forgets nodes that have been removed. Their connections have been closed already: see identity.Revoke.
func (p *peers) drop(revoked []identity.Revocation) {
	if len(revoked) == 0 {
		return
	}
	p.forget(func(node identity.Node) bool {
		return slices.ContainsFunc(revoked, func(r identity.Revocation) bool { return r.Number == node.Number })
	})
	for _, one := range revoked {
		p.removed(one)
	}
}

// forget drops nodes from what this one knows, and returns their names.
func (p *peers) forget(gone func(identity.Node) bool) (names []string) {
	p.mu.Lock()
	for _, node := range p.nodes {
		if !gone(node) {
			continue
		}
		names = append(names, node.Name)
		if known := p.known[node.Name]; known != nil && known.client != nil {
			known.client.Close()
		}
		delete(p.known, node.Name)
		delete(p.overlays, node.Name)
		p.guests.forget(node.Name)
		p.claimsTold.forget(node.Name)
	}
	p.nodes = slices.DeleteFunc(slices.Clone(p.nodes), gone)
	nodes := slices.Clone(p.nodes)
	p.mu.Unlock()
	p.keep(nodes)
	return names
}

// authorities lists the other nodes that say that they have the authority, or the first node if none says so.
func (p *peers) authorities() []identity.Node {
	nodes := p.others()
	p.mu.Lock()
	defer p.mu.Unlock()
	signs := slices.DeleteFunc(slices.Clone(nodes), func(n identity.Node) bool {
		known := p.known[n.Name]
		return known == nil || !known.authority
	})
	if len(signs) > 0 {
		return signs
	}
	return slices.DeleteFunc(nodes, func(n identity.Node) bool { return n.Number != firstNumber })
}

// nodeRemoved is called when this node hears that a node, perhaps this one, has been removed.
func (a *Agent) nodeRemoved(one identity.Revocation) {
	if one.Number == a.self.Number {
		a.log.Error("this node has been removed from its cluster: other nodes refuse its connections; its containers run on. "+
			"To join again as a new node: \"godwit node join --force\"", "at", one.Time)
		return
	}
	a.log.Warn("node removed from the cluster", "node", one.Name, "number", one.Number, "version", one.Version)
	a.locations.dropNode(one.Name)
}

// removeNode takes a node out of the cluster for good.
func (a *Agent) removeNode(ctx context.Context, name string, force bool) (*api.RemoveNodeReply, error) {
	if err := a.needsAuthority(); err != nil {
		return nil, err
	}
	peer, err := a.removable(name, force)
	if err != nil {
		return nil, err
	}
	one, err := a.id.RemoveNode(peer)
	if a.id.Removed(peer) {
		a.peers.drop([]identity.Revocation{one}) // also if not all of it could be written
	}
	if err != nil {
		return nil, err
	}
	reply := &api.RemoveNodeReply{Version: a.id.RevocationVersion()}
	reply.Told, reply.Untold = a.tellAll(ctx)
	return reply, nil
}

// removable finds the node that a user wants to remove. Without force it refuses a removal that does harm.
func (a *Agent) removable(name string, force bool) (identity.Peer, error) {
	if name == a.self.Name {
		return identity.Peer{}, fmt.Errorf("%w: a node does not remove itself: run this on another node with the authority%s",
			errRefused, a.elsewhere())
	}
	node, err := a.peers.find(name)
	if err != nil {
		for _, one := range a.id.Revocations() { // again, to have all of the others told
			if one.Name == name {
				return identity.Peer{Name: one.Name, Number: one.Number}, nil
			}
		}
		return identity.Peer{}, err
	}
	if !force {
		err = a.mayRemove(node)
	}
	return identity.Peer{Name: node.Name, Number: node.Number}, err
}

func (a *Agent) mayRemove(node identity.Node) error {
	if slices.ContainsFunc(a.peers.authorities(), func(n identity.Node) bool { return n.Number == node.Number }) &&
		a.peers.signs(node.Name) {
		return fmt.Errorf("%w: %s has the key of the authority: \"godwit node demote %s\" first; if it cannot be reached, --force removes "+
			"it, but whoever has its disk can still admit nodes", errRefused, node.Name, node.Name)
	}
	for _, spec := range a.moves.underWaySpecs() {
		if spec.Source == node.Name || spec.Target == node.Name {
			return fmt.Errorf("%w: migration %s of container %s is under way between this node and %s: wait for its end, cancel it, or "+
				"decide it with \"godwit migration resolve\" once the node is removed (--force)", errRefused, spec.ID, spec.Name, node.Name)
		}
	}
	return nil
}

// signs reports whether a node last said that it has the authority.
func (p *peers) signs(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[name] != nil && p.known[name].authority
}

// greetAll greets all nodes now, so that this node and they hear each other's news, and returns which of them
// answered.
func (a *Agent) greetAll(ctx context.Context) (answered, silent []string) {
	others := a.peers.others()
	var all sync.WaitGroup
	for _, node := range others {
		all.Go(a.guarded(func() { _ = a.peers.hello(ctx, node) })) // reaches tells what came of it
	}
	all.Wait()
	for _, node := range others {
		if a.peers.reaches(node.Name) {
			answered = append(answered, node.Name)
		} else {
			silent = append(silent, node.Name)
		}
	}
	return answered, silent
}

// tellAll greets all nodes now and returns which of them know all that this node knows.
func (a *Agent) tellAll(ctx context.Context) (told, untold []string) {
	answered, untold := a.greetAll(ctx)
	known, err := a.peers.knowledge()
	for _, name := range answered {
		if err == nil && bytes.Equal(a.peers.knows(name), known.digest) {
			told = append(told, name)
		} else {
			untold = append(untold, name)
		}
	}
	return told, untold
}

// needsAuthority returns an error that names the nodes with the authority if this node does not have it.
func (a *Agent) needsAuthority() error {
	if a.id.HasAuthority() {
		return nil
	}
	return fmt.Errorf("%w: %s does not have the cluster's authority: run this on the node that was initialised first, or one that was "+
		"promoted%s", errRefused, a.self.Name, a.elsewhere())
}

func (a *Agent) elsewhere() string {
	var names []string
	for _, node := range a.peers.authorities() {
		names = append(names, node.Name)
	}
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}

// promoteNode gives another node the authority.
func (a *Agent) promoteNode(ctx context.Context, name string) error {
	node, err := a.otherMember(name)
	if err != nil {
		return err
	}
	if err := a.peers.hello(ctx, node); err != nil {
		return err
	}
	if a.peers.signs(name) {
		return nil
	}
	client, err := a.peers.client(node)
	if err != nil {
		return err
	}
	handover, err := a.id.HandOver(identity.Peer{Name: node.Name, Number: node.Number})
	if err != nil {
		return err
	}
	if _, err := api.NewPeerClient(client).TakeAuthority(ctx, &api.TakeAuthorityRequest{HandoverJson: handover}); err != nil {
		return fmt.Errorf("node %s did not take the authority: %w", name, err)
	}
	return a.peers.hello(ctx, node)
}

// demoteNode takes the authority away from another node.
func (a *Agent) demoteNode(ctx context.Context, name string) error {
	node, err := a.otherMember(name)
	if err != nil {
		return err
	}
	peer := identity.Peer{Name: node.Name, Number: node.Number}
	order, err := a.id.OrderDemotion(peer)
	if err != nil {
		return err
	}
	client, err := a.peers.client(node)
	if err != nil {
		return err
	}
	reply, err := api.NewPeerClient(client).DropAuthority(ctx, &api.DropAuthorityRequest{OrderJson: order})
	if err != nil {
		return fmt.Errorf("node %s did not give up the authority: %w", name, err)
	}
	return errors.Join(a.id.TakeNumbersBack(peer, reply.RestJson), a.peers.hello(ctx, node))
}

// otherMember is a node to which this one can give the authority, or from which it can take it.
func (a *Agent) otherMember(name string) (identity.Node, error) {
	if err := a.needsAuthority(); err != nil {
		return identity.Node{}, err
	}
	if name == a.self.Name {
		return identity.Node{}, fmt.Errorf("%w: %s has the authority; another node that has it, too, can take it away%s", errRefused, name,
			a.elsewhere())
	}
	return a.peers.find(name)
}
