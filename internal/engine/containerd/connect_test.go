package containerd

import (
	"runtime"
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
