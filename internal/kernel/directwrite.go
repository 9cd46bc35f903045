package kernel

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OpenFile is a file that a process has open.
type OpenFile struct {
	Inode uint64
	Path  string // as in the process's mount namespace; " (deleted)" follows if the file is deleted
}

// DirectWrites lists the regular files that the process has open for writing with O_DIRECT. Data may reach
// the disk long after the call that has updated a file's times: only the process that began a transfer
// waits for it.
func (a *AddressSpace) DirectWrites() ([]OpenFile, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/self/fd/%d/fdinfo", a.proc.Fd()))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, nil // it has ended
	}
	if err != nil {
		return nil, a.failed("list its descriptors", err)
	}
	var found []OpenFile
	for _, e := range entries {
		direct, err := a.writesDirectly(e.Name())
		if err == nil && direct {
			var file OpenFile
			if file, err = a.openFile(e.Name()); err == nil && file.Inode != 0 {
				found = append(found, file)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // closed meanwhile
			return nil, err
		}
	}
	return found, nil
}

// writesDirectly checks a descriptor's flags (proc_pid_fdinfo(5)).
func (a *AddressSpace) writesDirectly(fd string) (bool, error) {
	f, err := a.open("fdinfo/" + fd)
	if err != nil {
		return false, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		value, ok := strings.CutPrefix(lines.Text(), "flags:")
		if !ok {
			continue
		}
		flags, err := strconv.ParseUint(strings.TrimSpace(value), 8, 32)
		if err != nil {
			return false, a.failed("read the flags of descriptor "+fd, err)
		}
		return flags&unix.O_DIRECT != 0 && flags&unix.O_ACCMODE != unix.O_RDONLY &&
			flags&unix.O_PATH != unix.O_PATH, nil
	}
	return false, a.failed("read descriptor "+fd, errors.Join(fs.ErrNotExist, lines.Err()))
}

// openFile returns the file of a descriptor, or none if it is not a regular file.
func (a *AddressSpace) openFile(fd string) (OpenFile, error) {
	var stat unix.Stat_t
	if err := unix.Fstatat(int(a.proc.Fd()), "fd/"+fd, &stat, 0); err != nil {
		return OpenFile{}, a.failed("look at descriptor "+fd, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return OpenFile{}, nil // O_DIRECT means something else for a pipe (pipe(2))
	}
	path := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(a.proc.Fd()), "fd/"+fd, path)
	if err != nil {
		return OpenFile{}, a.failed("look at descriptor "+fd, err)
	}
	return OpenFile{Inode: stat.Ino, Path: string(path[:n])}, nil
}
