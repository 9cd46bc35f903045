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

// containerd knows of no networks. Who starts a container, as `ctr run --cni` does, has the plugins
// of CNI make one for it, by a list of plugins of this node (conflist), and CNI keeps what it has
// been told. So what a container is connected with is read there.

const (
	// conflists is where all programs look for them.
	conflists = "/etc/cni/net.d"
	// cniState is where host-local keeps addresses, unless it is told otherwise.
	cniState = "/var/lib/cni/networks"
	// cniInterface is what ctr has a network's interface be called.
	cniInterface = "eth0"
)

// networkPattern is what CNI takes for the name of a network (pkg/utils, ValidateNetworkName).
var networkPattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)

// followers are plugins that may come after bridge: what they do for a container they do for the
// same one at another node, by its own list.
var followers = []string{"firewall", "portmap", "tuning"}

// bridgePlugin is what this package must know of how plugin bridge is configured, and of the one
// that gives its addresses.
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

// addressRange is what host-local gives addresses from.
type addressRange struct {
	Subnet  netip.Prefix `json:"subnet"`
	Gateway netip.Addr   `json:"gateway"`
}

// gateway is the address of the bridge: the first one, unless another one is named.
func (r addressRange) gateway() netip.Addr {
	if r.Gateway.IsValid() {
		return r.Gateway
	}
	return r.Subnet.Masked().Addr().Next()
}

// conflist is a network of CNI that is a bridge of the node, whose addresses host-local gives.
type conflist struct {
	list      *libcni.NetworkConfigList
	ranges    []addressRange
	device    string // the bridge; "" if the plugin chooses its name
	addresses string // directory in which host-local notes what it has given
}

// readConflist wants a list of plugins to make such a network, and nothing that could not be made
// anew at another node.
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

// holder is the name by which CNI knows the container that has an address here; "" if none has.
func (c conflist) holder(ip netip.Addr) (string, error) {
	data, err := os.ReadFile(filepath.Join(c.addresses, ip.String()))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("find the container that has address %s: %w", ip, err)
	}
	name, _, _ := strings.Cut(string(data), "\n") // the name of the interface follows
	return strings.TrimSpace(name), nil
}

// keepTurn has host-local go on, after do, with the address that would have been the next before.
// It gives addresses in turn, from the last one on, also if that one was asked for: it would begin
// anew after each container that comes, with the addresses of those that have left, whose old
// connections still go to these.
func (c conflist) keepTurn(do func() error) error {
	paths, err := filepath.Glob(filepath.Join(c.addresses, "last_reserved_ip.*")) // of each set of ranges
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

// obstacles lists what keeps a container with these addresses from being made here.
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

// widened is the list for a container that brings its address: nodes may each give away a part of
// the subnet, in which that need not be.
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

// widen takes the bounds of ranges of addresses out of what host-local is told.
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

// loadList reads the list of this name in the first of these directories that has one.
func loadList(name string, directories []string) (list *libcni.NetworkConfigList, err error) {
	for _, directory := range directories {
		if list, err = libcni.LoadNetworkConf(directory, name); err == nil {
			break
		}
	}
	return list, err
}

// readNetwork reads the list of a network of this node that a container comes to, or says what
// stands against that.
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

// networkObstacles lists what keeps the network of a container that comes from being made here.
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
