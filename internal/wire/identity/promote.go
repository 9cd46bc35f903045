package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const maxHandoverBytes = 1 << 20

// Handover makes another node an authority. It contains the key of the cluster, so it travels only over
// mutually verified connections, and into files that only root can read.
type Handover struct {
	Pair  []byte `json:"pair"` // PEM of the key and the certificate
	Span  span   `json:"span"` // the numbers that it may assign
	Nodes []Peer `json:"nodes"`
}

// HandOver makes what another node needs to be an authority, too. The same node gets the same numbers again
// if the first attempt failed.
func (i *Identity) HandOver(to Peer) ([]byte, error) {
	if err := i.CheckPeer(to); err != nil {
		return nil, err
	}
	authority, err := i.Authority()
	if err != nil {
		return nil, err
	}
	pair, err := encodePair(authority.key, authority.certificate)
	if err != nil {
		return nil, err
	}
	handover := Handover{Pair: pair}
	err = authority.change(func(state *authorityState) error {
		given, again := state.Given[to.Number]
		if !again {
			if given, err = state.halve(); err != nil {
				return err
			}
			if state.Given == nil {
				state.Given = map[int]span{}
			}
			state.Given[to.Number] = given
		}
		handover.Span, handover.Nodes = given, state.Nodes
		return nil
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(handover)
}

// parseHandover checks that a handover has the key of the cluster with this fingerprint, so that its sender
// need not be trusted.
func parseHandover(data []byte, want Fingerprint) (Handover, error) {
	var handover Handover
	if len(data) > maxHandoverBytes {
		return handover, fmt.Errorf("authority of %d bytes; the limit is %d", len(data), maxHandoverBytes)
	}
	if err := json.Unmarshal(data, &handover); err != nil {
		return handover, fmt.Errorf("decode the authority: %w", err)
	}
	pair, err := tls.X509KeyPair(handover.Pair, handover.Pair)
	if err != nil {
		return handover, fmt.Errorf("the authority's key: %w", err)
	}
	if !pair.Leaf.IsCA || fingerprint(pair.Leaf) != want {
		return handover, errors.New("it is not the authority of this cluster")
	}
	if !handover.Span.valid() || len(handover.Nodes) > MaxNumber {
		return handover,
			fmt.Errorf("the authority comes with the numbers %+v and %d nodes, which makes no sense",
				handover.Span, len(handover.Nodes))
	}
	return handover, nil
}

// TakeAuthority makes this node an authority with the result of another node's HandOver.
func (i *Identity) TakeAuthority(data []byte) error {
	handover, err := parseHandover(data, i.Fingerprint())
	if err != nil {
		return fmt.Errorf("take the authority: %w", err)
	}
	i.changing.Lock()
	defer i.changing.Unlock()
	if i.HasAuthority() {
		return nil
	}
	if i.held.Load() != nil { // from before a rollover: it keeps its numbers, and gets the new key
		if err := writeFile(filepath.Join(authorityDir(i.dir), "ca.pem"), handover.Pair); err != nil {
			return fmt.Errorf("take the authority: %w", err)
		}
		return i.held.load(i.dir)
	}
	dir, err := os.MkdirTemp(i.dir, ".ca-*") // made with mode 0700
	if err != nil {
		return fmt.Errorf("take the authority: %w", err)
	}
	defer os.RemoveAll(dir) // it is gone after the rename
	state := authorityState{LastNumber: handover.Span.Last, End: handover.Span.End, Nodes: handover.Nodes}
	err = errors.Join(writeFile(filepath.Join(dir, "ca.pem"), handover.Pair),
		writeJSON(filepath.Join(dir, "state.json"), state))
	if err == nil {
		err = os.Rename(dir, authorityDir(i.dir))
	}
	if err != nil {
		return fmt.Errorf("take the authority: %w", err)
	}
	return errors.Join(syncDir(i.dir), i.held.load(i.dir))
}

// load records which authority's key this node has, after it took or dropped one.
func (h *heldAuthority) load(dir string) error {
	pair, err := loadPair(filepath.Join(authorityDir(dir), "ca.pem"))
	if isNotExist(err) {
		h.Store(nil)
		return nil
	}
	if err == nil {
		h.Store(pair.Leaf)
	}
	return err
}

// DemotionOrder tells a node to give the authority up. It is signed with the authority's own key.
type DemotionOrder struct {
	Peer      Peer      `json:"peer"`
	Time      time.Time `json:"time"`
	Signature []byte    `json:"signature"`
}

func (o DemotionOrder) signed() []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "godwit-demote/1\n%d\n%s\n%d\n", o.Peer.Number, o.Peer.Name,
		o.Time.Unix()))
	return sum[:]
}

// OrderDemotion signs the order that a node must give the authority up.
func (i *Identity) OrderDemotion(peer Peer) ([]byte, error) {
	authority, err := i.Authority()
	if err != nil {
		return nil, err
	}
	order := DemotionOrder{Peer: peer, Time: authority.now().UTC().Truncate(time.Second)}
	if order.Signature, err = authority.key.Sign(rand.Reader, order.signed(), crypto.SHA256); err != nil {
		return nil, fmt.Errorf("sign the demotion of node %s: %w", peer.Name, err)
	}
	return json.Marshal(order)
}

// DropAuthority obeys an order and returns the numbers that this node could still assign, for
// TakeNumbersBack.
func (i *Identity) DropAuthority(data []byte) (rest []byte, err error) {
	var order DemotionOrder
	if err := json.Unmarshal(data, &order); err != nil {
		return nil, fmt.Errorf("decode an order to give the authority up: %w", err)
	}
	self := Peer{Name: i.Node.Name, Number: i.Node.Number}
	if err := order.check(self, i.trust.Load().newest(), time.Now()); err != nil {
		return nil, err
	}
	authority, err := openAuthority(authorityDir(i.dir)) // even if it is from before a rollover
	if errors.Is(err, ErrNotAuthority) {
		return []byte("[]"), nil // it was done before
	}
	if err != nil {
		return nil, err
	}
	err = authority.change(func(state *authorityState) error {
		rest, err = json.Marshal(state.rest())
		return err
	})
	if err != nil {
		return nil, err
	}
	aside := filepath.Join(i.dir, ".ca-dropped")
	if err := errors.Join(os.RemoveAll(aside), os.Rename(authorityDir(i.dir), aside),
		os.RemoveAll(aside)); err != nil {
		return nil, fmt.Errorf("give the authority up: %w", err)
	}
	return rest, errors.Join(syncDir(i.dir), i.held.load(i.dir))
}

// check refuses an order for another node, one that the authority has not signed, and an old one.
func (o DemotionOrder) check(node Peer, authority *x509.Certificate, now time.Time) error {
	key, ok := authority.PublicKey.(*ecdsa.PublicKey)
	if !ok || o.Peer != node || !ecdsa.VerifyASN1(key, o.signed(), o.Signature) {
		return errors.New("the order to give the authority up is not signed by it, or is for another node")
	}
	if skew := now.Sub(o.Time); skew.Abs() > maxClockSkew {
		return fmt.Errorf("%w: the order to give the authority up is %s old by this node's clock",
			ErrClockSkew, skew.Round(time.Second))
	}
	return nil
}

// TakeNumbersBack takes over the numbers of a demoted node.
func (i *Identity) TakeNumbersBack(from Peer, rest []byte) error {
	var spans []span
	if len(rest) > maxMessageBytes {
		return fmt.Errorf("numbers of %d bytes; the limit is %d", len(rest), maxMessageBytes)
	}
	if err := json.Unmarshal(rest, &spans); err != nil {
		return fmt.Errorf("numbers of node %s: %w", from.Name, err)
	}
	authority, err := i.Authority()
	if err != nil {
		return err
	}
	return authority.change(func(state *authorityState) error {
		given, known := state.Given[from.Number]
		if !known {
			return nil // another authority has promoted it: numbers not known to be free are not assigned
		}
		delete(state.Given, from.Number)
		for _, one := range spans {
			if one.Last >= given.Last && one.End <= given.End {
				state.takeBack([]span{one})
			}
		}
		return nil
	})
}

func authorityDir(dir string) string { return filepath.Join(dir, "ca") }
