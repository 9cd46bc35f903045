package criu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/kernel"
)

// repairOffNoProbe is TCP_REPAIR_OFF_NO_WP of include/uapi/linux/tcp.h (Linux 4.19): leave repair mode without sending
// a window probe, so that the peer notices nothing.
const repairOffNoProbe = -1

// Unrepair takes every TCP socket of the given processes that a dump left in repair mode out of it, so that it works
// again when the processes are thawed, and returns how many there were. Call it while they are frozen. Processes that
// are gone are left out.
func Unrepair(pids []int) (int, error) {
	total := 0
	var failed []error
	for _, pid := range pids {
		n, err := unrepairProcess(pid)
		total += n
		if err != nil && !isGone(err) {
			failed = append(failed, fmt.Errorf("take sockets of process %d out of repair mode: %w", pid, err))
		}
	}
	return total, errors.Join(failed...)
}

func unrepairProcess(pid int) (int, error) {
	fds, err := descriptors(pid)
	if err != nil {
		return 0, err
	}
	pidfd, err := kernel.PidfdOpen(pid)
	if err != nil {
		return 0, err
	}
	defer pidfd.Close()
	n := 0
	for _, d := range fds {
		if !strings.HasPrefix(d.target, "socket:[") {
			continue
		}
		was, err := unrepairSocket(pidfd, d.fd)
		if err != nil && !errors.Is(err, unix.EBADF) { // closed meanwhile
			return n, fmt.Errorf("descriptor %d: %w", d.fd, err)
		}
		if was {
			n++
		}
	}
	return n, nil
}

// unrepairSocket tells whether the socket was in repair mode.
func unrepairSocket(pidfd *os.File, fd int) (bool, error) {
	sk, err := kernel.PidfdGetfd(pidfd, fd)
	if err != nil {
		return false, err
	}
	defer unix.Close(sk)
	protocol, err := unix.GetsockoptInt(sk, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_TCP {
		return false, nil // not a socket of the internet family, or another protocol
	}
	mode, err := unix.GetsockoptInt(sk, unix.IPPROTO_TCP, unix.TCP_REPAIR)
	if err != nil || mode == 0 {
		return false, err
	}
	return true, unix.SetsockoptInt(sk, unix.IPPROTO_TCP, unix.TCP_REPAIR, repairOffNoProbe)
}

// descriptor is one entry of /proc/PID/fd.
type descriptor struct {
	fd     int
	target string
}

func descriptors(pid int) ([]descriptor, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []descriptor
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err == nil { // else it was closed meanwhile
			all = append(all, descriptor{fd, target})
		}
	}
	return all, nil
}

// isGone tells that an error means that a process ended.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// linkRemap is how CRIU calls the names that it gives to deleted but open files (criu/files-reg.c).
var linkRemap = regexp.MustCompile(`^link_remap\.\d+$`)

// RemoveLinkRemaps removes the names that a dump gave to deleted but open files of the given processes, and returns
// how many there were. A file that merely is called so is left alone.
func RemoveLinkRemaps(pids []int) (int, error) {
	total := 0
	var failed []error
	for _, pid := range pids {
		for _, dir := range []string{"fd", "map_files"} {
			n, err := removeLinkRemaps(pid, fmt.Sprintf("/proc/%d/%s", pid, dir))
			total += n
			if err != nil && !isGone(err) {
				failed = append(failed, fmt.Errorf("remove what a dump left for process %d: %w", pid, err))
			}
		}
	}
	return total, errors.Join(failed...)
}

// removeLinkRemaps looks at the files behind the links of a directory of /proc. A link's text is the path in the
// process's mount namespace.
func removeLinkRemaps(pid int, dir string) (int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, e := range entries {
		link := filepath.Join(dir, e.Name())
		target, err := os.Readlink(link)
		name, deleted := strings.CutSuffix(target, " (deleted)")
		if err != nil || !deleted || !filepath.IsAbs(name) {
			continue
		}
		file, err := os.Stat(link)
		if err != nil {
			continue
		}
		n, err := removeNamesOf(file, pid, filepath.Dir(name))
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// removeNamesOf removes the link_remap names of a file from a directory of the container. The directory is reached
// through a root that no symbolic link leaves.
func removeNamesOf(file fs.FileInfo, pid int, dir string) (int, error) {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return 0, err
	}
	defer root.Close()
	rel := strings.TrimPrefix(dir, "/")
	if rel == "" {
		rel = "."
	}
	// What is there now need not be what was: a fifo must not be waited for.
	d, err := root.OpenFile(rel, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return 0, nil // the directory is deleted, too, or on a mount that is not seen from here: CRIU made no name there
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, name := range names {
		if !linkRemap.MatchString(name) {
			continue
		}
		path := filepath.Join(rel, name)
		if info, err := root.Lstat(path); err != nil || !os.SameFile(info, file) {
			continue
		}
		if err := root.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return total, err
		}
		total++
	}
	return total, nil
}
