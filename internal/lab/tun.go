package lab

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const tunDevice = "/dev/net/tun"

// tunOffloads let the kernel pass on TCP data as one large packet without its checksum. This makes 1 Gbit/s
// cheap: one read and one write for up to 45 packets.
const tunOffloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN

// openTUN makes a network interface in the network namespace of a process and returns the descriptor for
// its packets. The interface lives as long as the descriptor.
func openTUN(pid int, name string) (fd int, err error) {
	err = inNetworkOf(pid, func() error {
		fd, err = openTUNHere(name)
		return err
	})
	return fd, err
}

func openTUNHere(name string) (int, error) {
	// The interface belongs to the network namespace of the open call (drivers/net/tun.c, tun_chr_open).
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w; the kernel's tun module is needed (modprobe tun)", tunDevice, err)
	}
	if err := setupTUN(fd, name); err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("interface %s: %w", name, err)
	}
	return fd, nil
}

func setupTUN(fd int, name string) error {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("TUNSETIFF: %w", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetHeaderSize); err != nil {
		return fmt.Errorf("TUNSETVNETHDRSZ: %w", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETLE, 1); err != nil {
		return fmt.Errorf("TUNSETVNETLE: %w", err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tunOffloads); err != nil {
		return fmt.Errorf("TUNSETOFFLOAD: %w", err)
	}
	return nil
}

// inNetworkOf calls f on a thread in the network namespace of a process. Descriptors that f opens stay
// there.
func inNetworkOf(pid int, f func() error) error {
	return InNetworkAt(fmt.Sprintf("/proc/%d/ns/net", pid), f)
}

// InNetworkAt calls f on a thread in the network namespace with this path, such as /run/netns/NAME. Sockets
// that f opens stay there. f must not leave the work to other goroutines.
func InNetworkAt(path string, f func() error) error {
	there, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	defer there.Close()

	runtime.LockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("network namespace: %w", err)
	}
	defer here.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	failed := f()
	if err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); err != nil {
		// The thread cannot return, so it stays locked and ends with its goroutine.
		return fmt.Errorf("leave network namespace %s: %w", path, err)
	}
	runtime.UnlockOSThread()
	return failed
}
