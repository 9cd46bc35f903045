package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/network/dump"
)

// TakeLinksDown takes down the links of a network namespace, so that sockets that are closed in it send no
// FIN.
func TakeLinksDown(path string) error {
	handle, err := netns.GetFromPath(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
		return nil // the namespace is gone already
	}
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", path, err)
	}
	defer handle.Close()
	links, err := netlink.NewHandleAt(handle, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	defer links.Close()
	all, err := dump.Whole(links.LinkList)
	if err != nil {
		return fmt.Errorf("list links in %s: %w", path, err)
	}
	for _, link := range all {
		if link.Type() == "loopback" || link.Attrs().Name == "lo" {
			continue
		}
		if err := links.LinkSetDown(link); err != nil {
			return fmt.Errorf("take down %s in %s: %w", link.Attrs().Name, path, err)
		}
	}
	return nil
}
