package descriptors

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// DeletedMark is what /proc appends to the path of a file that has no name any more.
const DeletedMark = " (deleted)"

// Descriptor is one entry of /proc/PID/fd.
type Descriptor struct {
	FD     int
	Target string
}

// List returns the open descriptors of a process.
func List(pid int) ([]Descriptor, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []Descriptor
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err == nil { // otherwise it was closed meanwhile
			all = append(all, Descriptor{fd, target})
		}
	}
	return all, nil
}

// StillOpen reports whether the descriptor leads to the same file as when it was listed; the file may have
// been removed since. If not, a finding may mix two files.
func (d Descriptor) StillOpen(pid int) bool {
	target, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, d.FD))
	return err == nil && strings.TrimSuffix(target, DeletedMark) == strings.TrimSuffix(d.Target, DeletedMark)
}

// IsGone reports whether reading /proc failed because the process has ended or closed its descriptor.
func IsGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// EachTCP calls do for the TCP sockets of processes, with descriptors that are closed afterwards, and
// counts those for which do returns true. It ignores processes that are gone.
func EachTCP(pids []int, do func(sk int) (bool, error)) (int, error) {
	total := 0
	var failed []error
	for _, pid := range pids {
		n, err := eachTCPOf(pid, do)
		total += n
		if err != nil && !IsGone(err) {
			failed = append(failed, fmt.Errorf("process %d: %w", pid, err))
		}
	}
	return total, errors.Join(failed...)
}

func eachTCPOf(pid int, do func(sk int) (bool, error)) (int, error) {
	fds, err := List(pid)
	if err != nil {
		return 0, err
	}
	pidfd, err := kernel.PidfdOpen(pid)
	if err != nil {
		return 0, err
	}
	defer pidfd.Close()
	total := 0
	for _, d := range fds {
		if !strings.HasPrefix(d.Target, "socket:[") {
			continue
		}
		yes, err := withTCP(pidfd, d.FD, do)
		if err != nil && !errors.Is(err, unix.EBADF) { // closed meanwhile
			return total, fmt.Errorf("descriptor %d: %w", d.FD, err)
		}
		if yes {
			total++
		}
	}
	return total, nil
}

func withTCP(pidfd *os.File, fd int, do func(sk int) (bool, error)) (bool, error) {
	sk, err := kernel.PidfdGetfd(pidfd, fd)
	if err != nil {
		return false, err
	}
	defer unix.Close(sk)
	protocol, err := unix.GetsockoptInt(sk, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_TCP {
		return false, nil // not a socket of the internet family, or another protocol
	}
	return do(sk)
}
