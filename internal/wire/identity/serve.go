package identity

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// Server answers nodes that want to join or to renew their certificates. Every node has one; without the
// CA, it says so.
type Server struct {
	identity *Identity
	// authority opens the CA, which this node may get or lose at any time. Error: ErrNotAuthority.
	authority func() (*Authority, error)
	nodes     func() []Node
	joined    func(Node)
	removed   func([]Revocation) // nil: nobody is informed
}

// OnRemoved sets a function that is called with removals that renewing nodes report.
func (s *Server) OnRemoved(removed func([]Revocation)) { s.removed = removed }

// NewServer makes the server of a node. It fails if this node has the authority and cannot open it. nodes
// returns the list for a new node. joined, if not nil, is called for each admitted node.
func NewServer(identity *Identity, nodes func() []Node, joined func(Node)) (*Server, error) {
	_, err := identity.Authority()
	if err != nil && !errors.Is(err, ErrNotAuthority) && !errors.Is(err, ErrRevocationsUnread) {
		return nil, err
	}
	return &Server{identity: identity, authority: identity.Authority, nodes: nodes, joined: joined}, nil
}

// ServeJoin holds one join exchange on a connection whose peer is not known, and closes it. It returns an
// error if no node was admitted.
func (s *Server) ServeJoin(conn net.Conn) error {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return err
	}
	var request joinRequest
	if err := readMessage(conn, &request); err != nil {
		return fmt.Errorf("join from %s: %w", conn.RemoteAddr(), err)
	}
	node, reply, err := s.join(request)
	if err != nil {
		reply = refuse(err)
	}
	if sendErr := s.send(conn, reply); err == nil && sendErr != nil {
		return fmt.Errorf("join of node %s from %s: it was admitted but the answer did not reach it: %w",
			node.Name, conn.RemoteAddr(), sendErr)
	}
	if err != nil {
		return fmt.Errorf("join of node %q from %s refused: %w", request.Name, conn.RemoteAddr(), err)
	}
	return nil
}

func (s *Server) join(request joinRequest) (Node, certificateReply, error) {
	authority, err := s.authority()
	if err != nil {
		return Node{}, certificateReply{}, s.notHere(err)
	}
	key, address, err := s.checkJoin(request, authority.now())
	if err != nil {
		return Node{}, certificateReply{}, err
	}
	peer, certificate, err := authority.admit(request.Secret, request.Name, key, s.nodes())
	if err != nil {
		return Node{}, certificateReply{}, err
	}
	node := Node{Name: peer.Name, Number: peer.Number, Address: address,
		Revision: s.nextRevision(peer.Number)}
	if s.joined != nil {
		s.joined(node)
	}
	nodes, _ := Merge(s.nodes(), []Node{node})
	return node, s.reply(peer, certificate, nodes), nil
}

// checkJoin refuses what can be refused before the token is spent. A peer without a token learns nothing
// about the cluster from the refusal.
func (s *Server) checkJoin(request joinRequest, now time.Time) (crypto.PublicKey, string, error) {
	if skew := now.Sub(request.Time); skew.Abs() > maxClockSkew {
		return nil, "",
			fmt.Errorf("%w: the joining node's clock is %s %s this one's; set both (for example with NTP)",
				ErrClockSkew, skew.Abs().Round(time.Second), aheadOrBehind(skew))
	}
	if err := CheckName(request.Name); err != nil {
		return nil, "", err
	}
	address, err := ParseAddress(request.Address)
	if err != nil {
		return nil, "", err
	}
	key, err := requestKey(request.Request)
	return key, address, err
}

func aheadOrBehind(skew time.Duration) string {
	if skew < 0 {
		return "ahead of"
	}
	return "behind"
}

// nextRevision makes the entry of a rejoining node newer than what others remember of it.
func (s *Server) nextRevision(number int) uint64 {
	for _, node := range s.nodes() {
		if node.Number == number {
			return min(node.Revision, MaxRevision-1) + 1
		}
	}
	return 1
}

// ServeRenew holds one renewal with a peer that has shown a valid certificate, and closes the connection.
func (s *Server) ServeRenew(conn net.Conn, peer Peer) error {
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return err
	}
	var request renewRequest
	if err := readMessage(conn, &request); err != nil {
		return fmt.Errorf("renewal of node %s: %w", peer.Name, err)
	}
	certificate, err := s.renew(peer, request)
	if err == nil {
		err = s.takeRemovals(request.Revoked)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("renewal of node %s refused: %w", peer.Name, err),
			s.send(conn, refuse(err)))
	}
	return s.send(conn, s.reply(peer, certificate, s.nodes()))
}

// takeRemovals takes over the removals that a renewing node knows.
func (s *Server) takeRemovals(list []Revocation) error {
	if err := validateRevocations(list); err != nil {
		return err
	}
	fresh, err := s.identity.Revoke(list)
	if len(fresh) > 0 && s.removed != nil {
		s.removed(fresh)
	}
	return errors.Join(err, s.identity.resign())
}

func (s *Server) renew(peer Peer, request renewRequest) (*x509.Certificate, error) {
	authority, err := s.authority()
	if err != nil {
		return nil, s.notHere(err)
	}
	key, err := requestKey(request.Request)
	if err != nil {
		return nil, err
	}
	skew := authority.now().Sub(request.Time)
	if !request.Time.IsZero() && skew.Abs() > backdate {
		return nil, fmt.Errorf("%w: the clock of node %s is %s %s this one's; set both (as with NTP)",
			ErrClockSkew, peer.Name, skew.Abs().Round(time.Second), aheadOrBehind(skew))
	}
	return authority.renew(peer, key, lastIssued(s.nodes(), peer.Number))
}

func (s *Server) reply(peer Peer, certificate *x509.Certificate, nodes []Node) certificateReply {
	reply := certificateReply{
		Certificate: certificate.Raw, Number: peer.Number, Pool: s.identity.Pool, Nodes: nodes,
		Revoked: s.identity.SignedRevocations(),
	}
	if t := s.identity.trust.Load(); t.next != nil {
		succession := t.succession()
		reply.Base, reply.Succession = t.base.Raw, &succession
	}
	return reply
}

// send sends the answer. A list of nodes that does not fit is cut to the CA's node and the new one, which
// hears of the others later.
func (s *Server) send(conn net.Conn, reply certificateReply) error {
	err := writeUpTo(conn, reply, maxReplyBytes)
	if !errors.Is(err, errMessageTooLarge) {
		return err
	}
	reply.Nodes = slices.DeleteFunc(slices.Clone(reply.Nodes), func(n Node) bool {
		return n.Number != 1 && n.Number != reply.Number
	})
	return writeUpTo(conn, reply, maxReplyBytes)
}

// notHere names the node to ask, as far as known, if this node does not have the authority.
func (s *Server) notHere(err error) error {
	if !errors.Is(err, ErrNotAuthority) {
		return err
	}
	for _, node := range s.nodes() {
		if node.Number == 1 {
			return fmt.Errorf("%w; ask node %s at %s", ErrNotAuthority, node.Name, node.Address)
		}
	}
	return ErrNotAuthority
}
