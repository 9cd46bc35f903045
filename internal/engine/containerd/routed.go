package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	containers "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containernetworking/cni/libcni"

	"github.com/godwit/godwit/internal/engine"
	"github.com/godwit/godwit/internal/engine/oci"
	"github.com/godwit/godwit/internal/kernel"
)

// routedPrefix is the prefix of the files of setup's lists. ctr uses the first of all lists.
const routedPrefix = "10-godwit-"

func routedFile(name string) string {
	return filepath.Join(conflists, routedPrefix+name+".conflist")
}

// isRouted reports whether a network is a routed network: its list has a key that CNI does not know.
func isRouted(list *libcni.NetworkConfigList) bool {
	var known map[string]json.RawMessage
	return json.Unmarshal(list.Bytes, &known) == nil && known[oci.RoutedLabel] != nil
}

// RoutedNetworks lists the routed networks of CNI on this node. It reads no lists but those that setup has
// made.
func (e *Engine) RoutedNetworks(context.Context) ([]engine.RoutedNetwork, error) {
	paths, err := filepath.Glob(routedFile("*"))
	if err != nil {
		return nil, err
	}
	var all []engine.RoutedNetwork
	for _, path := range paths {
		one, err := readRouted(path)
		if errors.Is(err, fs.ErrNotExist) { // it has just been removed
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("network %s: %w", path, err)
		}
		all = append(all, one)
	}
	return all, nil
}

func readRouted(path string) (engine.RoutedNetwork, error) {
	list, err := libcni.NetworkConfFromFile(path)
	if err != nil {
		return engine.RoutedNetwork{}, err
	}
	read, found := readConflist(list)
	switch {
	case len(found) > 0:
		return engine.RoutedNetwork{}, fmt.Errorf("%s: %s", found[0].What, found[0].Why)
	case !isRouted(list) || len(read.ranges) != 1 || read.device == "" ||
		!networkPattern.MatchString(list.Name):
		return engine.RoutedNetwork{}, errors.New("godwit engine setup did not make it, or it was " +
			"changed since")
	}
	subnet := read.ranges[0].Subnet.Masked()
	return engine.RoutedNetwork{Name: list.Name, Device: read.device, Subnet: subnet}, nil
}

// AddRoutedNetwork makes the list of a routed network with this node's part of its addresses. Containers
// are started without requesting an address, so host-local assigns the whole part, one address after the
// other. AddRoutedNetwork leaves a list alone that exists as requested.
func (e *Engine) AddRoutedNetwork(
	ctx context.Context, name string, subnet, part netip.Prefix, mtu int,
) error {
	if !networkPattern.MatchString(name) {
		return fmt.Errorf("network %.80q is not a name that CNI allows", name)
	}
	wanted, err := routedList(name, subnet, part, mtu)
	if err != nil {
		return err
	}
	path := routedFile(name)
	if there, err := os.ReadFile(path); err == nil && string(there) == string(wanted) {
		return nil
	}
	if list, err := libcni.LoadNetworkConf(conflists, name); err == nil {
		return fmt.Errorf("CNI has another network %s already: remove its list in %s, or choose another "+
			"name with --network", list.Name, conflists)
	}
	if err := e.containerd.checkFirst(ctx, path); err != nil {
		return err
	}
	if err := os.MkdirAll(conflists, 0o755); err != nil {
		return err
	}
	return kernel.WriteFileAtomic(path, wanted, 0o644)
}

// checkFirst refuses a list that would come before the first of all lists if that connects pods of
// Kubernetes: pods started later would be connected by the new list.
func (a *adapter) checkFirst(ctx context.Context, path string) error {
	// as containerd's CRI plugin finds them
	others, err := libcni.ConfFiles(filepath.Dir(path), []string{".conf", ".conflist", ".json"})
	if err != nil {
		return fmt.Errorf("list %s: %w", filepath.Dir(path), err)
	}
	if len(others) == 0 || slices.Min(others) < path || a.Away() != nil {
		return nil
	}
	pods, err := a.containers.List(within(ctx, kubernetes), &containers.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("ask containerd for pods of Kubernetes: %w", err)
	}
	if len(pods.GetContainers()) == 0 {
		return nil
	}
	return fmt.Errorf("pods of Kubernetes are connected by %s, the first list there, and would then be "+
		"connected by %s: rename the former so that it stays the first",
		slices.Min(others), filepath.Base(path))
}

// routedList returns the list that tells plugins about this node's part of a routed network.
func routedList(name string, subnet, part netip.Prefix, mtu int) ([]byte, error) {
	type object = map[string]any
	bytes := part.Addr().As4()
	bytes[3] = 254 // some plugins take the last address for that of the whole part
	gateway := part.Addr().Next()
	addresses := object{"subnet": subnet, "rangeStart": gateway.Next(), "rangeEnd": netip.AddrFrom4(bytes),
		"gateway": gateway}
	list, err := json.MarshalIndent(object{
		"cniVersion": "0.4.0", "name": name, oci.RoutedLabel: subnet,
		"plugins": []object{
			{
				"type": "bridge", "bridge": routedDevice(name), "isGateway": true, "ipMasq": true, "mtu": mtu,
				"ipam": object{"type": "host-local", "routes": []object{{"dst": "0.0.0.0/0"}},
					"ranges": [][]object{{addresses}}},
			},
			{"type": "firewall"},
		},
	}, "", "  ")
	return append(list, '\n'), err
}

// routedDevice names the bridge of a routed network. The kernel accepts names of up to 15 characters.
func routedDevice(name string) string {
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("cni-%x", sum[:4])
}

// routedProblems returns what keeps containers from coming to routed networks.
func routedProblems() []engine.Problem {
	p := problems{}
	paths, _ := filepath.Glob(routedFile("*")) // the pattern is valid
	for _, path := range paths {
		list, err := libcni.NetworkConfFromFile(path)
		if err != nil {
			p.add(true, path, err.Error(), "remove it, then run godwit engine setup containerd --network")
			continue
		}
		p = append(p, missingPlugins(list)...)
	}
	return p
}

// RemoveRoutedNetworks removes the lists of all routed networks, or of none if a container is on one. It
// also removes their bridges and host-local's records, which the plugins leave behind.
func (e *Engine) RemoveRoutedNetworks(ctx context.Context) error {
	all, err := e.RoutedNetworks(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	for _, one := range all {
		on, err := e.containerd.namesOn(ctx, one.Name)
		if err == nil && len(on) > 0 {
			err = fmt.Errorf("containers are on network %s: %s; remove or move them first", one.Name,
				strings.Join(on, ", "))
		}
		if err == nil {
			err = unusedBridge(one.Device)
		}
		if err != nil {
			return err
		}
	}
	for _, one := range all {
		err := errors.Join(removeBridge(one.Device), removeTurn(filepath.Join(cniState, one.Name)))
		if err == nil {
			err = os.Remove(routedFile(one.Name)) // last, because it leads to what is left
		}
		if err != nil {
			return fmt.Errorf("remove network %s: %w", one.Name, err)
		}
	}
	return nil
}

// removeTurn removes the directory in which host-local records the addresses of a network, unless an
// address is assigned.
func removeTurn(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || slices.ContainsFunc(entries, func(one fs.DirEntry) bool {
		_, err := netip.ParseAddr(one.Name())
		return err == nil
	}) {
		return err
	}
	return os.RemoveAll(dir)
}

// namesOn returns the names of containers that plugins have connected to a network, running or not.
func (a *adapter) namesOn(ctx context.Context, network string) ([]string, error) {
	if a.Away() != nil {
		return nil, nil
	}
	found, err := a.List(ctx, func(string) bool { return true })
	if err != nil {
		return nil, fmt.Errorf("ask containerd for the containers of network %s: %w", network, err)
	}
	var on []string
	for _, ctr := range found {
		attached, err := a.cni.GetCachedAttachments(cniID(ctr.ID))
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(attached,
			func(to *libcni.NetworkAttachment) bool { return to.Network == network }) {
			on = append(on, nameOf(ctr.ID))
		}
	}
	return on, nil
}
