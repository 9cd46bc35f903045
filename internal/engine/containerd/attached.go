package containerd

import (
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/network/dump"
)

// cniID returns the name by which CNI knows a container, as ctr passes it.
func cniID(engineID string) string { return strings.Replace(engineID, "/", "-", 1) }

// Since containerd 1.7, ctr records that it has connected a container with CNI. When it removes the
// process, it disconnects the container (cmd/ctr/commands, CtrCniMetadataExtension).
const (
	extensionName  = "ctr.cni-containerd.metadata"
	extensionValue = `{"EnableCni":true}`
)

var extensionPattern = regexp.MustCompile(
	`^github\.com/containerd/containerd/(v2/)?cmd/ctr/commands/NetworkMetaData$`)

// ctrExtension returns the type of that record; "" if there is none. Other extensions are unknown.
func ctrExtension(all map[string]*anypb.Any) (kind string, known bool) {
	one, is := all[extensionName]
	if !is {
		return "", len(all) == 0
	}
	known = len(all) == 1 && string(one.GetValue()) == extensionValue &&
		extensionPattern.MatchString(one.GetTypeUrl())
	return one.GetTypeUrl(), known
}

// extensions returns the extensions of an arriving container.
func (x extra) extensions() map[string]*anypb.Any {
	if x.Extension == "" {
		return nil
	}
	return map[string]*anypb.Any{extensionName: {TypeUrl: x.Extension, Value: []byte(extensionValue)}}
}

// networkOf returns the address of a running container, or the obstacles of its networks.
func (n *networks) networkOf(t told) (engine.Network, []engine.Problem) {
	pid := int(t.process.GetPid())
	if pid <= 0 || !hasNamespace(t.spec, specs.NetworkNamespace) {
		return engine.Network{}, nil
	}
	p, names := problems{}, connectedInterfaces(pid)
	if len(names) == 0 {
		return engine.Network{}, nil
	}
	attached, err := n.cni.GetCachedAttachments(cniID(engineID(t.namespace, t.container.GetID())))
	if err != nil || len(attached) != 1 || len(names) != 1 || names[0] != cniInterface ||
		attached[0].IfName != cniInterface {
		for _, name := range names {
			p.add(true, "network interface "+name,
				"only a container's single interface, made by CNI for ctr run, can be moved",
				connectOtherwise)
		}
		return engine.Network{}, p
	}
	one := attached[0]
	list, err := libcni.NetworkConfFromBytes(one.Config)
	if err != nil {
		p.add(true, networkTitle(one.Network), "cannot read CNI's record of it: "+
			""+err.Error(), connectOtherwise)
		return engine.Network{}, p
	}
	c, found := readConflist(list)
	p = append(p, found...)
	p.add(len(one.CapabilityArgs) > 0, networkTitle(one.Network),
		"published ports and other arguments of its plugins are not moved", connectOtherwise)
	own, err := ownAddress(pid, one.Network)
	own.Routed = isRouted(list)
	if err == nil && len(p) == 0 {
		err = c.check(own, one.ContainerID)
	}
	if err != nil {
		p.add(true, networkTitle(one.Network), err.Error(), connectOtherwise)
	}
	if len(p) > 0 {
		return engine.Network{}, p
	}
	return own, nil
}

// disconnectable requires the plugins that disconnect a container's networks when it has left.
func (n *networks) disconnectable(engineID string) []engine.Problem {
	p := problems{}
	attached, err := n.cni.GetCachedAttachments(cniID(engineID))
	p.add(err != nil, "networks of CNI", fmt.Sprint("cannot read CNI's records of them: "+
		"", err), connectOtherwise)
	for _, one := range attached {
		// otherwise networkOf reports the error
		if list, err := libcni.NetworkConfFromBytes(one.Config); err == nil {
			p = append(p, missingPlugins(list)...)
		}
	}
	return p
}

// check requires an address to be the one that was assigned to this container.
func (c conflist) check(own engine.Network, id string) error {
	who, err := c.holder(own.Address)
	if err == nil && who != id {
		err = fmt.Errorf("the network did not give address %s to the container", own.Address)
	}
	return err
}

// ownAddress reads the addresses of the interface of a process.
func ownAddress(pid int, network string) (engine.Network, error) {
	own := engine.Network{Bridge: network}
	mac, addresses, err := interfaceOf(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return own, err
	}
	for _, one := range addresses {
		switch {
		case one.Addr().IsLinkLocalUnicast():
		case !one.Addr().Is4():
			return own, fmt.Errorf("IPv6 addresses, as %s, are not moved", one.Addr())
		case own.Address.IsValid():
			return own, fmt.Errorf("it has more than one address: %s, %s", own.Address, one.Addr())
		default:
			own.Address, own.PrefixBits, own.MAC = one.Addr(), one.Bits(), mac
		}
	}
	if !own.Address.IsValid() {
		return own, fmt.Errorf("the container has no address on %s", cniInterface)
	}
	return own, nil
}

// interfaceOf reads the state of a network's interface in a network namespace.
func interfaceOf(path string) (mac string, addresses []netip.Prefix, err error) {
	fail := func(err error) (string, []netip.Prefix, error) {
		return "", nil, fmt.Errorf("interface %s: %w", cniInterface, err)
	}
	namespace, err := netns.GetFromPath(path)
	if err != nil {
		return fail(err)
	}
	defer namespace.Close()
	links, err := netlink.NewHandleAt(namespace, unix.NETLINK_ROUTE)
	if err != nil {
		return fail(err)
	}
	defer links.Close()
	link, err := links.LinkByName(cniInterface)
	if err != nil {
		return fail(err)
	}
	all, err := dump.Whole(func() ([]netlink.Addr, error) { return links.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return fail(err)
	}
	for _, one := range all {
		if ip, is := netip.AddrFromSlice(one.IP); is {
			bits, _ := one.Mask.Size()
			addresses = append(addresses, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return link.Attrs().HardwareAddr.String(), addresses, nil
}
