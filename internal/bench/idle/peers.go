package idle

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/wire"
	"github.com/godwit/godwit/internal/wire/identity"
)

// The simulated nodes of the suite idle: each has its own identity, joins the agent's cluster, listens at
// its own address, greets the agent, and answers its greetings, all over connections like those of agents.
// They do not greet each other, and refuse data connections, so the agent measures no links.

const (
	idlePeerPort = 7443
	idleHello    = 3 * time.Second // as agents do
	idleTimeout  = 5 * time.Second // of a hello; the same
	idleGuests   = 10              // containers of each node that are not at home there
	idleHomes    = 100             // more than there are simulated nodes: the first number of those homes
)

// idlePeersConfig is the first input of the process with the simulated nodes, a line of JSON.
type idlePeersConfig struct {
	Dir        string   `json:"dir"`
	Server     string   `json:"server"` // the agent's name
	Address    string   `json:"address"`
	Tokens     []string `json:"tokens"`    // one for each node
	Addresses  []string `json:"addresses"` // the same
	Containers int      `json:"containers"`
}

// idleCount is the process's answer to each further line.
type idleCount struct {
	Sent     int64 `json:"sent"`     // hellos that the agent has answered
	Answered int64 `json:"answered"` // hellos of the agent
	Failed   int64 `json:"failed"`   // hellos that the agent has not answered, or not in time
	Bytes    int64 `json:"bytes"`    // of all messages of these, without TLS, TCP and IP
}

// Peers is the process of the simulated nodes, until its input ends.
func Peers(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	first, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("configuration of the simulated nodes: %w", err)
	}
	var config idlePeersConfig
	if err := json.Unmarshal(first, &config); err != nil {
		return fmt.Errorf("configuration of the simulated nodes: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	var count idleCounters
	for i := range config.Tokens {
		peer, err := joinIdle(ctx, config, i, &count)
		if err != nil {
			return fmt.Errorf("simulated node %d: %w", i, err)
		}
		listener, err := wire.Listen(ctx, peer.id.Node.Address, wire.ListenOptions{Identity: peer.id})
		if err != nil {
			return fmt.Errorf("simulated node %d: %w", i, err)
		}
		running.Go(func() { peer.serve(ctx, listener) })
		// Spread over the interval, as agents that were not started at the same time are.
		delay := idleHello * time.Duration(i) / time.Duration(len(config.Tokens))
		running.Go(func() { peer.greet(ctx, config, delay) })
	}
	for encoder := json.NewEncoder(out); ; {
		if err := encoder.Encode(count.now()); err != nil {
			return err
		}
		if _, err := lines.ReadBytes('\n'); err != nil {
			return nil //nolint:nilerr // the benchmark is over
		}
	}
}

type idleCounters struct{ sent, answered, failed, bytes atomic.Int64 }

func (c *idleCounters) now() idleCount {
	return idleCount{
		Sent: c.sent.Load(), Answered: c.answered.Load(), Failed: c.failed.Load(), Bytes: c.bytes.Load(),
	}
}

// idlePeer is one simulated node.
type idlePeer struct {
	api.UnimplementedPeerServer
	id     *identity.Identity
	count  *idleCounters
	guests []*api.Location
	claims []uint64

	mu    sync.Mutex
	nodes []byte   // the agent's last list
	heard greeting // the agent's last message; nil: none
	held  []byte   // digest of the agent's guests
}

// greeting is the common part of both halves of a hello.
type greeting interface {
	GetNodesJson() []byte
	GetKnows() []byte
	GetLocations() []*api.Location
	GetLocationsDigest() []byte
	GetLocationsHeld() []byte
	GetProtocol() *api.ProtocolRange
	GetVersion() string
}

func joinIdle(ctx context.Context, config idlePeersConfig, i int, count *idleCounters) (*idlePeer, error) {
	id, _, err := identity.Join(ctx, identity.JoinOptions{
		State: filepath.Join(config.Dir, fmt.Sprint(i)), Server: config.Address, Token: config.Tokens[i],
		Name:    fmt.Sprintf("idle-%d", i+1),
		Address: net.JoinHostPort(config.Addresses[i], fmt.Sprint(idlePeerPort)),
	})
	if err != nil {
		return nil, err
	}
	nodes, err := json.Marshal([]identity.Node{id.Node})
	if err != nil {
		return nil, err
	}
	p := &idlePeer{id: id, count: count, nodes: nodes}
	// Guests are at home at a node that does not exist.
	home, err := identity.Subnet(id.Pool, id.Node.Number+idleHomes)
	if err != nil {
		return nil, err
	}
	for n := range config.Containers {
		claim := uint64(0xbeac)<<48 | uint64(id.Node.Number)<<32 | uint64(n)
		p.claims = append(p.claims, claim)
		if n < min(idleGuests, config.Containers) {
			address := home.Addr().As4()
			address[3] = byte(128 + n)
			p.guests = append(p.guests, &api.Location{
				Address:   netip.AddrFrom4(address).String(),
				Container: fmt.Sprintf("%016x%048x", claim, n), // the first 16 digits are the claim
				Node:      id.Node.Name,
			})
		}
	}
	return p, nil
}

// serve answers the agent's greetings.
func (p *idlePeer) serve(ctx context.Context, listener *wire.Listener) {
	server := grpc.NewServer(wire.ServerOptions()...)
	api.RegisterPeerServer(server, p)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener.Control()) }) // until it is stopped
	running.Go(func() {
		for {
			conn, err := listener.AcceptData(ctx)
			if err != nil {
				return
			}
			conn.Close()
		}
	})
	<-ctx.Done()
	server.Stop()
	listener.Close()
	running.Wait()
}

// Hello implements api.PeerServer.
func (p *idlePeer) Hello(_ context.Context, request *api.HelloRequest) (*api.HelloReply, error) {
	p.hear(request)
	said := p.say()
	reply := &api.HelloReply{
		NodesJson: said.NodesJson, Knows: said.Knows, Locations: said.Locations,
		LocationsDigest: said.LocationsDigest, LocationsHeld: said.LocationsHeld,
		Version: said.Version, Protocol: said.Protocol, Claims: said.Claims, Overlay: said.Overlay,
	}
	p.count.answered.Add(1)
	p.count.bytes.Add(int64(proto.Size(request) + proto.Size(reply)))
	return reply, nil
}

// greet says hello to the agent, as agents do.
func (p *idlePeer) greet(ctx context.Context, config idlePeersConfig, delay time.Duration) {
	conn, err := wire.DialControl(p.id, config.Address, config.Server, nil)
	if err != nil {
		p.count.failed.Add(1)
		return
	}
	defer conn.Close()
	client := api.NewPeerClient(conn)
	for wait := time.After(delay); ; wait = time.After(idleHello) {
		select {
		case <-ctx.Done():
			return
		case <-wait:
		}
		request := p.say()
		call, cancel := context.WithTimeout(ctx, idleTimeout)
		reply, err := client.Hello(call, request)
		cancel()
		if errors.Is(ctx.Err(), context.Canceled) {
			return
		}
		if err != nil {
			p.count.failed.Add(1)
			continue
		}
		p.hear(reply)
		p.count.sent.Add(1)
		p.count.bytes.Add(int64(proto.Size(request) + proto.Size(reply)))
	}
}

func (p *idlePeer) hear(said greeting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = said
	if len(said.GetNodesJson()) > 0 {
		p.nodes = said.GetNodesJson()
	}
	if len(said.GetLocations()) > 0 || string(p.held) != string(said.GetLocationsDigest()) {
		p.held = api.LocationsDigest(said.GetLocations())
	}
}

// say returns the hello of an agent of the other's version: all its knowledge if that version has no
// digests, and otherwise what the other does not hold.
func (p *idlePeer) say() *api.HelloRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	said := &api.HelloRequest{NodesJson: p.nodes, Locations: p.guests}
	if p.heard == nil {
		return said
	}
	said.Version = p.heard.GetVersion()
	if p.heard.GetProtocol() == nil {
		return said
	}
	// This node's knowledge of nodes comes from the agent.
	said.NodesJson, said.Knows, said.Protocol = nil, p.heard.GetKnows(), p.heard.GetProtocol()
	said.Claims, said.Overlay = p.claims, p.overlay()
	said.LocationsDigest, said.LocationsHeld = api.LocationsDigest(p.guests), p.held
	if string(p.heard.GetLocationsHeld()) == string(said.LocationsDigest) {
		said.Locations = nil
	}
	return said
}

// overlay returns a statement that it encrypts; nobody has its key.
func (p *idlePeer) overlay() *api.Overlay {
	key := make([]byte, 32)
	key[0], key[31] = byte(p.id.Node.Number), 1
	return &api.Overlay{Kind: "wireguard", Key: key}
}
