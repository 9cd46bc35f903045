package cluster

import (
	"bytes"
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

// Nodes is the list of the cluster's nodes, this node included, and its file nodes.json.
type Nodes struct {
	id    *identity.Identity
	state string // directory of nodes.json
	// listLost: nodes.json was missing when the agent started, although init and join always write it.
	listLost bool
	changed  func() // is called without locks after a change

	mu    sync.Mutex
	nodes []identity.Node
	told  *knowledge // as last encoded; nil: not yet
}

// openNodes reads the list.
func openNodes(id *identity.Identity, state string, changed func()) (*Nodes, error) {
	nodes, err := identity.LoadNodes(state)
	if err != nil {
		return nil, fmt.Errorf("the list of nodes: %w", err)
	}
	merged, err := withSelf(id, nodes)
	if err != nil {
		return nil, err
	}
	return &Nodes{id: id, state: state, listLost: nodes == nil, changed: changed, nodes: merged}, nil
}

// unknownNode stands for the nodes that a missing nodes.json may have named. It cannot be reached.
const unknownNode = "(unknown: nodes.json was missing)"

// List returns the nodes that this node knows, itself included.
func (l *Nodes) List() []identity.Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.nodes)
}

// Others returns the nodes that this node knows, without itself.
func (l *Nodes) Others() []identity.Node {
	return slices.DeleteFunc(l.List(), func(n identity.Node) bool { return n.Name == l.id.Node.Name })
}

// AllOthers returns the other nodes of the cluster, with unknownNode among them if their list was lost.
func (l *Nodes) AllOthers() []identity.Node {
	nodes := l.Others()
	if l.listLost {
		nodes = append(nodes, identity.Node{Name: unknownNode})
	}
	return nodes
}

// Find returns a node by its name.
func (l *Nodes) Find(name string) (identity.Node, error) {
	nodes := l.List()
	names := make([]string, len(nodes))
	for i, node := range nodes {
		if node.Name == name {
			return node, nil
		}
		names[i] = node.Name
	}
	return identity.Node{}, fmt.Errorf("%w: no such node: %.40q; this node knows %s",
		api.ErrRefused, name, strings.Join(names, ", "))
}

// ByNumber returns the name of the node with a number.
func (l *Nodes) ByNumber(number int) (string, bool) {
	for _, node := range l.List() {
		if node.Number == number {
			return node.Name, true
		}
	}
	return "", false
}

// Learn merges another node's knowledge, which has been verified: see believable.
func (l *Nodes) Learn(heard []identity.Node) {
	l.mu.Lock()
	merged, changed := identity.Merge(l.current(heard), heard)
	if changed {
		l.nodes = merged
	}
	l.mu.Unlock()
	if changed {
		l.keep(merged)
	}
}

// current returns the known nodes without entries whose signing clock was ahead, where heard has other
// entries. They would be the newest until that time. The caller has locked mu.
func (l *Nodes) current(heard []identity.Node) []identity.Node {
	return slices.DeleteFunc(slices.Clone(l.nodes), func(known identity.Node) bool {
		same := func(n identity.Node) bool { return n.Number == known.Number && n != known }
		return slices.ContainsFunc(heard, same) && errors.Is(l.id.VerifyNode(known), identity.ErrClockSkew)
	})
}

// remove drops nodes from the list, and returns their names. The caller calls keep with the rest.
func (l *Nodes) remove(gone func(identity.Node) bool) (names []string, rest []identity.Node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, node := range l.nodes {
		if gone(node) {
			names = append(names, node.Name)
		}
	}
	l.nodes = slices.DeleteFunc(slices.Clone(l.nodes), gone)
	return names, slices.Clone(l.nodes)
}

// keep saves the list of nodes, and reports the change. A list that cannot be saved comes back from the
// peers after a restart.
func (l *Nodes) keep(nodes []identity.Node) {
	_ = identity.SaveNodes(l.state, nodes)
	l.changed()
}

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
func (l *Nodes) sign() error {
	l.mu.Lock()
	nodes, err := withSelf(l.id, l.nodes)
	if err == nil {
		l.nodes = nodes
	}
	l.mu.Unlock()
	if err == nil {
		l.keep(slices.Clone(nodes))
	}
	return err
}

// believable returns the new entries that their own nodes have signed: then it does not matter which node
// passes them on. A node's first entry has no signature; it comes from the node that admitted it.
func (l *Nodes) believable(heard []identity.Node) []identity.Node {
	known := l.List()
	return slices.DeleteFunc(heard, func(node identity.Node) bool {
		return slices.Contains(known, node) || l.id.VerifyNode(node) != nil
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
func (l *Nodes) knowledge() (*knowledge, error) {
	removed := l.id.Revocations()
	succession, trust := l.id.Succession()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told != nil && slices.Equal(l.told.of, l.nodes) && bytes.Equal(l.told.trust, trust) &&
		slices.EqualFunc(l.told.removed, removed, sameRevocation) {
		return l.told, nil
	}
	k := &knowledge{of: slices.Clone(l.nodes), removed: removed, trust: trust}
	var err error
	if k.nodes, err = json.Marshal(k.of); err != nil {
		return nil, err
	}
	if k.revoked, err = json.Marshal(l.id.SignedRevocations()); err != nil {
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
	k.digest, l.told = hash.Sum(nil), k
	return k, nil
}

func sameRevocation(a, b identity.Revocation) bool {
	return a.Number == b.Number && a.Version == b.Version && bytes.Equal(a.Signature, b.Signature)
}

// cameAlong divides the nodes into those with certificates of the newest authority, and the others.
func (l *Nodes) cameAlong() (renewed, waiting []string) {
	for _, node := range l.List() {
		if l.id.CameAlong(node) {
			renewed = append(renewed, node.Name)
		} else {
			waiting = append(waiting, node.Name)
		}
	}
	return renewed, waiting
}
