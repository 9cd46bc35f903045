package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/containernetworking/cni/libcni"
	types "github.com/containernetworking/cni/pkg/types/100"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/durable"
	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/containerd/nerdctl"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/network"
	"github.com/godwit/godwit/internal/network/dump"
)

var _ oci.NetworkCreator = (*adapter)(nil)

// connection has the parameters with which CNI's plugins made a container's network, and which they need to
// remove it. It is written to a file before the plugins run, so that nothing is left of unfinished work.
type connection struct {
	ID        string         `json:"id"` // by which CNI knows the container
	Interface string         `json:"interface"`
	Config    []byte         `json:"config"`
	Args      [][2]string    `json:"args,omitempty"`
	Addresses []netip.Prefix `json:"addresses"`
	// nerdctl makes plugins remove the network, too: see takenByNerdctl
	Nerdctl  bool           `json:"nerdctl,omitempty"`
	settings map[string]any // of its plugins
}

func (c connection) runtime(netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: c.ID, NetNS: netns, IfName: c.Interface, Args: c.Args,
		CapabilityArgs: c.settings}
}

// networks makes CNI's plugins connect and disconnect containers.
type networks struct {
	cni       *libcni.CNIConfig
	directory string        // of connections of arrived containers
	adding    chan struct{} // full while plugins connect a container, see add
}

func (n *networks) connectionPath(engineID string) string {
	return filepath.Join(n.directory, restoreDir(engineID)+".json")
}

// checkNetwork requires another node's description of a container's address to be valid for plugins.
func checkNetwork(d engine.Definition, x extra) error {
	own := d.Network
	if own == (engine.Network{}) && len(d.Ports) == 0 {
		return nil
	}
	mac, err := net.ParseMAC(own.MAC)
	switch {
	case !networkPattern.MatchString(own.Bridge) || own.MTU != 0:
		return fmt.Errorf("its address belongs to network %.80q", own.Bridge)
	case err != nil || len(mac) != 6 || mac[0]&1 != 0 || mac.String() != own.MAC:
		return fmt.Errorf("hardware address %.40q is not a valid unicast address", own.MAC)
	case len(d.Ports) > 0:
		return errors.New("it has published ports")
	case !hasNamespace(x.Spec, specs.NetworkNamespace):
		return errors.New("it uses the node's network and cannot have an address of its own")
	}
	return oci.CheckBridge(d)
}

// Connect makes the plugins of this node's list make the network of an arriving container, with its
// previous addresses. The container receives and sends nothing until the agent permits it.
func (n *networks) Connect(ctx context.Context, engineID, netns string, d engine.Definition) error {
	if !d.Network.OnBridge() {
		return nil
	}
	namespace, _ := splitEngineID(engineID)
	read, found := readNetwork(d.Network, listsOf(namespace, d.Labels))
	if len(found) > 0 {
		return fmt.Errorf("%s: %s", found[0].What, found[0].Why)
	}
	list, err := read.widened()
	if err != nil {
		return err
	}
	c := connection{
		ID: cniID(engineID), Interface: cniInterface, Config: list.Bytes,
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"IP", d.Network.Address.String()},
			{"MAC", d.Network.MAC}},
		Addresses: []netip.Prefix{netip.PrefixFrom(d.Network.Address, d.Network.PrefixBits)},
		Nerdctl:   nerdctl.Has(d.Labels),
	}
	if others, err := n.cni.GetCachedAttachments(c.ID); err != nil || len(others) > 0 {
		return errors.Join(err, fmt.Errorf("CNI already has a network for a container with the ID %s: "+
			"detach that first", c.ID))
	}
	if err := os.MkdirAll(n.directory, 0o700); err != nil {
		return err
	}
	if err := errors.Join(network.BlockNamespace(netns),
		durable.Save(n.connectionPath(engineID), c)); err != nil {
		return err
	}
	if err := n.add(ctx, read, list, c.runtime(netns)); err != nil {
		return fmt.Errorf("connect the container with network %s by CNI: %w", list.Name, err)
	}
	mac, _, err := interfaceOf(netns)
	if err == nil && mac != d.Network.MAC {
		err = fmt.Errorf("plugin bridge gave the container hardware address %s instead of %s",
			mac, d.Network.MAC)
	}
	if err != nil {
		return err
	}
	return noteHosts(engineID, d, n.kept(list, c))
}

// connectPatience bounds the time of plugins that connect or disconnect a container. Each plugin is a
// program that runs for a moment, but may wait for others.
const connectPatience = 30 * time.Second

// add makes the plugins connect an arriving container. It handles one container at a time, because keepTurn
// for one would otherwise save the state of another.
func (n *networks) add(ctx context.Context, read conflist, list *libcni.NetworkConfigList,
	how *libcni.RuntimeConf) error {
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	select {
	case n.adding <- struct{}{}:
		defer func() { <-n.adding }()
	case <-ctx.Done():
		return fmt.Errorf("wait for other containers to be connected: %w", ctx.Err())
	}
	return read.keepTurn(func() error {
		_, err := n.cni.AddNetworkList(ctx, list, how)
		return err
	})
}

// disconnect makes the plugins remove what Connect has made with them.
func (n *networks) disconnect(ctx context.Context, engineID string) error {
	var made connection
	err := durable.Load(n.connectionPath(engineID), &made)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = n.take(ctx, made)
	}
	if err != nil && !n.takenByNerdctl(made) {
		return err
	}
	return durable.Remove(n.connectionPath(engineID))
}

// takenByNerdctl reports whether nerdctl has made plugins remove what they had made for a container. If
// nerdctl has since restarted the container with another address, a rule of the old address may be left, as
// for any container of nerdctl. Plugin bridge fails on that, because it knows one address of a container.
func (n *networks) takenByNerdctl(made connection) bool {
	attached, err := n.cni.GetCachedAttachments(made.ID)
	if !made.Nerdctl || err != nil || len(attached) > 0 {
		return false
	}
	list, err := libcni.NetworkConfFromBytes(made.Config)
	if err != nil {
		return false
	}
	read, _ := readConflist(list)
	return !slices.ContainsFunc(made.Addresses, func(one netip.Prefix) bool {
		who, err := read.holder(one.Addr())
		return err != nil || who == made.ID
	})
}

// disconnectOthers makes plugins remove what other programs have made with them for a container whose
// processes have ended. A program that has started a container in the background does not do that.
func (n *networks) disconnectOthers(ctx context.Context, engineID string) error {
	attached, err := n.cni.GetCachedAttachments(cniID(engineID))
	if err != nil {
		return fmt.Errorf("list the CNI networks of container %s: %w", nameOf(engineID), err)
	}
	var errs []error
	for _, one := range attached {
		made := connection{ID: one.ContainerID, Interface: one.IfName, Config: one.Config, Args: one.CniArgs,
			settings: one.CapabilityArgs}
		if list, err := libcni.NetworkConfFromBytes(made.Config); err == nil &&
			isThere(n.kept(list, made), made.Interface, one.NetNS) {
			// a running container's: in another namespace of containerd, another name may lead to the same
			// ID
			continue
		}
		errs = append(errs, n.take(ctx, made))
	}
	return errors.Join(errs...)
}

// isThere reports whether an interface that plugins have made is in the network namespace at this path, as
// far as can be told. The PID of a container's ended process may belong to any other process by now, even
// of another container.
func isThere(kept *types.Result, name, path string) bool {
	its, err := os.Stat(path)
	if err != nil {
		return false
	}
	if own, err := os.Stat("/proc/thread-self/ns/net"); err == nil && os.SameFile(its, own) {
		return false
	}
	mac, _, err := interfaceOf(path)
	if kept == nil || name != cniInterface || err != nil {
		return true
	}
	made := slices.IndexFunc(kept.Interfaces,
		func(one *types.Interface) bool { return one.Sandbox != "" && one.Name == name })
	return made < 0 || kept.Interfaces[made].Mac == mac
}

// take makes plugins remove what they have made for a container whose processes have ended. Its network
// namespace has ended with the processes, but plugin bridge needs its contents to know which rules of the
// node to remove. So take shows it another namespace with the same contents.
func (n *networks) take(ctx context.Context, made connection) error {
	list, err := libcni.NetworkConfFromBytes(made.Config)
	if err != nil {
		return fmt.Errorf("network of CNI's container %s: %w", made.ID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	if kept := n.kept(list, made); kept != nil {
		made.Addresses = addressesOf(kept)
		err = removeDevices(kept)
	} else {
		err = supposeMade(list, made)
	}
	if err == nil {
		err = withStub(made.Interface, made.Addresses,
			func(path string) error { return n.cni.DelNetworkList(ctx, list, made.runtime(path)) })
	}
	if err != nil {
		return fmt.Errorf("detach container %s from network %s by CNI: %w", made.ID, list.Name, err)
	}
	return nil
}

// kept returns what plugins have reported as made. It returns nil if there is no readable report: CNI
// itself could do no better then.
func (n *networks) kept(list *libcni.NetworkConfigList, made connection) *types.Result {
	said, err := n.cni.GetNetworkListCachedResult(list, made.runtime(""))
	if err != nil || said == nil {
		return nil
	}
	kept, err := types.NewResultFromResult(said)
	if err != nil {
		return nil
	}
	return kept
}

// supposeMade passes each plugin what CNI would have kept if no plugin had failed or been stopped. By these
// addresses, plugin firewall knows which rules it has made. Rules of an address that another container has
// by now belong to that container.
func supposeMade(list *libcni.NetworkConfigList, made connection) error {
	read, _ := readConflist(list) // obstacles of the list as a whole do not matter here
	supposed := &types.Result{CNIVersion: types.ImplementedSpecVersion}
	for _, one := range made.Addresses {
		who, err := read.holder(one.Addr())
		if err != nil {
			return err
		}
		if who == "" || who == made.ID {
			supposed.IPs = append(supposed.IPs, &types.IPConfig{Address: ipNet(one)})
		}
	}
	result, err := supposed.GetAsVersion(list.CNIVersion)
	if err != nil { // a version without previous results
		return nil //nolint:nilerr // as said
	}
	for i, plugin := range list.Plugins {
		told, err := libcni.InjectConf(plugin, map[string]any{"prevResult": result})
		if err != nil {
			return err
		}
		list.Plugins[i] = told
	}
	return nil
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func addressesOf(kept *types.Result) (all []netip.Prefix) {
	for _, one := range kept.IPs {
		if ip, is := netip.AddrFromSlice(one.Address.IP); is {
			bits, _ := one.Address.Mask.Size()
			all = append(all, netip.PrefixFrom(ip.Unmap(), bits))
		}
	}
	return all
}

// removeDevices removes the node's ends of a container's interfaces. They would vanish with the container's
// network namespace, but the kernel may take minutes to end connections in it, with an address that another
// container has by then.
func removeDevices(kept *types.Result) error {
	for _, one := range kept.Interfaces {
		link, err := netlink.LinkByName(one.Name)
		if one.Sandbox != "" || err != nil { // it is gone
			continue
		}
		// the bridge, or another device with this name
		if link.Type() != "veth" || link.Attrs().HardwareAddr.String() != one.Mac {
			continue
		}
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove interface %s: %w", one.Name, err)
		}
	}
	return nil
}

// unusedBridge requires that nothing is connected to a bridge, because containerd may not know of
// everything connected, or may be away.
func unusedBridge(device string) error {
	bridge, err := netlink.LinkByName(device)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil
	}
	all, e := dump.Whole(netlink.LinkList)
	if err = errors.Join(err, e); err != nil {
		return fmt.Errorf("list the interfaces of bridge %s: %w", device, err)
	}
	for _, one := range all {
		if one.Attrs().MasterIndex == bridge.Attrs().Index {
			return fmt.Errorf("bridge %s has interface %s of a container: remove or move that first", device,
				one.Attrs().Name)
		}
	}
	return nil
}

// removeBridge removes the device of a network that no longer exists. A missing device is no error.
func removeBridge(device string) error {
	link, err := netlink.LinkByName(device)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil
	}
	if err == nil && link.Type() == "bridge" {
		err = netlink.LinkDel(link)
	}
	return err
}

// withStub makes a network namespace with an interface that has these addresses, while do runs.
func withStub(device string, addresses []netip.Prefix, do func(path string) error) error {
	made, err := newNamespace()
	if err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	defer made.Close()
	links, err := netlink.NewHandleAt(made)
	if err != nil {
		return err
	}
	defer links.Close()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: device}, PeerName: "godwit0"}
	if err := links.LinkAdd(pair); err != nil {
		return fmt.Errorf("make interface %s: %w", device, err)
	}
	for _, one := range addresses {
		address := ipNet(one)
		if err := links.AddrAdd(pair, &netlink.Addr{IPNet: &address}); err != nil {
			return fmt.Errorf("give interface %s address %s: %w", device, one, err)
		}
	}
	return do(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(made)))
}

// newNamespace makes a network namespace, in a thread that ends with it.
func newNamespace() (made netns.NsHandle, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked
		made, err = netns.New()
	}()
	<-done
	return made, err
}
