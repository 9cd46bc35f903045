package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// states are intermediate states of programs.
func states() map[string]maker {
	return map[string]maker{
		"child-session":       orphan,
		"child-session-tty":   orphanTerminal,
		"child-session-lost":  orphanElsewhere,
		"child-sigtrap":       said("sigtrap"),
		"lease-breaking":      leaseBreaking,
		"unix-closed-waiting": closedWaiting,
		"unix-waiting":        waiting,
		"flight-closed":       flightPair(unix.SOCK_STREAM, true),
		"flight-pair":         flightPair(unix.SOCK_DGRAM, false),
		"flight-datagram":     flight(unix.SOCK_DGRAM),
		"flight-stream":       flight(unix.SOCK_STREAM),
		"udp-cork":            udpCork,
		"fanotify-mount":      made(fanotifyMark(unix.FAN_CLASS_NOTIF, unix.FAN_MARK_MOUNT)),
		"fanotify-system":     made(fanotifyMark(unix.FAN_CLASS_NOTIF, unix.FAN_MARK_FILESYSTEM)),
		"fanotify-id":         made(fanotifyMark(unix.FAN_CLASS_NOTIF|unix.FAN_REPORT_FID, unix.FAN_MARK_ADD)),
		"watch-file":          watch("/data/watched", nothing),
		"watch-parent":        watch("/data", nothing),
		"watch-removed":       watch("/data/watched", removed),
		"watch-linked":        watch("/data/watched", linked),
		"watch-directory":     watch("/data", removed),
		"watch-where-linked":  watch("/data", linked),
		"mount-over-mount":    below(mounted("tmpfs", "/data", "")),
		"mount-over-file":     below(opened("/data/file", unix.O_RDWR|unix.O_CREAT)),
		"mount-over-socket":   below(boundSocket),
		"mount-over-tmpfs":    overTmpfs,
		"mount-over-deleted":  below(deleted),
		"mount-over-mapping":  below(mappedFile),
		"mount-over-cwd":      below(inDirectory),
		"sysctl":              sysctl,
		"file-sparse-deleted": sparseDeleted,
	}
}

// said starts a child in a role and waits until the child is ready.
func said(role ...string) maker {
	return func(string) (func(), error) {
		c := exec.Command("/bin/workload", role...)
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err == nil {
			_, err = out.Read(make([]byte, 1))
		}
		return func() { _ = c.Process.Kill(); _ = c.Wait() }, err
	}
}

// blockTrap leaves a SIGTRAP pending.
func blockTrap() {
	var mask unix.Sigset_t
	mask.Val[0] = 1 << (unix.SIGTRAP - 1)
	if unix.PthreadSigmask(unix.SIG_BLOCK, &mask, nil) != nil || unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGTRAP) != nil {
		os.Exit(1)
	}
	fmt.Print("ready")
	_ = unix.Pause()
}

// orphan starts a process in a session whose leader ends. The session has the terminal, if there is one.
func orphan(terminal string) (func(), error) {
	args := []string{"leader"}
	if terminal != "" {
		args = append(args, terminal)
	}
	c := exec.Command("/bin/workload", args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := c.Output()
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(string(out))
	return func() { _ = unix.Kill(pid, unix.SIGKILL); _, _ = unix.Wait4(pid, nil, 0, nil) }, err
}

// orphanTerminal does the same with a terminal, which this process keeps.
func orphanTerminal(string) (func(), error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	number, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		return holding(master), err
	}
	u, err := orphan(fmt.Sprintf("/dev/pts/%d", number))
	return func() { u(); _ = unix.Close(master) }, err
}

// orphanElsewhere does the same in a child that adopts orphans, so that the process is not the first
// process's child.
func orphanElsewhere(string) (func(), error) {
	c := exec.Command("/bin/workload", "subreaper")
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	var pid int
	if err == nil {
		_, err = fmt.Fscan(out, &pid)
	}
	return func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		_ = c.Process.Kill()
		_ = c.Wait()
		_, _ = unix.Wait4(pid, nil, 0, nil)
	}, err
}

// reap adopts orphans, starts one, and prints its PID.
func reap() {
	if unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != nil {
		os.Exit(1)
	}
	c := exec.Command("/bin/workload", "leader")
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := c.Output()
	if err != nil {
		os.Exit(1)
	}
	fmt.Println(string(out))
	_ = unix.Pause()
}

// lead starts a child in this process's session, prints its PID, and ends.
func lead(terminal ...string) {
	c := exec.Command("/bin/workload", "sleep")
	if len(terminal) > 0 {
		f, err := os.OpenFile(terminal[0], os.O_RDWR, 0)
		if err != nil || unix.IoctlSetInt(int(f.Fd()), unix.TIOCSCTTY, 0) != nil {
			os.Exit(1)
		}
		c.Stdin = f
	}
	if c.Start() != nil {
		os.Exit(1)
	}
	fmt.Print(c.Process.Pid)
}

// leaseBreaking holds a lease that another process is breaking, and does not give it up.
func leaseBreaking(string) (func(), error) {
	u, err := lease(unix.O_RDONLY, unix.F_RDLCK)("")
	if err != nil {
		return u, err
	}
	if _, err := unix.Open("/data/leased", unix.O_RDWR|unix.O_NONBLOCK, 0); !errors.Is(err, unix.EWOULDBLOCK) {
		return u, fmt.Errorf("break a lease: %v", err)
	}
	return u, nil
}

// closedWaiting makes a connection that is closed before it is accepted.
func closedWaiting(string) (func(), error) {
	u, err := unixListen("")
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: "/tmp/sock"})
	}
	return u, errors.Join(err, unix.Close(fd))
}

// waiting makes a connection that is not accepted, from a socket with a lower number than the listener. The
// undo checks that the connection still exists.
func waiting(string) (func(), error) {
	client, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	listener, err := listening("/tmp/sock")
	if err == nil {
		err = unix.Connect(client, &unix.SockaddrUnix{Name: "/tmp/sock"})
	}
	return func() {
		if err := talk(client, listener); err != nil {
			panic(err)
		}
	}, err
}

// talk accepts a client's connection, sends data on it, and closes everything.
func talk(client, listener int) error {
	server, _, err := unix.Accept(listener)
	if err != nil {
		return err
	}
	defer holding(client, listener, server)()
	if _, err := unix.Write(client, []byte("x")); err != nil {
		return err
	}
	_, err = unix.Read(server, make([]byte, 1))
	return err
}

// flight sends an unconnected socket in a message that is not received.
func flight(kind int) maker {
	return func(string) (func(), error) {
		fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		return sendAway(fd)
	}
}

// flightPair sends one of two connected sockets; the other may be closed.
func flightPair(kind int, closed bool) maker {
	return func(string) (func(), error) {
		p, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
		if err != nil {
			return nil, err
		}
		u, err := sendAway(p[0])
		_ = unix.Close(p[0])
		if closed || err != nil {
			return u, errors.Join(err, unix.Close(p[1]))
		}
		return func() { u(); _ = unix.Close(p[1]) }, nil
	}
}

func sendAway(fd int) (func(), error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	return holding(p[:]...), unix.Sendmsg(p[0], []byte("x"), unix.UnixRights(fd), nil, 0)
}

// udpCork collects a datagram.
func udpCork(string) (func(), error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return nil, err
	}
	const cork = 1 // UDP_CORK
	to := unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}
	return holding(fd), errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_UDP, cork, 1), unix.Sendto(fd, []byte("x"), 0, &to))
}

func fanotifyMark(class, mark uint) func() (int, error) {
	return func() (int, error) {
		fd, err := unix.FanotifyInit(class|unix.FAN_NONBLOCK, unix.O_RDONLY)
		if err != nil {
			return -1, err
		}
		return fd, unix.FanotifyMark(fd, unix.FAN_MARK_ADD|mark, unix.FAN_OPEN, unix.AT_FDCWD, "/data")
	}
}

// watches is the inotify instance that watch has made last.
var watches int

// What happens to the watched file, or in the watched directory.
const (
	nothing = iota
	removed
	linked // removed, but another name exists
)

// watch watches an open file, or its directory, for all events.
func watch(what string, happens int) maker {
	return func(string) (func(), error) {
		file, err := unix.Open("/data/watched", unix.O_RDWR|unix.O_CREAT, 0o600)
		if err != nil {
			return nil, err
		}
		if watches, err = unix.InotifyInit1(unix.IN_NONBLOCK); err != nil {
			return nil, err
		}
		_, err = unix.InotifyAddWatch(watches, what, unix.IN_ALL_EVENTS)
		if err == nil && happens == linked {
			err = os.Link("/data/watched", "/data/other")
		}
		if err == nil && happens != nothing {
			err = os.Remove("/data/watched")
		}
		events() // discards the events that this function caused
		instance := watches
		return func() {
			_, _ = unix.Close(instance), unix.Close(file)
			_, _ = os.Remove("/data/watched"), os.Remove("/data/other")
		}, err
	}
}

// events reads the pending events: their masks and names.
func events() string {
	buffer := make([]byte, 4096)
	n, err := unix.Read(watches, buffer)
	if err != nil {
		return "none"
	}
	var all []string
	for b := buffer[:n]; len(b) >= unix.SizeofInotifyEvent; {
		mask := binary.NativeEndian.Uint32(b[4:])
		size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		all = append(all, fmt.Sprintf("%#x:%s", mask, strings.TrimRight(string(b[unix.SizeofInotifyEvent:size]), "\x00")))
		b = b[size:]
	}
	return strings.Join(all, " ")
}

// below makes something in /data and mounts a file system over it.
func below(make maker) maker {
	return func(string) (func(), error) {
		u, err := make("")
		if err != nil {
			return u, err
		}
		over, err := mounted("tmpfs", "/data", "")("")
		return func() { over(); u() }, err
	}
}

// overTmpfs does the same on a file system that was itself mounted inside the container.
func overTmpfs(string) (func(), error) {
	u, err := mounted("tmpfs", "/data", "")("")
	if err != nil {
		return u, err
	}
	over, err := below(opened("/data/file", unix.O_RDWR|unix.O_CREAT))("")
	return func() { over(); u() }, err
}

func boundSocket(string) (func(), error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	return func() { _, _ = unix.Close(fd), os.Remove("/data/bound") },
		errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: "/data/bound"}), unix.Listen(fd, 1))
}

func mappedFile(string) (func(), error) {
	fd, err := unix.Open("/data/file", unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	m, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	return func() { _ = unix.Munmap(m) }, err
}

func inDirectory(string) (func(), error) { return func() { _ = os.Chdir("/") }, os.Chdir("/data") }

// sysctl sets a setting of a namespace, such as "kernel/sem 1 2 3 4", through a writable /proc of its own.
func sysctl(setting string) (func(), error) {
	name, value, _ := strings.Cut(setting, " ")
	u, err := mounted("proc", "/data", "")("")
	if err != nil {
		return u, err
	}
	defer u()
	return func() {}, os.WriteFile(path.Join("/data/sys", name), []byte(value), 0)
}

// setting reads a setting.
func setting(name string) string {
	value, err := os.ReadFile(path.Join("/proc/sys", name))
	if err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(string(value)), " ")
}

// sparseDeleted makes a deleted file with few blocks that is larger than a deleted file without holes may
// be.
func sparseDeleted(string) (func(), error) {
	fd, err := unix.Open("/data/sparse", unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = unix.Pwrite(fd, []byte("x"), 3<<30)
	return holding(fd), errors.Join(err, os.Remove("/data/sparse"))
}
