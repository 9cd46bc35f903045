package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/guard"
	"github.com/godwit/godwit/internal/patience"
	"github.com/godwit/godwit/internal/wire/identity"
)

// HelloEvery is the interval of a node's hellos to each other node.
const HelloEvery = 3 * time.Second

const (
	// times the time for which the other node may be silent, because a hello also opens the connection
	helloLonger  = 4
	maxLocations = 1 << 16 // all addresses of a pool
)

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
	rtt := time.Since(began)
	back := p.note(node.Name, heardVersion{reply.GetVersion(), speaks(reply.GetProtocol())}, err)
	if err != nil {
		return err
	}
	p.noteHello(node.Name, rtt)
	if back {
		p.events.Back(node.Name)
	}
	p.noteBack(node.Name, reply.BandwidthBitsPerSecond)
	p.noteMember(node.Name, reply)
	p.noteRefused(node.Name, reply.Refuses)
	return errors.Join(p.hear(node.Name, reply), p.Overlays.hear(node.Name, reply.Overlay))
}

func (p *Peers) helloRequest(to string) (*api.HelloRequest, error) {
	known, err := p.knowledge()
	if err != nil {
		return nil, err
	}
	own := *known
	overlay, err := p.Overlays.say(to)
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
	_ = p.Overlays.hear(from, request.Overlay)
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

// hearSuccession applies the news of a rollover from another node. If it reports that the old authority is no
// longer trusted, the caller calls retire, after it has learnt the entries of nodes that renewed.
func (p *Peers) hearSuccession(document []byte) (retired bool, err error) {
	if len(document) == 0 {
		return false, nil
	}
	heard, err := identity.ParseSuccession(document)
	if err != nil {
		return false, fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	return p.id.Follow(heard)
}

// hearRevoked merges another node's list of removed nodes. An entry without the authority's signature fails
// the hello.
func (p *Peers) hearRevoked(document []byte) error {
	if len(document) == 0 {
		return nil
	}
	list, err := identity.ParseRevocations(document)
	if err != nil {
		return fmt.Errorf("%w: %w", api.ErrInvalid, err)
	}
	fresh, err := p.id.Revoke(list)
	p.Drop(fresh)
	if err != nil {
		return fmt.Errorf("%w: %w", api.ErrRefused, err)
	}
	return nil
}

// keepRevoked retries to write or read the list of removed nodes after a failure. A failure is logged once.
func (p *Peers) keepRevoked() {
	fresh, err := p.id.KeepRevocations()
	p.Drop(fresh)
	why := ""
	if err != nil {
		why = err.Error()
	}
	if why != "" && why != p.unkept {
		p.log.Error("removed nodes", "error", err)
	}
	if why == "" && p.unkept != "" {
		p.log.Info("the list of removed nodes can be read and written again")
	}
	p.unkept = why
}
