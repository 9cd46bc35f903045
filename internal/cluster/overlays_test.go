package cluster

import (
	"errors"
	"testing"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/network/wireguard"
)

// withKey gives a member a key for the overlay.
func (m *member) withKey(t *testing.T) wireguard.Key {
	t.Helper()
	private, err := wireguard.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	public, err := private.Public()
	if err != nil {
		t.Fatal(err)
	}
	m.proof, m.attached.overlay = private.Proof,
		func() (*api.Overlay, error) { return overlayWith(public), nil }
	return public
}

func overlayWith(key wireguard.Key) *api.Overlay {
	return &api.Overlay{Kind: network.OverlayWireGuard.Kind(), Key: key[:]}
}

// greets sends a hello from a member to another one, and returns how each of them judges the other's
// overlay.
func (m *member) greets(t *testing.T, other *member) (there, here error) {
	t.Helper()
	said, err := m.Overlays.say(other.entry.Name)
	if err != nil {
		t.Fatal(err)
	}
	there = other.Overlays.hear(m.entry.Name, said)
	if said, err = other.Overlays.say(m.entry.Name); err != nil {
		t.Fatal(err)
	}
	return there, m.Overlays.hear(other.entry.Name, said)
}

// TestKeyOfAnother: a node that announces another node's key blocks that node's packets only until the
// other has proved that the key is its own.
func TestKeyOfAnother(t *testing.T) {
	all := newMembers(t, "a", "victim", "hostile")
	a, victim, hostile := all[0], all[1], all[2]
	a.withKey(t)
	hostile.withKey(t)
	key := victim.withKey(t)
	if err := a.Overlays.hear("hostile", overlayWith(key)); err != nil {
		t.Fatal(err) // no other node has it yet
	}
	// The victim learns the key of a with the answer to its first greeting, which has no proof.
	if there, here := victim.greets(t, a); !errors.Is(there, api.ErrInvalid) || here != nil {
		t.Errorf("a says %v, the victim %v", there, here)
	}
	a.changes = 0
	if there, here := victim.greets(t, a); there != nil || here != nil {
		t.Errorf("a says %v, the victim %v", there, here)
	}
	if a.changes != 1 || a.Overlays.Of("victim").Key != key || !a.Overlays.Of("hostile").Key.IsZero() {
		t.Errorf("after %d changes: %+v", a.changes, a.Overlays.said)
	}
	// Neither a proof for another node nor the loss of the victim's knowledge changes that.
	stolen, err := victim.Overlays.say("a")
	if err != nil {
		t.Fatal(err)
	}
	for _, said := range []*api.Overlay{overlayWith(key), stolen} {
		if err := a.Overlays.hear("hostile", said); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("the key is taken from another node: %v", err)
		}
	}
	if err := a.Overlays.hear("victim", overlayWith(key)); err != nil || !a.Overlays.Of("victim").proven {
		t.Errorf("without proof: %v, %+v", err, a.Overlays.Of("victim"))
	}
	if there, here := hostile.greets(t, a); there != nil || here != nil {
		t.Errorf("with its own key: %v, %v", there, here)
	}
}

// TestKeysOfAnEarlierProcess: a node keeps its key when the agent restarts, even against a node that is
// heard first, and even if it runs a release that proves nothing.
func TestKeysOfAnEarlierProcess(t *testing.T) {
	all := newMembers(t, "a", "victim", "hostile")
	a, victim := all[0], all[1]
	a.withKey(t)
	key := victim.withKey(t)
	a.Overlays.Recall(map[int]wireguard.Key{victim.entry.Number: key, 99: {1}})
	if err := a.Overlays.hear("hostile", overlayWith(key)); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("the key is taken: %v", err)
	}
	if err := a.Overlays.hear("victim", overlayWith(key)); err != nil || a.Overlays.Of("victim").Key != key {
		t.Errorf("%v, %+v", err, a.Overlays.said)
	}
}
