package oci

import "net/netip"

// SegmentLabel is on networks whose addresses nodes route to each other: see engine.Segment.
const SegmentLabel = "io.godwit.routed"

// ChosenByEngine is the upper half of a node's part of a segment, of 24 bits, of which its engine
// gives addresses by itself: it would give one again whose container has left. The others are for
// who asks for one.
func ChosenByEngine(part netip.Prefix) netip.Prefix {
	bytes := part.Addr().As4()
	bytes[3] = 128
	return netip.PrefixFrom(netip.AddrFrom4(bytes), part.Bits()+1)
}

// AddressesToAskFor are those of a node's part of a segment that its engine gives to nobody by itself.
func AddressesToAskFor(part netip.Prefix) (first, last netip.Addr) {
	return part.Addr().Next().Next(), ChosenByEngine(part).Addr().Prev() // the bridge has the one before
}
