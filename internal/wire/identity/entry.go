package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"time"
)

const (
	// MaxRevision bounds revisions, so that the next one can always be computed.
	MaxRevision       = 1 << 40
	maxEntryCertBytes = 2 << 10 // a node's certificate takes some 600
)

// signed is the digest that the entry's node signs.
func (n Node) signed() []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "godwit-node/1\n%d\n%s\n%s\n%d\n", n.Number, n.Name, n.Address,
		n.Revision))
	return sum[:]
}

// Signed reports whether the entry has a signature; VerifyNode checks it.
func (n Node) Signed() bool { return n.Signature != "" }

// certificate decodes the certificate whose key signed the entry.
func (n Node) certificate() (*x509.Certificate, error) {
	if len(n.Certificate) > base64.StdEncoding.EncodedLen(maxEntryCertBytes) {
		return nil, fmt.Errorf("the certificate has %d bytes; the limit is %d", len(n.Certificate),
			maxEntryCertBytes)
	}
	der, err := base64.StdEncoding.DecodeString(n.Certificate)
	if err != nil {
		return nil, fmt.Errorf("decode the certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

// issued is when the authority issued the entry's certificate; the zero time if the entry has none.
func (n Node) issued() time.Time {
	if n.Certificate == "" {
		return time.Time{}
	}
	certificate, err := n.certificate()
	if err != nil {
		return time.Time{}
	}
	return certificate.NotBefore
}

// Entry is this node's entry, signed with the key of its present certificate.
func (i *Identity) Entry() (Node, error) {
	pair := i.Certificate()
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return i.Node, errors.New("this node's key cannot sign")
	}
	node := i.Node
	signature, err := key.Sign(rand.Reader, node.signed(), crypto.SHA256)
	if err != nil {
		return i.Node, fmt.Errorf("sign this node's entry: %w", err)
	}
	node.Certificate = base64.StdEncoding.EncodeToString(pair.Certificate[0])
	node.Signature = base64.StdEncoding.EncodeToString(signature)
	return node, nil
}

// VerifyNode checks that an entry is from its node: this cluster's authority issued the entry's certificate
// for that name and number, and the certificate's key signed the entry. The certificate may have expired
// since, as that of a node that is switched off.
func (i *Identity) VerifyNode(n Node) error {
	if err := i.CheckPeer(Peer{Name: n.Name, Number: n.Number}); err != nil {
		return err
	}
	return i.verifyEntry(n)
}

// MayBeMember reports whether a stored entry may still be a member's: this node knows of no removal of that
// node, and trusts the authority of the entry's certificate. It accepts an entry that its node has not signed
// yet.
func (i *Identity) MayBeMember(n Node) bool {
	return !i.Removed(Peer{Name: n.Name, Number: n.Number}) && (!n.Signed() || i.verifyEntry(n) == nil)
}

func (i *Identity) verifyEntry(n Node) error {
	if err := n.Validate(); err != nil {
		return err
	}
	peer := Peer{Name: n.Name, Number: n.Number}
	if !n.Signed() {
		return fmt.Errorf("entry of node %s has no signature", n.Name)
	}
	certificate, err := n.certificate()
	if err != nil {
		return fmt.Errorf("entry of node %s: %w", n.Name, err)
	}
	if ahead := time.Until(certificate.NotBefore); ahead > maxClockSkew {
		return fmt.Errorf("%w: the certificate of node %s begins at %s, %s from now by this node's clock",
			ErrClockSkew, n.Name, certificate.NotBefore.UTC().Format(time.RFC3339), ahead.Round(time.Second))
	}
	options := x509.VerifyOptions{CurrentTime: certificate.NotBefore.Add(backdate)}
	if err := i.trust.Load().verify(certificate, nil, options); err != nil {
		return fmt.Errorf("entry of node %s: %w", n.Name, err)
	}
	if got, err := PeerOf(certificate); err != nil || got != peer {
		return fmt.Errorf("entry of node %s (%d) has the certificate of node %s (%d)", n.Name, n.Number,
			got.Name, got.Number)
	}
	signature, err := base64.StdEncoding.DecodeString(n.Signature)
	key, ok := certificate.PublicKey.(*ecdsa.PublicKey)
	if err != nil || !ok || !ecdsa.VerifyASN1(key, n.signed(), signature) {
		return fmt.Errorf("entry of node %s has a wrong signature", n.Name)
	}
	return nil
}
