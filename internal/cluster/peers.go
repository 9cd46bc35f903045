package cluster

import (
	"log/slog"
	"slices"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/network/wireguard"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Peers is this node's knowledge of the others. It says hello to each of them at intervals; the answers
// keep the list of nodes and the locations of travelling containers the same everywhere.
type Peers struct {
	*Nodes
	*Contacts
	*Links
	Overlays *Overlays
	Hosts    *Hosts

	id      *identity.Identity
	version string
	refused []string // the modes that this node's policy refuses
	log     *slog.Logger

	containers Containers
	events     Events
	// guests and claimsTold are the lists of containers that nodes hold of each other.
	guests     *guestLists
	claimsTold *claimLists
	// unkept is why the list of removed nodes could not be kept, as last logged; for Run only.
	unkept string
}

// Config describes the node and its state directory.
type Config struct {
	ID      *identity.Identity
	State   string
	Version string
	Timeout time.Duration // how long a greeted node may be silent
	Refused []string      // the modes that this node's policy refuses
	Log     *slog.Logger
}

// Containers provides this node's containers for greetings, and takes the containers of other nodes.
type Containers interface {
	// Guests returns the containers that live on this node and are not at home here.
	Guests() []*api.Location
	// HearGuests takes a node's list of containers that live there.
	HearGuests(node string, guests []*api.Location)
	// Claims returns the containers that run here, if they are known.
	Claims() (claims []uint64, known bool)
	// HearClaims takes the claims of another node.
	HearClaims(node string, claims []uint64)
}

// Overlay describes how this node sends containers' packets.
type Overlay interface {
	Own() (*api.Overlay, error)
	// KeyProof is wireguard.Key.Proof with this node's key.
	KeyProof(other wireguard.Key, from, to string) ([]byte, error)
}

// Events are this node's reactions to news. They are called without locks.
type Events interface {
	// Changed is called when the list of nodes, or the knowledge of their overlays, has changed.
	Changed()
	// Removed is called with a node that has been removed from the cluster.
	Removed(node identity.Revocation)
	// Lost is called with a node that was lost in a rollover of the authority.
	Lost(node string)
	// Back is called when a node that could not be reached answers again.
	Back(node string)
}

// New reads the list of nodes. It greets none before Attach.
func New(config Config) (*Peers, error) {
	p := &Peers{
		id: config.ID, version: config.Version, refused: config.Refused, log: config.Log,
		Links: newLinks(), guests: newGuestLists(), claimsTold: newClaimLists(),
	}
	changed := func() { p.events.Changed() }
	var err error
	if p.Nodes, err = openNodes(config.ID, config.State, changed); err != nil {
		return nil, err
	}
	p.Contacts = newContacts(config.ID, config.Timeout, p.Links.open)
	p.Overlays = newOverlays(p.Nodes, changed)
	p.Hosts = newHosts(p.Nodes)
	return p, nil
}

// Attach sets the contents of greetings, and the receiver of news.
func (p *Peers) Attach(containers Containers, sends Overlay, events Events) {
	p.containers, p.Overlays.sends, p.events = containers, sends, events
}

// Describe describes all nodes as they were last seen.
func (p *Peers) Describe() []*api.Node {
	var nodes []*api.Node
	for _, node := range p.List() {
		entry := &api.Node{Name: node.Name, Number: int32(node.Number), Address: node.Address}
		if node.Name == p.id.Node.Name {
			entry.Self, entry.Reachable, entry.Version, entry.Authority = true, true, p.version,
				p.id.HasAuthority()
		} else {
			p.Contacts.describe(entry)
			p.Links.describe(entry)
		}
		nodes = append(nodes, entry)
	}
	return nodes
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
func (p *Peers) forget(gone func(identity.Node) bool) []string {
	names, rest := p.Nodes.remove(gone)
	for _, name := range names {
		p.Links.forget(name) // first: only a contact that is new opens its links
		p.Contacts.forget(name)
		p.Overlays.forget(name)
		p.guests.forget(name)
		p.claimsTold.forget(name)
	}
	p.keep(rest)
	return names
}

// retire applies the end of the old authority. Nodes that have not renewed their certificates lose their
// membership until they join again. Other connections that began under the old authority stay, so that
// migrations go on, unless its key may have been stolen.
func (p *Peers) retire() {
	succession, _ := p.id.Succession()
	cut := succession.Retirement != nil && succession.Retirement.Cut
	own := p.id.Node.Number
	gone := p.forget(func(n identity.Node) bool { return n.Number != own && p.id.VerifyNode(n) != nil })
	member := map[int]bool{}
	for _, node := range p.List() {
		member[node.Number] = true
	}
	p.id.CutConnections(func(peer identity.Peer) bool { return !cut && member[peer.Number] })
	p.disconnectAll()
	p.log.Warn("rollover of the authority ended: certificates of the old key are no longer valid",
		"version", p.id.RolloverStatus().Version, "must_join_again", gone)
	if !p.id.Current() {
		p.log.Error("this node did not renew its certificate in time and must join its cluster again: " +
			"\"godwit node token --node " + p.id.Node.Name + "\" on a node with the authority, then " +
			"\"godwit node join --force\" here")
	}
	for _, name := range gone {
		p.events.Lost(name)
	}
}

// authorities lists the other nodes that report to have the authority, or the first node if none does.
func (p *Peers) authorities() []identity.Node {
	nodes := p.Others()
	signs := slices.DeleteFunc(slices.Clone(nodes), func(n identity.Node) bool { return !p.signs(n.Name) })
	if len(signs) > 0 {
		return signs
	}
	return slices.DeleteFunc(nodes, func(n identity.Node) bool { return n.Number != firstNumber })
}

// cannotRollOver lists the nodes that have answered and run a release without rollovers.
func (p *Peers) cannotRollOver() []string {
	var names []string
	for _, node := range p.Others() {
		if said := p.reported(node.Name); said.version != "" && !said.rollsOver {
			names = append(names, node.Name)
		}
	}
	return names
}
