package checkpoint

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Loopback brings up the loopback device of a network namespace, as runc does in a namespace that it makes.
func Loopback(path string) error {
	handle, err := netns.GetFromPath(path)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer handle.Close()
	links, err := netlink.NewHandleAt(handle, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	defer links.Close()
	loopback, err := links.LinkByName("lo")
	if err == nil {
		err = links.LinkSetUp(loopback)
	}
	if err != nil {
		return fmt.Errorf("set up the loopback in %s: %w", path, err)
	}
	return nil
}
