package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Memory that processes share without a file is nevertheless a file, in a file system that is mounted
// nowhere: shared anonymous mappings, segments of System V and memfd_create(2) have their inodes there.
const (
	anonymousShared = "/dev/zero (deleted)"
	memfdPrefix     = "/memfd:"
	deletedSuffix   = " (deleted)"
)

// SharedDevice returns the device number of memory that processes share without a file, and the number of
// its mount.
func SharedDevice() (device, mount uint64, err error) {
	fd, err := unix.MemfdCreate("godwit-probe", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, 0, fmt.Errorf("find the device of shared memory: %w", err)
	}
	defer unix.Close(fd)
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		return 0, 0, fmt.Errorf("find the device of shared memory: %w", err)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, 0, fmt.Errorf("find the mount of shared memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			mount, err = strconv.ParseUint(strings.TrimSpace(value), 10, 32)
			return info.Dev, mount, err
		}
	}
	return 0, 0, errors.New("find the mount of shared memory: the kernel does not tell")
}

// SharedName reports, from the target of a link in /proc/PID/map_files or /proc/PID/fd, whether the target
// is a shared anonymous mapping or a memfd, and its name.
func SharedName(target string) (name string, anonymous, memfd bool) {
	if target == anonymousShared {
		return "", true, false
	}
	name, memfd = strings.CutPrefix(target, memfdPrefix)
	return strings.TrimSuffix(name, deletedSuffix), false, memfd
}

// OpenMapped opens the file of a mapping for reading. Error: fs.ErrNotExist when the mapping no longer
// exists.
func (a *AddressSpace) OpenMapped(m Mapping) (*os.File, error) {
	return a.open(fmt.Sprintf("map_files/%x-%x", m.Start, m.End))
}

// OpenDescriptor opens the file behind a descriptor of the process again, for reading. Error:
// fs.ErrNotExist when the descriptor is closed or does not refer to a file. The process may have put
// anything in its place meanwhile: opening a FIFO would wait for a writer, and opening a device would do
// whatever the device does.
func (a *AddressSpace) OpenDescriptor(fd string) (*os.File, error) {
	path, err := unix.Openat(int(a.proc.Fd()), "fd/"+fd, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, a.failed("look at its descriptor "+fd, err)
	}
	defer unix.Close(path)
	var info unix.Stat_t
	if err := unix.Fstat(path, &info); err != nil {
		return nil, a.failed("look at its descriptor "+fd, err)
	}
	if info.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, a.failed("open its descriptor "+fd, fs.ErrNotExist)
	}
	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", path), os.O_RDONLY, 0)
	if err != nil {
		return nil, a.failed("open its descriptor "+fd, err)
	}
	return file, nil
}

// Memfds lists the process's descriptors of memfds, one for each inode on the given device. An ended
// process has none.
func (a *AddressSpace) Memfds(device uint64) (map[uint64]string, error) {
	dir, err := a.open("fd")
	if err != nil {
		return nil, ignoreNotExist(err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, ignoreNotExist(a.failed("list its descriptors", err))
	}
	var found map[uint64]string
	target := make([]byte, len(memfdPrefix))
	for _, name := range names {
		n, err := unix.Readlinkat(int(dir.Fd()), name, target)
		if err != nil || string(target[:n]) != memfdPrefix {
			continue // another kind, or closed meanwhile
		}
		var info unix.Stat_t
		if err := unix.Fstatat(int(dir.Fd()), name, &info, 0); err != nil || info.Dev != device {
			continue // as above, or of huge pages
		}
		if found == nil {
			found = map[uint64]string{}
		}
		found[info.Ino] = name
	}
	return found, nil
}

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// DataRange is a part of a file.
type DataRange struct{ Start, End uint64 }

// DataRanges lists the parts of a file in memory that are not holes, in order.
func DataRanges(file *os.File) ([]DataRange, error) {
	var all []DataRange
	for at := int64(0); ; {
		start, err := unix.Seek(int(file.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("look for data in %s: %w", file.Name(), err)
		}
		end, err := unix.Seek(int(file.Fd()), start, unix.SEEK_HOLE)
		if errors.Is(err, unix.ENXIO) {
			return all, nil // the file has been truncated
		}
		if err != nil {
			return nil, fmt.Errorf("look for the end of data in %s: %w", file.Name(), err)
		}
		all = append(all, DataRange{Start: uint64(start), End: uint64(end)})
		at = end
	}
}

// ReadFaults counts the page faults of all threads of a process since its start. Error: fs.ErrNotExist when
// the process is gone.
func ReadFaults(pid int) (uint64, error) {
	stat, err := ReadProc(pid, "stat")
	if err != nil {
		return 0, fmt.Errorf("count the page faults of process %d: %w", pid, err)
	}
	return parseFaults(stat)
}

// parseFaults reads fields 10 and 12 of /proc/PID/stat (proc_pid_stat(5)).
func parseFaults(stat string) (uint64, error) {
	const minor, major = 7, 9 // after the name, which may contain anything
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= major {
		return 0, fmt.Errorf("count page faults: stat has only %d fields", len(fields)+2)
	}
	small, err1 := strconv.ParseUint(fields[minor], 10, 64)
	large, err2 := strconv.ParseUint(fields[major], 10, 64)
	return small + large, errors.Join(err1, err2)
}
