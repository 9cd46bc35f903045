package identity

import (
	"crypto"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

// Errors with which the CA refuses a node.
var (
	ErrNameTaken    = errors.New("node name is taken")
	ErrClusterFull  = errors.New("no node number is left")
	ErrNotAuthority = errors.New("this node does not have the certificate authority")
)

// Authority is the CA of a cluster, on the node that was initialised first and on each promoted node. All
// have the same key, and each has its own range of numbers to assign. Its methods may be called
// concurrently, even by several processes.
type Authority struct {
	dir         string
	certificate *x509.Certificate
	key         crypto.Signer
	now         func() time.Time
	refused     func(Peer) error // why a node gets no certificate: it has been removed
	mu          sync.Mutex
}

// authorityState is what the CA must not forget. Every change is durable before anybody hears of it.
type authorityState struct {
	// Numbers only grow: the number of a removed node is not assigned again, because routes and containers
	// with its addresses may still exist somewhere.
	LastNumber int `json:"last_number"`
	// End is the highest number that this authority may assign; 0: MaxNumber. Spare are ranges for
	// afterwards.
	End   int    `json:"end,omitempty"`
	Spare []span `json:"spare,omitempty"`
	// Given are the numbers that other authorities have, by the number of their node.
	Given  map[int]span  `json:"given,omitempty"`
	Nodes  []Peer        `json:"nodes"`
	Tokens []tokenRecord `json:"tokens"`
	// Rollover is the plan of the rollover that this authority has begun.
	Rollover *rolloverPlan `json:"rollover,omitempty"`
}

const maxStateBytes = 1 << 20

func openAuthority(dir string) (*Authority, error) {
	pair, err := loadPair(filepath.Join(dir, "ca.pem"))
	if isNotExist(err) {
		return nil, fmt.Errorf("%w; it is on the node that was set up with `godwit node init`",
			ErrNotAuthority)
	}
	if err != nil {
		return nil, fmt.Errorf("open the certificate authority: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("open the certificate authority: %s/ca.pem holds no authority", dir)
	}
	return &Authority{dir: dir, certificate: pair.Leaf, key: key, now: time.Now, refused: nobody}, nil
}

// nobody refuses no node.
func nobody(Peer) error { return nil }

// createAuthority makes a new CA in an empty directory, with the first node's number already assigned.
func createAuthority(dir string, first Peer, now time.Time) (*Authority, error) {
	key, err := newKey()
	if err != nil {
		return nil, fmt.Errorf("make the key of the cluster: %w", err)
	}
	certificate, err := newCA(key, now)
	if err != nil {
		return nil, err
	}
	data, err := encodePair(key, certificate)
	if err != nil {
		return nil, err
	}
	if err := writeFile(filepath.Join(dir, "ca.pem"), data); err != nil {
		return nil, err
	}
	state := authorityState{LastNumber: first.Number, Nodes: []Peer{first}}
	if err := writeJSON(filepath.Join(dir, "state.json"), state); err != nil {
		return nil, err
	}
	return &Authority{dir: dir, certificate: certificate, key: key, now: time.Now, refused: nobody}, nil
}

// load reads the state.
func (a *Authority) load() (state authorityState, err error) {
	path := filepath.Join(a.dir, "state.json")
	data, err := readFile(path, maxStateBytes)
	if err != nil {
		return state, fmt.Errorf("read the state of the certificate authority: %w", err)
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return state, fmt.Errorf("read the state of the certificate authority: %s: %w", path, err)
	}
	if state.LastNumber < 1 {
		return state, fmt.Errorf("read the state of the certificate authority: %s has no last number", path)
	}
	return state, nil
}

// change applies a function to the state and makes the result durable; if that fails, nothing has changed.
func (a *Authority) change(apply func(*authorityState) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	unlock, err := lock(filepath.Join(a.dir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	state, err := a.load()
	if err != nil {
		return err
	}
	if err := apply(&state); err != nil {
		return err
	}
	return writeJSON(filepath.Join(a.dir, "state.json"), state)
}

// admit exchanges a token for a certificate. It spends the token and assigns the number before it makes the
// certificate, and does neither if the node is refused. known are the nodes that this node knows: others
// may have admitted some of them.
func (a *Authority) admit(secret []byte, name string, public crypto.PublicKey, known []Node) (Peer,
	*x509.Certificate, error) {
	now := a.now()
	var peer Peer
	err := a.change(func(state *authorityState) error {
		token, err := state.findToken(secret, now)
		if err != nil {
			return err
		}
		if token.Node != "" && token.Node != name {
			return fmt.Errorf("%w: this token is for the node %s", ErrTokenUnknown, token.Node)
		}
		state.observe(known, a.refused)
		if peer, err = state.place(name, token.Node == name); err != nil {
			return err
		}
		token.Used = true
		return nil
	})
	if err != nil {
		return Peer{}, nil, err
	}
	certificate, err := issue(a.certificate, a.key, public, peer, now, lastIssued(known, peer.Number))
	return peer, certificate, err
}

// place finds or allocates the number of a node.
func (s *authorityState) place(name string, again bool) (Peer, error) {
	for _, peer := range s.Nodes {
		if peer.Name != name {
			continue
		}
		if again {
			return peer, nil
		}
		return Peer{}, fmt.Errorf("%w: a node %s has joined before; choose another name, or make a token "+
			"for it with "+
			"`godwit node token --node %s`", ErrNameTaken, name, name)
	}
	if err := s.nextSpan(); err != nil {
		return Peer{}, err
	}
	s.LastNumber++
	peer := Peer{Name: name, Number: s.LastNumber}
	s.Nodes = append(s.Nodes, peer)
	return peer, nil
}

// lastIssued returns when the validity of a node's last certificate begins, as far as known.
func lastIssued(known []Node, number int) time.Time {
	for _, node := range known {
		if node.Number == number {
			return node.issued()
		}
	}
	return time.Time{}
}

// renew makes a new certificate for a node that has shown a valid one, which another node with the
// authority may have issued. The validity of the last one begins at before.
func (a *Authority) renew(peer Peer, public crypto.PublicKey, before time.Time) (*x509.Certificate, error) {
	if err := a.refused(peer); err != nil {
		return nil, err
	}
	err := a.change(func(state *authorityState) error {
		for _, node := range state.Nodes {
			if node.Number == peer.Number && node.Name != peer.Name {
				return fmt.Errorf("number %d is of node %s, not of %s, by what this certificate authority "+
					"knows", peer.Number,
					node.Name, peer.Name)
			}
		}
		state.observe([]Node{{Name: peer.Name, Number: peer.Number}}, a.refused)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return issue(a.certificate, a.key, public, peer, a.now(), before)
}
