package main

import (
	"bufio"
	"flag"
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

var (
	socket = flag.String("socket", "", "have the memory filled by who listens there, as a process that CRIU restores does")
	pid    = flag.Int("pid", 1, "pid to say there")
)

// lazyBase is where arenas are that are filled by others, which know that.
const lazyBase = 0x7e0000000000

const (
	uffdAPI          = 0xAA
	ioctlAPI         = 0xC018AA3F
	ioctlRegister    = 0xC020AA00
	eventFork        = 1 << 1
	eventRemap       = 1 << 2
	eventRemove      = 1 << 3
	eventUnmap       = 1 << 6
	registerMissing  = 1
	restoreFinished  = 0x52535446
	lazyArenaSpacing = 1 << 36
)

// lazyArena is an arena whose pages have been written once, but are not there.
func lazyArena(id uint64, pages int) *arena {
	a := &arena{id: id, pages: pages, versions: make([]uint32, pages), busy: make([]busy, pages)}
	a.base = mmap(lazyBase+uintptr(id)*lazyArenaSpacing, pages, unix.MAP_FIXED_NOREPLACE)
	for page := range pages {
		if page%16 != 5 {
			a.versions[page] = 1
		}
	}
	return a
}

// beLazy registers the arenas and hands the userfaultfd over. Everything runs at once; only when a
// line comes on standard input does it say that the memory of all is registered.
func beLazy(arenas []*arena) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	must("userfaultfd", errno)
	api := struct{ api, features, ioctls uint64 }{uffdAPI, eventFork | eventRemap | eventRemove | eventUnmap, 0}
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, ioctlAPI, uintptr(unsafe.Pointer(&api)))
	must("userfaultfd api", errno)
	for _, a := range arenas {
		register := struct{ start, len, mode, ioctls uint64 }{uint64(a.base), uint64(a.pages) * pageSize, registerMissing, 0}
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, ioctlRegister, uintptr(unsafe.Pointer(&register)))
		must("register", errno)
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: *socket, Net: "unix"})
	check(err)
	send := func(n uint32, rights []byte) {
		data := (*[4]byte)(unsafe.Pointer(&n))[:]
		if rights != nil {
			data = data[:1]
		}
		_, _, err := conn.WriteMsgUnix(data, rights, nil)
		check(err)
	}
	send(uint32(*pid), nil)
	send(0, unix.UnixRights(int(fd)))
	unix.Close(int(fd)) // before there are children, who would have it too
	zombie := int32(-100)
	send(uint32(zombie), nil)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		if !lines.Scan() {
			os.Exit(0) // the restore fails
		}
		if lines.Text() == "twice" {
			send(uint32(*pid), nil)
			send(0, unix.UnixRights(1))
		} else {
			send(restoreFinished, nil)
		}
		fmt.Println("resumed")
	}()
}

func check(err error) {
	if err != nil {
		fmt.Println("BAD", err)
		os.Exit(5)
	}
}
