package inject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// epollWatch is a descriptor that an epoll instance watches.
type epollWatch struct {
	epoll, fd int
	events    uint32
	data      uint64
}

// event returns the watch as struct epoll_event, whose data is its last eight bytes on every architecture.
func (w epollWatch) event() []byte {
	event := make([]byte, unsafe.Sizeof(unix.EpollEvent{}))
	binary.NativeEndian.PutUint32(event, w.events)
	binary.NativeEndian.PutUint64(event[len(event)-8:], w.data)
	return event
}

// checkWatches returns an error if a socket has watches that cannot be moved to another one.
func checkWatches(pid int, inode uint64) error {
	fds, err := socketDescriptors(pid, inode)
	if err == nil {
		_, err = epollWatches(pid, fds, inode)
	}
	return err
}

// epollWatches lists how the epoll instances of a process watch a socket, whose descriptors are all in fds.
// A watch outlives its descriptor if that was a duplicate that was closed (epoll(7)). Then nobody can
// remove the watch or recreate it for another socket, and epollWatches returns an error.
func epollWatches(pid int, fds []int, inode uint64) ([]epollWatch, error) {
	instances, err := descriptorsOf(pid, "anon_inode:[eventpoll]")
	if err != nil {
		return nil, err
	}
	var all []epollWatch
	for _, epoll := range instances {
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, epoll))
		if errors.Is(err, fs.ErrNotExist) { // closed meanwhile
			continue
		} else if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(info)) {
			w, file, ok := parseEpollWatch(line)
			if !ok || file != inode {
				continue
			}
			if !slices.Contains(fds, w.fd) {
				return nil, fmt.Errorf("epoll instance %d watches it under descriptor %d, which is closed: "+
					"remove a watch (EPOLL_CTL_DEL) before closing the descriptor", epoll, w.fd)
			}
			w.epoll = epoll
			all = append(all, w)
		}
	}
	return all, nil
}

// socketDescriptors lists the descriptors that a process has of a socket.
func socketDescriptors(pid int, inode uint64) ([]int, error) {
	return descriptorsOf(pid, socketLink(inode))
}

// socketLink is the link in /proc of a descriptor of a socket (proc_pid_fd(5)).
func socketLink(inode uint64) string { return fmt.Sprintf("socket:[%d]", inode) }

// descriptorsOf lists the descriptors of a process whose link in /proc has this text.
func descriptorsOf(pid int, target string) ([]int, error) {
	found, _, err := descriptorsUpTo(math.MaxInt-1, pid, target)
	return found, err
}

var errManyDescriptors = errors.New("too many descriptors")

// descriptorsUpTo is descriptorsOf for a process with at most that many descriptors. It also counts them.
func descriptorsUpTo(most, pid int, target string) (found []int, all int, err error) {
	dir, err := os.Open(fmt.Sprintf("/proc/%d/fd/", pid))
	if err != nil {
		return nil, 0, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(most + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, err
	}
	if len(names) > most {
		return nil, 0, errManyDescriptors
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if is, e := os.Readlink(dir.Name() + name); err == nil && e == nil && is == target {
			found = append(found, fd)
		}
	}
	slices.Sort(found)
	return found, len(names), nil
}

// parseEpollWatch parses a line such as "tfd: 5 events: 19 data: 74253d2500000009 pos:0 ino:61af sdev:7"
// (proc_pid_fdinfo(5)). It ignores other lines.
func parseEpollWatch(line string) (w epollWatch, inode uint64, ok bool) {
	rest, ok := strings.CutPrefix(line, "tfd:")
	if !ok {
		return w, 0, false
	}
	var position string
	const form = "%d events: %x data: %x pos:%s ino:%x"
	_, err := fmt.Sscanf(rest, form, &w.fd, &w.events, &w.data, &position, &inode)
	return w, inode, err == nil
}

// descriptorFlags returns the flags of a descriptor and of its file, as open(2) has them
// (proc_pid_fdinfo(5)).
func descriptorFlags(pid, fd int) (int, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if text, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseInt(strings.TrimSpace(text), 8, 64)
			return int(flags), err
		}
	}
	return 0, fmt.Errorf("descriptor %d of process %d has no flags", fd, pid)
}
