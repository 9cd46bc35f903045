package image

import (
	"fmt"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/files/filestest"
)

// TestMain runs the tests in separate mount and network namespaces: they mount overlays and start a
// registry.
func TestMain(m *testing.M) {
	os.Exit(filestest.Isolated(unix.CLONE_NEWNET, func() int {
		if err := raiseLoopback(); err != nil {
			fmt.Fprintf(os.Stderr, "prepare the network: %v\n", err)
			return 1
		}
		return m.Run()
	}))
}

func raiseLoopback() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
