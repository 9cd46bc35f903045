package oci

import "net/netip"

// RoutedLabel marks routed networks: see engine.RoutedNetwork.
const RoutedLabel = "io.godwit.routed"

// ChosenByEngine returns the upper half of a node's part (24 bits) of a routed network. The node's engine
// itself assigns only addresses of this half, because it would assign the address of a container that has
// left again. Users may ask for the other addresses.
func ChosenByEngine(part netip.Prefix) netip.Prefix {
	bytes := part.Addr().As4()
	bytes[3] = 128
	return netip.PrefixFrom(netip.AddrFrom4(bytes), part.Bits()+1)
}

// AddressesToAskFor returns the range, in a node's part of a routed network, of which the engine itself
// assigns no address.
func AddressesToAskFor(part netip.Prefix) (first, last netip.Addr) {
	return part.Addr().Next().Next(), ChosenByEngine(part).Addr().Prev() // the bridge has the address before
}
