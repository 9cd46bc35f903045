package bridge

import (
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// watchAgain is the delay before devices are watched again after watching has ended by itself. The kernel
// stops reporting if too much happens at once.
const watchAgain = time.Second

// Watch calls changed when a bridge is made or brought up, until closed is closed. The argument reports
// whether the bridge with a name may have changed.
func (b *Bridges) Watch(closed <-chan struct{}, changed func(is func(name string) bool)) {
	for {
		b.watchOnce(closed, changed)
		select {
		case <-closed:
			return
		case <-time.After(watchAgain):
		}
	}
}

// watchOnce does the same until the kernel stops reporting.
func (b *Bridges) watchOnce(closed <-chan struct{}, changed func(is func(name string) bool)) {
	changes, over := make(chan netlink.LinkUpdate), make(chan struct{})
	// changes is closed after an error
	options := netlink.LinkSubscribeOptions{Namespace: &b.namespace, ErrorCallback: func(error) {}}
	if err := netlink.LinkSubscribeWithOptions(changes, over, options); err != nil {
		return
	}
	defer func() {
		close(over) // closes the socket, also when the kernel has stopped reporting
		for range changes {
		}
	}()
	changed(func(string) bool { return true }) // for changes before the subscription
	for {
		select {
		case <-closed:
			return
		case change, more := <-changes:
			if !more {
				return
			}
			if change.Header.Type == unix.RTM_NEWLINK && change.Link.Type() == "bridge" {
				changed(func(name string) bool { return name == change.Link.Attrs().Name })
			}
		}
	}
}
