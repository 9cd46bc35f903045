package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/compat"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/migration"
	"github.com/godwit/godwit/internal/network/wireguard"
	"github.com/godwit/godwit/internal/patience"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
	"github.com/godwit/godwit/internal/wire/stream"
)

// HelloEvery is the interval of a node's hellos to each other node.
const HelloEvery = 3 * time.Second

const (
	// times the time for which the other node may be silent, because a hello also opens the connection
	helloLonger  = 4
	maxLocations = 1 << 16 // all addresses of a pool
)

// Peers is this node's knowledge of the others. It says hello to each of them at intervals; the answers
// keep the list of nodes and the locations of travelling containers the same everywhere.
type Peers struct {
	id    *identity.Identity
	state string // directory of nodes.json
	// listLost: nodes.json was missing when the agent started, although init and join always write it.
	listLost bool
	version  string
	timeout  time.Duration // how long a greeted node may be silent
	refused  []string      // the modes that this node's policy refuses
	log      *slog.Logger

	containers Containers
	sends      Overlay
	events     Events
	// unkept is why the list of removed nodes could not be kept, as last logged; for run only.
	unkept string

	mu    sync.Mutex
	nodes []identity.Node
	known map[string]*peer
	hosts *hosts     // host names by which nodes are known
	told  *knowledge // as last encoded; nil: not yet
	// guests are the lists of guests that nodes hold of each other.
	guests     *guestLists
	claimsTold *claimLists
	// overlays are the nodes' statements about their overlays.
	overlays map[string]HeardOverlay
}

// peer is another node as it was last seen.
type peer struct {
	client    *grpc.ClientConn // nil: disconnected, the next call makes another
	heard     *atomic.Int64    // bytes received through client
	sessions  int              // that use client
	address   string
	reachable bool
	failure   string
	knows     []byte           // digest of its knowledge of the cluster, as last reported
	authority bool             // it reports that it can sign
	rollsOver bool             // it reports that it can follow a rollover of the authority
	refused   []migration.Mode // by its policy
	version   string
	protocol  compat.Range
	contact   time.Time // last contact; zero: none since this agent started
	rtt       time.Duration
	// bits per second; 0: not measured. The best transfer, or the median of probes if there were no
	// transfers.
	bandwidth float64
	transfers []float64
	probes    []float64
	// Of the link: when its bandwidth was measured or an attempt was made, how much round trips differ, the
	// bandwidth from there as that node has measured it, and the recent share of retransmitted bytes.
	seen, probed time.Time
	jitter       time.Duration
	last         time.Duration // round trip
	back         float64
	sent, resent float64
}

// unknownNode stands for the nodes that a missing nodes.json may have named. It cannot be reached.
const unknownNode = "(unknown: nodes.json was missing)"

// AllOthers returns the other nodes of the cluster, with unknownNode among them if their list was lost.
func (p *Peers) AllOthers() []identity.Node {
	nodes := p.Others()
	if p.listLost {
		nodes = append(nodes, identity.Node{Name: unknownNode})
	}
	return nodes
}

// Config describes the node and its state directory.
type Config struct {
	ID      *identity.Identity
	State   string
	Version string
	Timeout time.Duration // how long a greeted node may be silent
	Refused []string      // the modes that this node's policy refuses
	Log     *slog.Logger
}

// Containers provides this node's containers for greetings, and takes the containers of other nodes.
type Containers interface {
	// Guests returns the containers that live on this node and are not at home here.
	Guests() []*api.Location
	// HearGuests takes a node's list of containers that live there.
	HearGuests(node string, guests []*api.Location)
	// Claims returns the containers that run here, if they are known.
	Claims() (claims []uint64, known bool)
	// HearClaims takes the claims of another node.
	HearClaims(node string, claims []uint64)
}

// Overlay describes how this node sends containers' packets.
type Overlay interface {
	Own() (*api.Overlay, error)
	// KeyProof is wireguard.Key.Proof with this node's key.
	KeyProof(other wireguard.Key, from, to string) ([]byte, error)
}

// Events are this node's reactions to news. They are called without locks.
type Events interface {
	// Changed is called when the list of nodes, or the knowledge of their overlays, has changed.
	Changed()
	// Removed is called with a node that has been removed from the cluster.
	Removed(node identity.Revocation)
	// Lost is called with a node that was lost in a rollover of the authority.
	Lost(node string)
	// Back is called when a node that could not be reached answers again.
	Back(node string)
}

// New reads the list of nodes. It greets none before Attach.
func New(config Config) (*Peers, error) {
	id, state := config.ID, config.State
	nodes, err := identity.LoadNodes(state)
	if err != nil {
		return nil, fmt.Errorf("the list of nodes: %w", err)
	}
	merged, err := withSelf(id, nodes)
	if err != nil {
		return nil, err
	}
	return &Peers{
		id: id, state: state, version: config.Version, timeout: config.Timeout, refused: config.Refused,
		log: config.Log, nodes: merged, listLost: nodes == nil,
		known: map[string]*peer{}, overlays: map[string]HeardOverlay{},
		guests: newGuestLists(), claimsTold: newClaimLists(), hosts: newHosts(),
	}, nil
}

// Attach sets the contents of greetings, and the receiver of news.
func (p *Peers) Attach(containers Containers, sends Overlay, events Events) {
	p.containers, p.sends, p.events = containers, sends, events
}

// List returns the nodes that this node knows, itself included.
func (p *Peers) List() []identity.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.nodes)
}

// Others returns the nodes that this node knows, without itself.
func (p *Peers) Others() []identity.Node {
	return slices.DeleteFunc(p.List(), func(n identity.Node) bool { return n.Name == p.id.Node.Name })
}

// Find returns a node by its name.
func (p *Peers) Find(name string) (identity.Node, error) {
	nodes := p.List()
	names := make([]string, len(nodes))
	for i, node := range nodes {
		if node.Name == name {
			return node, nil
		}
		names[i] = node.Name
	}
	return identity.Node{}, fmt.Errorf("%w: no such node: %.40q; this node knows %s",
		api.ErrRefused, name, strings.Join(names, ", "))
}

// ByNumber returns the name of the node with a number.
func (p *Peers) ByNumber(number int) (string, bool) {
	for _, node := range p.List() {
		if node.Number == number {
			return node.Name, true
		}
	}
	return "", false
}

// Client returns the control connection to a node, which is kept open so that it is ready when needed.
func (p *Peers) Client(node identity.Node) (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, err := p.connected(node)
	if err != nil {
		return nil, err
	}
	return known.client, nil
}

// Asking returns the client of a node, and a context that lasts as long as the node sends bytes. The caller
// must call cancel.
func (p *Peers) Asking(ctx context.Context, node identity.Node) (
	*grpc.ClientConn, context.Context, context.CancelFunc, error,
) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, err := p.connected(node)
	if err != nil {
		return nil, nil, nil, err
	}
	limit := patience.Limit{Still: p.timeout, Most: helloLonger * p.timeout}
	ctx, cancel := limit.For(ctx, "node "+node.Name, patience.Count(known.heard.Load))
	return known.client, ctx, cancel, nil
}

// connected returns the peer with its client. The caller has locked mu.
func (p *Peers) connected(node identity.Node) (*peer, error) {
	known := p.known[node.Name]
	if known != nil && known.client != nil && known.address == node.Address {
		return known, nil
	}
	heard := &atomic.Int64{}
	client, err := wire.DialControl(p.id, node.Address, node.Name, heard)
	if err != nil {
		return nil, fmt.Errorf("node %s at %s: %w", node.Name, node.Address, err)
	}
	if known == nil {
		known = &peer{failure: "not reached yet"}
		p.known[node.Name] = known
	} else if known.client != nil {
		known.client.Close()
	}
	known.client, known.heard, known.address, known.sessions = client, heard, node.Address, 0
	return known, nil
}

// SessionClient is Client for a session, whose end the caller reports with done.
func (p *Peers) SessionClient(
	node identity.Node,
) (client *grpc.ClientConn, done func(silent bool), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, err := p.connected(node)
	if err != nil {
		return nil, nil, err
	}
	client = known.client
	known.sessions++
	return client, func(silent bool) { p.sessionEnded(known, client, silent) }, nil
}

func (p *Peers) sessionEnded(known *peer, client *grpc.ClientConn, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
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

// Learn merges another node's knowledge, which has been verified: see believable.
func (p *Peers) Learn(heard []identity.Node) {
	p.mu.Lock()
	merged, changed := identity.Merge(p.current(heard), heard)
	if changed {
		p.nodes = merged
	}
	p.mu.Unlock()
	if changed {
		p.keep(merged)
	}
}

// current returns the known nodes without entries whose signing clock was ahead, where heard has other
// entries. They would be the newest until that time. The caller has locked mu.
func (p *Peers) current(heard []identity.Node) []identity.Node {
	return slices.DeleteFunc(slices.Clone(p.nodes), func(known identity.Node) bool {
		same := func(n identity.Node) bool { return n.Number == known.Number && n != known }
		return slices.ContainsFunc(heard, same) && errors.Is(p.id.VerifyNode(known), identity.ErrClockSkew)
	})
}

// keep saves the list of nodes, and reports the change. A list that cannot be saved comes back from the
// peers after a restart.
func (p *Peers) keep(nodes []identity.Node) {
	_ = identity.SaveNodes(p.state, nodes)
	p.events.Changed()
}

// Run says hello to every other node until ctx ends. A slow node does not delay greetings of others.
func (p *Peers) Run(ctx context.Context) {
	ticker := time.NewTicker(min(HelloEvery, p.timeout))
	defer ticker.Stop()
	var all sync.WaitGroup
	defer all.Wait()
	var underWay sync.Map // by name
	for {
		p.keepRevoked()
		for _, node := range p.Others() {
			if _, is := underWay.LoadOrStore(node.Name, true); is {
				continue
			}
			all.Go(func() { // Hello keeps the error for `godwit nodes`.
				defer underWay.Delete(node.Name)
				guard.LogPanic(p.log, guard.Do(func() error { return p.Hello(ctx, node) }))
			})
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Hello exchanges knowledge with one node and measures its round trip.
func (p *Peers) Hello(ctx context.Context, node identity.Node) error {
	client, ctx, cancel, err := p.Asking(ctx, node)
	if err != nil {
		return err
	}
	defer cancel()
	request, err := p.helloRequest(node.Name)
	if err != nil {
		return err
	}
	began := time.Now()
	reply, err := api.NewPeerClient(client).Hello(ctx, request)
	err = patience.Explain(ctx, err)
	p.note(node.Name, heardVersion{reply.GetVersion(), speaks(reply.GetProtocol())}, time.Since(began), err)
	if err != nil {
		return err
	}
	p.noteBack(node.Name, reply.BandwidthBitsPerSecond)
	p.noteMember(node.Name, reply)
	p.noteRefused(node.Name, reply.Refuses)
	return errors.Join(p.hear(node.Name, reply), p.hearOverlay(node.Name, reply.Overlay))
}

func (p *Peers) helloRequest(to string) (*api.HelloRequest, error) {
	known, err := p.knowledge()
	if err != nil {
		return nil, err
	}
	own := *known
	overlay, err := p.sayOverlay(to)
	if err != nil {
		return nil, err
	}
	if bytes.Equal(p.knows(to), own.digest) {
		own.nodes, own.revoked, own.succession = nil, nil, nil
	}
	_, bandwidth := p.Link(to)
	guests, digest, held := p.guests.say(to, p.containers.Guests())
	claims, claimsDigest, claimsHeld := p.sayClaims(to)
	return &api.HelloRequest{
		Overlay: overlay, NodesJson: own.nodes, RevokedJson: own.revoked, Knows: own.digest,
		SuccessionJson: own.succession, RollsOver: true, Authority: p.id.HasAuthority(),
		Locations: guests, LocationsDigest: digest, LocationsHeld: held,
		Version: p.version, Protocol: ourProtocol(), BandwidthBitsPerSecond: bandwidth,
		Claims: claims, ClaimsDigest: claimsDigest, ClaimsHeld: claimsHeld,
		Refuses: p.refused,
	}, nil
}

// sayClaims returns what to send of the containers that run here. No conclusion is drawn from unknown
// claims.
func (p *Peers) sayClaims(to string) (send []uint64, digest, held []byte) {
	claims, known := p.containers.Claims()
	send, digest, held = p.claimsTold.say(to, claims)
	if !known {
		return nil, digestOfNone, held
	}
	return send, digest, held
}

// Answer is the receiving half of a hello.
func (p *Peers) Answer(from string, request *api.HelloRequest) (*api.HelloReply, error) {
	p.noteMember(from, request)
	p.noteRefused(from, request.Refuses)
	if err := p.hear(from, request); err != nil {
		return nil, err
	}
	// A wrong overlay keeps packets from the node, and is reported when this node greets it. The greeting
	// carries more than that: removals of nodes, and where containers are.
	_ = p.hearOverlay(from, request.Overlay)
	p.noteBack(from, request.BandwidthBitsPerSecond)
	p.noteContact(from)
	own, err := p.helloRequest(from)
	if err != nil {
		return nil, err
	}
	return &api.HelloReply{
		NodesJson: own.NodesJson, RevokedJson: own.RevokedJson, Knows: own.Knows, Authority: own.Authority,
		SuccessionJson: own.SuccessionJson, RollsOver: own.RollsOver,
		Locations: own.Locations, LocationsDigest: own.LocationsDigest, LocationsHeld: own.LocationsHeld,
		Version: own.Version, Protocol: own.Protocol,
		BandwidthBitsPerSecond: own.BandwidthBitsPerSecond, Overlay: own.Overlay,
		Claims: own.Claims, ClaimsDigest: own.ClaimsDigest, ClaimsHeld: own.ClaimsHeld,
		Refuses: own.Refuses,
	}, nil
}

// greeting is the common part of both halves of a hello.
type greeting interface {
	GetNodesJson() []byte
	GetRevokedJson() []byte
	GetSuccessionJson() []byte
	GetKnows() []byte
	GetAuthority() bool
	GetRollsOver() bool
	GetLocations() []*api.Location
	GetLocationsDigest() []byte
	GetLocationsHeld() []byte
	GetClaims() []uint64
	GetClaimsDigest() []byte
	GetClaimsHeld() []byte
}

// hearCluster merges a node's knowledge of the cluster. The rollover comes first: the authority that takes
// over has signed the rest.
func (p *Peers) hearCluster(heard greeting) error {
	retired, err := p.hearSuccession(heard.GetSuccessionJson())
	if err != nil {
		return err
	}
	if retired {
		defer p.retire()
	}
	if err := p.hearRevoked(heard.GetRevokedJson()); err != nil {
		return err
	}
	if len(heard.GetNodesJson()) == 0 {
		return nil
	}
	nodes, err := identity.ParseNodes(heard.GetNodesJson())
	if err != nil {
		return fmt.Errorf("%w: list of nodes: %w", api.ErrInvalid, err)
	}
	p.Learn(p.believable(nodes))
	return nil
}

func (p *Peers) hear(from string, heard greeting) error {
	if count := max(len(heard.GetLocations()), len(heard.GetClaims())); count > maxLocations {
		return fmt.Errorf("%w: %d containers; the limit is %d", api.ErrInvalid, count, maxLocations)
	}
	if err := p.hearCluster(heard); err != nil {
		return err
	}
	if guests, whole := p.guests.hear(from, heard.GetLocations(), heard.GetLocationsDigest(),
		heard.GetLocationsHeld()); whole {
		p.containers.HearGuests(from, guests)
	}
	if claims, whole := p.claimsTold.hear(from, heard.GetClaims(), heard.GetClaimsDigest(),
		heard.GetClaimsHeld()); whole {
		p.containers.HearClaims(from, claims)
	}
	return nil
}

func (p *Peers) note(name string, version heardVersion, rtt time.Duration, err error) {
	p.mu.Lock()
	known := p.known[name]
	if known == nil {
		p.mu.Unlock()
		return
	}
	back := err == nil && !known.reachable
	known.note(version, rtt, err)
	if errors.Is(err, context.DeadlineExceeded) {
		known.disconnect()
	}
	p.mu.Unlock()
	if back {
		p.events.Back(name)
	}
}

func (p *peer) note(version heardVersion, rtt time.Duration, err error) {
	p.reachable = err == nil
	if err != nil {
		p.failure = api.Plain(err)
		return
	}
	p.version, p.protocol, p.failure, p.contact = version.program, version.protocol, "", time.Now()
	if p.rtt == 0 || rtt < p.rtt {
		p.rtt = rtt
	} else {
		p.rtt += (rtt - p.rtt) / 8 // follow a longer path, not a busy moment
	}
	p.noteJitter(rtt)
}

// NoteLink keeps a data connection's measurements. Its round trip is the link's; the round trip of a hello
// includes the work of two agents.
func (p *Peers) NoteLink(name string, link stream.Link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[name]
	if known == nil {
		return
	}
	if link.BandwidthBitsPerSecond > 0 {
		known.noteProbe(link, time.Now())
	}
	if link.RTT > 0 {
		known.rtt = link.RTT
	}
}

// Link returns the known round trip and bandwidth of the path to a node.
func (p *Peers) Link(name string) (rtt time.Duration, bandwidth float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[name]
	if known == nil {
		return 0, 0
	}
	return known.rtt, known.bandwidth
}

// Reaches reports whether a node answered when it was last asked.
func (p *Peers) Reaches(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.known[name]
	return known != nil && known.reachable
}

// noteContact notes when a node has called.
func (p *Peers) noteContact(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[name]; known != nil {
		known.contact = time.Now()
	}
}

// Contact returns when a node was last heard of; zero: not since this agent started.
func (p *Peers) Contact(name string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known := p.known[name]; known != nil {
		return known.contact
	}
	return time.Time{}
}

// Describe describes all nodes as they were last seen.
func (p *Peers) Describe() []*api.Node {
	p.mu.Lock()
	defer p.mu.Unlock()
	nodes := make([]*api.Node, 0, len(p.nodes))
	for _, node := range p.nodes {
		entry := &api.Node{Name: node.Name, Number: int32(node.Number), Address: node.Address}
		if node.Name == p.id.Node.Name {
			entry.Self, entry.Reachable, entry.Version, entry.Authority = true, true, p.version,
				p.id.HasAuthority()
		} else if known := p.known[node.Name]; known != nil {
			entry.Reachable, entry.Error, entry.Version = known.reachable, known.failure, known.version
			entry.RttSeconds, entry.BandwidthBitsPerSecond = known.rtt.Seconds(), known.bandwidth
			entry.Authority = known.authority
			entry.JitterSeconds, entry.Loss, entry.BackBitsPerSecond = known.jitter.Seconds(), known.loss(),
				known.back
		} else {
			entry.Error = "not reached yet"
		}
		nodes = append(nodes, entry)
	}
	return nodes
}

// Close closes the control connections.
func (p *Peers) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var failed []error
	for _, known := range p.known {
		if known.client != nil {
			failed = append(failed, known.client.Close())
		}
	}
	return errors.Join(failed...)
}
