package main

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// things are the undo functions of everything that do made, in order.
var things []func()

// undo removes everything that do made, the latest first.
func undo() {
	for _, u := range slices.Backward(things) {
		u()
	}
	things = nil
}

// do makes something of this kind.
func do(command string) error {
	kind, argument, _ := strings.Cut(command, " ")
	f, ok := kinds()[kind]
	if !ok {
		return fmt.Errorf("unknown kind %q", kind)
	}
	u, err := f(argument)
	if u != nil {
		things = append(things, u)
	}
	return err
}

type maker func(argument string) (func(), error)

// kinds are all kinds that can be made.
func kinds() map[string]maker {
	all := map[string]maker{}
	for _, some := range []map[string]maker{anonymous(), sockets(), files(), memory(), tasks(), states()} {
		maps.Copy(all, some)
	}
	return all
}

// anonymous are kinds without a path.
func anonymous() map[string]maker {
	return map[string]maker{
		"nothing":           func(string) (func(), error) { return func() {}, nil },
		"io_uring":          made(ring),
		"eventfd":           made(func() (int, error) { return unix.Eventfd(3, 0) }),
		"eventfd-semaphore": made(func() (int, error) { return unix.Eventfd(3, unix.EFD_SEMAPHORE) }),
		"eventfd-large":     made(largeEventfd),
		"timerfd":           made(timerfd),
		"signalfd":          made(func() (int, error) { return unix.Signalfd(-1, &unix.Sigset_t{}, 0) }),
		"epoll":             made(epoll),
		"inotify":           made(inotify),
		"fanotify":          made(fanotify),
		"userfaultfd":       raw(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0),
		"perf_event":        made(perfEvent),
		"bpf-map":           made(bpfMap),
		"landlock":          made(landlock),
	}
}

// sockets are sockets of all families.
func sockets() map[string]maker {
	return map[string]maker{
		"socket-mptcp":         socket(unix.AF_INET, unix.SOCK_STREAM, 262),
		"mptcp-closed-watch":   mptcpClosedWatch,
		"socket-icmp":          socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP),
		"socket-icmp6":         socket(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6),
		"socket-raw":           socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
		"socket-tcp":           socket(unix.AF_INET, unix.SOCK_STREAM, 0),
		"socket-udp":           socket(unix.AF_INET, unix.SOCK_DGRAM, 0),
		"socket-udp6":          socket(unix.AF_INET6, unix.SOCK_DGRAM, 0),
		"socket-udplite":       socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE),
		"socket-packet":        socket(unix.AF_PACKET, unix.SOCK_RAW, 0x0300),
		"socket-route":         socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE),
		"socket-route-bound":   netlink(unix.NETLINK_ROUTE, 1, 0),
		"socket-route-group33": netlink(unix.NETLINK_ROUTE, 0, 33),
		"socket-uevent":        netlink(unix.NETLINK_KOBJECT_UEVENT, 1, 0),
		"socket-vsock":         socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0),
		"socket-xdp":           socket(unix.AF_XDP, unix.SOCK_RAW, 0),
		"unix-pair":            unixPair(unix.SOCK_STREAM),
		"unix-dgram-pair":      unixPair(unix.SOCK_DGRAM),
		"unix-seqpacket-pair":  unixPair(unix.SOCK_SEQPACKET),
		"unix-listen":          unixListen,
		"unix-external-stream": unixConnect(unix.SOCK_STREAM),
		"unix-external-dgram":  unixConnect(unix.SOCK_DGRAM),
		"tcp-listen":           tcpListen,
		"tcp-connecting":       tcpConnecting,
		"descriptor-in-flight": inFlight,
	}
}

// files are files, pipes, devices and locks.
func files() map[string]maker {
	return map[string]maker{
		"fscontext":      made(func() (int, error) { return unix.Fsopen("tmpfs", 0) }),
		"detached-mount": made(detachedMount),
		"namespace":      opened("/proc/self/ns/net", unix.O_RDONLY),
		"mqueue":         mqueue,
		"pipe":           pipe(0),
		"pipe-packet":    pipe(unix.O_DIRECT),
		"pipe-half":      halfPipe,
		"file":           opened("/data/file", unix.O_RDWR|unix.O_CREAT),
		"file-deleted":   deleted,
		"file-unlinked":  unlinked,
		"file-tmpfile":   opened("/data", unix.O_RDWR|unix.O_TMPFILE),
		"file-proc":      opened("/proc/self/status", unix.O_RDONLY),
		"file-sys":       opened("/sys/kernel/mm/transparent_hugepage/enabled", unix.O_RDONLY),
		"file-shm":       opened("/dev/shm/x", unix.O_RDWR|unix.O_CREAT),
		"directory":      opened("/data", unix.O_RDONLY),
		"path":           opened("/data", unix.O_PATH),
		"flock":          flock,
		"lock":           recordLock,
		"lease":          lease(unix.O_RDWR, unix.F_WRLCK),
		"lease-read":     lease(unix.O_RDONLY, unix.F_RDLCK),
		"device":         func(a string) (func(), error) { return opened(a, unix.O_RDWR)("") },
		"terminal":       opened("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY),
	}
}

// tasks are children, their namespaces, and mounts.
func tasks() map[string]maker {
	return map[string]maker{
		"pidfd-self":        made(func() (int, error) { return unix.PidfdOpen(os.Getpid(), 0) }),
		"pidfd-child":       pidfdChild,
		"pidfd-dead":        pidfdDead,
		"pidfd-thread":      made(func() (int, error) { return unix.PidfdOpen(unix.Gettid(), unix.PIDFD_THREAD) }),
		"thread-stopped":    stoppedChild,
		"child":             child(0),
		"child-pid":         child(unix.CLONE_NEWPID),
		"child-net":         child(unix.CLONE_NEWNET),
		"child-mount":       child(unix.CLONE_NEWNS),
		"child-uts":         child(unix.CLONE_NEWUTS),
		"child-ipc":         child(unix.CLONE_NEWIPC),
		"child-user":        child(unix.CLONE_NEWUSER),
		"child-cgroup":      child(unix.CLONE_NEWCGROUP),
		"child-time":        child(unix.CLONE_NEWTIME),
		"child-traced":      traced,
		"child-zombie":      zombie,
		"child-dead-leader": deadLeader,
		"child-32-bit":      program("/bin/workload32"),
		"child-in-cgroup":   inCgroup,
		"child-chroot":      chrooted,
		"mount-tmpfs":       mounted("tmpfs", "/data", ""),
		"mount-proc":        mounted("proc", "/data", ""),
		"mount-bind":        mounted("/tmp", "/data", "bind"),
		"mount-fuse":        fuse,
		"mount-debugfs":     mounted("debugfs", "/data", ""),
		"mount-overlay":     overlay,
		"mount-ramfs":       mounted("ramfs", "/data", ""),
		"seccomp-listener":  seccompListener,
	}
}

// holding returns an undo that closes descriptors.
func holding(fds ...int) func() {
	return func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
}

func made(f func() (int, error)) maker {
	return func(string) (func(), error) {
		fd, err := f()
		return holding(fd), err
	}
}

func raw(number, a, b uintptr) maker {
	return made(func() (int, error) {
		fd, _, errno := unix.Syscall(number, a, b, 0)
		if errno != 0 {
			return -1, errno
		}
		return int(fd), nil
	})
}

func opened(path string, flags int) maker {
	return made(func() (int, error) { return unix.Open(path, flags, 0o600) })
}

func socket(family, kind, protocol int) maker {
	return made(func() (int, error) { return unix.Socket(family, kind, protocol) })
}

func netlink(protocol int, groups uint32, member int) maker {
	return made(func() (int, error) {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, protocol)
		if err != nil {
			return -1, err
		}
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
			return -1, err
		}
		if member == 0 {
			return fd, nil
		}
		return fd, unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, member)
	})
}

func timerfd() (int, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, 0)
	if err != nil {
		return -1, err
	}
	return fd, unix.TimerfdSettime(fd, 0, &unix.ItimerSpec{Value: unix.Timespec{Sec: 1000}}, nil)
}

func epoll() (int, error) {
	fd, err := unix.EpollCreate1(0)
	if err != nil {
		return -1, err
	}
	other, err := unix.Eventfd(0, 0)
	if err != nil {
		return -1, err
	}
	return fd, unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, other, &unix.EpollEvent{Events: unix.EPOLLIN})
}

func inotify() (int, error) {
	fd, err := unix.InotifyInit1(0)
	if err != nil {
		return -1, err
	}
	_, err = unix.InotifyAddWatch(fd, "/bin", unix.IN_CREATE)
	return fd, err
}

func fanotify() (int, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF, unix.O_RDONLY)
	if err != nil {
		return -1, err
	}
	return fd, unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN, unix.AT_FDCWD, "/data")
}

func perfEvent() (int, error) {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK}
	attr.Size = uint32(unsafe.Sizeof(attr))
	return unix.PerfEventOpen(&attr, 0, -1, -1, 0)
}

func bpfMap() (int, error) {
	attr := struct{ kind, key, value, entries uint32 }{2, 4, 4, 1} // BPF_MAP_TYPE_ARRAY
	fd, _, errno := unix.Syscall(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

func landlock() (int, error) {
	attr := uint64(1)
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), 8, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

func detachedMount() (int, error) {
	context, err := unix.Fsopen("tmpfs", 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(context)
	if err := unix.FsconfigCreate(context); err != nil {
		return -1, err
	}
	return unix.Fsmount(context, 0, 0)
}

func pidfdChild(string) (func(), error) {
	c, end, err := start(0)
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(c.Process.Pid, 0)
	return func() { _ = unix.Close(fd); end() }, err
}

func pidfdDead(string) (func(), error) {
	c, end, err := start(0)
	if err != nil {
		return nil, err
	}
	fd, err := unix.PidfdOpen(c.Process.Pid, 0)
	end()
	return holding(fd), err
}

func aio(string) (func(), error) {
	var context uintptr
	_, _, errno := unix.Syscall(unix.SYS_IO_SETUP, 16, uintptr(unsafe.Pointer(&context)), 0)
	if errno != 0 {
		return nil, errno
	}
	return func() { _, _, _ = unix.Syscall(unix.SYS_IO_DESTROY, context, 0, 0) }, nil
}

// mqueue opens a message queue and, with "kept", closes it: the queue stays.
func mqueue(argument string) (func(), error) {
	name, err := unix.BytePtrFromString("test")
	if err != nil {
		return nil, err
	}
	fd, _, errno := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_RDWR|unix.O_CREAT, 0o600, 0, 0, 0)
	if errno != 0 {
		return nil, errno
	}
	if argument == "kept" {
		_ = unix.Close(int(fd))
	}
	return func() {
		if argument != "kept" {
			_ = unix.Close(int(fd))
		}
		_, _, _ = unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0)
	}, nil
}

func pipe(flags int) maker {
	return func(string) (func(), error) {
		var p [2]int
		err := unix.Pipe2(p[:], flags)
		return holding(p[:]...), err
	}
}

func halfPipe(string) (func(), error) {
	var p [2]int
	if err := unix.Pipe2(p[:], 0); err != nil {
		return nil, err
	}
	return holding(p[1]), unix.Close(p[0])
}

func deleted(string) (func(), error) {
	u, err := opened("/data/deleted", unix.O_RDWR|unix.O_CREAT)("")
	if err != nil {
		return nil, err
	}
	return u, os.Remove("/data/deleted")
}

// unlinked opens a file, deletes the name by which it was opened, and keeps another name: CRIU needs
// link_remap.
func unlinked(string) (func(), error) {
	_ = os.Remove("/data/kept")
	u, err := opened("/data/gone", unix.O_RDWR|unix.O_CREAT)("")
	if err == nil {
		err = os.Link("/data/gone", "/data/kept")
	}
	if err == nil {
		err = os.Remove("/data/gone")
	}
	return u, err
}

func flock(string) (func(), error) {
	fd, err := unix.Open("/data/file", unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, err
	}
	return holding(fd), unix.Flock(fd, unix.LOCK_EX)
}

func recordLock(string) (func(), error) {
	fd, err := unix.Open("/data/file", unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, err
	}
	return holding(fd), unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
}

func lease(open, kind int) maker {
	return func(string) (func(), error) {
		fd, err := unix.Open("/data/leased", open|unix.O_CREAT, 0o600)
		if err != nil {
			return nil, err
		}
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, kind)
		return holding(fd), err
	}
}

// largeEventfd makes an eventfd with a count of more than 32 bits.
func largeEventfd() (int, error) {
	fd, err := unix.Eventfd(0, 0)
	if err != nil {
		return -1, err
	}
	_, err = unix.Write(fd, binary.NativeEndian.AppendUint64(nil, 1<<32))
	return fd, err
}

func ring() (int, error) {
	var params [30]uint32 // struct io_uring_params
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}
