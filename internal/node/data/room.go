package data

import "sync"

// connRoom counts connections, so that one peer cannot have all of them.
type connRoom struct {
	limit, perPeer int

	mu    sync.Mutex
	total int
	peers map[string]int
}

func newConnRoom(limit, perPeer int) *connRoom {
	return &connRoom{limit: limit, perPeer: perPeer, peers: map[string]int{}}
}

// enter takes a place, if there is one for this peer.
func (r *connRoom) enter(peer string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.total >= r.limit || r.peers[peer] >= r.perPeer {
		return false
	}
	r.total++
	r.peers[peer]++
	return true
}

// leave gives a place back.
func (r *connRoom) leave(peer string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total--
	if r.peers[peer]--; r.peers[peer] == 0 {
		delete(r.peers, peer)
	}
}
