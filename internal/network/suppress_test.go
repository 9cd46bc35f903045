package network

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/godwit/godwit/internal/network/pool"
)

// TestSuppressARP checks that neighbours receive nothing from a container whose ARP is suppressed, whatever
// it sends, but still receive packets of other containers. A new agent ends the suppression, too.
func TestSuppressARP(t *testing.T) {
	s := newSite(t)
	ip := netip.MustParseAddr("172.30.0.2")
	for name, address := range map[string]string{"comes": ip.String(), "asker": "172.30.0.3",
		"other": "172.30.0.4"} {
		s.onBridge("a", name, address+"/24")
	}
	mac := ""
	inside(t, s.ns("comes"), func(h *netlink.Handle) error {
		link, err := h.LinkByName(pool.InsideDevice)
		must(t, err)
		mac = link.Attrs().HardwareAddr.String()
		return nil
	})
	s.serve("comes", "172.30.0.2:80")
	s.serve("other", "172.30.0.4:80")
	hears := func(of string, want bool) {
		t.Helper()
		s.must("asker", "ip", "neighbour", "flush", "dev",
			pool.InsideDevice) // an earlier query may still fail
		if err := s.dial("asker", "", of+":80"); (err == nil) != want {
			t.Errorf("the neighbour hears of %s: %v, want %t", of, err, want)
		}
	}
	must(t, s.nodes["a"].SuppressARP(ip, "02:00:00:00:00:99")) // a container on another bridge
	hears("172.30.0.2", true)
	for _, ends := range []func(){
		func() {
			failing(s.nodes["a"], func() {
				if err := s.nodes["a"].AllowARP(ip); err == nil {
					t.Error("what cannot be done is done")
				}
			})
			must(t, s.nodes["a"].AllowARP(ip)) // a retry
		},
		func() { must(t, s.nodes["a"].Close()); s.start("a") },
	} {
		must(t, s.nodes["a"].SuppressARP(ip, mac))
		hears("172.30.0.2", false)
		hears("172.30.0.4", true)
		ends()
		hears("172.30.0.2", true)
	}
}
