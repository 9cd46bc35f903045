package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/compat"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/patience"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// Contacts are the control connections to other nodes, and what each node last reported.
type Contacts struct {
	id      *identity.Identity
	timeout time.Duration     // how long a greeted node may be silent
	met     func(name string) // is called when there is a first connection to a node

	mu    sync.Mutex
	known map[string]*peer
}

func newContacts(id *identity.Identity, timeout time.Duration, met func(name string)) *Contacts {
	return &Contacts{id: id, timeout: timeout, met: met, known: map[string]*peer{}}
}

// peer is another node as it was last seen.
type peer struct {
	client    *grpc.ClientConn // nil: disconnected, the next call makes another
	heard     *atomic.Int64    // bytes received through client
	sessions  int              // that use client
	address   string
	reachable bool
	failure   string
	contact   time.Time // last contact; zero: none since this agent started
	report
}

// report is what a node says of itself.
type report struct {
	knows     []byte           // digest of its knowledge of the cluster
	authority bool             // it can sign
	rollsOver bool             // it can follow a rollover of the authority
	refused   []migration.Mode // by its policy
	version   string
	protocol  compat.Range
}

// Client returns the control connection to a node, which is kept open so that it is ready when needed.
func (c *Contacts) Client(node identity.Node) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, err := c.connected(node)
	if err != nil {
		return nil, err
	}
	return known.client, nil
}

// Asking returns the client of a node, and a context that lasts as long as the node sends bytes. The caller
// must call cancel.
func (c *Contacts) Asking(ctx context.Context, node identity.Node) (
	*grpc.ClientConn, context.Context, context.CancelFunc, error,
) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, err := c.connected(node)
	if err != nil {
		return nil, nil, nil, err
	}
	limit := patience.Limit{Still: c.timeout, Most: helloLonger * c.timeout}
	ctx, cancel := limit.For(ctx, "node "+node.Name, patience.Count(known.heard.Load))
	return known.client, ctx, cancel, nil
}

// connected returns the peer with its client. The caller has locked mu.
func (c *Contacts) connected(node identity.Node) (*peer, error) {
	known := c.known[node.Name]
	if known != nil && known.client != nil && known.address == node.Address {
		return known, nil
	}
	heard := &atomic.Int64{}
	client, err := wire.DialControl(c.id, node.Address, node.Name, heard)
	if err != nil {
		return nil, fmt.Errorf("node %s at %s: %w", node.Name, node.Address, err)
	}
	if known == nil {
		known = &peer{failure: notReached}
		c.known[node.Name] = known
		c.met(node.Name)
	} else if known.client != nil {
		known.client.Close()
	}
	known.client, known.heard, known.address, known.sessions = client, heard, node.Address, 0
	return known, nil
}

// SessionClient is Client for a session, whose end the caller reports with done.
func (c *Contacts) SessionClient(
	node identity.Node,
) (client *grpc.ClientConn, done func(silent bool), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, err := c.connected(node)
	if err != nil {
		return nil, nil, err
	}
	client = known.client
	known.sessions++
	return client, func(silent bool) { c.sessionEnded(known, client, silent) }, nil
}

func (c *Contacts) sessionEnded(known *peer, client *grpc.ClientConn, silent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known.client != client {
		return
	}
	known.sessions--
	if silent {
		known.disconnect()
	}
}

// disconnect closes a connection that seems broken: a new one may work long before TCP notices.
func (p *peer) disconnect() {
	if p.client != nil && p.sessions == 0 {
		p.client.Close()
		p.client = nil
	}
}

// disconnectAll closes the connections that no session uses.
func (c *Contacts) disconnectAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, known := range c.known {
		known.disconnect()
	}
}

// forget closes the connection to a node that is removed.
func (c *Contacts) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.known[name]; known != nil && known.client != nil {
		known.client.Close()
	}
	delete(c.known, name)
}

// Close closes the control connections.
func (c *Contacts) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var failed []error
	for _, known := range c.known {
		if known.client != nil {
			failed = append(failed, known.client.Close())
		}
	}
	return errors.Join(failed...)
}

// note notes the result of a hello, and reports whether a node that could not be reached answers again.
func (c *Contacts) note(name string, version heardVersion, err error) (back bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.known[name]
	if known == nil {
		return false
	}
	back = err == nil && !known.reachable
	known.note(version, err)
	if errors.Is(err, context.DeadlineExceeded) {
		known.disconnect()
	}
	return back
}

func (p *peer) note(version heardVersion, err error) {
	p.reachable = err == nil
	if err != nil {
		p.failure = api.Plain(err)
		return
	}
	p.version, p.protocol, p.failure, p.contact = version.program, version.protocol, "", time.Now()
}

// noteContact notes when a node has called.
func (c *Contacts) noteContact(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.known[name]; known != nil {
		known.contact = time.Now()
	}
}

// Contact returns when a node was last heard of; zero: not since this agent started.
func (c *Contacts) Contact(name string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.known[name]; known != nil {
		return known.contact
	}
	return time.Time{}
}

// Reaches reports whether a node answered when it was last asked.
func (c *Contacts) Reaches(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.known[name]
	return known != nil && known.reachable
}

// noteMember notes a node's knowledge of the cluster, and whether the node has the authority.
func (c *Contacts) noteMember(name string, said greeting) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.known[name]; known != nil && len(said.GetKnows()) <= sha256.Size {
		known.knows, known.authority = said.GetKnows(), said.GetAuthority()
		known.rollsOver = said.GetRollsOver()
	}
}

// noteRefused records the modes that a node refuses. It ignores modes that only a later release knows.
func (c *Contacts) noteRefused(name string, said []string) {
	refused := slices.DeleteFunc(migration.Modes(), func(mode migration.Mode) bool {
		return !slices.Contains(said, string(mode))
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.known[name]; known != nil {
		known.refused = refused
	}
}

// reported returns what a node last reported; the zero value if it is not known.
func (c *Contacts) reported(name string) report {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.known[name]; known != nil {
		return known.report
	}
	return report{}
}

// RefusedBy returns the modes that a node refuses.
func (c *Contacts) RefusedBy(name string) []migration.Mode { return c.reported(name).refused }

// knows returns the digest that a node last reported.
func (c *Contacts) knows(name string) []byte { return c.reported(name).knows }

// signs reports whether a node last reported that it has the authority.
func (c *Contacts) signs(name string) bool { return c.reported(name).authority }

// describe describes a node as it was last seen.
func (c *Contacts) describe(entry *api.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.known[entry.Name]
	if known == nil {
		entry.Error = notReached
		return
	}
	entry.Reachable, entry.Error, entry.Version = known.reachable, known.failure, known.version
	entry.Authority = known.authority
}

// notReached is the failure of a node that was not greeted yet.
const notReached = "not reached yet"
