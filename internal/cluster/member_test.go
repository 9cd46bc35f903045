package cluster

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/cluster/clustertest"
	"github.com/godwit/godwit/internal/network/wireguard"
	"github.com/godwit/godwit/internal/wire/identity"
)

// member is an agent's knowledge of the other nodes, without the agent.
type member struct {
	*Peers
	*attached
	entry identity.Node
}

// attached is what a member's node tells others, and how it reacts to news.
type attached struct {
	here    func() []*api.Location
	claims  func() ([]uint64, bool)
	claimed func(node string, claims []uint64)
	overlay func() (*api.Overlay, error)
	proof   func(other wireguard.Key, from, to string) ([]byte, error)
	changes int
	gone    []identity.Revocation
	left    []string // nodes that did not come along in a rollover
	backs   []string // nodes that answered again
}

func (h *attached) Guests() []*api.Location                 { return h.here() }
func (h *attached) HearGuests(string, []*api.Location)      {}
func (h *attached) Claims() ([]uint64, bool)                { return h.claims() }
func (h *attached) HearClaims(node string, claims []uint64) { h.claimed(node, claims) }
func (h *attached) Own() (*api.Overlay, error)              { return h.overlay() }
func (h *attached) Changed()                                { h.changes++ }
func (h *attached) Removed(node identity.Revocation)        { h.gone = append(h.gone, node) }
func (h *attached) Lost(node string)                        { h.left = append(h.left, node) }
func (h *attached) Back(node string)                        { h.backs = append(h.backs, node) }

func (h *attached) KeyProof(other wireguard.Key, from, to string) ([]byte, error) {
	return h.proof(other, from, to)
}

// newMembers makes a cluster whose first node has admitted the others.
func newMembers(t *testing.T, names ...string) (all []*member) {
	t.Helper()
	for _, node := range clustertest.New(t, names...) {
		all = append(all, openMember(t, node.ID, node.State))
	}
	return all
}

func openMember(t *testing.T, id *identity.Identity, state string) *member {
	t.Helper()
	peers, err := New(Config{ID: id, State: state, Version: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	m := &member{Peers: peers, attached: &attached{
		here:    func() []*api.Location { return nil },
		claims:  func() ([]uint64, bool) { return nil, true },
		claimed: func(string, []uint64) {},
		overlay: func() (*api.Overlay, error) { return nil, nil },
	}}
	m.Attach(m.attached, m.attached, m.attached)
	own := slices.IndexFunc(m.nodes, func(n identity.Node) bool { return n.Number == id.Node.Number })
	m.entry = m.nodes[own]
	return m
}
