package cluster

import (
	"bytes"
	"crypto/sha256"
	"sync"

	"github.com/godwit/godwit/internal/api"
)

// toldLists send this node's list only to a node that does not hold it. Each hello has the digest of the
// sender's list and the digest of the other's list that the sender holds. A node that does not report the
// current digest gets the list again: a restarted node holds none, and a list that got lost is not held. A
// node of a release without digests always gets the list.
type toldLists[T any] struct {
	digestOf func([]T) []byte

	mu    sync.Mutex
	lists map[string]toldList[T] // the last list of each node
	holds map[string][]byte      // digests of this node's list that each node reports to hold
}

type toldList[T any] struct {
	digest  []byte
	entries []T
}

// guestLists list a node's containers that are not at home there, claimLists the containers that run there.
type (
	guestLists = toldLists[*api.Location]
	claimLists = toldLists[uint64]
)

func newGuestLists() *guestLists { return newToldLists(api.LocationsDigest) }

func newClaimLists() *claimLists { return newToldLists(api.ClaimsDigest) }

func newToldLists[T any](digestOf func([]T) []byte) *toldLists[T] {
	return &toldLists[T]{digestOf: digestOf, lists: map[string]toldList[T]{}, holds: map[string][]byte{}}
}

// digestOfNone is the digest of no list: a node that receives it has no list of the sender from then on,
// and draws no conclusion.
var digestOfNone = []byte{0}

// say returns which entries of this node's list to send to another node: none if that node holds the list.
// held is the digest of the other node's list that this node holds.
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

// hear takes a node's entries and digests, and returns the node's list. It returns false if the node has
// left out a list that this node does not hold: the next hello reports that, and the node sends its list
// again.
func (l *toldLists[T]) hear(from string, entries []T, digest, held []byte) ([]T, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(held) == sha256.Size {
		l.holds[from] = bytes.Clone(held)
	} else {
		delete(l.holds, from)
	}
	if len(digest) == 0 { // from a release without digests
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

// forget drops the lists of a node that is removed.
func (l *toldLists[T]) forget(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.lists, node)
	delete(l.holds, node)
}
