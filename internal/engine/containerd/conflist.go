package containerd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/containerd/nerdctl"
	"github.com/godwit/godwit/internal/kernel"
)

// containerd knows no networks. A program that starts a container, such as `ctr run --cni`, has CNI's
// plugins make a network for it, by a list of plugins of this node (conflist), and CNI keeps the
// parameters. So the networks of a container are read there.

const (
	// conflists is where all programs look for lists.
	conflists = "/etc/cni/net.d"
	// cniState is where host-local keeps addresses by default.
	cniState = "/var/lib/cni/networks"
	// cniInterface is the name that ctr gives a network's interface.
	cniInterface = "eth0"
)

// networkPattern matches names that CNI accepts for a network (pkg/utils, ValidateNetworkName).
var networkPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)

// followers are plugins that may come after bridge. What they do for a container, they do for the same
// container at another node, by that node's own list.
var followers = []string{"firewall", "portmap", "tuning"}

// bridgePlugin is the part that this package needs of the configuration of plugin bridge and of the plugin
// that assigns its addresses.
type bridgePlugin struct {
	VLAN   int    `json:"vlan"`
	Device string `json:"bridge"`
	IPAM   struct {
		Type string `json:"type"`
		addressRange
		Ranges    [][]addressRange `json:"ranges"`
		Directory string           `json:"dataDir"`
	} `json:"ipam"`
}

// addressRange is a range from which host-local assigns addresses.
type addressRange struct {
	Subnet  netip.Prefix `json:"subnet"`
	Gateway netip.Addr   `json:"gateway"`
}

// gateway returns the address of the bridge: the first one, unless another is configured.
func (r addressRange) gateway() netip.Addr {
	if r.Gateway.IsValid() {
		return r.Gateway
	}
	return r.Subnet.Masked().Addr().Next()
}

// conflist is a network of CNI that is a bridge of the node and whose addresses host-local assigns.
type conflist struct {
	list      *libcni.NetworkConfigList
	ranges    []addressRange
	device    string // the bridge; "" if the plugin chooses its name
	addresses string // directory in which host-local records assigned addresses
}

// readConflist requires a list of plugins to make such a network, and nothing that another node could not
// make again.
func readConflist(list *libcni.NetworkConfigList) (conflist, []engine.Problem) {
	c, p := conflist{list: list}, problems{}
	what := networkTitle(list.Name)
	const remedy = "use a network of the plugins bridge and host-local, and at most firewall, portmap " +
		"and tuning besides"
	if len(list.Plugins) == 0 {
		p.add(true, what, "its list has no plugins", remedy)
		return c, p
	}
	if list.Plugins[0].Network.Type != "bridge" {
		p.add(true, what, "it is made by plugin "+list.Plugins[0].Network.Type, remedy)
		return c, p
	}
	for _, plugin := range list.Plugins[1:] {
		p.add(!slices.Contains(followers, plugin.Network.Type), what,
			"the effects of plugin "+plugin.Network.Type+" are not moved", remedy)
	}
	var bridge bridgePlugin
	if err := json.Unmarshal(list.Plugins[0].Bytes, &bridge); err != nil {
		p.add(true, what, "cannot decode cannot decode its list of plugins: "+err.Error(), "correct it "+
			"in "+conflists)
		return c, p
	}
	p.add(bridge.IPAM.Type != "host-local", what, "its addresses come from plugin "+bridge.IPAM.Type,
		remedy)
	p.add(bridge.VLAN != 0, what, "it uses a VLAN on its bridge", "use one without a VLAN")
	c.device = bridge.Device
	if c.addresses = bridge.IPAM.Directory; c.addresses == "" {
		c.addresses = cniState
	}
	c.addresses = filepath.Join(c.addresses, list.Name)
	if bridge.IPAM.Subnet.IsValid() {
		c.ranges = append(c.ranges, bridge.IPAM.addressRange)
	}
	p.add(len(bridge.IPAM.Ranges)+len(c.ranges) > 1, what,
		"host-local assigns an address from each of its several sets of ranges", "use a list with one "+
			"set of ranges")
	for _, set := range bridge.IPAM.Ranges {
		c.ranges = append(c.ranges, set...)
	}
	return c, p
}

func networkTitle(name string) string { return "network " + name + " of CNI" }

// holder returns the name by which CNI knows the container that has an address here; "" if there is none.
func (c conflist) holder(ip netip.Addr) (string, error) {
	data, err := os.ReadFile(filepath.Join(c.addresses, ip.String()))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("find the container that has address %s: %w", ip, err)
	}
	name, _, _ := strings.Cut(string(data), "\n") // the interface's name follows
	return strings.TrimSpace(name), nil
}

// keepTurn makes host-local continue, after do, with the address that would have been next before.
// host-local assigns addresses in turn, starting after the last one, even if that was requested. After each
// arriving container it would start again with addresses of containers that have left, to which old
// connections still go.
func (c conflist) keepTurn(do func() error) error {
	paths, err := filepath.Glob(filepath.Join(c.addresses, "last_reserved_ip.*")) // one per set of ranges
	last := map[string][]byte{}
	for _, path := range paths {
		data, failed := os.ReadFile(path)
		last[path], err = data, errors.Join(err, failed)
	}
	if err != nil {
		return fmt.Errorf("find the next address of network %s: %w", c.list.Name, err)
	}
	errs := []error{do()}
	for path, data := range last {
		errs = append(errs, kernel.WriteFileAtomic(path, data, 0o644))
	}
	return errors.Join(errs...)
}

// obstacles lists the obstacles to making a container with these addresses here.
func (c conflist) obstacles(own engine.Network) ([]engine.Problem, error) {
	p, what := problems{}, networkTitle(own.Bridge)
	p.add(own.Routed && !isRouted(c.list), what,
		"at the source, nodes route its addresses to each other; on this node they do not",
		"remove its conflist here, then run godwit engine setup containerd --network "+own.Bridge)
	p = append(p, missingPlugins(c.list)...)
	subnet := netip.PrefixFrom(own.Address, own.PrefixBits).Masked()
	at := slices.IndexFunc(c.ranges, func(r addressRange) bool { return r.Subnet.Masked() == subnet })
	if at < 0 {
		p.add(true, what, "its subnet on this node is not "+subnet.String(),
			"give it the same subnet on both nodes, in "+conflists)
		return p, nil
	}
	who, err := c.holder(own.Address)
	if own.Address == c.ranges[at].gateway() {
		who = "its bridge"
	}
	p.add(who != "", "address "+own.Address.String(),
		who+" has it in network "+own.Bridge+" of CNI on this node",
		"remove that container with godwit rm (ctr leaves its address allocated); for future "+
			"containers, give each node its own part of the subnet, by rangeStart and rangeEnd of its "+
			"conflist")
	return p, err
}

// widened returns the list for a container that keeps its address. Each node may assign only a part of the
// subnet, and the address need not be in that part.
func (c conflist) widened() (*libcni.NetworkConfigList, error) {
	decoder := json.NewDecoder(bytes.NewReader(c.list.Bytes))
	decoder.UseNumber()
	var all map[string]any
	if err := decoder.Decode(&all); err != nil {
		return nil, err
	}
	plugins, _ := all["plugins"].([]any)
	if len(plugins) == 0 {
		return nil, fmt.Errorf("%s: its list has no plugins", networkTitle(c.list.Name))
	}
	bridge, _ := plugins[0].(map[string]any)
	ipam, _ := bridge["ipam"].(map[string]any)
	widen(ipam)
	data, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(data)
}

// widen removes the bounds of address ranges from host-local's configuration.
func widen(value any) {
	switch value := value.(type) {
	case map[string]any:
		delete(value, "rangeStart")
		delete(value, "rangeEnd")
		widen(value["ranges"])
	case []any:
		for _, one := range value {
			widen(one)
		}
	}
}

// loadList reads the list with this name from the first of these directories that has one.
func loadList(name string, directories []string) (list *libcni.NetworkConfigList, err error) {
	for _, directory := range directories {
		if list, err = libcni.LoadNetworkConf(directory, name); err == nil {
			break
		}
	}
	return list, err
}

// readNetwork reads the list of a network of this node to which a container comes, or returns the
// obstacles.
func readNetwork(own engine.Network, directories []string) (conflist, []engine.Problem) {
	what, subnet := networkTitle(own.Bridge), netip.PrefixFrom(own.Address, own.PrefixBits).Masked().String()
	copied := "copy its conflist from the other node, where its subnet is " + subnet
	if own.Routed {
		copied = "godwit engine setup containerd --network " + own.Bridge + " --subnet " + subnet
	}
	if len(directories) > 1 && own.Bridge != nerdctl.DefaultNetwork {
		copied = "nerdctl network create --subnet " + subnet + " " + own.Bridge
	}
	list, err := loadList(own.Bridge, directories)
	var none libcni.NotFoundError
	var nothing libcni.NoConfigsFoundError
	if errors.As(err, &none) || errors.As(err, &nothing) || errors.Is(err, fs.ErrNotExist) {
		return conflist{}, []engine.Problem{{What: what,
			Why: "no network has this name in " + conflists + " on this node", Remedy: copied}}
	}
	if err != nil {
		return conflist{}, []engine.Problem{{What: what, Why: "cannot read the conflists of this node: " +
			"" + err.Error(),
			Remedy: "correct them in " + conflists}}
	}
	return readConflist(list)
}

// networkObstacles lists the obstacles to making an arriving container's network here.
func networkObstacles(own engine.Network, directories []string) ([]engine.Problem, error) {
	if !own.OnBridge() {
		return nil, nil
	}
	c, found := readNetwork(own, directories)
	if len(found) > 0 {
		return found, nil
	}
	return c.obstacles(own)
}
