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

// segmentPrefix begins the names of the lists that are made here. ctr takes the first of all lists.
const segmentPrefix = "10-godwit-"

func segmentFile(name string) string {
	return filepath.Join(conflists, segmentPrefix+name+".conflist")
}

// isSegment tells whether nodes route the addresses of a network to each other: its list says so,
// by a word that CNI does not know.
func isSegment(list *libcni.NetworkConfigList) bool {
	var known map[string]json.RawMessage
	return json.Unmarshal(list.Bytes, &known) == nil && known[oci.SegmentLabel] != nil
}

// Segments lists the networks of CNI's on this node whose addresses nodes route to each other. What
// is in other lists is not looked at.
func (e *Engine) Segments(context.Context) ([]engine.Segment, error) {
	paths, err := filepath.Glob(segmentFile("*"))
	if err != nil {
		return nil, err
	}
	var all []engine.Segment
	for _, path := range paths {
		one, err := readSegment(path)
		if errors.Is(err, fs.ErrNotExist) { // it is removed just now
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("network %s: %w", path, err)
		}
		all = append(all, one)
	}
	return all, nil
}

func readSegment(path string) (engine.Segment, error) {
	list, err := libcni.NetworkConfFromFile(path)
	if err != nil {
		return engine.Segment{}, err
	}
	read, found := readConflist(list)
	switch {
	case len(found) > 0:
		return engine.Segment{}, fmt.Errorf("%s: %s", found[0].What, found[0].Why)
	case !isSegment(list) || len(read.ranges) != 1 || read.device == "" || !networkPattern.MatchString(list.Name):
		return engine.Segment{}, errors.New("it is not as it was made")
	}
	return engine.Segment{Name: list.Name, Device: read.device, Subnet: read.ranges[0].Subnet.Masked()}, nil
}

// MakeSegment makes the list of a network whose addresses nodes route to each other, of which this
// node has one part. Who starts a container asks for no address of it, so host-local gives all of
// the part, one after the other. A list that is there as asked is left as it is.
func (e *Engine) MakeSegment(ctx context.Context, name string, subnet, part netip.Prefix, mtu int) error {
	if !networkPattern.MatchString(name) {
		return fmt.Errorf("network %.80q is not a name that CNI allows", name)
	}
	wanted, err := segmentList(name, subnet, part, mtu)
	if err != nil {
		return err
	}
	path := segmentFile(name)
	if there, err := os.ReadFile(path); err == nil && string(there) == string(wanted) {
		return nil
	}
	if list, err := libcni.LoadNetworkConf(conflists, name); err == nil {
		return fmt.Errorf("CNI has another network %s already: remove its list in %s, or choose another name with --network", list.Name, conflists)
	}
	if err := e.containerd.checkFirst(ctx, path); err != nil {
		return err
	}
	if err := os.MkdirAll(conflists, 0o755); err != nil {
		return err
	}
	return kernel.WriteFileAtomic(path, wanted, 0o644)
}

// checkFirst refuses a list that would come before the one by which pods of Kubernetes are
// connected here, the first of all: those that are started from then on would be connected by this
// one.
func (a *adapter) checkFirst(ctx context.Context, path string) error {
	others, err := libcni.ConfFiles(filepath.Dir(path), []string{".conf", ".conflist", ".json"}) // as containerd's plugin for CRI
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
	return fmt.Errorf("pods of Kubernetes are connected by %s, the first list there, and would be by %s: rename the first one to come before",
		slices.Min(others), filepath.Base(path))
}

// segmentList is what plugins are told of the part that this node has.
func segmentList(name string, subnet, part netip.Prefix, mtu int) ([]byte, error) {
	type object = map[string]any
	bytes := part.Addr().As4()
	bytes[3] = 254 // some take the last one for all of the part
	gateway := part.Addr().Next()
	addresses := object{"subnet": subnet, "rangeStart": gateway.Next(), "rangeEnd": netip.AddrFrom4(bytes), "gateway": gateway}
	list, err := json.MarshalIndent(object{
		"cniVersion": "0.4.0", "name": name, oci.SegmentLabel: subnet,
		"plugins": []object{
			{
				"type": "bridge", "bridge": segmentDevice(name), "isGateway": true, "ipMasq": true, "mtu": mtu,
				"ipam": object{"type": "host-local", "routes": []object{{"dst": "0.0.0.0/0"}}, "ranges": [][]object{{addresses}}},
			},
			{"type": "firewall"},
		},
	}, "", "  ")
	return append(list, '\n'), err
}

// segmentDevice is the bridge of such a network. The kernel takes names of 15 characters.
func segmentDevice(name string) string {
	sum := sha256.Sum256([]byte(name))
	return fmt.Sprintf("cni-%x", sum[:4])
}

// segmentProblems are what keeps containers from coming to such networks.
func segmentProblems() []engine.Problem {
	p := problems{}
	paths, _ := filepath.Glob(segmentFile("*")) // the pattern is good
	for _, path := range paths {
		list, err := libcni.NetworkConfFromFile(path)
		if err != nil {
			p.add(true, path, err.Error(), "remove it, and godwit engine setup containerd --network")
			continue
		}
		p = append(p, missingPlugins(list)...)
	}
	return p
}

// RemoveSegments removes the lists of such networks: all, or none if a container is on one. Their
// bridges, and what host-local notes of them, are left by the plugins, and go, too.
func (e *Engine) RemoveSegments(ctx context.Context) error {
	all, err := e.Segments(ctx)
	if err != nil || len(all) == 0 {
		return err
	}
	for _, one := range all {
		on, err := e.containerd.namesOn(ctx, one.Name)
		if err == nil && len(on) > 0 {
			err = fmt.Errorf("containers are on network %s: %s; remove or move them first", one.Name, strings.Join(on, ", "))
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
			err = os.Remove(segmentFile(one.Name)) // by which what could not be removed is found again
		}
		if err != nil {
			return fmt.Errorf("remove network %s: %w", one.Name, err)
		}
	}
	return nil
}

// removeTurn removes the directory in which host-local notes the addresses of a network, unless it
// has given one.
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

// namesOn are the containers that plugins have connected with a network, running or not.
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
		if slices.ContainsFunc(attached, func(to *libcni.NetworkAttachment) bool { return to.Network == network }) {
			on = append(on, nameOf(ctr.ID))
		}
	}
	return on, nil
}
