package oci

import (
	"net/netip"
	"testing"
)

// TestAddressesToAskFor checks that the engine's own assignments overlap neither with the addresses that
// people ask for, nor with the bridge's.
func TestAddressesToAskFor(t *testing.T) {
	part := netip.MustParsePrefix("10.58.7.0/24")
	first, last := AddressesToAskFor(part)
	if first != netip.MustParseAddr("10.58.7.2") || last != netip.MustParseAddr("10.58.7.127") ||
		ChosenByEngine(part) != netip.MustParsePrefix("10.58.7.128/25") {
		t.Errorf("from %s to %s, and the engine gives of %s", first, last, ChosenByEngine(part))
	}
}
