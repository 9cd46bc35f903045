package examine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/godwit/godwit/internal/criu/descriptors"
	"github.com/godwit/godwit/internal/kernel"
)

// checkDescriptors finds open files that cannot be dumped.
func (x *examination) checkDescriptors(t *task) ([]finding, error) {
	pidfd, err := kernel.PidfdOpen(t.PID)
	if err != nil {
		return nil, err
	}
	defer pidfd.Close()
	var found []finding
	for _, d := range t.fds {
		bad, err := x.checkDescriptor(t, pidfd, d)
		if err != nil {
			if descriptors.IsGone(err) || errors.Is(err, unix.EBADF) || errors.Is(err, unix.ENOTSOCK) {
				continue // closed meanwhile, and perhaps reopened as something else, or the process ended
			}
			return found, fmt.Errorf("descriptor %d: %w", d.FD, err)
		}
		if bad.what != "" && d.StillOpen(t.PID) {
			bad.fd = d.FD
			found = append(found, bad)
		}
	}
	return found, nil
}

// checkDescriptor classifies a descriptor by the text of its link in /proc (proc_pid_fd(5)). The zero
// finding means that there is no problem.
func (x *examination) checkDescriptor(t *task, pidfd *os.File, d descriptors.Descriptor) (finding, error) {
	switch {
	case strings.HasPrefix(d.Target, "anon_inode:"):
		return x.checkAnonymous(t, d)
	case strings.HasPrefix(d.Target, "socket:"):
		return x.checkSocket(t, pidfd, d)
	case isPipe(d.Target):
		return x.checkPipe(t, d)
	case strings.HasPrefix(d.Target, "/secretmem"):
		return finding{what: "secret memory (memfd_secret)", why: "CRIU cannot dump it",
			remedy: "turn secret memory off in the application"}, nil
	case strings.HasPrefix(d.Target, "/"):
		return x.checkFile(t, d)
	case namespaceLink(d.Target):
		return finding{}, nil
	default:
		return finding{what: d.Target, why: "CRIU does not know this kind of open file",
			remedy: "close it"}, nil
	}
}

// namespaceLink reports whether a link is an open namespace, such as "net:[4026531840]".
func namespaceLink(target string) bool {
	kind, _, ok := strings.Cut(target, ":[")
	return ok && slices.Contains([]string{"net", "mnt", "pid", "pid_for_children", "user", "ipc", "uts",
		"cgroup", "time", "time_for_children"}, kind)
}

// anonymousKind returns the kind of an anonymous inode: io_uring for anon_inode:[io_uring].
func anonymousKind(target string) string {
	return strings.Trim(strings.TrimPrefix(target, "anon_inode:"), "[]")
}

// checkAnonymous refuses anonymous inodes that CRIU does not dump.
func (x *examination) checkAnonymous(t *task, d descriptors.Descriptor) (finding, error) {
	remedy := "close it or turn the feature off in the application"
	switch kind := anonymousKind(d.Target); kind {
	case "eventpoll", "signalfd", "timerfd":
		return finding{}, nil
	case "inotify", "fanotify":
		return x.checkWatches(t, d)
	case "eventfd":
		info, err := readFdinfo(t.PID, d.FD)
		if err != nil {
			return finding{}, err
		}
		return checkEventfd(info), nil
	case "pidfd":
		return x.checkPidfd(t, d)
	case "bpf-prog", "bpf-map":
		return finding{what: kind, why: "CRIU cannot move BPF programs and maps",
			remedy: "turn the feature off in the application; systemd makes them for IPAddressDeny= and " +
				"IPAddressAllow= of services"}, nil
	case "io_uring":
		return finding{what: kind, why: "CRIU cannot dump io_uring instances",
			remedy: "turn io_uring off in the application, for example by a seccomp profile"}, nil
	default:
		return finding{what: kind, why: "CRIU does not know this kind of open file", remedy: remedy}, nil
	}
}

// checkPidfd allows pidfds of the container's own processes.
func (x *examination) checkPidfd(t *task, d descriptors.Descriptor) (finding, error) {
	info, err := readFdinfo(t.PID, d.FD)
	if err != nil {
		return finding{}, err
	}
	if info.flags&unix.PIDFD_THREAD != 0 {
		return finding{what: "pidfd of a thread",
			why: "CRIU cannot dump pidfds that were opened with PIDFD_THREAD", remedy: "close it"}, nil
	}
	pid, err := strconv.Atoi(info.values["Pid"])
	if err == nil && pid > 0 && !slices.Contains(x.subject.PIDs, pid) && !isZombie(pid) {
		return finding{what: fmt.Sprintf("pidfd of process %d outside of the container", pid),
			why: "that process does not move", remedy: "close it"}, nil
	}
	return finding{}, nil // a pidfd of an ended process can be dumped
}

// isZombie reports whether a process has ended and was not waited for: then it is in no list of a cgroup's
// processes.
func isZombie(pid int) bool {
	p, err := kernel.ReadProcess(pid)
	return err == nil && p.State == 'Z'
}

// fdinfo is the contents of /proc/PID/fdinfo/FD.
type fdinfo struct {
	flags  int
	values map[string]string
	locks  []string
}

func readFdinfo(pid, fd int) (fdinfo, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
	if err != nil {
		return fdinfo{}, err
	}
	i := fdinfo{values: map[string]string{}}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(line, ":")
		i.values[key] = strings.TrimSpace(value)
		if key == "lock" {
			i.locks = append(i.locks, i.values[key])
		}
	}
	flags, err := strconv.ParseInt(i.values["flags"], 8, 64)
	if err != nil {
		return fdinfo{}, fmt.Errorf("flags of descriptor %d: %w", fd, err)
	}
	i.flags = int(flags)
	return i, nil
}

// Magic numbers of statfs(2), include/uapi/linux/magic.h.
const (
	hugetlbMagic = 0x958458f6
	mqueueMagic  = 0x19800202
)

// checkFile checks a file that has a path.
func (x *examination) checkFile(t *task, d descriptors.Descriptor) (finding, error) {
	link := fmt.Sprintf("/proc/%d/fd/%d", t.PID, d.FD)
	info, err := os.Stat(link)
	if err != nil {
		return finding{}, err
	}
	if info.Mode()&fs.ModeDevice != 0 {
		return checkDevice(d, info), nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(link, &st); err != nil {
		return finding{}, err
	}
	switch {
	case uint32(st.Type) == hugetlbMagic:
		return finding{what: "file in huge pages: " + d.Target,
			why:    "CRIU cannot dump open files of hugetlbfs",
			remedy: "turn huge pages off in the application"}, nil
	case uint32(st.Type) == mqueueMagic:
		return finding{what: "POSIX message queue " + d.Target, why: "CRIU cannot dump message queues",
			remedy: "close and remove the queue"}, nil
	case strings.HasPrefix(d.Target, "/memfd:"):
		return finding{}, nil
	case isLargeGhost(info.Sys().(*syscall.Stat_t)):
		return finding{what: fmt.Sprintf("deleted file with %d bytes on disk: %s",
			info.Sys().(*syscall.Stat_t).Blocks*512, d.Target),
			why: fmt.Sprintf("a deleted but open file travels with the memory, up to %d bytes",
				DefaultGhostLimit),
			remedy: "close it, or do not delete it"}, nil
	}
	more, err := readFdinfo(t.PID, d.FD)
	if err != nil {
		return finding{}, err
	}
	mount, inside := x.mounts[more.values["mnt_id"]]
	if !inside {
		return finding{what: "file from outside of the container: " + d.Target,
			why: "it is on no mount of the container, so the target cannot open it",
			remedy: "give it to the container as a volume; standard input and output may be pipes, " +
				"terminals or /dev/null"}, nil
	}
	if bad := x.covered(mount, asFile, d.Target); bad.what != "" {
		return bad, nil
	}
	return checkLease(d, more), nil
}

// isLargeGhost reports whether a file without a name uses more disk space than CRIU may put into the
// images. Holes do not count (criu/files-reg.c of 4.2, dump_ghost_remap).
func isLargeGhost(stat *syscall.Stat_t) bool {
	return stat.Nlink == 0 && stat.Blocks*512 > DefaultGhostLimit
}

// checkDevice allows devices without state: memory devices (null, zero, full, random, urandom, kmsg),
// terminals (tty, ptmx, pts), tun. Numbers: Documentation/admin-guide/devices.txt.
func checkDevice(d descriptors.Descriptor, info fs.FileInfo) finding {
	number := uint64(info.Sys().(*syscall.Stat_t).Rdev)
	major, minor := unix.Major(number), unix.Minor(number)
	if info.Mode()&fs.ModeCharDevice != 0 {
		switch {
		case major == 1 && slices.Contains([]uint32{3, 5, 7, 8, 9, 11}, minor),
			major == 5 && minor <= 2,
			major >= 136 && major <= 143,
			major == 10 && minor == 200:
			return finding{}
		}
	}
	kind := "block"
	if info.Mode()&fs.ModeCharDevice != 0 {
		kind = "character"
	}
	return finding{what: fmt.Sprintf("%s device %d:%d (%s)", kind, major, minor, d.Target),
		why:    "the state of a device cannot be moved",
		remedy: "run the container without the device"}
}

// How a process holds a pipe.
const (
	readEnd = 1 << iota
	writeEnd
)

func isPipe(target string) bool { return strings.HasPrefix(target, "pipe:[") }

// endOf returns which ends of a pipe a descriptor is.
func endOf(pid, fd int) int {
	info, err := readFdinfo(pid, fd)
	if err != nil {
		return 0 // closed meanwhile
	}
	switch info.flags & unix.O_ACCMODE {
	case unix.O_RDONLY:
		return readEnd
	case unix.O_WRONLY:
		return writeEnd
	default:
		return readEnd | writeEnd
	}
}

// checkPipe finds pipes in packet mode and pipes whose other end is held outside of the container.
func (x *examination) checkPipe(t *task, d descriptors.Descriptor) (finding, error) {
	info, err := readFdinfo(t.PID, d.FD)
	if err != nil {
		return finding{}, err
	}
	if info.flags&unix.O_DIRECT != 0 {
		return finding{what: "pipe in packet mode",
			why:    "CRIU cannot dump pipes that were opened with O_DIRECT",
			remedy: "open the pipe without O_DIRECT"}, nil
	}
	if x.ends[d.Target] == readEnd|writeEnd || slices.Contains(x.subject.Stdio, d.Target) {
		return finding{}, nil
	}
	if holder := x.outsider(d.Target); holder != 0 {
		return finding{what: fmt.Sprintf("%s, whose other end is held by process %d outside of the container",
			d.Target, holder),
			why:    "that process does not move",
			remedy: "end the exec session or program that the pipe leads to"}, nil
	}
	return finding{}, nil // the other end is closed
}

// outsider finds a process outside of the container that has an open file with this link text; 0 if there
// is none. It examines all processes of the node, so it is used only for pipes with one end inside.
func (x *examination) outsider(target string) (holder int) {
	x.eachOutside(func(pid int, text string) bool {
		if text == target {
			holder = pid
		}
		return holder == 0
	})
	return holder
}

// eachOutside calls visit for the open files of all processes outside of the container, until visit returns
// false.
func (x *examination) eachOutside(visit func(pid int, target string) bool) {
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return // the pattern is constant and valid
	}
	for _, link := range links {
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil || slices.Contains(x.subject.PIDs, pid) {
			continue
		}
		if text, err := os.Readlink(link); err == nil && !visit(pid, text) {
			return
		}
	}
}
