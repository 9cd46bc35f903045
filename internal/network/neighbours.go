package network

import (
	"net/netip"
	"time"
)

// neighbours tells the containers of bridges where to send packets for containers that come and go. The
// node's lock guards it.
type neighbours struct {
	*node
	containers *containers
	records    *records
	routed     *routedNetworks

	contradicting bool      // contradictLater repeats: see contradict
	contradicted  time.Time // until when it repeats
}

// sendElsewhere makes the containers of bridges keep sending to arriving containers through this node while
// those still run elsewhere. Since Docker 28, Docker announces otherwise, for some seconds after it has
// made a network, and through a socket that no filter covers. A failure for one container is logged and
// does not affect the others. The result reports whether a container is arriving.
func (n *neighbours) sendElsewhere() (some bool) {
	for _, one := range n.records.list() {
		ip := one.Address
		attached := n.containers.all[one.Container]
		if !one.Arriving || attached == nil || !one.Returning && !n.routed.isGuest(ip) {
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
func (n *neighbours) contradict() {
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
func (n *neighbours) contradictLater() bool {
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
func (n *neighbours) sendHome(device string, ip netip.Addr) error {
	if !n.routed.isGuest(ip) {
		return nil
	}
	return n.bridges.Announce(device, ip)
}
