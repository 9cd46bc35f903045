package agent

import (
	"bytes"
	"crypto/sha256"
	"sync"

	"github.com/godwit/godwit/internal/api"
)

// guestLists have a list of guests sent only to a node that does not hold it. Each hello has the digest of the sender's list and that of the
// other's list that the sender holds. Who says that it holds a list was sent it, or is sent it again: after a restart it holds none,
// and what got lost it does not hold. A node of a release that knows no digests is always sent its list.
type guestLists struct {
	mu    sync.Mutex
	lists map[string]guestList // the last list of each node
	holds map[string][]byte    // digests of this node's list, as each node said that it holds it
}

type guestList struct {
	digest []byte
	guests []*api.Location
}

func newGuestLists() *guestLists {
	return &guestLists{lists: map[string]guestList{}, holds: map[string][]byte{}}
}

// say is what to send of this node's guests to another: nothing of a list that it holds. held is the digest of its own that this node
// holds.
func (g *guestLists) say(to string, guests []*api.Location) (send []*api.Location, digest, held []byte) {
	digest = api.LocationsDigest(guests)
	g.mu.Lock()
	defer g.mu.Unlock()
	held = g.lists[to].digest
	if bytes.Equal(g.holds[to], digest) {
		return nil, digest, held
	}
	return guests, digest, held
}

// hear takes what a node has said, and tells its guests. Without them (false) the node has left out a list that this one does not hold: it is
// told so, and sends it the next time.
func (g *guestLists) hear(from string, guests []*api.Location, digest, held []byte) ([]*api.Location, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(held) == sha256.Size {
		g.holds[from] = bytes.Clone(held)
	} else {
		delete(g.holds, from)
	}
	if len(digest) == 0 { // of a release without digests
		delete(g.lists, from)
		return guests, true
	}
	own := api.LocationsDigest(guests)
	if bytes.Equal(own, digest) {
		g.lists[from] = guestList{digest: own, guests: guests}
		return guests, true
	}
	if kept, is := g.lists[from]; is && len(guests) == 0 && bytes.Equal(kept.digest, digest) {
		return kept.guests, true
	}
	delete(g.lists, from)
	return nil, false
}

// forget drops what is known of a node that is removed.
func (g *guestLists) forget(node string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.lists, node)
	delete(g.holds, node)
}
