package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/filter"
	"github.com/godwit/godwit/internal/network/flows"
	"github.com/godwit/godwit/internal/network/foreign"
	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// maxPublished bounds the published ports of a container.
const maxPublished = 1024

// Bridged is a container on a bridge of its engine. The engine has assigned its address, which is outside
// the pool.
type Bridged struct {
	Container string
	Address   netip.Addr
	From      string      // the node from which it is arriving, not reachable yet; empty: it runs here
	Ports     []Published // of this node, by which it was reachable before it left
}

// onBridges lets containers on bridges of their engines keep their addresses when they move. The node's lock
// guards it.
type onBridges struct {
	*node
	containers *containers
	records    *records
	plugs      *plugs
	routed     *routedNetworks
	neighbours *neighbours
	passages   *foreign.Passes

	unfinished bool // places not saved, or unknown to the packet filter
	unrouted   bool // something that routed networks need has failed
}

// AdoptBridged records a container on a bridge of its engine, whose network namespace is netns. From then
// on its address can be held and routed like those of the pool. AdoptBridged changes nothing that the
// engine has made. A container that comes from another node receives and sends nothing until Route says
// that it is here.
func (n *onBridges) AdoptBridged(ctx context.Context, netns string, own Bridged) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	err := n.checkBridged(own)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		if err = n.adoptBridged(netns, own); err != nil && n.containers.all[own.Container] == nil {
			err = errors.Join(err, namespace.Remove(n.NetnsPath(own.Container))) // nobody else will
		}
	}
	if err != nil {
		return fmt.Errorf("adopt container %s with %s: %w", own.Container, own.Address, err)
	}
	return nil
}

// checkBridged refuses an address that a container on a bridge cannot have: the other node names the
// address.
func (n *onBridges) checkBridged(own Bridged) error {
	ip := own.Address
	switch {
	case !pool.ValidID.MatchString(own.Container):
		return fmt.Errorf("container id is %w", ErrInvalid)
	case !ip.Is4() || !ip.IsGlobalUnicast() || n.config.Pool.Contains(ip):
		return fmt.Errorf("address is %w: it must be IPv4, of one host, and outside of %s", ErrInvalid,
			n.config.Pool)
	case len(own.Ports) > maxPublished:
		return fmt.Errorf("%d published ports are %w: at most %d", len(own.Ports), ErrInvalid, maxPublished)
	}
	if at, is := n.records.at(ip); is && at.Container != own.Container {
		to, away := n.tunnel.Peers()[at.Via]
		switch {
		case at.Here && !n.hasEnded(at):
			return fmt.Errorf("%w: container %s has it here", ErrAddressTaken, at.Container)
		case away && own.From != "": // for a container that is here, the engine knows the address
			return fmt.Errorf("%w: packets for it are forwarded to container %s on %s; remove that "+
				"container, or give this container another address",
				ErrAddressTaken, at.Container, to.Name)
		}
	}
	for _, port := range own.Ports {
		if port.Protocol != "tcp" && port.Protocol != "udp" || port.Host.IsValid() && !port.Host.Is4() {
			return fmt.Errorf("published port %+v is %w", port, ErrInvalid)
		}
	}
	return nil
}

// hasEnded reports whether the engine has taken away the connection of a container that is here.
func (n *onBridges) hasEnded(one bridged) bool {
	_, _, err := n.containers.bridgeOf(n.NetnsPath(one.Container), one.Address)
	return errors.Is(err, ErrInvalid) || rtnl.IsLinkNotFound(err)
}

func (n *onBridges) adoptBridged(netns string, own Bridged) error {
	path := n.NetnsPath(own.Container)
	if !namespace.SameFile(path, netns) {
		if err := errors.Join(namespace.Remove(path), namespace.Bind(netns, path)); err != nil {
			return err
		}
	}
	bridge, mtu, err := n.containers.bridgeOf(path, own.Address)
	if err != nil {
		return err
	}
	one := bridged{Container: own.Container, Address: own.Address}
	known, is := n.records.at(own.Address)
	if is && known.Container == own.Container {
		one = known
	}
	attached := &attachment{address: Address{IP: own.Address, MTU: mtu}, device: bridge, bridged: true}
	if own.From == "" {
		one.Ports, one.Arriving, one.Returning, one.Before = own.Ports, false, false, 0
	} else if err := n.arriveBridged(path, own.From, &one, attached); err != nil {
		return err
	}
	if is && known.Container != own.Container {
		if err := n.replaced(known); err != nil {
			return err
		}
	}
	one.Here, one.MTU = true, attached.address.MTU
	if err := n.noteBridged(one, attached); err != nil {
		return err
	}
	n.neighbours.contradict()
	return errors.Join(n.filterBridged(), n.passages.Make())
}

// replaced forgets a container whose address another container has now.
func (n *onBridges) replaced(one bridged) error {
	err := n.forgetBridged(one.Address)
	if n.containers.all[one.Container] != nil {
		delete(n.containers.all, one.Container)
		err = errors.Join(err, namespace.Remove(n.NetnsPath(one.Container)))
	}
	return err
}

// noteBridged records a container that is here. A container that cannot be written to the file is not
// recorded.
func (n *onBridges) noteBridged(one bridged, attached *attachment) error {
	if err := n.records.note(one); err != nil {
		return err
	}
	n.containers.all[one.Container] = attached
	return nil
}

// arriveBridged blocks the namespace of an arriving container, and limits it to packets that fit into the
// tunnel.
func (n *onBridges) arriveBridged(path, from string, one *bridged, attached *attachment) error {
	origin := 0
	for _, peer := range n.tunnel.Peers() {
		if peer.Name == from {
			origin = peer.Number
		}
	}
	if origin == 0 {
		return fmt.Errorf("%w: %q", ErrUnknownPeer, from)
	}
	if !one.Here { // not on a repeated call
		one.Returning, one.Before = one.Via != 0, one.Origin
	}
	one.Origin, one.Arriving, one.closing = origin, true, false
	attached.blocked = true
	attached.address.MTU = min(attached.address.MTU, n.tunnel.MTU())
	inside, err := namespace.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = inside.Close() }()
	handle, err := netlink.NewHandleAt(inside, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open a netlink socket in the container's namespace: %w", err)
	}
	defer handle.Close()
	return errors.Join(blockNamespace(path, true), narrowRoutes(handle, attached.address))
}

// switchBridged is switchTo for a container on a bridge. On the container's own node, the engine's routes
// lead to it.
func (n *onBridges) switchBridged(one *bridged, to Destination) error {
	ip := one.Address
	if to.Container != "" {
		if n.containers.all[to.Container] == nil || to.Container != one.Container {
			return fmt.Errorf("route %s to %s: %w", ip, to, ErrNotAttached)
		}
		err := errors.Join(n.plugs.plug(ip, to.Container), n.routeHome(*one))
		if err != nil {
			return fmt.Errorf("route %s to %s: %w", ip, to, err)
		}
		closing := one.closing
		one.Via, one.Arriving, one.closing = 0, false, false
		n.records.put(*one)
		if closing { // an operator had the container taken back while its engine was to remove it
			if err := n.filterBridged(); err != nil {
				return fmt.Errorf("route %s to %s: %w", ip, to, err)
			}
		}
		n.finaliseBridgedLater()
		return n.bridges.Unclaim(n.containers.all[to.Container].device, ip)
	}
	route, err := n.plugs.routeTo(rtnl.HostNet(ip), to, unix.RT_TABLE_MAIN, ip)
	if err == nil {
		err = n.links.RouteReplace(route)
	}
	if err != nil {
		return fmt.Errorf("route %s to %s: %w", ip, to, err)
	}
	for _, peer := range n.tunnel.Peers() {
		if peer.Name == to.Peer {
			one.Via = peer.Number
		}
	}
	n.records.put(*one)
	n.finaliseBridgedLater()
	err = n.containers.blockAll(ip)
	if attached := n.containers.all[one.Container]; attached != nil {
		one.Bridge = attached.device
		n.records.put(*one)
		err = errors.Join(err, n.bridges.Claim(one.Bridge, ip))
	}
	return err
}

// routeHome routes to a container on a bridge here as its engine does: by the route of the bridge. It needs
// a route of its own only if the address is in the part of a routed network from which another node assigns
// addresses.
func (n *onBridges) routeHome(one bridged) error {
	attached := n.containers.all[one.Container]
	if !n.routed.isGuest(one.Address) || attached == nil {
		return n.routes.RemoveRoutes(rtnl.IsHostRoute(one.Address))
	}
	bridge, err := n.links.LinkByName(attached.device)
	if rtnl.IsLinkNotFound(err) { // the container has ended, and Podman has removed the bridge
		return nil
	}
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", attached.device, err)
	}
	route := n.routes.Route(rtnl.HostNet(one.Address), unix.RT_TABLE_MAIN)
	route.LinkIndex, route.Scope, route.Src = bridge.Attrs().Index, unix.RT_SCOPE_LINK, nil
	return n.links.RouteReplace(route)
}

// detachBridged gives up the connection of a container on a bridge, because its engine has removed the
// container or never made it. If the container is at another node, this node keeps forwarding to it, also
// from its published ports.
func (n *onBridges) detachBridged(id string, ip netip.Addr) error {
	device := n.containers.all[id].device
	delete(n.containers.all, id)
	err := namespace.Remove(n.NetnsPath(id))
	one, is := n.records.at(ip)
	if !is || one.Container != id {
		return err
	}
	one.Here, one.closing = false, false
	n.records.put(one)
	if one.Via == 0 {
		return errors.Join(err, n.forgetBridged(ip), n.neighbours.sendHome(device, ip))
	}
	return errors.Join(err, n.records.save(), n.filterBridged())
}

// ResaveConntrack saves the conntrack entries of a container that has been here before: see SaveConntrack.
// Call it before an engine creates the container here again, because the engine may delete the entries
// (Docker since 23: libnetwork's clearConntrackEntries), and before the engine removes the container
// because its return is undone. For any other container it saves nothing.
func (n *onBridges) ResaveConntrack(id string, ip netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	one, is := n.records.at(ip)
	if !is || one.Container != id || !one.Returning && one.Via == 0 {
		return nil
	}
	return n.saveConntrack(ip)
}

// SaveConntrack saves the conntrack entries of a container on a bridge, and keeps connections to and from the
// container from being opened through this node until Detach. Call it before the engine removes the
// container. The packet filter restores the entries: see package flows.
func (n *onBridges) SaveConntrack(ip netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.saveConntrack(ip)
}

func (n *onBridges) saveConntrack(ip netip.Addr) error {
	one, is := n.records.at(ip)
	if !is {
		return nil
	}
	one.closing = true
	n.records.put(one)
	if err := n.filterBridged(); err != nil {
		return err
	}
	return n.flows().Save(ip)
}

// OpenAgain ends what SaveConntrack began: the engine has not removed the container, and connections can be
// opened until the next attempt.
func (n *onBridges) OpenAgain(ip netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	one, is := n.records.at(ip)
	if !is || !one.closing {
		return nil
	}
	one.closing = false
	n.records.put(one)
	return n.filterBridged()
}

// flows are the saved conntrack entries of this node.
func (n *onBridges) flows() flows.Flows { return flows.Flows{Namespace: n.ns, Number: n.pool.Number} }

// GiveBack makes this node forward again to a container whose return is undone: the container is still at
// the node from which it was to come. Detach follows. If this node did not forward to the container,
// GiveBack does nothing, and Detach does the work.
func (n *onBridges) GiveBack(id string, ip netip.Addr, source string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	one, is := n.records.at(ip)
	if !is || one.Container != id || !one.Returning && one.Via == 0 {
		return nil
	}
	if n.holds.Holding(ip) {
		return fmt.Errorf("give %s back to %s: %w", ip, source, ErrHeld)
	}
	if err := n.switchBridged(&one, Via(source)); err != nil {
		return err
	}
	one.undone()
	one.closing = false
	n.records.put(one)
	return errors.Join(n.records.save(), n.filterBridged())
}

// forgetBridged removes everything that exists for the address of a container on a bridge.
func (n *onBridges) forgetBridged(ip netip.Addr) error {
	one, _ := n.records.at(ip)
	n.records.drop(ip)
	err := errors.Join(n.bridges.Unclaim(one.Bridge, ip), n.routes.RemoveRoutes(rtnl.IsHostRoute(ip)),
		n.flows().Forget(ip, n.records.count() == 0),
		n.records.save(), n.filterBridged())
	if n.records.count()+len(n.routed.list) == 0 {
		err = errors.Join(err, n.passages.Remove())
	}
	return err
}

// KeepBridged records the new network namespace of a container on a bridge that had come here and was
// restarted since.
func (n *onBridges) KeepBridged(netns, id string, ip netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	one, is := n.records.at(ip)
	if !is || one.Container != id || n.containers.all[id] == nil ||
		namespace.SameFile(n.NetnsPath(id), netns) {
		return nil
	}
	own := Bridged{Container: id, Address: ip, Ports: one.Ports}
	if err := n.adoptBridged(netns, own); err != nil {
		return fmt.Errorf("adopt container %s with %s: %w", id, ip, err)
	}
	return nil
}

// LetGo leaves a container that stays here to its engine. If the container came from another node, LetGo
// does nothing, because connections that came in at that node still go through it. LetGo is idempotent.
func (n *onBridges) LetGo(id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	attached := n.containers.all[id]
	if attached == nil || !attached.bridged {
		return nil
	}
	one, is := n.records.at(attached.address.IP)
	if is && (one.Origin != 0 || one.Via != 0) {
		return nil
	}
	return n.detachBridged(id, attached.address.IP)
}

// ForgetBridged ends the forwarding to a container on a bridge at another node, because the container is
// gone or its address belongs to another container.
func (n *onBridges) ForgetBridged(ip netip.Addr) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if one, is := n.records.at(ip); !is || one.Here {
		return nil
	}
	return n.forgetBridged(ip)
}

// routeBridged makes the routes to routed networks and to containers on bridges. A restarted node has no
// routes to containers at peers.
func (n *onBridges) routeBridged() error {
	errs := []error{n.routed.routeNetworks()}
	for _, one := range n.records.list() {
		ip := one.Address
		_, away := n.tunnel.Peers()[one.Via]
		switch {
		case n.holds.Has(ip):
		case away:
			errs = append(errs, n.links.RouteReplace(n.routes.Via(rtnl.HostNet(ip), one.Via,
				unix.RT_TABLE_MAIN)))
		case one.Here && one.Via == 0 && !n.containers.all[one.Container].blocked:
			errs = append(errs, n.routeHome(one))
		}
	}
	return errors.Join(errs...)
}

// filterBridged updates the packet filter.
func (n *onBridges) filterBridged() error { return n.filter.SetBridged(n.bridgedFilter()) }

// bridgedFilter describes containers on bridges and routed networks for the packet filter.
func (n *onBridges) bridgedFilter() (containers []filter.Bridged, routed []netip.Prefix) {
	for _, one := range n.records.list() {
		containers = append(containers, filter.Bridged{Address: one.Address, Here: one.Here, Via: one.Via,
			Origin: one.Origin, Ports: one.Ports, Closing: one.closing})
	}
	for _, one := range n.routed.list {
		routed = append(routed, one.Subnet)
	}
	return containers, routed
}
