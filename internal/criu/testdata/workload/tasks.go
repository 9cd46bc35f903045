package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// start starts a child that sleeps.
func start(flags uintptr, arguments ...string) (*exec.Cmd, func(), error) {
	c := exec.Command("/bin/workload", append([]string{"sleep"}, arguments...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
	if flags&unix.CLONE_NEWUSER != 0 {
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{Size: 1}}
	}
	if err := c.Start(); err != nil {
		return nil, nil, err
	}
	return c, func() { _ = c.Process.Kill(); _ = c.Wait() }, nil
}

func child(flags uintptr) maker {
	return func(string) (func(), error) {
		_, end, err := start(flags)
		return end, err
	}
}

func program(path string) maker {
	return func(string) (func(), error) {
		c := exec.Command(path, "sleep")
		if err := c.Start(); err != nil {
			return nil, err
		}
		time.Sleep(50 * time.Millisecond)
		return func() { _ = c.Process.Kill(); _ = c.Wait() }, nil
	}
}

func chrooted(string) (func(), error) {
	c := exec.Command("/bin/workload", "sleep")
	c.SysProcAttr = &syscall.SysProcAttr{Chroot: "/", Setsid: true}
	err := c.Start()
	return func() { _ = c.Process.Kill(); _ = c.Wait() }, err
}

// traced starts a child and traces it, from a thread that stays.
func traced(string) (func(), error) {
	c, end, err := start(0)
	if err != nil {
		return nil, err
	}
	done, result := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread()
		result <- unix.PtraceSeize(c.Process.Pid)
		<-done
	}()
	return func() { close(done); end() }, <-result
}

func zombie(string) (func(), error) {
	c := exec.Command("/bin/workload", "exit")
	err := c.Start()
	time.Sleep(20 * time.Millisecond)
	return func() { _ = c.Wait() }, err
}

func stoppedChild(string) (func(), error) {
	c, end, err := start(0)
	if err != nil {
		return nil, err
	}
	return end, c.Process.Signal(unix.SIGSTOP)
}

// deadLeader starts a child whose first thread ends while other threads live.
func deadLeader(string) (func(), error) {
	c := exec.Command("/bin/workload", "dead-leader")
	err := c.Start()
	time.Sleep(50 * time.Millisecond)
	return func() { _ = c.Process.Kill(); _ = c.Wait() }, err
}

func inCgroup(dir string) (func(), error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	c, end, err := start(0)
	if err != nil {
		return nil, err
	}
	err = os.WriteFile(dir+"/cgroup.procs", fmt.Append(nil, c.Process.Pid), 0)
	return func() { end(); _ = os.Remove(dir) }, err
}

func mounted(source, target, kind string) maker {
	return func(string) (func(), error) {
		flags := uintptr(0)
		if kind == "bind" {
			flags = unix.MS_BIND
		}
		err := unix.Mount(source, target, source, flags, "")
		return func() { _ = unix.Unmount(target, unix.MNT_DETACH) }, err
	}
}

func overlay(string) (func(), error) {
	err := errors.Join(os.MkdirAll("/dev/shm/u", 0o755), os.MkdirAll("/dev/shm/w", 0o755))
	if err == nil {
		err = unix.Mount("overlay", "/data", "overlay", 0, "lowerdir=/tmp,upperdir=/dev/shm/u,workdir=/dev/shm/w")
	}
	return func() { _ = unix.Unmount("/data", unix.MNT_DETACH) }, err
}

func fuse(string) (func(), error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Mount("x", "/data", "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd))
	return func() { _ = unix.Unmount("/data", unix.MNT_DETACH); _ = unix.Close(fd) }, err
}

// seccompListener installs a filter that allows everything and keeps its listener.
func seccompListener(string) (func(), error) {
	type result struct {
		fd    int
		errno unix.Errno
	}
	got, done := make(chan result), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		filter := []unix.SockFilter{{Code: unix.BPF_RET, K: unix.SECCOMP_RET_ALLOW}}
		prog := unix.SockFprog{Len: 1, Filter: &filter[0]}
		fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
		got <- result{int(fd), errno}
		<-done
	}()
	r := <-got
	if r.errno != 0 {
		return nil, r.errno
	}
	return func() { close(done); _ = unix.Close(r.fd) }, nil
}

func inFlight(string) (func(), error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Open("/data/file", unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Sendmsg(p[0], []byte("x"), unix.UnixRights(fd), nil, 0)
	_ = unix.Close(fd)
	return holding(p[0], p[1]), err
}
