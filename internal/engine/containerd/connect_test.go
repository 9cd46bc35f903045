package containerd

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	types "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// elsewhere runs a function in a new network namespace.
func elsewhere(t *testing.T, do func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		made, err := netns.New()
		if err == nil {
			defer made.Close()
			do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestUnusedBridge checks that a bridge stays while anything is connected to it, known to containerd or
// not.
func TestUnusedBridge(t *testing.T) {
	elsewhere(t, func() {
		const name = "cni-birds"
		if err := unusedBridge(name); err != nil {
			t.Error("there is none:", err)
		}
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth0"}, PeerName: "peer0"}
		for _, link := range []netlink.Link{bridge, pair} {
			if err := netlink.LinkAdd(link); err != nil {
				t.Error(err)
				return
			}
		}
		if err := unusedBridge(name); err != nil {
			t.Error("nothing is connected with it:", err)
		}
		if err := netlink.LinkSetMaster(pair, bridge); err != nil {
			t.Error(err)
		}
		if err := unusedBridge(name); err == nil {
			t.Error("it is taken for unused")
		}
	})
}

// TestIsThere checks that the interface of an ended process does not count as existing, even if a process
// of the node or of another container has its PID.
func TestIsThere(t *testing.T) {
	made, err := newNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	links, err := netlink.NewHandleAt(made, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer links.Close()
	device := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: "other"}
	device.Name, device.HardwareAddr = cniInterface, net.HardwareAddr{2, 0, 0, 0, 0, 1}
	if err := links.LinkAdd(device); err != nil {
		t.Fatal(err)
	}
	its := fmt.Sprintf("/proc/self/fd/%d", int(made))
	kept := func(mac string) *types.Result {
		return &types.Result{Interfaces: []*types.Interface{{Name: "veth1", Mac: "02:00:00:00:00:09"},
			{Name: cniInterface, Mac: mac, Sandbox: "/proc/7/ns/net"}}}
	}
	for name, c := range map[string]struct {
		kept *types.Result
		path string
		want bool
	}{
		"its own":         {kept("02:00:00:00:00:01"), its, true},
		"another's":       {kept("02:00:00:00:00:02"), its, false},
		"nothing is kept": {nil, its, true},
		"not told":        {&types.Result{}, its, true},
		"the node's":      {nil, "/proc/thread-self/ns/net", false},
		"gone":            {nil, filepath.Join(t.TempDir(), "net"), false},
		"none":            {nil, "", false},
	} {
		if got := isThere(c.kept, cniInterface, c.path); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestSupposeMade checks that plugin firewall is told a container's addresses, by which it removes rules,
// except an address that another container has by now.
func TestSupposeMade(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "birds"), 0o700); err != nil {
		t.Fatal(err)
	}
	for ip, id := range map[string]string{"10.4.0.2": "default-web", "10.4.0.3": "default-other"} {
		if err := os.WriteFile(filepath.Join(dir, "birds", ip), []byte(id+"\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for ip, want := range map[string]bool{"10.4.0.2": true, "10.4.0.3": false, "10.4.0.4": true} {
		list := conflistOf(t, `{"type":"bridge","ipam":{"type":"host-local","dataDir":"`+
			dir+`","subnet":"10.4.0.0/24"}},{"type":"firewall"}`)
		if err := supposeMade(list, connection{ID: "default-web",
			Addresses: []netip.Prefix{netip.MustParsePrefix(ip + "/24")}}); err != nil {
			t.Fatal(err)
		}
		if told := string(list.Plugins[1].Bytes); !strings.Contains(told, "prevResult") ||
			strings.Contains(told, ip) != want {
			t.Errorf("%s: %s", ip, told)
		}
	}
}
