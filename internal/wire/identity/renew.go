package identity

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// NeedsRenewal reports whether half or less of the certificate's life is left, or it lives for longer than
// certificates now do.
func (i *Identity) NeedsRenewal(now time.Time) bool {
	if !i.Current() {
		return true
	}
	leaf := i.Certificate().Leaf
	if now.Before(leaf.NotBefore) {
		return true // it was issued with a clock that was ahead, or this one is behind
	}
	life := leaf.NotAfter.Sub(leaf.NotBefore)
	return leaf.NotAfter.Sub(now) <= life/2 || life > nodeLifetime+2*backdate
}

// Renew gets this node a new key and certificate, before the old one ends. The CA's node signs its own; every
// other asks over conn, a mutually verified connection to the CA's node with RenewProtocol (wire.DialRenew
// makes it; nil on the CA's node). It returns the nodes that the CA's node knows.
func (i *Identity) Renew(ctx context.Context, conn net.Conn) ([]Node, error) {
	key, request, err := newRequest()
	if err != nil {
		return nil, err
	}
	if conn == nil {
		return nil, i.renewHere(key)
	}
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	var reply certificateReply
	ask := renewRequest{Request: request, Time: time.Now(), Revoked: i.SignedRevocations()}
	if err := exchange(ctx, conn, ask, &reply); err != nil {
		return nil, fmt.Errorf("renew the certificate of this node: %w", err)
	}
	if reply.Succession != nil {
		if _, err := i.Follow(Succession{Next: reply.Succession.Next}); err != nil {
			return nil, err
		}
	}
	peer := Peer{Name: i.Node.Name, Number: i.Node.Number}
	authority := i.trust.Load().newest()
	certificate, err := checkReply(reply, authority, peer, key.Public())
	if err != nil {
		return nil, fmt.Errorf("renew the certificate of this node: %w", err)
	}
	_, revokeErr := i.Revoke(reply.Revoked)
	err = errors.Join(revokeErr, i.current.replace(i.dir, key, certificate, authority))
	return slices.Clone(reply.Nodes), err
}

func (i *Identity) renewHere(key crypto.Signer) error {
	authority, err := i.Authority()
	if err != nil {
		return fmt.Errorf("renew the certificate of this node: %w", err)
	}
	peer, before := Peer{Name: i.Node.Name, Number: i.Node.Number}, i.Certificate().Leaf.NotBefore
	certificate, err := authority.renew(peer, key.Public(), before)
	if err != nil {
		return fmt.Errorf("renew the certificate of this node: %w", err)
	}
	return i.current.replace(i.dir, key, certificate, authority.certificate)
}
