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

// DirectIO reports whether devices may write to the process's memory directly. They may if the process has
// a file open for reading with O_DIRECT, a file of a file system that may read into a program's memory
// without the page cache, or a context for asynchronous input and output (io_setup(2)), which is a mapping
// of its own.
func (a *AddressSpace) DirectIO() (bool, error) {
	all, err := a.Mappings()
	if err != nil {
		return false, err
	}
	for _, m := range all {
		if strings.HasPrefix(m.Name, "/[aio]") {
			return true, nil
		}
	}
	uncached, err := a.uncachedMounts()
	if err != nil {
		return false, err
	}
	entries, err := os.ReadDir(fmt.Sprintf("/proc/self/fd/%d/fdinfo", a.proc.Fd()))
	if err != nil {
		return false, a.failed("list its descriptors", err)
	}
	for _, e := range entries {
		direct, err := a.isDirect(e.Name(), uncached)
		if direct || err != nil && !errors.Is(err, fs.ErrNotExist) { // closed meanwhile
			return direct, err
		}
	}
	return false, nil
}

// isDirect checks a descriptor (proc_pid_fdinfo(5)). O_DIRECT means something else for a pipe (pipe(2)).
func (a *AddressSpace) isDirect(fd string, uncached map[string]bool) (bool, error) {
	f, err := a.open("fdinfo/" + fd)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var flags uint64
	var mount string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ":")
		switch value = strings.TrimSpace(value); key {
		case "flags":
			if flags, err = strconv.ParseUint(value, 8, 32); err != nil {
				return false, a.failed("read the flags of descriptor "+fd, err)
			}
		case "mnt_id":
			mount = value
		}
	}
	switch {
	case flags&unix.O_ACCMODE == unix.O_WRONLY, flags&(unix.O_PATH|unix.O_DIRECTORY) != 0:
		return false, nil // nothing is read through it
	case uncached[mount]:
		return true, nil
	case flags&unix.O_DIRECT == 0:
		return false, nil
	}
	var target [16]byte
	n, err := unix.Readlinkat(int(a.proc.Fd()), "fd/"+fd, target[:])
	return err == nil && !strings.HasPrefix(string(target[:n]), "pipe:"), nil
}

// uncachedMounts returns the numbers of mounts whose file systems may read into a program's memory as with
// O_DIRECT, but without that flag: in user space by FOPEN_DIRECT_IO, SMB and 9P by mount options.
func (a *AddressSpace) uncachedMounts() (map[string]bool, error) {
	f, err := a.open("mountinfo")
	if errors.Is(err, unix.EINVAL) { // it has just ended
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found := map[string]bool{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if m, ok := ParseMount(lines.Text()); ok && isUncached(m.Type) {
			number, _, _ := strings.Cut(lines.Text(), " ")
			found[number] = true
		}
	}
	if err := lines.Err(); err != nil {
		return nil, a.failed("read its mounts", err)
	}
	return found, nil
}

func isUncached(fileSystem string) bool {
	switch fileSystem {
	case "fuse.fuse-overlayfs": // the root of many containers; it reads through the page cache
		return false
	case "fuse", "fuseblk", "virtiofs", "cifs", "smb3", "9p":
		return true
	}
	return strings.HasPrefix(fileSystem, "fuse.")
}
