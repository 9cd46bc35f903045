package network

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/foreign"
)

// makeBridge makes a device with an address, as Podman does.
func makeBridge(t *testing.T, h *netlink.Handle, name, address string) netlink.Link {
	t.Helper()
	made := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	made.Name = name
	must(t, h.LinkAdd(made))
	must(t, h.LinkSetUp(made))
	own, err := netlink.ParseAddr(address)
	must(t, err)
	must(t, h.AddrAdd(made, own))
	return made
}

// TestInUse checks that a pool that overlaps other programs' networks is refused, and that these networks
// stay as they are.
func TestInUse(t *testing.T) {
	s := &site{dir: t.TempDir()}
	_, ten, _ := net.ParseCIDR("10.0.0.0/8")
	_, half, _ := net.ParseCIDR("0.0.0.0/1")
	_, part, _ := net.ParseCIDR("10.88.5.0/24")
	gateway := net.ParseIP("198.51.100.2")
	for name, one := range map[string]struct {
		make   func(h *netlink.Handle)
		found  string // part of the message; empty: the pool is free
		agent  bool   // the agent starts
		except string
	}{
		"nothing": {make: func(*netlink.Handle) {}, agent: true},
		"Podman's": {make: func(h *netlink.Handle) { makeBridge(t, h, "podman0", "10.88.0.1/16") },
			found: "route 10.88.0.0/16 dev podman0"},
		"a device's": {make: func(h *netlink.Handle) { makeBridge(t, h, "some0", "10.88.9.9/32") },
			found: "address 10.88.9.9/32 of some0"},
		"its own": {make: func(h *netlink.Handle) { makeBridge(t, h, "own0", "10.88.0.1/16") },
			except: "own0"},
		"another": {make: func(h *netlink.Handle) { makeBridge(t, h, "docker0", "172.17.0.1/16") },
			agent: true},
		"a VPN's half": {make: func(h *netlink.Handle) {
			must(t,
				h.RouteAdd(&netlink.Route{Dst: half, Gw: gateway}))
		}, agent: true},
		"a VPN's": {make: func(h *netlink.Handle) {
			must(t,
				h.RouteAdd(&netlink.Route{Dst: ten, Gw: gateway}))
		}, found: "route 10.0.0.0/8 via", agent: true},
		"nobody's": {make: func(h *netlink.Handle) {
			must(t,
				h.RouteAdd(&netlink.Route{Dst: ten, Type: unix.RTN_BLACKHOLE}))
		}, agent: true},
		"a part": {make: func(h *netlink.Handle) {
			must(t,
				h.RouteAdd(&netlink.Route{Dst: part, Gw: gateway, Table: 52}))
		}, found: "route 10.88.5.0/24"},
		"another's": {make: func(h *netlink.Handle) {
			must(t,
				h.RouteAdd(&netlink.Route{Dst: part, Type: unix.RTN_BLACKHOLE}))
		}, found: "(to nowhere)"},
		"LXC's already": {make: func(*netlink.Handle) { s.foreign("new", "theirs", "10.88.4.77") },
			agent: true},
	} {
		t.Run(name, func(t *testing.T) {
			s.t = t
			ns := makeTestNamespace(t, s.dir, "new")
			inside(t, ns, func(h *netlink.Handle) error {
				under := makeBridge(t, h, "under0", "198.51.100.1/24")
				return h.RouteAdd(&netlink.Route{LinkIndex: under.Attrs().Index, Gw: gateway})
			})
			inside(t, ns, func(h *netlink.Handle) error {
				one.make(h)
				return nil
			})
			config := Config{NodeName: "d", NodeNumber: 4, Pool: netip.MustParsePrefix("10.88.0.0/16"),
				Underlay: netip.MustParseAddr("198.51.100.1"),
				RunDir:   t.TempDir(), StateDir: t.TempDir(), Namespace: s.dir + "/new"}
			check := func() {
				t.Helper()
				err := foreign.CheckFree(config.Namespace, config.Pool, one.except)
				if errors.Is(err, foreign.ErrInUse) != (one.found != "") || one.found != "" &&
					!strings.Contains(err.Error(), one.found) {
					t.Errorf("%v, want %q", err, one.found)
				}
			}
			check()
			before := routesOf(t, ns)
			for range 2 { // the second run finds what the first has made
				n, err := New(config)
				if one.agent {
					must(t, err)
					check() // the agent's own routes do not count
					must(t, n.Close())
					continue
				}
				if !errors.Is(err, foreign.ErrInUse) || !strings.Contains(err.Error(), "node init") {
					t.Fatalf("the agent: %v", err)
				}
				if after := routesOf(t, ns); after != before {
					t.Errorf("routes:\n%swere\n%s", after, before)
				}
			}
			if one.agent {
				must(t, Cleanup(config))
			}
			if after := routesOf(t, ns); after != before {
				t.Errorf("routes:\n%swere\n%s", after, before)
			}
		})
	}
}

// TestBlackholeReplacesNobody checks that a blackhole does not replace a route that appeared after the
// check.
func TestBlackholeReplacesNobody(t *testing.T) {
	s := newSite(t)
	inside(t, s.ns("a"), func(h *netlink.Handle) error {
		makeBridge(t, h, "podman1", "10.89.0.1/24")
		return nil
	})
	before := routesOf(t, s.ns("a"))
	if err := s.nodes["a"].routes.Blackhole(netip.MustParsePrefix("10.89.0.0/24")); !errors.Is(err,
		foreign.ErrInUse) {
		t.Error(err)
	}
	must(t, s.nodes["a"].routes.Blackhole(s.nodes["a"].config.Pool)) // the agent's own
	if after := routesOf(t, s.ns("a")); after != before {
		t.Errorf("routes:\n%swere\n%s", after, before)
	}
}

// routesOf lists the routes in all tables of a namespace, except the table of its own addresses.
func routesOf(t *testing.T, ns netns.NsHandle) string {
	t.Helper()
	var lines []string
	inside(t, ns, func(h *netlink.Handle) error {
		routes, err := h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC},
			netlink.RT_FILTER_TABLE)
		for _, route := range routes {
			if route.Table != unix.RT_TABLE_LOCAL {
				lines = append(lines, route.String()+"\n")
			}
		}
		return err
	})
	slices.Sort(lines)
	return strings.Join(lines, "")
}
