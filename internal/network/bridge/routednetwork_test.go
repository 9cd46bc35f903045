package bridge

import (
	"net/netip"
	"testing"
)

func TestRoutedNetworkPart(t *testing.T) {
	routed := RoutedNetwork{Subnet: netip.MustParsePrefix("10.89.0.0/16")}
	if part, err := routed.Part(3); err != nil || part.String() != "10.89.3.0/24" {
		t.Errorf("%s, %v", part, err)
	}
	for subnet, number := range map[string]int{"10.89.0.0/16": 256, "10.89.0.0/24": 1, "10.89.1.0/16": 1,
		"2001:db8::/16": 1} {
		if part, err := (RoutedNetwork{Subnet: netip.MustParsePrefix(subnet)}).Part(number); err == nil {
			t.Errorf("part %d of %s is %s", number, subnet, part)
		}
	}
}
