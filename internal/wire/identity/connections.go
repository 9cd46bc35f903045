package identity

import (
	"crypto/x509"
	"io"
)

// connections are the open connections to peers, by the peer's number. Each ends when its peer is removed, or
// when its peer's authority is no longer trusted. Identity.revoked.mu guards them, so that no connection
// opens between the check of its peer and the peer's removal.
type connections map[int]map[*connection]bool

// connection is an open connection, and the certificates that its peer showed.
type connection struct {
	peer  Peer
	shown []*x509.Certificate
	conn  io.Closer
}

func (c connections) add(one *connection) {
	if c[one.peer.Number] == nil {
		c[one.peer.Number] = map[*connection]bool{}
	}
	c[one.peer.Number][one] = true
}

// drop forgets the connections to removed nodes and returns them.
func (c connections) drop(removed []Revocation) (dropped []io.Closer) {
	for _, node := range removed {
		for one := range c[node.Number] {
			dropped = append(dropped, one.conn)
		}
		delete(c, node.Number)
	}
	return dropped
}

// closeAll ignores errors: the connections end, whatever their peers say.
func closeAll(conns []io.Closer) {
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// Attend closes a connection when its peer is removed, or when its peer's authority is no longer trusted
// (CutConnections), until leave is called. shown are the peer's certificates, which VerifyPeer has checked.
// Errors: ErrRevoked, ErrRevocationsUnread.
func (i *Identity) Attend(shown []*x509.Certificate, conn io.Closer) (leave func(), err error) {
	i.revoked.mu.Lock()
	defer i.revoked.mu.Unlock()
	peer, err := PeerOf(shown[0])
	if err == nil {
		err = i.revoked.check(peer)
	}
	if err == nil { // again: the trust may have changed since the handshake
		err = i.trust.Load().stillTrusts(shown)
	}
	if err != nil {
		return nil, err
	}
	one := &connection{peer: peer, shown: shown, conn: conn}
	i.conns.add(one)
	return func() {
		i.revoked.mu.Lock()
		defer i.revoked.mu.Unlock()
		delete(i.conns[peer.Number], one)
	}, nil
}

// CutConnections closes the connections whose certificates are of an authority that is no longer trusted,
// except those to the peers to keep.
func (i *Identity) CutConnections(keep func(Peer) bool) {
	var ended []io.Closer
	t := i.trust.Load()
	i.revoked.mu.Lock()
	for _, conns := range i.conns {
		for one := range conns {
			if !keep(one.peer) && t.stillTrusts(one.shown) != nil {
				ended = append(ended, one.conn)
				delete(conns, one)
			}
		}
	}
	i.revoked.mu.Unlock()
	closeAll(ended)
}
