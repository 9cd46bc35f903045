package store

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// NodeState is what an operator wants of a node.
type NodeState string

// The states of a node.
const (
	Active   NodeState = "active"   // may get containers
	Cordoned NodeState = "cordoned" // gets none; those that are there stay
	Draining NodeState = "draining" // gets none, and its containers leave
)

// Node is a machine that joined the controller.
type Node struct {
	Name   string            `json:"name"`
	Number int               `json:"number"`
	Labels map[string]string `json:"labels,omitempty"`
	State  NodeState         `json:"state"`
	Drain  *Drain            `json:"drain,omitempty"` // while it is draining
	Joined time.Time         `json:"joined"`
}

// Drain says why the containers of a node leave.
type Drain struct {
	By    string    `json:"by"`
	Since time.Time `json:"since"`
	// Deadline is when the node should be empty; zero: none.
	Deadline time.Time `json:"deadline,omitzero"`
	// BringBack says that the containers return when the node is restored.
	BringBack bool `json:"bring_back,omitempty"`
}

// Container is what the controller must not forget of a container. Where it runs, its node says.
type Container struct {
	ID string `json:"id"`
	// Generation grows with each intent for the container.
	Generation uint64 `json:"generation"`
	// Home is the drained node to which the container returns; empty: none.
	Home string `json:"home,omitempty"`
	// Held says that somebody cancelled a move that the controller had decided on; nil: nobody.
	Held *Held `json:"held,omitempty"`
}

// Held keeps the controller from moving a container on its own, as long as the container is at the node and
// the node is not drained anew.
type Held struct {
	By    string    `json:"by"`
	Node  string    `json:"node"`
	Since time.Time `json:"since"`
}

// IntentState is how far an intent is.
type IntentState string

// The states of an intent.
const (
	Queued    IntentState = "queued" // waits for its turn
	Sent      IntentState = "sent"   // the source may have begun the migration
	Moved     IntentState = "moved"
	Failed    IntentState = "failed"    // the container did not move
	Cancelled IntentState = "cancelled" // it did not, because somebody cancelled the move
	Doubt     IntentState = "in-doubt"
)

// Ended reports whether nothing more happens by itself.
func (s IntentState) Ended() bool { return s == Moved || s == Failed || s == Cancelled }

// Intent is a decision to move one container once. Its ID is that of the migration, too.
type Intent struct {
	ID         string      `json:"id"`
	Container  string      `json:"container"`
	Name       string      `json:"name"` // of the container, for people
	From       string      `json:"from"`
	To         string      `json:"to"`
	Mode       string      `json:"mode,omitempty"`
	Cause      string      `json:"cause"`
	Reason     string      `json:"reason"`
	By         string      `json:"by,omitempty"` // the user who asked
	Priority   int         `json:"priority"`
	Generation uint64      `json:"generation"`
	State      IntentState `json:"state"`
	Created    time.Time   `json:"created"`
	SentAt     time.Time   `json:"sent_at,omitzero"`
	EndedAt    time.Time   `json:"ended_at,omitzero"`
	Error      string      `json:"error,omitempty"`
	Cancellation
	Bytes    int64   `json:"bytes,omitempty"` // expected memory to send
	Downtime float64 `json:"downtime_seconds,omitempty"`
	Total    float64 `json:"total_seconds,omitempty"`
}

// Cancellation of a move that may have begun.
type Cancellation struct {
	CancelledBy string `json:"cancelled_by,omitempty"` // the user who wants it
	CancelError string `json:"cancel_error,omitempty"` // why the source goes on
}

// TokenKind is what a token is for.
type TokenKind string

// The kinds of tokens.
const (
	NodeToken TokenKind = "node" // lets one node join, once
	UserToken TokenKind = "user"
)

// Role is what a user may do. Each role includes the ones before it.
type Role string

// The roles.
const (
	Viewer   Role = "viewer"   // sees nodes, containers and migrations
	Operator Role = "operator" // moves containers, drains and labels nodes
	Admin    Role = "admin"    // sees who did what
)

// roles are all roles, the lowest first.
func roles() []Role { return []Role{Viewer, Operator, Admin} }

// ParseRole reads the name of a role. Empty: Operator, as of tokens that were made before there were roles.
func ParseRole(text string) (Role, error) {
	role := cmp.Or(Role(text), Operator)
	if !slices.Contains(roles(), role) {
		return "", fmt.Errorf("role %.40q: must be viewer, operator or admin", text)
	}
	return role, nil
}

// Includes reports whether a user with the role may do what needs the other.
func (r Role) Includes(other Role) bool {
	mine, needed := slices.Index(roles(), r), slices.Index(roles(), other)
	return needed >= 0 && mine >= needed
}

// Token is the record of a secret that was given out. Only a hash of the secret is kept.
type Token struct {
	Hash    string    `json:"hash"`
	Kind    TokenKind `json:"kind"`
	Name    string    `json:"name,omitempty"` // of the user, or of the only node that may use it
	Role    Role      `json:"role,omitempty"` // of the user; empty: of a node, or older than roles
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"` // zero: never
	Used    bool      `json:"used,omitempty"`   // of a node's
	UsedAt  time.Time `json:"used_at,omitzero"` // not known of tokens that an earlier version kept
}

// Expired reports whether a token is no longer valid.
func (t Token) Expired(now time.Time) bool { return !t.Expires.IsZero() && now.After(t.Expires) }

// Authority is a certificate authority of the nodes' cluster, which the controller trusts.
type Authority struct {
	Certificate []byte `json:"certificate"` // DER
}

// KeyPair is the key and certificate that all controllers of a cluster show.
type KeyPair struct {
	PEM []byte `json:"pem"`
}

// State is all records, decoded.
type State struct {
	Nodes       map[string]Node      // by name
	Containers  map[string]Container // by id
	Intents     map[string]Intent    // by id
	Tokens      map[string]Token     // by hash
	Authorities map[string]Authority // by fingerprint
	KeyPairs    map[string]KeyPair
}

// Decode reads records. An error names the record that cannot be read: a controller must not act on half
// of its state.
func Decode(records []Record) (State, error) {
	s := State{
		Nodes: map[string]Node{}, Containers: map[string]Container{}, Intents: map[string]Intent{},
		Tokens: map[string]Token{}, Authorities: map[string]Authority{}, KeyPairs: map[string]KeyPair{},
	}
	for _, one := range records {
		var err error
		switch one.Key.Kind {
		case KindNode:
			err = decode(s.Nodes, one)
		case KindContainer:
			err = decode(s.Containers, one)
		case KindIntent:
			err = decode(s.Intents, one)
		case KindToken:
			err = decode(s.Tokens, one)
		case KindAuthority:
			err = decode(s.Authorities, one)
		case KindKeyPair:
			err = decode(s.KeyPairs, one)
		default:
			err = one.Key.check()
		}
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

func decode[T any](into map[string]T, record Record) error {
	var value T
	if err := json.Unmarshal(record.Value, &value); err != nil {
		return fmt.Errorf("decode record %s: %w", record.Key, err)
	}
	into[record.Key.Name] = value
	return nil
}
