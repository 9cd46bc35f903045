package doctor

import (
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// namespace is a private network namespace that belongs to one thread of this process: it needs no name and
// no mount, and vanishes with the thread, even if the process is killed.
type namespace struct {
	path string // for runc; valid until close
	work chan func()
}

// newNamespace makes a network namespace whose loopback is up.
func newNamespace() (*namespace, error) {
	n := &namespace{work: make(chan func())}
	started := make(chan error)
	go func() {
		// Never unlocked: a thread in a foreign namespace must end with its goroutine.
		runtime.LockOSThread()
		err := enterNamespace()
		n.path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		started <- err
		if err != nil {
			return
		}
		for do := range n.work {
			do()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return n, nil
}

func enterNamespace() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback of a new network namespace: %w", err)
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return fmt.Errorf("set up the loopback of a new network namespace: %w", err)
	}
	return nil
}

// do runs a function in the namespace and waits for it. Sockets that it opens stay in the namespace,
// whoever uses them.
func (n *namespace) do(function func() error) error {
	result := make(chan error)
	n.work <- func() { result <- function() }
	return <-result
}

func (n *namespace) close() { close(n.work) }
