package criu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu/descriptors"
)

// repairOffNoProbe is TCP_REPAIR_OFF_NO_WP of include/uapi/linux/tcp.h (Linux 4.19): leave repair
// mode without sending a window probe, so that the peer notices nothing.
const repairOffNoProbe = -1

// Unrepair takes all TCP sockets of the given processes out of repair mode, in which a dump may have left
// them, so that they work when the processes are thawed. It returns how many there were. Call it while the
// processes are frozen. It ignores processes that are gone.
func Unrepair(pids []int) (int, error) {
	n, err := descriptors.EachTCP(pids, unrepairSocket)
	if err != nil {
		return n, fmt.Errorf("take sockets out of repair mode: %w", err)
	}
	return n, nil
}

// unrepairSocket reports whether the socket was in repair mode.
func unrepairSocket(sk int) (bool, error) {
	mode, err := unix.GetsockoptInt(sk, unix.IPPROTO_TCP, unix.TCP_REPAIR)
	if err != nil || mode == 0 {
		return false, err
	}
	return true, unix.SetsockoptInt(sk, unix.IPPROTO_TCP, unix.TCP_REPAIR, repairOffNoProbe)
}

// linkRemap matches the names that CRIU gives to deleted but open files (criu/files-reg.c).
var linkRemap = regexp.MustCompile(`^link_remap\.\d+$`)

// RemoveLinkRemaps removes the names that a dump gave to deleted but open files of the given processes, and
// returns how many there were. It leaves other files with such names alone.
func RemoveLinkRemaps(pids []int) (int, error) {
	total := 0
	var failed []error
	for _, pid := range pids {
		for _, dir := range []string{"fd", "map_files"} {
			n, err := removeLinkRemaps(pid, fmt.Sprintf("/proc/%d/%s", pid, dir))
			total += n
			if err != nil && !descriptors.IsGone(err) {
				failed = append(failed, fmt.Errorf("remove what a dump left for process %d: %w", pid, err))
			}
		}
	}
	return total, errors.Join(failed...)
}

// removeLinkRemaps examines the files behind the links of a directory in /proc. A link's text is the path
// in the process's mount namespace.
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

// removeNamesOf removes the link_remap names of a file from a directory of the container. It reaches the
// directory through a root that no symbolic link can leave.
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
	// The path may lead to something else now: opening a FIFO must not block.
	d, err := root.OpenFile(rel, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		// the directory is deleted, too, or on a mount that is not visible from here: CRIU made no name
		// there
		return 0, nil
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
