package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of include/uapi/linux/{userfaultfd,fs,prctl,sock_diag}.h that x/sys/unix lacks.
const (
	uffdAPI           = 0xAA
	ioctlUffdAPI      = 0xC018AA3F // _IOWR(0xAA, 0x3F, struct uffdio_api)
	uffdWPUnpopulated = 1 << 13
	uffdWPAsync       = 1 << 15
	ioctlPagemapScan  = 0xC0606610 // _IOWR('f', 16, struct pm_scan_arg)
	pageIsWritten     = 1 << 1
	prSetMMMapSize    = 15
	sockDiagByFamily  = 20
	softDirtyBit      = 55
)

func mmMapSize() error {
	var size uint32
	_, _, errno := unix.Syscall6(unix.SYS_PRCTL, unix.PR_SET_MM, prSetMMMapSize,
		uintptr(unsafe.Pointer(&size)), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// probeUserfault opens a userfaultfd and requests features; the kernel answers EINVAL for features that it
// does not know.
func probeUserfault(features uint64) func() error {
	return func() error {
		fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
		if errno != 0 {
			return errno
		}
		defer unix.Close(int(fd))
		api := struct{ api, features, ioctls uint64 }{api: uffdAPI, features: features}
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, ioctlUffdAPI, uintptr(unsafe.Pointer(&api)))
		if errno != 0 {
			return errno
		}
		return nil
	}
}

// probePagemapScan scans one page of this process.
func probePagemapScan() error {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return err
	}
	defer f.Close()
	page := make([]byte, 2*os.Getpagesize())
	start := uintptr(unsafe.Pointer(&page[0])) &^ uintptr(os.Getpagesize()-1)
	arg := struct {
		size, flags, start, end, walkEnd, vec, vecLen, maxPages         uint64
		categoryInverted, categoryMask, categoryAnyOfMask, returnedMask uint64
	}{start: uint64(start), end: uint64(start) + uint64(os.Getpagesize()), categoryMask: pageIsWritten,
		returnedMask: pageIsWritten}
	arg.size = uint64(unsafe.Sizeof(arg))
	var region [3]uint64
	arg.vec, arg.vecLen = uint64(uintptr(unsafe.Pointer(&region[0]))), 1
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ioctlPagemapScan, uintptr(unsafe.Pointer(&arg)))
	runtime.KeepAlive(page)
	runtime.KeepAlive(&region)
	if errno != 0 {
		return errno
	}
	return nil
}

// probeSoftDirty writes to a page and checks whether /proc/self/pagemap shows that
// (admin-guide/mm/soft-dirty.rst).
func probeSoftDirty() error {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|
		unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(page) }()
	page[0] = 1
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return err
	}
	defer f.Close()
	var entry [8]byte
	offset := int64(uintptr(unsafe.Pointer(&page[0]))) / int64(os.Getpagesize()) * int64(len(entry))
	if _, err := f.ReadAt(entry[:], offset); err != nil {
		return err
	}
	if binary.NativeEndian.Uint64(entry[:])&(1<<softDirtyBit) == 0 {
		return fmt.Errorf("a page just written is not marked: %w", ErrUnsupported)
	}
	// without frames, pages that mremap moves go unnoticed
	if binary.NativeEndian.Uint64(entry[:])&entryFrame == 0 {
		return errors.New("it does not tell page frames to this process, which has not CAP_SYS_ADMIN")
	}
	return nil
}

// probeDiag requests a list of sockets of a family and protocol, and examines only the first answer.
func probeDiag(family, protocol int) func() error {
	return func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.Sendto(fd, diagRequest(family, protocol),
			0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return err
		}
		return diagAnswer(fd)
	}
}

// diagRequest returns struct nlmsghdr and the request of sock_diag(7) for the family. All requests begin
// with family and protocol; the rest is zero and selects nothing.
func diagRequest(family, protocol int) []byte {
	const inetRequest, unixRequest = 56, 24
	size := netlinkHeader + unixRequest
	switch family {
	case unix.AF_INET, unix.AF_INET6:
		size = netlinkHeader + inetRequest
	case unix.AF_NETLINK, unix.AF_PACKET:
		size = netlinkHeader + 20
	}
	b := make([]byte, size)
	binary.NativeEndian.PutUint32(b[0:], uint32(size))
	binary.NativeEndian.PutUint16(b[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b[netlinkHeader], b[netlinkHeader+1] = byte(family), byte(protocol)
	return b
}

// diagAnswer reads until the end of the list or an error.
func diagAnswer(fd int) error {
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return err
		}
		done, err := diagDone(buf[:n])
		if err != nil || done {
			return err
		}
	}
}

// diagDone searches a datagram for the end of the list, or for an error of the kernel.
func diagDone(b []byte) (bool, error) {
	for len(b) >= netlinkHeader {
		size := int(binary.NativeEndian.Uint32(b))
		if size < netlinkHeader || size > len(b) {
			return false, errNetlink
		}
		kind := binary.NativeEndian.Uint16(b[4:])
		if kind == unix.NLMSG_ERROR || kind == unix.NLMSG_DONE {
			if size < netlinkHeader+4 {
				return false, errNetlink
			}
			if errno := int32(binary.NativeEndian.Uint32(b[netlinkHeader:])); errno < 0 {
				return false, unix.Errno(-errno)
			}
			return true, nil
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return false, nil
}
