package location

import (
	"net/netip"

	"github.com/godwit/godwit/internal/api"
	"github.com/godwit/godwit/internal/network"
)

// bridgedHere are the containers on bridges that have come to this node: who forwards to them
// learns that they are here still.
func (l *Locations) bridgedHere() []*api.Location {
	var guests []*api.Location
	for _, place := range l.config.Network.BridgedPlaces() {
		if place.Stable() {
			guests = append(guests, &api.Location{Address: place.Address.String(), Container: place.Container,
				Node: l.config.Self})
		}
	}
	return guests
}

// missesAllowed is how often in a row a node may leave out a container of which this one thinks
// that it is there, and how often another one has to say that it has it while the first one cannot
// be reached.
const missesAllowed = 5

// heardBridged takes a peer's word on containers on bridges that have left this node: packets go
// where they are, and nowhere once they are no more.
func (l *Locations) heardBridged(node string, now map[netip.Addr]string) {
	for _, place := range l.config.Network.BridgedPlaces() {
		if place.Here || l.config.Moves.Moving(place.Container) {
			l.clearWords(place.Address)
			continue
		}
		var err error
		switch l.weigh(place, node, now[place.Address] == place.Container, l.config.Reaches(place.Via)) {
		case isThere:
			err = l.config.Network.Route(place.Address, network.Via(node))
		case isNoMore:
			err = l.config.Network.ForgetBridged(place.Address)
		case asBefore:
		}
		if err != nil {
			l.config.Log.Warn("route to a container", "address", place.Address, "node", node, "error", err)
		}
	}
}

// What a node's word makes of the place of a container.
type verdict int

const (
	asBefore verdict = iota
	isThere          // at the node that has spoken
	isNoMore
)

// weigh tells what to make of it that a node lists a container on a bridge, or does not. Any node
// may say that it has it; who does is believed once the node to which the container's packets go
// does not say so any more, or cannot be asked for some time.
func (l *Locations) weigh(place network.BridgedPlace, node string, lists, reached bool) verdict {
	address := place.Address
	switch {
	case lists && place.Via == node:
		l.clearWords(address)
		return asBefore
	case lists:
		if reached {
			delete(l.claims, address)
		} else {
			l.claims[address]++
		}
		if place.Via != "" && l.missed[address] == 0 && l.claims[address] < missesAllowed {
			return asBefore
		}
		l.clearWords(address)
		return isThere
	case place.Via == node:
		if l.missed[address]++; l.missed[address] < missesAllowed {
			return asBefore
		}
		l.clearWords(address)
		return isNoMore
	}
	return asBefore
}

// clearWords forgets what was said of an address.
func (l *Locations) clearWords(address netip.Addr) {
	delete(l.missed, address)
	delete(l.claims, address)
}
