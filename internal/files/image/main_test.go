package image

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestMain runs the tests in a mount and a network namespace of their own: overlays are mounted and a registry is
// started, and nothing of it can stay behind.
func TestMain(m *testing.M) {
	const marker = "GODWIT_IMAGE_TEST_NAMESPACE"
	if os.Getenv(marker) == "" {
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET); err != nil {
			fmt.Fprintf(os.Stderr, "these tests need root, to make namespaces: %v\n", err)
			os.Exit(1)
		}
		err := syscall.Exec("/proc/self/exe", os.Args, append(os.Environ(), marker+"=1"))
		fmt.Fprintf(os.Stderr, "run the tests in namespaces: %v\n", err)
		os.Exit(1)
	}
	if err := prepare(); err != nil {
		fmt.Fprintf(os.Stderr, "prepare the namespaces: %v\n", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
