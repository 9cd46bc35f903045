package containerd

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// elsewhere does something in a network namespace of its own.
func elsewhere(t *testing.T, do func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
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

// TestUnusedBridge: a bridge to which something is connected stays, whoever knows of that.
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

// TestIsOthers: what a container's process was in that has ended is nobody's, also when its number is that of one of the node's.
func TestIsOthers(t *testing.T) {
	made, err := newNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	for path, want := range map[string]bool{
		fmt.Sprintf("/proc/self/fd/%d", int(made)): true, "/proc/thread-self/ns/net": false, filepath.Join(t.TempDir(), "net"): false, "": false,
	} {
		if isOthers(path) != want {
			t.Errorf("%s: %t", path, !want)
		}
	}
}

// TestSupposeMade: firewall is told of a container's addresses, by which it removes rules, but not of one that another container has by now.
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
		list := conflistOf(t, `{"type":"bridge","ipam":{"type":"host-local","dataDir":"`+dir+`","subnet":"10.4.0.0/24"}},{"type":"firewall"}`)
		if err := supposeMade(list, connection{ID: "default-web", Addresses: []netip.Prefix{netip.MustParsePrefix(ip + "/24")}}); err != nil {
			t.Fatal(err)
		}
		if told := string(list.Plugins[1].Bytes); !strings.Contains(told, "prevResult") || strings.Contains(told, ip) != want {
			t.Errorf("%s: %s", ip, told)
		}
	}
}
