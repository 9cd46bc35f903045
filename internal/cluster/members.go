package cluster

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire/identity"
)

// withSelf puts this node's signed entry into the saved list of nodes, without nodes that have been removed
// since, or were lost in a rollover of the authority. The entry does not change while its certificate stays
// the same, so that no node hears of a change that is none.
func withSelf(id *identity.Identity, saved []identity.Node) ([]identity.Node, error) {
	own, err := id.Entry()
	if err != nil {
		return nil, err
	}
	var others []identity.Node
	for _, node := range saved {
		same := node.Name == own.Name && node.Address == own.Address && node.Revision == own.Revision
		switch {
		case node.Number == own.Number && same && node.Certificate == own.Certificate &&
			id.VerifyNode(node) == nil:
			own = node
		case node.Number != own.Number && id.MayBeMember(node):
			others = append(others, node)
		}
	}
	merged, _ := identity.Merge(others, []identity.Node{own})
	return merged, nil
}

// sign renews this node's entry in the list after its certificate has been renewed.
func (p *Peers) sign() error {
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

// believable returns the new entries that their own nodes have signed: then it does not matter which node
// passes them on. A node's first entry has no signature; it comes from the node that admitted it.
func (p *Peers) believable(heard []identity.Node) []identity.Node {
	known := p.List()
	return slices.DeleteFunc(heard, func(node identity.Node) bool {
		return slices.Contains(known, node) || p.id.VerifyNode(node) != nil
	})
}

// knowledge is a hello's information about the cluster, and its digest. A node with the same digest does
// not need it.
type knowledge struct {
	of      []identity.Node
	removed []identity.Revocation
	trust   []byte // see identity.Succession

	nodes, revoked, succession, digest []byte
}

// knowledge returns the current knowledge. It is encoded only after a change.
func (p *Peers) knowledge() (*knowledge, error) {
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

// knows returns the digest that a node last reported.
func (p *Peers) knows(name string) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[name]; known != nil {
		return known.knows
	}
	return nil
}

// noteMember notes a node's knowledge of the cluster, and whether the node has the authority.
func (p *Peers) noteMember(name string, said greeting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[name]; known != nil && len(said.GetKnows()) <= sha256.Size {
		known.knows, known.authority = said.GetKnows(), said.GetAuthority()
		known.rollsOver = said.GetRollsOver()
	}
}

// hearRevoked merges another node's list of removed nodes. An entry without the authority's signature fails
// the hello.
func (p *Peers) hearRevoked(document []byte) error {
	if len(document) == 0 {
		return nil
	}
	list, err := identity.ParseRevocations(document)
	if err != nil {
		return fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	fresh, err := p.id.Revoke(list)
	p.Drop(fresh)
	if err != nil {
		return fmt.Errorf("%w: %w", api.ErrRefused, err)
	}
	return nil
}

// keepRevoked retries to write or read the list of removed nodes after a failure. A failure is logged once.
func (p *Peers) keepRevoked() {
	fresh, err := p.id.KeepRevocations()
	p.Drop(fresh)
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

// Drop forgets nodes that have been removed. Their connections have been closed already: see identity.Revoke.
func (p *Peers) Drop(revoked []identity.Revocation) {
	if len(revoked) == 0 {
		return
	}
	p.forget(func(node identity.Node) bool {
		return slices.ContainsFunc(revoked,
			func(r identity.Revocation) bool { return r.Number == node.Number })
	})
	for _, one := range revoked {
		p.events.Removed(one)
	}
}

// forget drops nodes from this node's knowledge, and returns their names.
func (p *Peers) forget(gone func(identity.Node) bool) (names []string) {
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

// authorities lists the other nodes that report to have the authority, or the first node if none does.
func (p *Peers) authorities() []identity.Node {
	nodes := p.Others()
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

// signs reports whether a node last reported that it has the authority.
func (p *Peers) signs(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[name] != nil && p.known[name].authority
}
