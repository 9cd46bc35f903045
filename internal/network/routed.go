package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/rtnl"
)

// SetRoutedNetworks replaces the set of routed networks. Routes of a removed network stay until the agent
// restarts: they lead nowhere. The error names networks that cannot be routed; the others are routed. The
// next call tries failed ones again.
func (n *Network) SetRoutedNetworks(networks []RoutedNetwork) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var good []RoutedNetwork
	var errs []error
	for _, routed := range networks {
		err := n.checkRouted(routed)
		if err == nil {
			good = append(good, routed)
		}
		errs = append(errs, err)
	}
	if slices.Equal(n.routed, good) && !n.unrouted {
		return errors.Join(errs...)
	}
	n.routed = good
	err := errors.Join(n.filterBridged(), n.remakeBridges())
	if len(n.bridged)+len(n.routed) == 0 {
		err = errors.Join(err, n.passages.Remove())
	} else {
		err = errors.Join(err, n.passages.Make())
	}
	n.unrouted = err != nil
	return errors.Join(append(errs, err)...)
}

// checkRouted requires a routed network to contain a part for this node, and none of the pool's addresses.
func (n *Network) checkRouted(routed RoutedNetwork) error {
	_, err := routed.Part(n.pool.Number)
	if err == nil && routed.Subnet.Overlaps(n.config.Pool) {
		err = fmt.Errorf("subnet %s is %w: it overlaps %s", routed.Subnet, ErrInvalid, n.config.Pool)
	}
	if err != nil {
		return fmt.Errorf("network on %s: %w", routed.Device, err)
	}
	return nil
}

// routeNetworks makes the routes to the parts of other nodes.
func (n *Network) routeNetworks() error {
	var errs []error
	for _, routed := range n.routed {
		for number := range n.tunnel.Peers() {
			part, err := routed.Part(number)
			if err == nil {
				err = n.links.RouteReplace(n.routes.Via(rtnl.IPNet(part), number, unix.RT_TABLE_MAIN))
			}
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// isGuest reports whether an address is in the part of a routed network that belongs to another node.
func (n *Network) isGuest(ip netip.Addr) bool {
	return slices.ContainsFunc(n.routed, func(routed RoutedNetwork) bool {
		part, err := routed.Part(n.pool.Number)
		return err == nil && routed.Subnet.Contains(ip) && !part.Contains(ip)
	})
}

// sendElsewhere makes the containers of bridges keep sending to arriving containers through this node while
// those still run elsewhere. Since Docker 28, Docker announces otherwise, for some seconds after it has
// made a network, and through a socket that no filter covers. A failure for one container is logged and
// does not affect the others. The result reports whether a container is arriving.
func (n *Network) sendElsewhere() (some bool) {
	for ip, one := range n.bridged {
		attached := n.containers[one.Container]
		if !one.Arriving || attached == nil || !one.Returning && !n.isGuest(ip) {
			continue
		}
		some = true
		if err := n.bridges.Announce(attached.device, ip); err != nil {
			n.config.Log.Warn("cannot announce an arriving container to its neighbours", "container",
				one.Container, "error", err)
		}
	}
	return some
}

// How long an engine announces an arriving container, and how often this node contradicts the announcement.
// Neighbours' packets are lost in between.
const (
	contradictEvery = 250 * time.Millisecond
	contradictFor   = 5 * time.Second
)

// contradict repeats sendElsewhere while an engine announces the latest arrival, or until nothing arrives
// any more.
func (n *Network) contradict() {
	if !n.sendElsewhere() {
		return
	}
	n.contradicted = time.Now().Add(contradictFor)
	if n.contradicting {
		return
	}
	n.contradicting = true
	n.background.Add(1)
	go func() {
		defer n.background.Done()
		for n.contradictLater() {
		}
	}()
}

// contradictLater calls sendElsewhere once more, and reports whether to repeat it.
func (n *Network) contradictLater() bool {
	select {
	case <-n.closed:
		return false
	case <-time.After(contradictEvery):
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.contradicting = n.sendElsewhere() && time.Now().Before(n.contradicted)
	return n.contradicting
}

// sendHome makes a bridge's containers send through this node to a guest that has left, or has never run
// here. Otherwise they would keep sending to where the guest announced itself, for most of a minute.
func (n *Network) sendHome(device string, ip netip.Addr) error {
	if !n.isGuest(ip) {
		return nil
	}
	return n.bridges.Announce(device, ip)
}
