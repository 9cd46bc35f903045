package cluster

import (
	"bytes"
	"crypto/sha256"
	"sync"

	"github.com/godwit/godwit/internal/api"
)

// toldLists have a list of this node sent only to a node that does not hold it. Each hello has the
// digest of the sender's list and that of the other's list that the sender holds. Who says that it
// holds a list was sent it, or is sent it again: after a restart it holds none, and what got lost
// it does not hold. A node of a release that knows no digests is always sent the list.
type toldLists[T any] struct {
	digestOf func([]T) []byte

	mu    sync.Mutex
	lists map[string]toldList[T] // the last list of each node
	holds map[string][]byte      // digests of this node's list, as each node said that it holds it
}

type toldList[T any] struct {
	digest  []byte
	entries []T
}

// guestLists are of the containers at a node that are not at home there, claimLists of those that run there.
type (
	guestLists = toldLists[*api.Location]
	claimLists = toldLists[uint64]
)

func newGuestLists() *guestLists { return newToldLists(api.LocationsDigest) }

func newClaimLists() *claimLists { return newToldLists(api.ClaimsDigest) }

func newToldLists[T any](digestOf func([]T) []byte) *toldLists[T] {
	return &toldLists[T]{digestOf: digestOf, lists: map[string]toldList[T]{}, holds: map[string][]byte{}}
}

// digestOfNone is the digest of no list: a node that hears it has no list of the sender from then on, and
// concludes nothing.
var digestOfNone = []byte{0}

// say is what to send of this node's list to another: nothing of a list that it holds. held is the
// digest of its own that this node holds.
func (l *toldLists[T]) say(to string, entries []T) (send []T, digest, held []byte) {
	digest = l.digestOf(entries)
	l.mu.Lock()
	defer l.mu.Unlock()
	held = l.lists[to].digest
	if bytes.Equal(l.holds[to], digest) {
		return nil, digest, held
	}
	return entries, digest, held
}

// hear takes what a node has said, and tells its list. Without it (false) the node has left out a
// list that this one does not hold: it is told so, and sends it the next time.
func (l *toldLists[T]) hear(from string, entries []T, digest, held []byte) ([]T, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(held) == sha256.Size {
		l.holds[from] = bytes.Clone(held)
	} else {
		delete(l.holds, from)
	}
	if len(digest) == 0 { // of a release without digests
		delete(l.lists, from)
		return entries, true
	}
	own := l.digestOf(entries)
	if bytes.Equal(own, digest) {
		l.lists[from] = toldList[T]{digest: own, entries: entries}
		return entries, true
	}
	if kept, is := l.lists[from]; is && len(entries) == 0 && bytes.Equal(kept.digest, digest) {
		return kept.entries, true
	}
	delete(l.lists, from)
	return nil, false
}

// forget drops what is known of a node that is removed.
func (l *toldLists[T]) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.lists, node)
	delete(l.holds, node)
}
