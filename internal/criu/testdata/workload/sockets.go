package main

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

func unixPair(kind int) maker {
	return func(string) (func(), error) {
		p, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
		return holding(p[0], p[1]), err
	}
}

func unixListen(string) (func(), error) {
	fd, err := listening("/tmp/sock")
	return holding(fd), err
}

// listening makes a socket that listens at a path.
func listening(path string) (fd int, err error) {
	_ = os.Remove(path)
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0); err != nil {
		return -1, err
	}
	return fd, errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 1))
}

func unixConnect(kind int) maker {
	return func(name string) (func(), error) {
		fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
		if err != nil {
			return nil, err
		}
		return holding(fd), unix.Connect(fd, &unix.SockaddrUnix{Name: name})
	}
}

func tcpListen(string) (func(), error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	return holding(fd), unix.Listen(fd, 1)
}

// mptcpClosedWatch makes a listener that an epoll instance watches through a closed duplicate.
func mptcpClosedWatch(string) (func(), error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 262)
	if err != nil {
		return nil, err
	}
	instance, err := unix.EpollCreate1(0)
	if err != nil {
		return nil, err
	}
	duplicate, err := unix.Dup(fd)
	if err != nil {
		return nil, err
	}
	watch := unix.EpollCtl(instance, unix.EPOLL_CTL_ADD, duplicate, &unix.EpollEvent{Events: unix.EPOLLIN})
	return holding(fd, instance), errors.Join(unix.Listen(fd, 1), watch, unix.Close(duplicate))
}

// tcpConnecting connects to an address that does not answer.
func tcpConnecting(address string) (func(), error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	to := unix.SockaddrInet4{Port: 9}
	copy(to.Addr[:], net.ParseIP(address).To4())
	if err := unix.Connect(fd, &to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return nil, err
	}
	return holding(fd), nil
}
