package network

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/hold"
	"github.com/godwit/godwit/internal/network/namespace"
	"github.com/godwit/godwit/internal/network/pool"
	"github.com/godwit/godwit/internal/network/rtnl"
)

// tunQueue is how many packets the kernel queues while this process is not scheduled.
const tunQueue = 16384

// holdDevices makes the devices of held addresses. The node's lock guards it.
type holdDevices struct {
	*node
	plugs  *plugs
	tables map[int]*tun // by routing table
}

// tun is the TUN device of a held address. Read returns packets that were routed into it. Packets that are
// written to it come in through it, and a rule sends them to its own routing table, which leads to the
// hold's destination.
type tun struct {
	devices *holdDevices
	ip      netip.Addr
	table   int
	name    string
	file    *os.File
	link    netlink.Link
}

// Hold is an address whose packets wait in this process: see package hold.
type Hold = hold.Hold

// Prepare makes everything that a hold of the address needs, so that its Start takes a single change of a
// route. Nothing is held yet. An address that is already prepared or held gets the same Hold.
func (n *Network) Prepare(ip netip.Addr) (*Hold, error) { return n.holds.Prepare(ip) }

// heldRoutes is the network as its holds see it.
type heldRoutes struct{ *Network }

// Known refuses an address that is neither in the pool nor that of a container on a bridge.
func (r heldRoutes) Known(ip netip.Addr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.plugs.known(ip)
}

// Open makes the device of a hold, its table and its rule.
func (r heldRoutes) Open(ip netip.Addr) (hold.Device, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.devices.openHeld(ip)
}

// Switch sets the address's route in the main table, and plugs or unplugs the container.
func (r heldRoutes) Switch(ip netip.Addr, to Destination) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.switchTo(ip, to)
}

// openHeld does the work of Open. The caller holds mu.
func (n *holdDevices) openHeld(ip netip.Addr) (*tun, error) {
	t := &tun{devices: n, ip: ip}
	n.takeTable(t)
	err := n.openTun(t)
	if err == nil {
		err = t.addTable()
	}
	if err != nil {
		delete(n.tables, t.table)
		return nil, err
	}
	return t, nil
}

// addTable makes the device's routing table, which leads nowhere yet, and the rule that uses it. If it
// fails, it closes the device.
func (t *tun) addTable() error {
	n := t.devices
	// If the destination's device vanishes, the last route of the table keeps packets from going round in
	// circles.
	last := n.routes.Route(rtnl.AllAddresses(), t.table)
	last.Type, last.Priority = unix.RTN_BLACKHOLE, 1<<30
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.IifName = rtnl.PriorityHold, t.table, t.name
	err := n.links.RouteReplace(last)
	if err == nil {
		err = n.routes.AddRules(rule)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("set the routes of device %s: %w", t.name, err), t.file.Close(),
			t.removeTable())
	}
	return nil
}

// removeTable removes the device's rule and the remaining contents of its table.
func (t *tun) removeTable() error {
	return errors.Join(
		t.devices.routes.RemoveRules(func(rule netlink.Rule) bool { return rule.Table == t.table }),
		t.devices.routes.RemoveRoutes(func(route netlink.Route) bool { return route.Table == t.table }))
}

// Read reads a packet that was routed into the device.
func (t *tun) Read(packet []byte) (int, error) { return t.file.Read(packet) }

// Write makes a packet come in through the device.
func (t *tun) Write(packet []byte) (int, error) { return t.file.Write(packet) }

// Close removes the device, with its routes, its rule and its table. Remaining rules and tables are
// harmless.
func (t *tun) Close() error {
	err := errors.Join(t.file.Close(), t.removeTable())
	n := t.devices
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tables[t.table] == t {
		delete(n.tables, t.table)
	}
	return err
}

// Lead makes the device's routing table lead to the destination, and plugs in a container here.
func (t *tun) Lead(to Destination) error {
	n := t.devices
	n.mu.Lock()
	defer n.mu.Unlock()
	route, err := n.plugs.routeTo(rtnl.AllAddresses(), to, t.table, t.ip)
	if err != nil {
		return err
	}
	if to.Container != "" {
		if err := n.plugs.plug(t.ip, to.Container); err != nil {
			return err
		}
	}
	if err := n.links.RouteReplace(route); err != nil {
		return fmt.Errorf("set the destination of device %s: %w", t.name, err)
	}
	return nil
}

// Redirect makes the address's main route lead into the device.
func (t *tun) Redirect() error {
	n := t.devices
	n.mu.Lock()
	defer n.mu.Unlock()
	route := n.routes.Route(rtnl.HostNet(t.ip), unix.RT_TABLE_MAIN)
	route.LinkIndex, route.Scope = t.link.Attrs().Index, unix.RT_SCOPE_LINK
	if err := n.links.RouteReplace(route); err != nil {
		return fmt.Errorf("route %s into %s: %w", t.ip, t.name, err)
	}
	return nil
}

// openTun makes the device itself. The device goes when file is closed, also when this process ends.
func (n *holdDevices) openTun(t *tun) error {
	bytes := t.ip.As4()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "gwhold" + hex.EncodeToString(bytes[:])
	device := &netlink.Tuntap{LinkAttrs: attributes, Mode: netlink.TUNTAP_MODE_TUN, NonPersist: true,
		Queues: 1, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_ONE_QUEUE}
	err := namespace.Within(n.ns, func() error {
		if err := n.links.LinkAdd(device); err != nil {
			return fmt.Errorf("make TUN device %s: %w", attributes.Name, err)
		}
		// The node's own packets come in a second time, with its own address as source: accept_local.
		return namespace.DeviceSysctls(attributes.Name, "accept_local")
	})
	if len(device.Fds) == 0 {
		return err
	}
	t.name, t.file = attributes.Name, device.Fds[0]
	if err == nil {
		err = n.configureTun(t)
	}
	if err != nil {
		_ = t.file.Close()
	}
	return err
}

// configureTun gives the device its group, the tunnel's MTU and a long queue, and brings it up.
func (n *holdDevices) configureTun(t *tun) error {
	link, err := n.links.LinkByName(t.name)
	if err != nil {
		return fmt.Errorf("find TUN device %s: %w", t.name, err)
	}
	for _, step := range []error{
		n.links.LinkSetGroup(link, pool.GroupHold), n.links.LinkSetMTU(link, n.tunnel.MTU()),
		n.links.LinkSetTxQLen(link, tunQueue),
		n.links.LinkSetUp(link),
	} {
		if step != nil {
			return fmt.Errorf("configure TUN device %s: %w", t.name, step)
		}
	}
	t.link = link
	return nil
}

// takeTable chooses the routing table of a hold's device: the one derived from the address, or the next free
// one.
func (n *holdDevices) takeTable(t *tun) {
	const all = 1<<24 - 1
	bytes := t.ip.As4()
	at := int(bytes[1])<<16 + int(bytes[2])<<8 + int(bytes[3])
	for n.tables[rtnl.HoldTables+at] != nil {
		at = (at + 1) & all // always ends: a node has fewer devices than this
	}
	t.table = rtnl.HoldTables + at
	n.tables[t.table] = t
}
